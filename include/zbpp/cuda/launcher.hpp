// SPDX-License-Identifier: Apache-2.0
//
// Issues the passes of the ranks of this process: one thread per device, in the order in which the
// plan starts the passes. Public for authors of backends.
//
// An event is recorded before any stream is told to wait for it, so enqueued work never waits for
// an event that is still to be recorded: neither device nor host can deadlock.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/transport.hpp>
#include <zbpp/runtime/workers.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace zbpp::cuda {

/// Issues the work of some ranks on their devices.
class launcher {
 public:
  /// Makes streams and events for ranks of a plan.
  /// @param devices  one for each of `ranks`; empty: all on the current device
  /// @throws error (bad_argument) unless there is a rank_device for each rank, or when one cannot
  ///         be used; cuda_error
  launcher(
      std::vector<rank_device> devices,
      std::span<int const> ranks,
      plan const& planned,
      launch_settings const& settings);

  [[nodiscard]] device_context& at(int rank) noexcept { return *contexts_[position(rank)]; }
  [[nodiscard]] wakeup* wakeup_of(int rank) { return &queue_of(at(rank).device()).wake; }
  [[nodiscard]] pass_observer observer_of(int rank) noexcept { return pass_observer(at(rank)); }

  /// Gets all ranks ready for a run of steps.
  /// @param turn  of the step among those at once
  void start_run(std::size_t turn = 0) noexcept {
    for (auto& each : contexts_) each->start_run(turn);
  }

  /// Lets the stages of every rank get ready, on the threads that issue their passes, and waits for
  /// what they enqueue.
  /// @throws what a stage throws; cuda_error
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    auto const job = [&](int worker) {
      auto const& queue = *queues_[zbpp::detail::index(worker)];
      device_guard const here(queue.device);
      for (auto const& r : queue.ranks) {
        device_guard const there(r.device);
        engines[r.engine].warm_up();
        contexts_[r.engine]->compute().synchronize();
      }
    };
    if (threads_ != nullptr)
      threads_->run_checked(job);
    else
      job(0);
  }

  /// Issues the steps of a run, unless one fails. Returns when nothing is left to issue; the
  /// devices may still be at work.
  template <class Engine>
  void issue(std::vector<Engine>& engines) {
    issue(engines, sleep_until_notified{});
  }
  /// As above.
  /// @param wait  called when the ranks of a device wait for others; returns once the wakeup has
  ///              another count, or when something else may let them go on
  template <class Engine, std::invocable<wakeup const&, std::uint32_t> Wait>
  void issue(std::vector<Engine>& engines, Wait const& wait) {
    issue_run(engines, wait, false);
  }
  /// Issues the steps of a run whose streams others order: waits for no caller, marks no ends.
  template <class Engine>
  void issue_in_order(std::vector<Engine>& engines) {
    issue_in_order(engines, sleep_until_notified{});
  }
  /// As above.
  /// @param wait  as of `issue`
  template <class Engine, std::invocable<wakeup const&, std::uint32_t> Wait>
  void issue_in_order(std::vector<Engine>& engines, Wait const& wait) {
    issue_run(engines, wait, true);
  }

  /// Reads the results of the last step once the devices are done: losses, and measured times.
  /// @throws cuda_error
  template <class Engine>
  void collect(std::vector<Engine>& engines) {
    for (std::size_t i = 0; i < contexts_.size(); ++i)
      contexts_[i]->read_results(engines[i].trace());
  }

  /// Reads the losses of one of the steps at once.
  void collect_losses(std::size_t turn) noexcept {
    for (auto& each : contexts_) each->read_losses(turn);
  }

  /// Blocks until the devices are done with what was issued, whether it succeeded or not.
  void synchronize() noexcept {
    for (auto& each : contexts_) each->synchronize();
  }

 private:
  struct sleep_until_notified {
    void operator()(wakeup const& wake, std::uint32_t seen) const noexcept {
      wake.wait(seen, std::memory_order_relaxed);
    }
  };
  struct rank_state {
    std::size_t engine;  // among those of this process
    int device = 0;
    bool is_done = false;
    bool is_blocked = false;
  };
  // The ranks of one device, or of all, whose passes one thread issues.
  struct device_queue {
    int device = 0;  // of the first one
    std::vector<rank_state> ranks;
    std::optional<event> epoch;
    wakeup wake{0};

    // Marks no rank as blocked. The count is read before the ranks are tried again, so a message
    // that is issued after that ends the next wait, whichever rank it is for.
    [[nodiscard]] std::uint32_t unblock_all() noexcept {
      for (auto& r : ranks) r.is_blocked = false;
      return wake.load(std::memory_order_acquire);
    }
  };

  [[nodiscard]] std::size_t position(int rank) const noexcept {
    return zbpp::detail::index(std::ranges::find(ranks_, rank) - ranks_.begin());
  }
  [[nodiscard]] device_queue& queue_of(int device) {
    auto const found = std::ranges::find_if(
        queues_, [&](auto const& q) { return one_thread_ || q->device == device; });
    if (found != queues_.end()) return **found;
    queues_.push_back(std::make_unique<device_queue>());
    queues_.back()->device = device;
    return *queues_.back();
  }

  // One function for both ways, so that compilers put the engine in place.
  template <class Engine, class Wait>
  void issue_run(std::vector<Engine>& engines, Wait const& wait, bool is_in_order) {
    try {
      if (!is_in_order)
        for (auto& each : contexts_) each->wait_for_caller();
      // Measured times of a device count from here.
      for (auto& q : queues_)
        if (q->epoch) contexts_[q->ranks.front().engine]->compute().record(*q->epoch);
    } catch (...) {
      engines.front().fail(std::current_exception());
      return;
    }
    auto job = [this, &engines, &wait, is_in_order](int worker) {
      auto& queue = *queues_[zbpp::detail::index(worker)];
      try {
        device_guard const here(queue.device);
        issue_all(queue, engines, wait);
        if (is_in_order) return;
        for (auto const& r : queue.ranks)
          contexts_[r.engine]->compute().record(contexts_[r.engine]->end());
      } catch (...) {
        engines[queue.ranks.front().engine].fail(std::current_exception());
      }
    };
    if (threads_ != nullptr)
      threads_->run(job);
    else
      job(0);
  }
  // Issues one pass after another, always of the rank whose planned time is the earliest.
  template <class Engine, class Wait>
  void issue_all(device_queue& queue, std::vector<Engine>& engines, Wait const& wait) {
    for (auto& r : queue.ranks) r.is_done = false;
    auto seen = queue.unblock_all();
    auto current = queue.device;
    for (;;) {
      rank_state* next = nullptr;
      bool is_done = true;
      for (auto& r : queue.ranks) {
        is_done = is_done && r.is_done;
        if (r.is_done || r.is_blocked) continue;
        if (next == nullptr || engines[r.engine].time().now() < engines[next->engine].time().now())
          next = &r;
      }
      if (is_done) return;
      if (next == nullptr) {  // all wait for what other threads or processes issue
        wait(queue.wake, seen);
        seen = queue.unblock_all();
        continue;
      }
      if (next->device != current) check(cudaSetDevice(current = next->device));
      auto& engine = engines[next->engine];
      auto const before = engine.passes_run();
      auto const reached = engine.advance(1);
      if (reached == progress::failed) return;
      next->is_done = reached == progress::done;
      next->is_blocked = reached == progress::blocked;
      if (engine.passes_run() != before) seen = queue.unblock_all();
    }
  }

  std::span<int const> ranks_;
  bool one_thread_;
  std::vector<std::unique_ptr<device_context>> contexts_;  // one for each of the ranks
  std::vector<std::unique_ptr<device_queue>> queues_;      // one per device
  std::unique_ptr<workers> threads_;                       // only when there are several devices
};

