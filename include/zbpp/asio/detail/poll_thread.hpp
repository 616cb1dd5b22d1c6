// SPDX-License-Identifier: Apache-2.0
//
// Lets messages go on while a pass runs, where they do so only when they are asked for: a thread
// that sleeps nearly all the time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace zbpp::asio::detail {

/// Polls the transport of a step aside. Sleeps between steps.
class poll_thread {
 public:
  /// Starts the thread. @throws std::system_error
  explicit poll_thread(std::chrono::microseconds interval)
      : thread_([this, interval](std::stop_token const& stop) { run(stop, interval); }) {}

  /// Begins to call something; an empty function ends that, and then the one before is not called
  /// any more.
  void serve(std::function<void()> poll) {
    bool const begins = static_cast<bool>(poll);
    {
      std::lock_guard const lock(mutex_);
      poll_ = std::move(poll);
    }
    if (begins) changed_.notify_one();
  }

 private:
  void run(std::stop_token const& stop, std::chrono::microseconds interval) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return static_cast<bool>(poll_); })) {
      poll_();
      // Not until something changes: a step that ends leaves the thread asleep for the interval.
      changed_.wait_for(lock, stop, interval, [] { return false; });
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::function<void()> poll_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace zbpp::asio::detail
