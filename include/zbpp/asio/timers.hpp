// SPDX-License-Identifier: Apache-2.0
//
// Two clocks of a control connection: one that beats, and one that ends a wait.
#pragma once

#include <zbpp/asio/driver.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace zbpp::asio::detail {

namespace net = ::boost::asio;
using steady = std::chrono::steady_clock;

/// @return a time in seconds with one decimal, as in "10.0 s"
[[nodiscard]] inline std::string seconds_text(std::chrono::milliseconds time) {
  auto const tenths = (time.count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

/// Calls back at every period, and says when it comes much too late: then it was this process that
/// stood still, and nobody else is to be blamed for silence.
class pulse {
 public:
  /// @param beat  called by who drives; must not throw
  pulse(net::io_context& io, std::chrono::milliseconds period, std::function<void(bool)> beat)
      : timer_(io), period_(period), beat_(std::move(beat)) {}

  /// Begins.
  void start() {
    is_on_ = true;
    timer_.expires_after(period_);
    timer_.async_wait([this](boost::system::error_code const& failed) {
      if (failed || !is_on_) return;
      bool const was_late = steady::now() - timer_.expiry() > period_;
      beat_(was_late);
      if (is_on_) start();
    });
  }
  /// Ends; may be called by `beat`.
  void stop() {
    is_on_ = false;
    timer_.cancel();
  }

 private:
  net::steady_timer timer_;
  std::chrono::milliseconds period_;
  std::function<void(bool)> beat_;
  bool is_on_ = false;
};

/// Calls once, after a time. Setting it again forgets what was set before.
class timeout {
 public:
  explicit timeout(net::io_context& io) : timer_(io) {}

  /// @param then  called by who drives; must not throw
  void set(std::chrono::milliseconds after, std::function<void()> then) {
    auto const number = ++number_;
    timer_.expires_after(after);
    timer_.async_wait(
        [this, number, call = std::move(then)](boost::system::error_code const& failed) {
          // One that has expired already cannot be cancelled; its number tells.
          if (!failed && number == number_) call();
        });
  }
  void cancel() {
    ++number_;
    timer_.cancel();
  }
  /// @return how much of the time is left
  [[nodiscard]] std::chrono::milliseconds left() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(timer_.expiry() - steady::now());
  }

 private:
  net::steady_timer timer_;
  std::uint64_t number_ = 0;
};

/// Drives until `done()` holds, but not much longer than some time; not from a handler.
template <class Predicate>
void drive_for(driver& by, std::chrono::milliseconds time, Predicate done) {
  struct alarm {
    explicit alarm(::boost::asio::io_context& io) : timer(io) {}
    ::boost::asio::steady_timer timer;
    bool has_rung = false;
  };
  auto const limit = std::make_shared<alarm>(by.io());
  by.exclusively([&] {
    limit->timer.expires_after(time);
    limit->timer.async_wait([limit](boost::system::error_code const& failed) {
      limit->has_rung = limit->has_rung || !failed;
    });
  });
  by.drive_until([&] { return limit->has_rung || done(); });
  by.exclusively([&] { limit->timer.cancel(); });
}

}  // namespace zbpp::asio::detail
