// SPDX-License-Identifier: Apache-2.0
//
// The toy network for steps that are replayed on the model of CUDA: what differs from step to step,
// their number, is in device memory, where each stage counts for itself.
#pragma once

#include <zbpp/cuda/device.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_toy.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_reference.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::test::toy {

/// Counts the steps of a stage, in device memory.
class step_counter {
 public:
  step_counter() = default;
  /// Counts from 0, on a device.
  explicit step_counter(int device) {
    cuda::device_guard const here(device);
    number_ = cuda::device_array<std::int64_t>(1);
    cuda::stream const setter(cuda::stream_priority::usual);
    cuda::check(cudaMemsetAsync(number_.data(), 0, sizeof(std::int64_t), setter.view()));
    setter.view().synchronize();
  }

  /// @return the number of the step, in a kernel
  [[nodiscard]] std::int64_t const* value() const noexcept { return number_.data(); }
  /// Enqueues the next step's number.
  void count(pass_context ctx) const {
    auto* const number = number_.data();
    cuda_model::range const all{number, sizeof *number};
    cuda::check(
        cuda_model::launch(cuda::stream_of(ctx), "count", {all}, {all}, [number] { ++*number; }));
  }

 private:
  cuda::device_array<std::int64_t> number_;
};

/// Launches the arithmetic of passes that take the number of the step from device memory.
struct counted : launched {
  /// Those of the stages that run now, by number.
  static inline std::vector<step_counter>* counters = nullptr;
  /// Has the stages of one training count there, for as long as it lives.
  class in_use {
   public:
    explicit in_use(std::vector<step_counter>& all) {
      REQUIRE(counters == nullptr);
      counters = &all;
    }
    in_use(in_use const&) = delete;
    in_use& operator=(in_use const&) = delete;
    ~in_use() { counters = nullptr; }
  };

  static auto step(microbatch mb) {
    return [number = counters->at(zbpp::detail::index(mb.stage())).value()] { return *number; };
  }
};

/// The passes of a stage whose steps can be replayed.
template <class Passes>
class counted_passes : public Passes {
 public:
  counted_passes(stage_model& of, step_counter const& counter) : Passes(of), counter_(&counter) {}
  void update(pass_context ctx) {
    if constexpr (requires { Passes::update(ctx); }) Passes::update(ctx);
    counter_->count(ctx);
  }

 private:
  step_counter const* counter_;
};

/// A training of the toy network on the model of CUDA, which is reset before, whose steps can be
/// replayed.
/// @tparam Backend  `cuda::device`, or one with a device for each rank
template <class Passes = basic_passes<counted>, class Backend = cuda::device>
class counted_training {
 public:
  explicit counted_training(plan const& planned)
    requires std::same_as<Backend, cuda::device>
      : counted_training(planned, {.replay = cuda::replay::step}) {}
  counted_training(plan const& planned, Backend backend)
      : all_(make_model(planned.problem().stages())), counters_(all_.size()) {
    for (int rank = 0; rank < planned.problem().ranks(); ++rank)
      for (int const stage : planned.problem().placement().stages_of(rank))
        counters_[zbpp::detail::index(stage)] = step_counter(device_of(backend, rank));
    for (std::size_t s = 0; s < all_.size(); ++s) passes_.emplace_back(all_[s], counters_[s]);
    for (auto& each : passes_) stages_.emplace_back(each);
    backend.edges = edge_shapes(planned.problem());
    pipe_.emplace(planned, std::move(backend), stages_);
  }
  counted_training(counted_training const&) = delete;
  counted_training& operator=(counted_training const&) = delete;

  /// Runs a step, after which weights are updated by the host.
  void step() {
    auto const& result = pipe_->step();
    seen_.losses.push_back(result.losses);
    seen_.models.push_back(all_);
    update(all_);
  }
  /// @return the steps so far
  [[nodiscard]] history const& seen() const noexcept { return seen_; }
  [[nodiscard]] pipeline<Backend>& pipe() noexcept { return *pipe_; }
  [[nodiscard]] model const& given() const noexcept { return all_; }

 private:
  [[nodiscard]] static int device_of(Backend const& backend, int rank) {
    if constexpr (requires { backend.devices; })
      return backend.devices.empty() ? 0 : backend.devices[zbpp::detail::index(rank)].device;
    else
      return rank;
  }

  model all_;
  std::vector<step_counter> counters_;
  counted::in_use counts_{counters_};
  std::vector<counted_passes<Passes>> passes_;
  std::vector<as_flow<counted_passes<Passes>>> stages_;
  std::optional<pipeline<Backend>> pipe_;
  history seen_;
};

/// @return what one process makes of some steps, with losses as a device gives them
[[nodiscard]] inline history counted_reference(plan const& planned, int count) {
  auto all = make_model(planned.problem().stages());
  fused_passes const is_fused(planned);
  history result;
  for (int i = 0; i < count; ++i) {
    result.losses.push_back(
        device_reference_step(all, i, planned.problem().microbatches(), is_fused));
    result.models.push_back(all);
    update(all);
  }
  return result;
}

}  // namespace zbpp::test::toy