inline launcher::launcher(
    std::vector<rank_device> devices,
    std::span<int const> ranks,
    plan const& planned,
    launch_settings const& settings)
    : ranks_(ranks), one_thread_(settings.one_thread) {
  if (devices.empty()) {
    int current = 0;
    check(cudaGetDevice(&current));
    devices.assign(ranks.size(), {.device = current});
  }
  if (devices.size() != ranks.size())
    throw error(errc::bad_argument) + "there are " + devices.size() + " devices for " +
        ranks.size() + " ranks; give one for each rank, or none";
  int count = 0;
  check(cudaGetDeviceCount(&count));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    auto const device = devices[i].device;
    if (device < 0 || device >= count)
      throw error(errc::bad_argument) + "rank " + ranks[i] + " is to run on device " + device +
          "; choose one from 0 to " + (count - 1);
    device_guard const here(device);
    contexts_.push_back(std::make_unique<device_context>(
        devices[i],
        planned.problem().microbatches(),
        planned.schedule().passes(ranks[i]),
        settings));
    queue_of(device).ranks.push_back({.engine = i, .device = device});
  }
  if (settings.traces) {
    for (auto& q : queues_) {
      device_guard const here(q->device);
      q->epoch.emplace(event_kind::timing);
      for (auto const& r : q->ranks) contexts_[r.engine]->measure_from(*q->epoch);
    }
  }
  if (queues_.size() > 1) threads_ = std::make_unique<workers>(static_cast<int>(queues_.size()));
}

}  // namespace zbpp::cuda
