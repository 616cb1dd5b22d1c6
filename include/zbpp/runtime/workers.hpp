// SPDX-License-Identifier: Apache-2.0
//
// Threads that run one job after another together and sleep in between; what a backend runs its
// ranks on.
#pragma once

#include <zbpp/error.hpp>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace zbpp {

/// Owns threads that wait for jobs.
class workers {
 public:
  /// Starts the threads; they sleep until `run`.
  /// @throws std::system_error when the system has no more threads
  explicit workers(int count) : count_(count) {
    threads_.reserve(detail::index(count));
    try {
      for (int w = 0; w < count; ++w) threads_.emplace_back([this, w] { serve(w); });
    } catch (...) {
      stop();
      throw;
    }
  }
  workers(workers const&) = delete;
  workers& operator=(workers const&) = delete;
  ~workers() { stop(); }

  /// @return how many threads there are
  [[nodiscard]] int count() const noexcept { return count_; }

  /// Calls `job(worker)` on every thread, with its number; blocks the caller until all returned.
  /// What the job does is seen by the caller then. The job does not throw.
  template <class Job>
  void run(Job& job) {
    job_ = [](void* what, int worker) noexcept { (*static_cast<Job*>(what))(worker); };
    what_ = &job;
    working_.store(count_, std::memory_order_relaxed);
    start_job();
    // Acquire: pairs with the last worker's release, so that all they wrote is seen.
    for (int left = count_; left != 0; left = working_.load(std::memory_order_acquire))
      working_.wait(left, std::memory_order_acquire);
  }

 private:
  void start_job() noexcept {
    // Release: a worker that sees the new number sees the job.
    job_number_.fetch_add(1, std::memory_order_release);
    job_number_.notify_all();
  }

  void stop() noexcept {
    stopping_.store(true, std::memory_order_relaxed);
    start_job();
    threads_.clear();
  }

  void serve(int worker) {
    for (std::uint32_t seen = 0;; ++seen) {
      job_number_.wait(seen, std::memory_order_acquire);
      if (stopping_.load(std::memory_order_relaxed)) return;
      job_(what_, worker);
      // Release: whoever sees the count sees what this worker did.
      if (working_.fetch_sub(1, std::memory_order_release) == 1) working_.notify_one();
    }
  }

  int count_;
  void (*job_)(void*, int) noexcept = nullptr;
  void* what_ = nullptr;
  std::atomic<std::uint32_t> job_number_{0};
  std::atomic<int> working_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace zbpp
