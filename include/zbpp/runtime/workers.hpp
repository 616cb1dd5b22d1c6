// SPDX-License-Identifier: Apache-2.0
//
// Threads that run one job after another together and sleep in between; a backend runs
// its ranks on them.
#pragma once

#include <zbpp/error.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

namespace zbpp {

/// Owns threads that wait for jobs.
class workers {
 public:
  /// Starts the threads; they sleep until `run`.
  /// @throws std::system_error when the system has no more threads
  explicit workers(int count);
  workers(workers const&) = delete;
  workers& operator=(workers const&) = delete;
  ~workers();

  [[nodiscard]] int count() const noexcept { return count_; }

  /// Calls `job(worker)` on every thread, with its number; blocks the caller until all returned.
  /// What the job does is seen by the caller then. The job does not throw.
  template <class Job>
  void run(Job& job) {
    job_ = [](void* object, int worker) noexcept { (*static_cast<Job*>(object))(worker); };
    what_ = &job;
    working_.store(count_, std::memory_order_relaxed);
    start_job();
    // Acquire: pairs with the last worker's release, so that all they wrote is seen.
    for (int left = count_; left != 0; left = working_.load(std::memory_order_acquire))
      working_.wait(left, std::memory_order_acquire);
  }

  /// Calls a job as `run` does; it may throw.
  /// @throws what it threw on one of the threads, once it has returned on all
  template <class Job>
  void run_checked(Job const& job) {
    std::vector<std::exception_ptr> thrown(detail::index(count_));
    auto checked = [&](int worker) {
      try {
        job(worker);
      } catch (...) {
        thrown[detail::index(worker)] = std::current_exception();
      }
    };
    run(checked);
    for (auto const& each : thrown)
      if (each) std::rethrow_exception(each);
  }

 private:
  struct thread_list;  // in workers.ipp, because <thread> takes long to compile

  void start_job() noexcept;
  void stop() noexcept;
  void serve(int worker);

  int count_;
  void (*job_)(void*, int) noexcept = nullptr;
  void* what_ = nullptr;
  std::atomic<std::uint32_t> job_number_{0};
  std::atomic<int> working_{0};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<thread_list> threads_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/workers.ipp>
#endif
