// SPDX-License-Identifier: Apache-2.0
//
// Who looks after the sockets: the thread that waits for a message while it waits, and a thread of
// the io_loop's own while nobody does. So a message that is waited for wakes its reader directly,
// and one that is not makes progress while a pass runs.
#pragma once

#include <zbpp/config.hpp>

// Coroutines here go on in another thread than the one they stopped in. Clang before 17 may keep
// the address of a thread's own variable over that (LLVM issue 63022), and Asio has one. The target
// zbpp::asio defines this.
#if defined(__clang__) && __clang_major__ < 17 &&                                                  \
    !defined(BOOST_ASIO_DISABLE_THREAD_KEYWORD_EXTENSION)
#error "clang before 17: define BOOST_ASIO_DISABLE_THREAD_KEYWORD_EXTENSION for the whole program"
#endif

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <sys/timerfd.h>
#include <system_error>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::asio {

/// Runs an io_context, one thread at a time.
///
/// Everything that belongs to the io_context (sockets, timers, what their handlers touch) is used
/// by the thread that drives: in a handler, or in `exclusively`. Handlers must not throw.
class io_loop {
 public:
  /// Starts the io_loop's own thread.
  /// @param absence  how long nobody may have waited before that thread takes over; at most twice
  ///                 as long passes until it does. A shorter one costs who waits often: setting a
  ///                 timer that is due soon takes microseconds in a virtual machine.
  /// @throws std::system_error
  explicit io_loop(std::chrono::microseconds absence = std::chrono::microseconds(500))
      : absence_(absence), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
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
  io_loop(io_loop const&) = delete;
  io_loop& operator=(io_loop const&) = delete;
  ~io_loop() {
    stop();
    ::close(timer_);
  }

  /// @return the io_context; only for the I/O thread, and to make objects with
  [[nodiscard]] boost::asio::io_context& io() noexcept { return io_; }

  /// Drives until `done()` holds; blocks the caller. Not to be called from a handler.
  template <class Predicate>
  void run_until(Predicate done) {
    auto const role = take_role();
    is_driven_.store(true);
    if (done()) return look();
    do {
      turn();
    } while (!done());
  }

  /// Runs `work` while no handler runs. Not to be called from a handler.
  template <class Work>
  decltype(auto) exclusively(Work work) {
    auto const role = take_role();
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      look();
    } else {
      auto result = work();
      look();
      return result;
    }
  }

  /// Runs `work` if nobody drives at the moment; takes no system call then.
  /// @return whether it ran
  template <class Work>
  bool try_exclusively(Work work) {
    std::unique_lock const role(role_, std::try_to_lock);
    if (!role) return false;
    work();
    return true;
  }

  /// Has the I/O thread next, or drives now, call what `on_notify` was given. May be called by any
  /// thread; allocates nothing.
  void notify() { io_.stop(); }

  /// Adds what is called, with its argument, after a notify, and on the I/O thread before it
  /// sleeps: work that would delay what a handler has woken up is best done there. It must not
  /// throw. Only while driving.
  void on_notify(void (*call)(void*), void* argument) { notified_.push_back({call, argument}); }
  /// Forgets what was added with this argument. Call only on the I/O thread.
  void forget(void* argument) {
    std::erase_if(notified_, [argument](notified const& k) { return k.argument == argument; });
  }

  /// Ends the io_loop's own thread; who waits may still drive. Not to be called from a handler.
  void stop() noexcept {
    if (!thread_.joinable()) return;
    is_stopping_.store(true, std::memory_order_release);
    io_.stop();
    arm(std::chrono::nanoseconds(1));
    thread_.join();
  }

 private:
  struct notified {
    void (*call)(void*);
    void* argument;
  };

  // The I/O thread, until it goes.
  class io_thread_role {
   public:
    explicit io_thread_role(io_loop& self) : self_(self), role_(self.role_, std::try_to_lock) {
      if (role_) return;
      // Release: the io_loop's thread that sees this lets go after the handler it is in.
      self.wanted_.fetch_add(1, std::memory_order_release);
      self.io_.stop();
      role_.lock();
      self.wanted_.fetch_sub(1, std::memory_order_relaxed);
    }
    io_thread_role(io_thread_role const&) = delete;
    io_thread_role& operator=(io_thread_role const&) = delete;
    // Sequentially consistent, as in `serve`: either this sees that no timer is set, or the
    // io_loop's thread sees that nobody drives.
    ~io_thread_role() {
      self_.visits_.fetch_add(1, std::memory_order_relaxed);
      self_.is_driven_.store(false);
      role_.unlock();
      if (!self_.is_armed_.exchange(true)) self_.arm(self_.absence_);
    }

   private:
    io_loop& self_;
    std::unique_lock<std::mutex> role_;
  };

  // The io_loop's own thread. It sleeps until the timer tells it to look whether somebody drives,
  // or did since the last time. Setting the timer is left to the first who goes after that.
  void serve() {
    std::uint32_t seen = 0;
    for (;;) {
      std::uint64_t expired = 0;
      while (::read(timer_, &expired, sizeof(expired)) < 0 && errno == EINTR) {
      }
      if (is_stopping_.load(std::memory_order_acquire)) return;
      is_armed_.store(false);
      if (is_driven_.load()) continue;
      auto const visits = visits_.load(std::memory_order_relaxed);
      if (std::exchange(seen, visits) != visits) {
        if (!is_armed_.exchange(true)) arm(absence_);
        continue;
      }
      std::unique_lock const role(role_);
      while (wanted_.load(std::memory_order_acquire) == 0 &&
             !is_stopping_.load(std::memory_order_acquire))
        turn();
    }
  }

  // Runs one handler, or notices a notify.
  void turn() {
    call_notified();
    io_.run_one();
    if (io_.stopped()) io_.restart();
  }

  // Runs what is ready. Whoever puts off the io_loop's thread has to, or the sockets would starve.
  void look() {
    call_notified();
    io_.poll();
    if (!io_.stopped()) return;
    io_.restart();
    call_notified();
  }

  void call_notified() {
    for (auto const& k : notified_) k.call(k.argument);
  }

  [[nodiscard]] io_thread_role take_role() { return io_thread_role(*this); }

  void arm(std::chrono::nanoseconds after) const noexcept {
    auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(after);
    itimerspec when{};
    when.it_value.tv_sec = static_cast<std::time_t>(seconds.count());
    when.it_value.tv_nsec = static_cast<long>((after - seconds).count());
    ::timerfd_settime(timer_, 0, &when, nullptr);
  }

  std::chrono::microseconds absence_;
  int timer_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::vector<notified> notified_;
  std::mutex role_;  // held on the I/O thread
  std::atomic<int> wanted_{0};
  std::atomic<bool> is_driven_{false};    // in `run_until`
  std::atomic<bool> is_armed_{false};     // the timer is set, or its end not looked at yet
  std::atomic<std::uint32_t> visits_{0};  // how often somebody else has driven
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace zbpp::asio
