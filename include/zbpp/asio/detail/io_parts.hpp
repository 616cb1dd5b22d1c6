// SPDX-License-Identifier: Apache-2.0
//
// Parts of what runs on the io_context: clocks, and memory for operations that are under way.
#pragma once

#include <zbpp/asio/io_loop.hpp>

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>

namespace zbpp::asio::detail {

// Fixed memory for the one operation that a place of the code has under way, so that starting it
// allocates nothing, on whichever thread.

/// Gives out one piece at a time. Whatever does not fit, or comes second, is from the heap.
class handler_memory {
 public:
  handler_memory() = default;
  handler_memory(handler_memory const&) = delete;
  handler_memory& operator=(handler_memory const&) = delete;

  /// @throws std::bad_alloc
  [[nodiscard]] void* allocate(std::size_t size) {
    if (is_used_ || size > storage_.size()) return ::operator new(size);
    is_used_ = true;
    return storage_.data();
  }
  void deallocate(void* memory) noexcept {
    if (memory == storage_.data())
      is_used_ = false;
    else
      ::operator delete(memory);
  }
  [[nodiscard]] bool is_used() const noexcept { return is_used_; }

 private:
  // An operation of Asio for a small handler needs a third of this, one that reads or writes a
  // whole frame two thirds.
  alignas(std::max_align_t) std::array<std::byte, 480> storage_;
  bool is_used_ = false;
};

/// Lets Asio take the memory of an operation from a `handler_memory`, which has to outlive it.
template <class Value>
class handler_allocator {
 public:
  using value_type = Value;

  explicit handler_allocator(handler_memory& memory) noexcept : memory_(&memory) {}
  template <class Other>
  handler_allocator(handler_allocator<Other> const& other) noexcept : memory_(other.memory_) {}

  [[nodiscard]] Value* allocate(std::size_t count) {
    static_assert(alignof(Value) <= alignof(std::max_align_t));
    return static_cast<Value*>(memory_->allocate(count * sizeof(Value)));
  }
  void deallocate(Value* memory, std::size_t) noexcept { memory_->deallocate(memory); }

  friend bool operator==(handler_allocator const&, handler_allocator const&) = default;

 private:
  template <class>
  friend class handler_allocator;

  handler_memory* memory_;
};

// The clocks of a control connection: one beats, one ends a wait, and one notices silence.

namespace net = ::boost::asio;
using steady = std::chrono::steady_clock;

/// Calls back at every period, and says when it comes much too late: then it was this process that
/// was suspended, and nobody else is to blame for silence.
class pulse {
 public:
  /// @param beat  called on the I/O thread; must not throw
  pulse(net::io_context& io, std::chrono::milliseconds period, std::function<void(bool)> beat)
      : timer_(io), period_(period), beat_(std::move(beat)) {}

  /// Begins.
  void start() {
    is_on_ = true;
    last_ = steady::now();
    wait();
  }
  /// Ends; may be called by `beat`.
  void stop() {
    is_on_ = false;
    timer_.cancel();
  }
  /// @return for how long this process was suspended, if that ended just now: what has happened to
  ///         its connections meanwhile is only noticed after it; else less than two periods
  [[nodiscard]] std::chrono::milliseconds suspension() const {
    // Chosen by us, not from a standard: data that arrived while a process was suspended is read
    // in much less.
    constexpr std::chrono::seconds just_now{1};
    auto const now = steady::now();
    auto const ended = now - last_ < just_now ? gap_ : steady::duration::zero();
    auto const lasting = is_on_ ? now - last_ : steady::duration::zero();
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::max(ended, lasting));
  }

 private:
  void wait() {
    timer_.expires_after(period_);
    timer_.async_wait([this](boost::system::error_code const& failed) {
      if (failed || !is_on_) return;
      auto const now = steady::now();
      gap_ = now - std::exchange(last_, now);
      beat_(now - timer_.expiry() > period_);
      if (is_on_) wait();
    });
  }

