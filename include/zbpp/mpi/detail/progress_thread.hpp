// SPDX-License-Identifier: Apache-2.0
//
// Lets MPI go on while a pass runs: a thread that sleeps nearly all the time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace zbpp::mpi::detail {

class transport;

/// Polls the transport of a step aside. Sleeps between steps.
class progress_thread {
 public:
  /// Starts the thread. @throws std::system_error
  explicit progress_thread(std::chrono::microseconds interval);
  progress_thread(progress_thread const&) = delete;
  progress_thread& operator=(progress_thread const&) = delete;
  ~progress_thread();

  /// Begins with a transport; null ends, and then the thread does not touch the one before.
  void serve(transport* active);

 private:
  void run();

  std::chrono::microseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  transport* active_ = nullptr;
  bool is_stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace zbpp::mpi::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/mpi/impl/progress_thread.ipp>
#endif
