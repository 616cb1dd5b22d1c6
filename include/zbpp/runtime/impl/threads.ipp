// SPDX-License-Identifier: Apache-2.0
//
// How the threads of a pipeline are made, and how one waits.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/workers.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

namespace zbpp {

ZBPP_INLINE ticks threads::pass_observer::clock() noexcept {
  std::chrono::nanoseconds const time = std::chrono::steady_clock::now().time_since_epoch();
  return time.count();
}

ZBPP_INLINE void threads::pass_observer::sleep_until(ticks time) const {
  std::this_thread::sleep_until(
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(epoch_ + time)));
}

ZBPP_INLINE threads::executor::executor(threads settings, plan const& planned)
    : one_process(planned), settings_(settings), ranks_(planned.problem().ranks()) {
  detail::require(settings.count >= 0, "threads.count is at least 0, which is one per rank");
  detail::require(settings.spins >= 0, "threads.spins is at least 0");
  count_ = settings.count == 0 ? ranks_ : std::min(settings.count, ranks_);
  wakeups_ = std::vector<padded_wakeup>(detail::index(count_));
  if (settings.place) settings.place.check(ranks_, count_ == ranks_);
  workers_ = std::make_unique<workers>(count_);
  for (int rank = 0; rank < ranks_; ++rank) settings_.place.bind(rank, wakeup_of(rank));
}

ZBPP_INLINE threads::executor::~executor() {
  for (int rank = 0; rank < ranks_; ++rank) settings_.place.bind(rank, nullptr);
}

ZBPP_INLINE void threads::executor::wait(
    wakeup const& wake, std::uint32_t notified) const noexcept {
  for (int i = 0; i < settings_.spins; ++i)
    if (wake.load(std::memory_order_relaxed) != notified) return;
  wake.wait(notified, std::memory_order_relaxed);
}

}  // namespace zbpp
