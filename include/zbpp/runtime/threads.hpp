// SPDX-License-Identifier: Apache-2.0
//
// A backend that runs ranks on threads of this process: one per rank, or several ranks on each.
// Threads live as long as the pipeline and sleep between steps.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/executor.hpp>
#include <zbpp/runtime/in_process.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/transport.hpp>
#include <zbpp/runtime/workers.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace zbpp {

/// Runs ranks on threads.
struct threads {
  using transport_type = in_process;
  /// Whether arenas take their planned size from the system when the pipeline is made.
  static constexpr bool reserves_memory = true;

  int count = 0;  ///< of threads; 0 stands for one per rank
  /// Whether a message arrives as late as the problem says; to measure with, one rank per
  /// thread, because a thread that waits for a message under way looks at nothing else.
  bool emulates_transfers = false;
  int spins = 0;  ///< how often a thread looks again before it sleeps
  /// Called on each thread, with its ranks, before its stages warm up, on all threads at the
  /// same time: for what a library keeps per thread, such as how many threads a kernel may use.
  /// What it throws, the pipeline's constructor throws.
  std::function<void(std::span<int const> ranks)> on_thread_start = {};
  /// Whether `step_result::messages` says when messages were sent, arrived and were taken.
  bool records_messages = false;
  /// Which of the pipelines of a grid this is, where there are several in this process.
  grid_place place = {};

  /// Reads the time since the step began.
  class pass_observer {
   public:
    pass_observer() = default;
    /// @param epoch  when the step began, by `clock`
    pass_observer(ticks epoch, bool emulates_transfers) noexcept
        : epoch_(epoch), emulates_(emulates_transfers) {}

    /// @return the time of std::chrono::steady_clock
    [[nodiscard]] static ticks clock() noexcept;

    [[nodiscard]] ticks start(ticks, pass const&) const noexcept { return now(); }
    [[nodiscard]] ticks finish(ticks) const noexcept { return now(); }
    [[nodiscard]] ticks reach(ticks) const noexcept { return now(); }
    [[nodiscard]] ticks arrival_of_send(ticks transfer) const noexcept {
      return emulates_ ? now() + transfer : 0;
    }
    [[nodiscard]] bool has_arrived(ticks arrival) const noexcept {
      return !emulates_ || now() >= arrival;
    }
    /// Sleeps until a time after the start.
    void sleep_until(ticks time) const;

   private:
    [[nodiscard]] ticks now() const noexcept { return clock() - epoch_; }

    ticks epoch_ = 0;
    bool emulates_ = false;
  };

  class executor;
};

/// Owns the threads of a pipeline. Neighbouring ranks share one where there are fewer than ranks.
class threads::executor : public one_process {
 public:
  /// Starts the threads; they sleep until `run`.
  /// @throws error (bad_argument) when a setting is negative, or the place is in a grid whose
  ///         pipelines have another number of ranks; std::system_error
  executor(threads settings, plan const& planned);
  ~executor() override;

  [[nodiscard]] wakeup* wakeup_of(int rank) noexcept {
    return &wakeups_[detail::index(std::int64_t{rank} * count_ / ranks_)].wake;
  }
  [[nodiscard]] rank_grid* grid_of(int rank) override { return settings_.place.grid_of(rank); }
  /// @return whether each rank has a thread of its own
  [[nodiscard]] bool waits_idle() const noexcept override { return count_ == ranks_; }
  [[nodiscard]] bool records_messages() const noexcept override {
    return settings_.records_messages;
  }
  /// Starts the clocks of all ranks.
  void start_run() noexcept { epoch_ = pass_observer::clock(); }
  [[nodiscard]] pass_observer observer_of(int /*rank*/) const noexcept {
    return pass_observer(epoch_, settings_.emulates_transfers);
  }

  /// Lets the stages of every rank get ready, on the threads that run their passes.
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    workers_->run_checked([&](int worker) {
      auto const ranks = ranks_of(worker);
      if (settings_.on_thread_start)
        detail::named_call("on_thread_start", {}, [&] { settings_.on_thread_start(ranks); });
      for (int rank : ranks) engines[detail::index(rank)].warm_up();
    });
  }

  /// Runs all engines until they are done or the step has failed. Blocks the caller; when it
  /// returns no engine is running.
  template <class Engine>
  void run(std::vector<Engine>& engines, in_process const&, step_status const&) {
    auto job = [this, &engines](int worker) { run_ranks(engines, worker); };
    workers_->run(job);
  }

 private:
  struct alignas(64) padded_wakeup {
    wakeup wake{0};
  };

  // The ranks that a thread runs.
  [[nodiscard]] std::span<int const> ranks_of(int worker) const noexcept {
    auto const first = [&](std::int64_t of) { return (of * ranks_ + count_ - 1) / count_; };
    return ranks().subspan(
        detail::index(first(worker)), detail::index(first(worker + 1) - first(worker)));
  }

  template <class Engine>
  void run_ranks(std::vector<Engine>& engines, int worker) {
    auto const ranks = ranks_of(worker);
    auto& wake = wakeups_[detail::index(worker)].wake;
    for (;;) {
      // Read before the engines look, so that a notification meanwhile ends the wait.
      auto const notified = wake.load(std::memory_order_acquire);
      bool is_blocked = false;
      Engine const* under_way = nullptr;  // blocked by the message that arrives first
      for (int rank : ranks) {
        auto& e = engines[detail::index(rank)];
        if (e.advance() != progress::blocked) continue;
        is_blocked = true;
        if (e.blocked_until() == Engine::not_yet) continue;
        if (under_way == nullptr || e.blocked_until() < under_way->blocked_until()) under_way = &e;
      }
      if (!is_blocked) return;
      if (under_way != nullptr)
        under_way->time().sleep_until(under_way->blocked_until());
      else
        wait(wake, notified);
    }
  }

  void wait(wakeup const& wake, std::uint32_t notified) const noexcept;

  threads settings_;
  int ranks_;
  int count_ = 0;
  ticks epoch_ = 0;
  std::vector<padded_wakeup> wakeups_;
  std::unique_ptr<workers> workers_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/threads.ipp>
#else
#include <zbpp/runtime/detail/backend_link.hpp>

extern template class zbpp::detail::backend_of<zbpp::threads>;
#endif
