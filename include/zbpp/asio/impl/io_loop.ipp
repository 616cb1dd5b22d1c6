// SPDX-License-Identifier: Apache-2.0
//
// Hands the role of the I/O thread from one thread to the next.
#pragma once

#include <zbpp/asio/io_loop.hpp>
#include <zbpp/config.hpp>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <sys/timerfd.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace zbpp::asio {

struct io_loop::context {
  ::boost::asio::io_context io{1};
  ::boost::asio::executor_work_guard<::boost::asio::io_context::executor_type> work{
      io.get_executor()};
};

ZBPP_INLINE io_loop::io_loop(std::chrono::microseconds absence)
    : absence_(absence),
      context_(std::make_unique<context>()),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  if (timer_ < 0) throw std::system_error(errno, std::generic_category(), "timerfd_create");
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (...) {
    ::close(timer_);
    throw;
  }
  is_armed_.store(true);
  arm(std::chrono::nanoseconds(1));
}

ZBPP_INLINE io_loop::~io_loop() {
  stop();
  ::close(timer_);
}

ZBPP_INLINE ::boost::asio::io_context& io_loop::io() noexcept { return context_->io; }

ZBPP_INLINE void io_loop::notify() { context_->io.stop(); }

ZBPP_INLINE void io_loop::stop() noexcept {
  if (!thread_.joinable()) return;
  is_stopping_.store(true, std::memory_order_release);
  context_->io.stop();
  arm(std::chrono::nanoseconds(1));
  thread_.join();
}

ZBPP_INLINE io_loop::io_thread_role::io_thread_role(io_loop& self)
    : self_(self), role_(self.role_, std::try_to_lock) {
  if (role_) return;
  // Release: the io_loop's thread that sees this gives up its role after its handler.
  self.wanted_.fetch_add(1, std::memory_order_release);
  self.context_->io.stop();
  role_.lock();
  self.wanted_.fetch_sub(1, std::memory_order_relaxed);
}

// Sequentially consistent, as in `serve`: either this sees that no timer is set, or the io_loop's
// thread sees that nobody runs the loop.
ZBPP_INLINE io_loop::io_thread_role::~io_thread_role() {
  self_.visits_.fetch_add(1, std::memory_order_relaxed);
  self_.has_waiter_.store(false);
  role_.unlock();
  if (!self_.is_armed_.exchange(true)) self_.arm(self_.absence_);
}

// The io_loop's own thread. It sleeps until the timer tells it to look whether another thread runs
// the loop, or did since the last time. The first thread that leaves after that sets the timer.
ZBPP_INLINE void io_loop::serve() {
  std::uint32_t seen = 0;
  for (;;) {
    std::uint64_t expired = 0;
    while (::read(timer_, &expired, sizeof(expired)) < 0 && errno == EINTR) {
    }
    if (is_stopping_.load(std::memory_order_acquire)) return;
    is_armed_.store(false);
    if (has_waiter_.load()) continue;
    auto const visits = visits_.load(std::memory_order_relaxed);
    if (std::exchange(seen, visits) != visits) {
      if (!is_armed_.exchange(true)) arm(absence_);
      continue;
    }
    std::unique_lock const role(role_);
    while (wanted_.load(std::memory_order_acquire) == 0 &&
           !is_stopping_.load(std::memory_order_acquire)) {
      call_notified();
      run_handler();
    }
  }
}

// Runs one handler, or returns for a notify.
ZBPP_INLINE void io_loop::run_handler() {
  context_->io.run_one();
  if (context_->io.stopped()) context_->io.restart();
}

// Runs what is ready. A thread that keeps the io_loop's own from running has to, for the sockets.
ZBPP_INLINE void io_loop::look() {
  call_notified();
  context_->io.poll();
  if (!context_->io.stopped()) return;
  context_->io.restart();
  call_notified();
}

ZBPP_INLINE void io_loop::call_notified() {
  for (auto const& k : notified_) k.call(k.argument);
}

ZBPP_INLINE void io_loop::arm(std::chrono::nanoseconds after) const noexcept {
  auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(after);
  itimerspec when{};
  when.it_value.tv_sec = static_cast<std::time_t>(seconds.count());
  when.it_value.tv_nsec = static_cast<long>((after - seconds).count());
  ::timerfd_settime(timer_, 0, &when, nullptr);
}

}  // namespace zbpp::asio