  net::steady_timer timer_;
  std::chrono::milliseconds period_;
  std::function<void(bool)> beat_;
  bool is_on_ = false;
  steady::time_point last_ = steady::now();  // beat
  steady::duration gap_{};                   // before it
};

/// @return extra time to read received data, if a suspension made a timeout fire late; else 0
[[nodiscard]] inline std::chrono::milliseconds excuse(
    steady::time_point expiry, std::chrono::milliseconds time) {
  // Chosen by us, not from a standard: later than a busy machine wakes a thread; long enough to
  // read what has arrived.
  constexpr std::chrono::milliseconds late{100};
  constexpr std::chrono::milliseconds grace{1000};
  return steady::now() - expiry > late ? std::min(time, grace) : std::chrono::milliseconds{0};
}

/// Calls once, after a time. Setting it again forgets what was set before.
class timeout {
 public:
  /// @param memory  for what waits, which is over before that ends; the heap where it is null
  explicit timeout(net::io_context& io, handler_memory* memory = nullptr)
      : timer_(io), memory_(memory) {}

  /// @param then  called on the I/O thread; must not throw
  void set(std::chrono::milliseconds after, std::function<void()> then) {
    arm(after, ++number_, true, std::move(then));
  }
  void cancel() {
    ++number_;
    timer_.cancel();
  }
  [[nodiscard]] std::chrono::milliseconds left() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(timer_.expiry() - steady::now());
  }

 private:
  void arm(
      std::chrono::milliseconds after,
      std::uint64_t number,
      bool may_be_excused,
      std::function<void()> then) {
    timer_.expires_after(after);
    auto handler = [this, after, number, may_be_excused, call = std::move(then)](
                       boost::system::error_code const& failed) mutable {
      // One that has expired already cannot be cancelled; its number tells.
      if (failed || number != number_) return;
      auto const more = may_be_excused ? excuse(timer_.expiry(), after) : no_time;
      more > no_time ? arm(more, number, false, std::move(call)) : call();
    };
    if (memory_ == nullptr) return timer_.async_wait(std::move(handler));
    timer_.async_wait(net::bind_allocator(handler_allocator<void>(*memory_), std::move(handler)));
  }

  static constexpr std::chrono::milliseconds no_time{0};

  net::steady_timer timer_;
  handler_memory* memory_;
  std::uint64_t number_ = 0;
};

/// Calls when somebody has been silent for a time: when that is reached, not at some beat after it.
class silence_limit {
 public:
  /// @param silence  how long the most silent one has said nothing; 0 where nobody counts
  /// @param call     called on the I/O thread when that is the limit or more; must not throw
  silence_limit(
      net::io_context& io,
      std::chrono::milliseconds limit,
      std::function<steady::duration()> silence,
      std::function<void()> call)
      : timer_(io), limit_(limit), silence_(std::move(silence)), call_(std::move(call)) {}

  /// Begins.
  void start() {
    is_on_ = true;
    look();
  }
  /// Ends; may be called by `call`.
  void stop() {
    is_on_ = false;
    timer_.cancel();
  }

 private:
  void look() {
    if (silence_() >= limit_) call_();
    if (!is_on_) return;
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(limit_ - silence_());
    timer_.set(std::max(left, std::chrono::milliseconds(1)), [this] { look(); });
  }

  timeout timer_;
  std::chrono::milliseconds limit_;
  std::function<steady::duration()> silence_;
  std::function<void()> call_;
  bool is_on_ = false;
};

/// Runs handlers until `done()` holds, but not much longer than `time`. Not from a handler.
template <class Predicate>
void run_for(io_loop& by, std::chrono::milliseconds time, Predicate done) {
  struct alarm {
    explicit alarm(net::io_context& io) : limit(io) {}
    timeout limit;
    bool has_rung = false;
  };
  auto const one = std::make_shared<alarm>(by.io());
  by.exclusively([&] { one->limit.set(time, [one] { one->has_rung = true; }); });
  by.run_until([&] { return one->has_rung || done(); });
  by.exclusively([&] { one->limit.cancel(); });
}

}  // namespace zbpp::asio::detail
