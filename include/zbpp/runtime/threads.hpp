// SPDX-License-Identifier: Apache-2.0
//
// A backend that runs ranks on threads of this process: one a rank, or several ranks on each.
// Threads live as long as the pipeline and sleep between steps.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/crew.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace zbpp {

/// Runs ranks on threads.
struct threads {
  using carrier = in_process;
  /// Whether arenas take their planned size from the system when the pipeline is made.
  static constexpr bool reserves_memory = true;

  int count = 0;  ///< of threads; 0 stands for one a rank
  /// Whether a message arrives as late as the problem says; to measure with, one rank a thread: a
  /// thread that waits for a message under way looks at nothing else.
  bool emulates_transfers = false;
  int spins = 0;  ///< how often a thread looks again before it sleeps

  /// Reads the time since the step began.
  class clock {
   public:
    clock() = default;
    explicit clock(bool emulates_transfers) noexcept
        : epoch_(std::chrono::steady_clock::now()), emulates_(emulates_transfers) {}

    /// Begins a pass. @return its start
    [[nodiscard]] ticks start(ticks) const noexcept { return now(); }
    /// Ends a pass. @return its end
    [[nodiscard]] ticks finish(ticks) const noexcept { return now(); }
    /// @return when a message that is sent now counts as arrived
    [[nodiscard]] ticks arrival_of_send(ticks transfer) const noexcept {
      return emulates_ ? now() + transfer : 0;
    }
    /// @return whether that time has come
    [[nodiscard]] bool has_arrived(ticks arrival) const noexcept {
      return !emulates_ || now() >= arrival;
    }
    /// @return the point in time of some ticks after the start
    [[nodiscard]] std::chrono::steady_clock::time_point at(ticks time) const noexcept {
      return epoch_ + std::chrono::nanoseconds(time);
    }

   private:
    [[nodiscard]] ticks now() const noexcept {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(
                 std::chrono::steady_clock::now() - epoch_)
          .count();
    }

    std::chrono::steady_clock::time_point epoch_;
    bool emulates_ = false;
  };

  class crew;
};

/// Owns the threads of a pipeline. Neighbouring ranks share a thread where there are fewer threads
/// than ranks.
class threads::crew : public one_process {
 public:
  /// Starts the threads; they sleep until `run`.
  /// @throws error (bad_argument) when a setting is negative; std::system_error
  crew(threads settings, plan const& planned)
      : one_process(planned), settings_(settings), ranks_(planned.what.ranks()) {
    detail::require(settings.count >= 0, "threads.count is at least 0, which is one a rank");
    detail::require(settings.spins >= 0, "threads.spins is at least 0");
    count_ = settings.count == 0 ? ranks_ : std::min(settings.count, ranks_);
    bells_ = std::make_unique<padded_bell[]>(detail::index(count_));
    workers_.reserve(detail::index(count_));
    try {
      for (int w = 0; w < count_; ++w) workers_.emplace_back([this, w] { serve(w); });
    } catch (...) {
      stop();
      throw;
    }
  }
  crew(crew const&) = delete;
  crew& operator=(crew const&) = delete;
  ~crew() { stop(); }

  /// @return what rings when something arrives for a rank
  [[nodiscard]] bell* bell_of(int rank) noexcept {
    return &bells_[detail::index(std::int64_t{rank} * count_ / ranks_)].ring;
  }
  /// @return the clock of every rank, which starts now
  [[nodiscard]] clock start_clock() const noexcept { return clock(settings_.emulates_transfers); }

  /// Runs all engines until they are done or the step has failed. Blocks the caller; when it
  /// returns no engine is running.
  template <class Engine>
  void run(std::vector<Engine>& engines, in_process const&, step_status const&) {
    job_ = [](crew& self, void* all, int worker) {
      self.run_ranks(*static_cast<std::vector<Engine>*>(all), worker);
    };
    engines_ = &engines;
    working_.store(count_, std::memory_order_relaxed);
    start_round();
    // Acquire: pairs with the last worker's release, so that all they wrote is seen.
    for (int left = count_; left != 0; left = working_.load(std::memory_order_acquire))
      working_.wait(left, std::memory_order_acquire);
  }

 private:
  struct alignas(64) padded_bell {
    bell ring{0};
  };

  void start_round() noexcept {
    // Release: a worker that sees the new round sees the job.
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }

  void stop() noexcept {
    stopping_.store(true, std::memory_order_relaxed);
    start_round();
    workers_.clear();
  }

  void serve(int worker) {
    for (std::uint32_t seen = 0;; ++seen) {
      round_.wait(seen, std::memory_order_acquire);
      if (stopping_.load(std::memory_order_relaxed)) return;
      job_(*this, engines_, worker);
      // Release: whoever sees the count sees what this worker did.
      if (working_.fetch_sub(1, std::memory_order_release) == 1) working_.notify_one();
    }
  }

  template <class Engine>
  void run_ranks(std::vector<Engine>& engines, int worker) {
    auto const begin = (std::int64_t{worker} * ranks_ + count_ - 1) / count_;
    auto const end = (std::int64_t{worker + 1} * ranks_ + count_ - 1) / count_;
    auto& ring = bells_[detail::index(worker)].ring;
    for (;;) {
      // Heard before looking: what rings while looking is not slept through.
      auto const heard = ring.load(std::memory_order_acquire);
      bool is_blocked = false;
      Engine const* under_way = nullptr;  // blocked by the message that arrives first
      for (auto r = begin; r < end; ++r) {
        auto& e = engines[detail::index(r)];
        if (e.advance() != progress::blocked) continue;
        is_blocked = true;
        if (e.blocked_until() == Engine::not_yet) continue;
        if (under_way == nullptr || e.blocked_until() < under_way->blocked_until()) under_way = &e;
      }
      if (!is_blocked) return;
      if (under_way != nullptr)
        std::this_thread::sleep_until(under_way->time().at(under_way->blocked_until()));
      else
        wait(ring, heard);
    }
  }

  void wait(bell const& ring, std::uint32_t heard) const noexcept {
    for (int i = 0; i < settings_.spins; ++i)
      if (ring.load(std::memory_order_relaxed) != heard) return;
    ring.wait(heard, std::memory_order_relaxed);
  }

  threads settings_;
  int ranks_;
  int count_ = 0;
  std::unique_ptr<padded_bell[]> bells_;
  void (*job_)(crew&, void*, int) = nullptr;
  void* engines_ = nullptr;
  std::atomic<std::uint32_t> round_{0};
  std::atomic<int> working_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace zbpp
