// SPDX-License-Identifier: Apache-2.0
//
// Issues the work of the ranks that this process feeds: one thread per device, in the order in
// which the plan has the passes start. An event is recorded before anybody is told to wait for it,
// so what is on a device can always go on, and so can the host.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/engine.hpp>
#include <zbpp/runtime/detail/workers.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zbpp::cuda {

/// Feeds the devices of some ranks.
class launcher {
 public:
  /// Makes streams and events for ranks of a plan.
  /// @param devices  one for each of `ranks`; empty: all on the current device
  /// @throws error (bad_argument) unless there is a rank_device for each rank, or when one cannot
  /// be used;
  ///         cuda_error
  launcher(
      std::vector<rank_device> devices,
      std::span<int const> ranks,
      plan const& planned,
      launch_settings const& how)
      : ranks_(ranks) {
    if (devices.empty()) {
      int current = 0;
      check(cudaGetDevice(&current));
      devices.assign(ranks.size(), {.device = current});
    }
    if (devices.size() != ranks.size())
      throw error(
          errc::bad_argument,
          "there are " + std::to_string(devices.size()) + " devices for " +
              std::to_string(ranks.size()) + " ranks; state one for each, or none");
    int count = 0;
    check(cudaGetDeviceCount(&count));
    for (std::size_t i = 0; i < devices.size(); ++i) {
      auto const device = devices[i].device;
      if (device < 0 || device >= count)
        throw error(
            errc::bad_argument,
            "rank " + std::to_string(ranks[i]) + " is to run on device " + std::to_string(device) +
                "; there are " + std::to_string(count));
      device_guard const here(device);
      contexts_.push_back(std::make_unique<device_context>(
          devices[i],
          planned.problem().microbatches(),
          planned.schedule().passes(ranks[i]).size(),
          how));
      feeder_of(device).fed.push_back({.engine = i});
    }
    if (how.traces) {
      for (auto& f : feeders_) {
        device_guard const here(f->device);
        f->epoch.emplace(event_kind::timing);
      }
    }
    if (feeders_.size() > 1)
      threads_ = std::make_unique<workers>(static_cast<int>(feeders_.size()));
  }

  /// @return what a rank runs with
  [[nodiscard]] device_context& at(int rank) noexcept { return *contexts_[position(rank)]; }
  /// @return what rings when a message for a rank was issued
  [[nodiscard]] wakeup* wakeup_of(int rank) { return &feeder_of(at(rank).device()).ring; }
  /// @return the clock of a rank, at the start of a step
  [[nodiscard]] pass_observer observer_of(int rank) noexcept { return pass_observer(at(rank)); }

  /// Starts counting the passes of all ranks anew.
  void start_step() noexcept {
    for (auto& p : contexts_) p->start_step();
  }

  /// Lets the stages of every rank get ready, and waits for what they enqueue.
  /// @throws what a stage throws; cuda_error
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    for (auto& e : engines) {
      device_guard const here(at(e.rank()).device());
      e.warm_up();
      at(e.rank()).compute().synchronize();
    }
  }

  /// Issues a whole step, unless it fails. Returns when nothing is left to issue; the devices may
  /// still be at work.
  template <class Engine>
  void issue(std::vector<Engine>& engines) {
    try {
      for (auto& p : contexts_) p->wait_for_caller();
      // What the passes of all devices are counted from, where they are measured.
      for (auto& f : feeders_)
        if (f->epoch) contexts_[f->fed.front().engine]->compute().record(*f->epoch);
    } catch (...) {
      engines.front().fail(std::current_exception());
      return;
    }
    auto job = [this, &engines](int worker) {
      auto& mine = *feeders_[zbpp::detail::index(worker)];
      try {
        device_guard const here(mine.device);
        feed(mine, engines);
        for (auto const& f : mine.fed)
          contexts_[f.engine]->compute().record(contexts_[f.engine]->end());
      } catch (...) {
        engines[mine.fed.front().engine].fail(std::current_exception());
      }
    };
    if (threads_ != nullptr)
      threads_->run(job);
    else
      job(0);
  }

  /// Takes in what the devices did, once they are done: losses, and times where they are measured.
  /// @throws cuda_error
  template <class Engine>
  void collect(std::vector<Engine>& engines) {
    for (auto& f : feeders_) {
      for (auto const& each : f->fed) {
        auto& at = *contexts_[each.engine];
        at.deliver_losses();
        if (f->epoch) at.times().read(*f->epoch, engines[each.engine].trace());
      }
    }
  }

  /// Blocks until the devices are done with what was issued, whether it succeeded or not.
  void settle() noexcept {
    for (auto& p : contexts_) cudaStreamSynchronize(p->compute());
  }

 private:
  struct fed_rank {
    std::size_t engine;  // among those of this process
    bool is_done = false;
    bool is_blocked = false;
  };
  struct feeder {
    int device = 0;
    std::vector<fed_rank> fed;
    std::optional<event> epoch;
    wakeup ring{0};

    // Forgets who was blocked. What was heard counts from before they are looked at again: what
    // rings after that is not slept through, whoever it is for.
    [[nodiscard]] std::uint32_t look_again() noexcept {
      for (auto& f : fed) f.is_blocked = false;
      return ring.load(std::memory_order_acquire);
    }
  };

  [[nodiscard]] std::size_t position(int rank) const noexcept {
    return zbpp::detail::index(std::ranges::find(ranks_, rank) - ranks_.begin());
  }
  [[nodiscard]] feeder& feeder_of(int device) {
    auto const found =
        std::ranges::find_if(feeders_, [&](auto const& f) { return f->device == device; });
    if (found != feeders_.end()) return **found;
    feeders_.push_back(std::make_unique<feeder>());
    feeders_.back()->device = device;
    return *feeders_.back();
  }

  // Issues one pass after another, always of the rank whose planned time is the earliest.
  template <class Engine>
  static void feed(feeder& mine, std::vector<Engine>& engines) {
    for (auto& f : mine.fed) f.is_done = false;
    auto heard = mine.look_again();
    for (;;) {
      fed_rank* next = nullptr;
      bool is_done = true;
      for (auto& f : mine.fed) {
        is_done = is_done && f.is_done;
        if (f.is_done || f.is_blocked) continue;
        if (next == nullptr || engines[f.engine].time().now() < engines[next->engine].time().now())
          next = &f;
      }
      if (is_done) return;
      if (next == nullptr) {  // all wait for messages that other devices' threads have to issue
        mine.ring.wait(heard, std::memory_order_relaxed);
        heard = mine.look_again();
        continue;
      }
      auto& engine = engines[next->engine];
      auto const before = engine.passes_run();
      auto const reached = engine.advance(1);
      if (reached == progress::failed) return;
      next->is_done = reached == progress::done;
      next->is_blocked = reached == progress::blocked;
      if (engine.passes_run() != before) heard = mine.look_again();
    }
  }

  std::span<int const> ranks_;
  std::vector<std::unique_ptr<device_context>> contexts_;  // one for each of the ranks
  std::vector<std::unique_ptr<feeder>> feeders_;           // one per device
  std::unique_ptr<workers> threads_;                       // where there are several devices
};

}  // namespace zbpp::cuda
