// SPDX-License-Identifier: Apache-2.0
//
// All ranks of a run in one process, each on a device of its own, with messages by NCCL: one thread
// issues what all of them run, so the model repeats an interleaving from its seed.
#pragma once

#include <zbpp/analysis/verify.hpp>
#include <zbpp/cuda/detail/step_graph.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/nccl/detail/channel_plan.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/state_link.hpp>

#include <support/cuda_training.hpp>
#include <support/plan_grid.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <span>
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

/// Calls `visit(name, plan)` for the plans of the toy network on some ranks, with few and with many
/// microbatches, and with receives at once and ahead.
template <class Visit>
void for_each_plan_to_launch(int ranks, Visit visit) {
  for (auto const& placement : placements_to_run(ranks))
    for (int m : {1, 2 * ranks + 1})
      for (int ahead : {0, 2})
        for_each_plan_of(
            problem(placement, m, launched_costs(), 87),
            {.fused = true, .recomputed = ranks == 2, .receive_ahead = ahead},
            visit);
}

/// @return the communicators of all channels, for ranks that are all here
[[nodiscard]] inline std::shared_ptr<nccl::detail::communicator_set> make_communicators(
    std::vector<channel> const& channels,
    std::vector<nccl::detail::local_rank> here,
    channel_layout layout) {
  auto map = nccl::detail::map_communicators(channels, layout);
  std::vector<ncclUniqueId> ids(map.communicators.size());
  for (auto& id : ids) nccl::check(ncclGetUniqueId(&id));
  return std::make_shared<nccl::detail::communicator_set>(
      channels, std::move(here), std::move(map), ids, 1, brief_pause());
}

/// Runs all ranks that way, each on the device of its number.
struct nccl_in_one_process {
  using transport_type = nccl::detail::transport;
  using pass_observer = cuda::pass_observer;
  static constexpr bool reserves_memory = true;

  channel_layout layout = channel_layout::one_per_directed_pair;
  bool verifies = true;  ///< false: layouts that do not work are used as well
  bool replays = false;  ///< whether each rank captures its steps, as `ranks_settings::replay`
  std::vector<cuda::message_shape> edges = {};

  class executor;
};

class nccl_in_one_process::executor : public one_process {
 public:
  executor(nccl_in_one_process settings, plan const& planned)
      : one_process(planned),
        settings_(std::move(settings)),
        shapes_(cuda::shapes_of(planned.problem(), settings_.edges)),
        states_(state_map(planned.program())) {
    if (settings_.verifies) verify_or_throw(planned.program(), planned.problem(), settings_.layout);
    for (int rank : ranks()) {
      cuda::device_guard const here(rank);
      contexts_.push_back(std::make_unique<cuda::device_context>(
          cuda::rank_device{.device = rank},
          planned.problem().microbatches(),
          planned.schedule().passes(rank),
          cuda::launch_settings{}));
    }
  }

