// SPDX-License-Identifier: Apache-2.0
//
// What mpi/detail/progress_thread.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/mpi/detail/progress_thread.hpp>
#include <zbpp/mpi/detail/transport.hpp>

#include <chrono>
#include <mutex>
#include <thread>

namespace zbpp::mpi::detail {

ZBPP_INLINE progress_thread::progress_thread(std::chrono::microseconds interval)
    : interval_(interval), thread_([this] { run(); }) {}

ZBPP_INLINE progress_thread::~progress_thread() {
  {
    std::lock_guard const lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

ZBPP_INLINE void progress_thread::serve(transport* active) {
  {
    std::lock_guard const lock(mutex_);
    active_ = active;
  }
  if (active != nullptr) changed_.notify_one();
}

ZBPP_INLINE void progress_thread::run() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    if (active_ == nullptr) {
      changed_.wait(lock, [this] { return is_stopping_ || active_ != nullptr; });
      continue;
    }
    active_->poll_aside();
    // Not until something changes: a step that ends leaves the thread asleep for the interval.
    changed_.wait_for(lock, interval_);
  }
}

}  // namespace zbpp::mpi::detail
