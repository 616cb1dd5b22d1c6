// SPDX-License-Identifier: Apache-2.0
//
// Threads that stand for processes of one rank each, for tests of what processes do together.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace zbpp::test {

/// Gathers among threads, as a rendezvous does among processes.
class thread_meeting {
 public:
  explicit thread_meeting(int ranks) : parts_(static_cast<std::size_t>(ranks)) {}

  std::vector<std::vector<std::byte>> all_gather(int rank, std::span<std::byte const> own) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !is_full_; });
    parts_[static_cast<std::size_t>(rank)].assign(own.begin(), own.end());
    is_full_ = ++present_ == parts_.size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_full_; });
    auto all = parts_;
    is_full_ = --present_ > 0;
    changed_.notify_all();
    return all;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::byte>> parts_;
  std::size_t present_ = 0;
  bool is_full_ = false;
};

/// Is the end of a thread, with what `checkpoint::ranks_apart` calls.
struct thread_rendezvous {
  thread_meeting* meeting;
  int own;

  [[nodiscard]] int rank() const { return own; }
  std::vector<std::vector<std::byte>> all_gather(std::span<std::byte const> part) const {
    return meeting->all_gather(own, part);
  }
  void check() const {}
};

/// Calls `work(end)` in a thread for each rank.
template <class Work>
void in_threads(int ranks, Work const& work) {
  thread_meeting meeting(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&meeting, &work, rank] {
      thread_rendezvous end{&meeting, rank};
      work(end);
    });
  for (auto& each : threads) each.join();
}

}  // namespace zbpp::test