  [[nodiscard]] arena make_memory(int rank) override { return arena(cuda::device_memory(rank)); }
  [[nodiscard]] pass_context context_of(int rank, arena& buffers) noexcept override {
    return pass_context(buffers, backend_kind::cuda, &at(rank));
  }
  [[nodiscard]] std::shared_ptr<void> enter(int rank) override {
    return std::make_shared<cuda::device_guard>(rank);
  }
  [[nodiscard]] std::unique_ptr<nccl::detail::transport> make_transport(
      program const& code, traffic const& messages, problem const&) {
    std::vector<cuda::device_context*> contexts;
    std::vector<nccl::detail::local_rank> here;
    for (int rank : ranks()) {
      contexts.push_back(&at(rank));
      here.push_back({rank, rank});
    }
    if (communicators_ == nullptr)
      communicators_ = make_communicators(messages.channels(), std::move(here), settings_.layout);
    std::vector const filling(messages.channels().size(), cuda::slot_filling::by_receives);
    auto made = std::make_unique<nccl::detail::transport>(
        communicators_, std::move(contexts), cuda::needs_of(code, messages, shapes_, filling));
    if (settings_.replays && replays_.empty())  // the first program is the one that trains
      for (int rank : ranks()) {
        cuda::device_guard const there(rank);
        replays_.push_back(
            &made->replay_with(rank, std::make_unique<nccl::detail::step_replay>(at(rank))));
        orders_.push_back(std::make_unique<cuda::detail::step_order>(
            std::vector{&at(rank)}, 1, std::vector{replays_.back()->messages()}));
      }
    if (exchanges_states(code)) {
      for (int rank : ranks()) states_.bind(rank, wakeup_of(rank));
      made->link_states(states_);
    }
    return made;
  }
  static void connect(nccl::detail::transport&) noexcept {}
  [[nodiscard]] wakeup* wakeup_of(int) noexcept { return &wake_; }
  void start_run() noexcept {
    for (auto& each : contexts_) each->start_run();
  }
  [[nodiscard]] pass_observer observer_of(int rank) noexcept { return pass_observer(at(rank)); }

  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    for (auto& e : engines) {
      cuda::device_guard const here(e.rank());
      e.warm_up();
      at(e.rank()).compute().synchronize();
    }
  }
  template <class Engine>
  void run(
      std::vector<Engine>& engines, nccl::detail::transport& transport, step_status const& status) {
    try {
      auto const way = choose(engines);
      if (way == nccl::detail::step_way::issue)
        issue_step(engines, status);
      else
        start(way, engines, transport, status);
      if (!status.has_failed())
        for (auto& e : engines) at(e.rank()).read_results(e.trace());
    } catch (...) {
      engines.front().fail(std::current_exception());
    }
    if (status.has_failed()) {
      for (auto const& each : replays_) each->discard();
      communicators_->abort();
      for (int rank : ranks()) at(rank).synchronize();
    }
    for (auto const* end : transport.communicators().endpoints())
      cudaStreamSynchronize(end->messages.view());
  }

 private:
  [[nodiscard]] cuda::device_context& at(int rank) noexcept {
    return *contexts_[zbpp::detail::index(rank)];
  }

  template <class Engine>
  [[nodiscard]] nccl::detail::step_way choose(std::vector<Engine>& engines) {
    auto least = replays_.empty() ? nccl::detail::step_way::issue : nccl::detail::step_way::replay;
    bool const trains = engines.front().is_training();
    for (std::size_t i = 0; i < replays_.size(); ++i) {
      if (!trains) replays_[i]->unsettle();
      if (trains && !replays_[i]->is_settled(0))
        least = std::min(least, replays_[i]->choose(std::span(&engines[i], 1), 0));
    }
    if (!trains) return nccl::detail::step_way::issue;
    for (auto const& each : replays_) each->settle(least, 0);
    return least;
  }
  // Launches the graphs of all ranks, which are captured one after the other.
  template <class Engine>
  void start(
      nccl::detail::step_way way,
      std::vector<Engine>& engines,
      nccl::detail::transport& transport,
      step_status const& status) {
    for (std::size_t i = 0; i < replays_.size() && !status.has_failed(); ++i) {
      cuda::device_guard const here(engines[i].rank());
      std::span<Engine> engine(&engines[i], 1);
      replays_[i]->start(way, engine, *orders_[i], 0, [&] {
        if (engines[i].advance() == progress::blocked)
          throw std::logic_error("a rank waits for another one while its step is captured");
        transport.drain();
        return !status.has_failed();
      });
    }
    for (int rank : ranks()) {
      cuda::device_guard const here(rank);
      if (!status.has_failed()) cuda::check(cudaDeviceSynchronize());
    }
  }
  template <class Engine>
  void issue_step(std::vector<Engine>& engines, step_status const& status) {
    issue(engines);
    for (int rank : ranks()) at(rank).compute().record(at(rank).end());
    if (!status.has_failed())
      for (int rank : ranks()) at(rank).end().synchronize();
  }

  // Issues one pass after another, always of the rank whose planned time is the earliest, as
  // `cuda::launcher` does for the ranks of one device.
  template <class Engine>
  void issue(std::vector<Engine>& engines) {
    std::vector<Engine*> left;
    for (auto& e : engines) left.push_back(&e);
    auto ready = left;
    for (auto seen = wake_.load(); !left.empty();) {
      if (ready.empty()) {  // all wait for what others tell them
        if (wake_.load() == seen) throw std::logic_error("the ranks wait for one another");
        seen = wake_.load();
        ready = left;
      }
      auto const next =
          std::ranges::min_element(ready, {}, [](auto const* e) { return e->time().now(); });
      auto& engine = **next;
      cuda::device_guard const here(engine.rank());
      auto const before = engine.passes_run();
      auto const reached = engine.advance(1);
      if (reached == progress::failed) return;
      if (reached == progress::done) std::erase(left, &engine);
      if (engine.passes_run() != before)
        ready = left;
      else if (reached != progress::paused)
        ready.erase(next);
    }
  }

  nccl_in_one_process settings_;
  std::vector<cuda::message_shape> shapes_;
  in_process_states states_;
  wakeup wake_{0};
  std::vector<std::unique_ptr<cuda::device_context>> contexts_;  // by rank
  std::shared_ptr<nccl::detail::communicator_set> communicators_;
  std::vector<nccl::detail::step_replay*> replays_;  // by rank, where steps are replayed
  std::vector<std::unique_ptr<cuda::detail::step_order>> orders_;  // likewise
};

}  // namespace zbpp::test
