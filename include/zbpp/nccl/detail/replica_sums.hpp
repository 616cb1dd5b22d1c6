// SPDX-License-Identifier: Apache-2.0
//
// Adds gradients up over replicas by NCCL, in place, on a stream and a communicator of their own:
// beside the passes that follow, and without the host.
#pragma once

#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/runtime/gradient_sums.hpp>
#include <zbpp/runtime/group.hpp>

#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Adds up the gradients of the rank of this process.
class replica_sums final : public gradient_sums {
 public:
  /// What it refers to outlives its use.
  /// @param by       of the rank and its replicas, one of the communicators
  /// @param context  of the rank
  /// @throws cuda_error
  replica_sums(communicator_set& communicators, endpoint const& by, cuda::device_context& context)
      : communicators_(&communicators), by_(&by), context_(&context), made_(make_event()) {}
  [[nodiscard]] cuda::stream_ref stream() const { return by_->messages; }

  /// Takes note of a stage. @throws cuda_error
  void add_stage(int stage, std::vector<std::span<float>> layers) override {
    std::erase_if(layers, [](std::span<float> each) { return each.empty(); });
    stages_.push_back({stage, std::move(layers), make_event()});
  }
  /// Sees that all replicas have as many gradients, since NCCL does not; a collective call of them.
  /// @throws error (no_agreement) that says who differs; the failure of the run
  void compare(zbpp::group& replicas) const {
    std::vector<std::int64_t> own;
    for (auto const& s : stages_) {
      own.insert(own.end(), {s.number, std::ssize(s.layers)});
      for (auto const layer : s.layers) own.push_back(std::ssize(layer));
    }
    std::vector<std::vector<std::byte>> all;
    replicas.exchange(std::as_bytes(std::span(own)), all);
    for (std::size_t other = 1; other < all.size(); ++other)
      if (all[other] != all.front())
        throw error(errc::no_agreement) + "the layers of the stages of replica " + other +
            " have other sizes than those of replica 0; give all replicas the same weights";
  }

  /// Adds up zeros as each stage adds up its gradients: NCCL chooses an algorithm by the sizes and
  /// the number of the calls in a group, and connects when it first uses one, for which hosts wait
  /// for each other. A collective call of the replicas; takes at most 64 MiB meanwhile.
  /// @param pause  called while the devices are waited for; throws to give up
  /// @throws cuda_error; nccl_error; what `pause` throws
  /// @source NCCL, ncclPrepareTasks in src/enqueue.cc
  void connect(pause_call const& pause) {
    std::size_t most = 0;
    for (auto const& each : stages_) {
      std::size_t all = 0;
      for (auto const layer : each.layers) all += layer.size();
      most = std::max(most, std::min(all, most_zeros));
    }
    if (most == 0) return;
    cuda::device_guard const here(context_->device());
    cuda::device_array<float> const zeros(most);
    try {
      cuda::check(cudaMemsetAsync(zeros.data(), 0, most * sizeof(float), stream()));
      for (auto const& each : stages_) {
        if (each.layers.empty()) continue;
        communicators_->use([&] {
          enqueue(zeros_for(each.layers, {zeros.data(), most}));
          by_->comm.wait(pause);
        });
      }
      stream().record(made_);
      poll([this] { return made_.view().is_complete(); }, pause);
    } catch (...) {
      communicators_->abort();  // memory goes once nothing uses it
      cudaStreamSynchronize(stream());
      throw;
    }
  }

  /// Enqueues the sum of a stage.
  /// @throws cuda_error; nccl_error
  void start(int chunk) override {
    auto const& own = stages_[zbpp::detail::index(chunk)];
    if (own.layers.empty() || communicators_->is_aborted()) return;
    context_->compute().record(made_);
    stream().wait(made_);
    communicators_->use([&] {
      enqueue(own.layers);
      communicators_->await(by_->comm);  // so that what is recorded next is after it
    });
    if (!communicators_->is_aborted()) stream().record(own.summed);
  }
  /// Lets passes wait for the sum of a stage. @throws cuda_error
  void finish(int chunk) override {
    auto const& own = stages_[zbpp::detail::index(chunk)];
    if (!own.layers.empty() && !communicators_->is_aborted()) context_->compute().wait(own.summed);
  }
  /// @return whether no sum that was begun is waiting or running
  /// @throws cuda_error
  [[nodiscard]] bool are_done() const {
    return std::ranges::all_of(
        stages_, [](stage_sum const& each) { return each.summed.view().is_complete(); });
  }

 private:
  struct stage_sum {
    std::int64_t number;
    std::vector<std::span<float>> layers;
    cuda::event summed;
  };

  // Own choice: bounds the memory. Larger layers count as so many, and where a stage has more, its
  // layers share them, which no sum of zeros changes.
  static constexpr std::size_t most_zeros = (std::size_t{64} << 20U) / sizeof(float);

  // Gives a place among zeros to each of some layers.
  [[nodiscard]] static std::vector<std::span<float>> zeros_for(
      std::span<std::span<float> const> layers, std::span<float> zeros) {
    std::vector<std::span<float>> places;
    std::size_t first = 0;
    for (auto const layer : layers) {
      auto const size = std::min(layer.size(), zeros.size());
      if (first + size > zeros.size()) first = 0;
      places.push_back(zeros.subspan(first, size));
      first += size;
    }
    return places;
  }

  void enqueue(std::span<std::span<float> const> layers) const {
    group together;
    for (auto const layer : layers)
      check_started(ncclAllReduce(
          layer.data(),
          layer.data(),
          layer.size(),
          ncclFloat32,
          ncclSum,
          by_->comm.get(),
          stream()));
    together.end();
  }

  [[nodiscard]] cuda::event make_event() const {
    return cuda::on_device(context_->device(), [] { return cuda::event(cuda::event_kind::order); });
  }

  communicator_set* communicators_;
  endpoint const* by_;
  cuda::device_context* context_;
  cuda::event made_;  // the gradients; one is enough, as a wait refers to its latest record
  std::vector<stage_sum> stages_;
};

}  // namespace zbpp::nccl::detail
