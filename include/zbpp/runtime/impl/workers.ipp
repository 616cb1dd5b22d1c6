// SPDX-License-Identifier: Apache-2.0
//
// How threads start, wait for jobs, and stop.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/workers.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace zbpp {

struct workers::thread_list {
  std::vector<std::jthread> all;
};

ZBPP_INLINE workers::workers(int count) : count_(count), threads_(std::make_unique<thread_list>()) {
  threads_->all.reserve(detail::index(count));
  try {
    for (int w = 0; w < count; ++w) threads_->all.emplace_back([this, w] { serve(w); });
  } catch (...) {
    stop();
    throw;
  }
}

ZBPP_INLINE workers::~workers() { stop(); }

ZBPP_INLINE void workers::start_job() noexcept {
  // Release: a worker that sees the new number sees the job.
  job_number_.fetch_add(1, std::memory_order_release);
  job_number_.notify_all();
}

ZBPP_INLINE void workers::stop() noexcept {
  stopping_.store(true, std::memory_order_relaxed);
  start_job();
  threads_->all.clear();
}

ZBPP_INLINE void workers::serve(int worker) {
  for (std::uint32_t seen = 0;; ++seen) {
    job_number_.wait(seen, std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    job_(what_, worker);
    // Release: whoever sees the count sees what this worker did.
    if (working_.fetch_sub(1, std::memory_order_release) == 1) working_.notify_one();
  }
}

}  // namespace zbpp
