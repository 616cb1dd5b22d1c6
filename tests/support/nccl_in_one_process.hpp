// SPDX-License-Identifier: Apache-2.0
//
// All ranks of a run in one process, with messages by NCCL: with one device, and so one thread, the
// model repeats an interleaving from its seed.
#pragma once

#include <zbpp/analysis/verify.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/state_link.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace zbpp::test {

/// @return a pause that takes no time and gives up in the end
[[nodiscard]] inline nccl::pause_call brief_pause() {
  return [left = 100'000](std::chrono::microseconds) mutable {
    if (--left == 0) throw std::runtime_error("waited for too long");
  };
}

/// @return the communicators of all channels, for ranks that are all here
[[nodiscard]] inline std::shared_ptr<nccl::detail::communicator_set> make_communicators(
    std::vector<channel> const& channels,
    std::vector<nccl::detail::local_rank> here,
    channel_layout layout) {
  auto how = nccl::detail::map_communicators(channels, static_cast<int>(here.size()), layout);
  std::vector<ncclUniqueId> ids(how.communicators.size());
  for (auto& id : ids) nccl::check(ncclGetUniqueId(&id));
  return std::make_shared<nccl::detail::communicator_set>(
      channels, std::move(here), std::move(how), ids, 1, brief_pause());
}

/// Runs all ranks that way.
struct nccl_in_one_process {
  using transport_type = nccl::detail::transport;
  using pass_observer = cuda::pass_observer;
  static constexpr bool reserves_memory = true;

  channel_layout layout = channel_layout::one_per_directed_pair;
  bool verifies = true;  ///< false: layouts that do not work are used as well
  std::vector<cuda::message_shape> edges = {};
  std::vector<cuda::rank_device> devices = {};

  class executor;
};

class nccl_in_one_process::executor : public one_process {
 public:
  executor(nccl_in_one_process settings, plan const& planned)
      : one_process(planned),
        settings_(std::move(settings)),
        shapes_(cuda::shapes_of(planned.problem(), settings_.edges)),
        states_(state_map(planned.program())),
        launcher_(settings_.devices, ranks(), planned, {}) {
    if (settings_.verifies) verify_or_throw(planned.program(), planned.problem(), settings_.layout);
  }

  [[nodiscard]] arena make_memory(int rank) {
    return arena(cuda::device_memory(launcher_.at(rank).device()));
  }
  [[nodiscard]] pass_context context_of(int rank, arena& buffers) noexcept {
    return pass_context(buffers, backend_kind::cuda, &launcher_.at(rank));
  }
  [[nodiscard]] std::unique_ptr<nccl::detail::transport> make_transport(
      program const& code, traffic const& messages, problem const&) {
    std::vector<cuda::device_context*> contexts;
    std::vector<nccl::detail::local_rank> here;
    for (int rank : ranks()) {
      contexts.push_back(&launcher_.at(rank));
      here.push_back({rank, launcher_.at(rank).device()});
    }
    if (communicators_ == nullptr)
      communicators_ = make_communicators(messages.channels(), std::move(here), settings_.layout);
    auto made = std::make_unique<nccl::detail::transport>(
        communicators_,
        std::move(contexts),
        cuda::needs_of(code, messages, shapes_, cuda::slot_filling::by_receives));
    if (exchanges_states(code)) {
      for (int rank : ranks()) states_.bind(rank, wakeup_of(rank));
      made->link_states(states_);
    }
    return made;
  }
  static void connect(nccl::detail::transport&) noexcept {}
  [[nodiscard]] wakeup* wakeup_of(int rank) { return launcher_.wakeup_of(rank); }
  void start_run() { launcher_.start_run(); }
  [[nodiscard]] pass_observer observer_of(int rank) noexcept { return launcher_.observer_of(rank); }

  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    launcher_.warm_up(engines);
  }
  template <class Engine>
  void run(
      std::vector<Engine>& engines, nccl::detail::transport& transport, step_status const& status) {
    launcher_.issue(engines);
    try {
      if (!status.has_failed())
        for (auto& e : engines) launcher_.at(e.rank()).end().synchronize();
      if (!status.has_failed()) launcher_.collect(engines);
    } catch (...) {
      engines.front().fail(std::current_exception());
    }
    if (status.has_failed()) {
      communicators_->abort();
      launcher_.synchronize();
    }
    for (auto const* end : transport.communicators().endpoints())
      cudaStreamSynchronize(end->messages.view());
  }

 private:
  nccl_in_one_process settings_;
  std::vector<cuda::message_shape> shapes_;
  in_process_states states_;
  cuda::launcher launcher_;
  std::shared_ptr<nccl::detail::communicator_set> communicators_;
};

}  // namespace zbpp::test
