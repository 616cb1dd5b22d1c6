// SPDX-License-Identifier: Apache-2.0
//
// Runs the sockets of a process: on the thread that waits for a message while it waits, and on a
// thread of its own while nobody does. So a message that is waited for wakes its reader directly,
// and one that is not makes progress while a pass runs.
#pragma once

#include <zbpp/config.hpp>

// Coroutines here may resume on another thread than the one they suspended on. Clang before 17 may
// keep the address of a thread_local across that (LLVM issue 63022), and Asio has one. The target
// zbpp::asio defines this.
#if defined(__clang__) && __clang_major__ < 17 &&                                                  \
    !defined(BOOST_ASIO_DISABLE_THREAD_KEYWORD_EXTENSION)
#error "clang before 17: define BOOST_ASIO_DISABLE_THREAD_KEYWORD_EXTENSION for the whole program"
#endif

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace boost::asio {

class io_context;

}  // namespace boost::asio

namespace zbpp::asio {

/// Runs an io_context, one thread at a time. The thread that runs it now is the I/O thread.
///
/// Everything that belongs to the io_context (sockets, timers, what their handlers touch) is used
/// on the I/O thread only: in a handler, or in `exclusively`. Handlers must not throw.
class io_loop {
 public:
  /// Starts the io_loop's own thread.
  /// @param absence  how long nobody may have waited before that thread takes over; at most twice
  ///                 as long passes until it does. A shorter one costs a thread that waits often:
  ///                 setting a timer that is due soon takes microseconds in a virtual machine.
  /// @throws std::system_error
  explicit io_loop(std::chrono::microseconds absence = std::chrono::microseconds(500));
  io_loop(io_loop const&) = delete;
  io_loop& operator=(io_loop const&) = delete;
  ~io_loop();

  /// @return the io_context; use it on the I/O thread only, and to make objects with
  [[nodiscard]] ::boost::asio::io_context& io() noexcept;

  /// Runs handlers until `done()` holds; blocks the caller. Do not call from a handler.
  template <class Predicate>
  void run_until(Predicate done) {
    io_thread_role const role(*this);
    has_waiter_.store(true);
    if (done()) return look();
    do {
      call_notified();
      if (done()) return;  // no handler need come then
      run_handler();
    } while (!done());
  }

  /// Runs `work` while no handler runs. Do not call from a handler.
  template <class Work>
  decltype(auto) exclusively(Work work) {
    io_thread_role const role(*this);
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      look();
    } else {
      auto result = work();
      look();
      return result;
    }
  }

  /// Runs `work` if no other thread is the I/O thread at the moment; takes no system call then.
  /// @return whether it ran
  template <class Work>
  bool try_exclusively(Work work) {
    std::unique_lock const role(role_, std::try_to_lock);
    if (!role) return false;
    work();
    return true;
  }

  /// Has the I/O thread call what `on_notify` was given. Any thread may call; allocates nothing.
  void notify();

  /// Adds what is called, with its argument, after a notify, and on the I/O thread before it
  /// sleeps: do there what would delay the thread that a handler has woken up. It must not throw.
  /// Call only on the I/O thread.
  void on_notify(void (*call)(void*), void* argument) { notified_.push_back({call, argument}); }
  /// Forgets what was added with this argument. Call only on the I/O thread.
  void forget(void* argument) {
    std::erase_if(notified_, [argument](notified const& k) { return k.argument == argument; });
  }

  /// Ends the io_loop's own thread; others may still run handlers. Not from a handler.
  void stop() noexcept;

 private:
  struct context;  // of Asio
  struct notified {
    void (*call)(void*);
    void* argument;
  };

  // Makes the calling thread the I/O thread, as long as this lives.
  class io_thread_role {
   public:
    explicit io_thread_role(io_loop& self);
    io_thread_role(io_thread_role const&) = delete;
    io_thread_role& operator=(io_thread_role const&) = delete;
    ~io_thread_role();

   private:
    io_loop& self_;
    std::unique_lock<std::mutex> role_;
  };

  void serve();
  void run_handler();
  void look();
  void call_notified();
  void arm(std::chrono::nanoseconds after) const noexcept;

  std::chrono::microseconds absence_;
  std::unique_ptr<context> context_;
  int timer_;
  std::vector<notified> notified_;
  std::mutex role_;  // held by the I/O thread
  std::atomic<int> wanted_{0};
  std::atomic<bool> has_waiter_{false};   // in `run_until`
  std::atomic<bool> is_armed_{false};     // the timer is set, or its end not looked at yet
  std::atomic<std::uint32_t> visits_{0};  // how often another thread was the I/O thread
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/io_loop.ipp>
#endif
