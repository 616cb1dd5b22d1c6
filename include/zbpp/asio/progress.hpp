// SPDX-License-Identifier: Apache-2.0
//
// How far a rank is: a board that its step writes as it goes, and the report that its heartbeats
// carry to rank 0, where the watchdog looks at all of them.
#pragma once

#include <zbpp/asio/wire.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace zbpp::asio {

/// Says what a rank does.
enum class progress_phase : std::uint8_t {
  outside,    ///< it is in no step
  in_pass,    ///< it runs the pass that it started last
  waiting,    ///< it waits for the message of its next pass
  sending,    ///< it has run its program and waits until what it sent has left
  replaying,  ///< its device replays the step, of which the host sees the end alone
};

/// Describes how far a rank was when it last told.
struct progress_report {
  std::int32_t rank = 0;
  progress_phase phase = progress_phase::outside;
  std::int64_t step = 0;            ///< number of the step it is in, or would be in next
  std::int64_t passes_started = 0;  ///< in that step
  std::int64_t age_ms = 0;          ///< for how long none of the above had changed, milliseconds
  std::int64_t silence_ms = 0;      ///< how long ago rank 0 heard of it, milliseconds

  friend bool operator==(progress_report const&, progress_report const&) = default;
};

/// Looks at what all ranks told last, by rank. @return why the step has stalled, if it has
using watchdog = std::function<std::optional<std::string>(std::span<progress_report const>)>;

/// Appends a report to a message.
inline void put(wire_writer& to, progress_report const& report) {
  to.put(report.rank).put(static_cast<std::uint8_t>(report.phase)).put(report.step);
  to.put(report.passes_started).put(report.age_ms).put(report.silence_ms);
}

/// Reads a report.
/// @throws error (bad_format)
[[nodiscard]] inline progress_report get_progress(wire_reader& from) {
  progress_report report;
  report.rank = from.get<std::int32_t>();
  auto const phase = from.get<std::uint8_t>();
  if (phase > static_cast<std::uint8_t>(progress_phase::replaying))
    throw error(errc::bad_format, "progress phase " + std::to_string(phase) + "; 0 to 4 are known");
  report.phase = static_cast<progress_phase>(phase);
  report.step = from.get<std::int64_t>();
  report.passes_started = from.get<std::int64_t>();
  report.age_ms = from.get<std::int64_t>();
  report.silence_ms = from.get<std::int64_t>();
  return report;
}

/// Where a rank's step writes how far it is. One thread writes, any thread reads; the values are
/// for people and need not be of one moment, so nothing is ordered.
class progress_board {
 public:
  /// Begins a step.
  void begin_step(std::int64_t step) noexcept {
    step_.store(step, std::memory_order_relaxed);
    passes_started_.store(0, std::memory_order_relaxed);
    enter(progress_phase::waiting);
  }
  /// Begins the step after the one that stands there, or that one anew.
  void begin_attempt(bool is_next) noexcept {
    begin_step(step_.load(std::memory_order_relaxed) + (is_next ? 1 : 0));
  }
  /// Notes that the next pass of the step starts.
  void start_pass() noexcept {
    // Not fetch_add: there is one writer, and a plain store costs nothing.
    passes_started_.store(
        passes_started_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    enter(progress_phase::in_pass);
  }
  /// Notes what the rank does from now on.
  void enter(progress_phase phase) noexcept { phase_.store(phase, std::memory_order_relaxed); }

  /// @return what stands there; `rank` and the times are for the caller to fill in
  [[nodiscard]] progress_report read() const noexcept {
    progress_report report;
    report.phase = phase_.load(std::memory_order_relaxed);
    report.step = step_.load(std::memory_order_relaxed);
    report.passes_started = passes_started_.load(std::memory_order_relaxed);
    return report;
  }

 private:
  std::atomic<std::int64_t> step_{0};
  std::atomic<std::int64_t> passes_started_{0};
  std::atomic<progress_phase> phase_{progress_phase::outside};
};

/// Reads a board time and again, and knows since when it has not changed. For one thread at a time.
class progress_reader {
 public:
  progress_reader(progress_board const& board, int rank) noexcept : board_(&board), rank_(rank) {}

  /// @return what stands there now
  [[nodiscard]] progress_report read(std::chrono::steady_clock::time_point now) noexcept {
    auto report = board_->read();
    if (report != last_) {
      last_ = report;
      since_ = now;
    }
    report.rank = rank_;
    report.age_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - since_).count();
    return report;
  }

 private:
  progress_board const* board_;
  std::int32_t rank_;
  progress_report last_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

}  // namespace zbpp::asio
