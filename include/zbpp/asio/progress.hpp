// SPDX-License-Identifier: Apache-2.0
//
// How far a rank is: a board that its step writes as it goes, and the report that its heartbeats
// carry to rank 0, where the watchdog looks at all of them.
#pragma once

#include <zbpp/asio/wire.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/program.hpp>

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
  between,    ///< it does what is no pass, such as an optimizer step
  in_pass,    ///< it runs the pass that it started last
  waiting,    ///< it waits for another rank, to go on with its program
  sending,    ///< it waits until what it sent has left
  replaying,  ///< its device replays the step, of which the host sees the end alone
};

/// Says in what a rank waits for others.
enum class wait_kind : std::uint8_t {
  none,         ///< it does not say
  instruction,  ///< one of its program
  group,        ///< a collective call of a group
  run,          ///< a call of all ranks of the run
  decision,     ///< the end of a step of run(), where all ranks say what comes next
};

/// Says for whom a rank waits, and in what. Aligned so that clang needs no library for atomic ones.
struct alignas(8) progress_wait {
  /// In a group a rank of the run; in an instruction a replica, or a channel of the `state_map`;
  /// the root of a broadcast. Below 0: it does not say.
  std::int32_t peer = -1;
  wait_kind kind = wait_kind::none;
  std::uint8_t call = 0;  ///< an `instruction_kind`, `call_of_group` or `call_kind`, by `kind`
  grid_axis axis = grid_axis::pipeline;  ///< of the group

  friend bool operator==(progress_wait const&, progress_wait const&) = default;
};

/// Describes how far a rank was when it last told.
struct progress_report {
  std::int32_t rank = 0;
  progress_phase phase = progress_phase::outside;
  std::int64_t step = 0;          ///< number of the step it is in, or would be in next
  std::optional<instruction> at;  ///< what it began last in that step, or waits to begin
  progress_wait wait;
  std::int64_t age_ms = 0;      ///< for how long none of the above had changed, milliseconds
  std::int64_t silence_ms = 0;  ///< how long ago rank 0 heard of it, milliseconds

  friend bool operator==(progress_report const&, progress_report const&) = default;
};

/// Looks at what all ranks told last, by rank. @return why the step has stalled, if it has
using watchdog = std::function<std::optional<std::string>(std::span<progress_report const>)>;

/// Names what the bytes of an instruction are, if there is one.
template <class Wire>
void fields(Wire& wire, wire_value<Wire, std::optional<instruction>>& given) {
  if (wire.is_there(given, "the mark of an instruction is"))
    wire.choice(given->kind, instruction_kinds, "the kind of an instruction is")
        .number(given->stage)
        .number(given->microbatch);
}

/// Names what the bytes of a report are.
template <class Wire>
void fields(Wire& wire, wire_value<Wire, progress_report>& report) {
  auto& wait = report.wait;
  wire.number(report.rank).choice(report.phase, 6, "the phase of a rank is").number(report.step);
  fields(wire, report.at);
  wire.number(wait.peer)
      .choice(wait.kind, 5, "the kind of a wait is")
      .choice(wait.call, instruction_kinds, "the call that a rank waits in is")
      .choice(wait.axis, 5, "the axis of a group is")
      .number(report.age_ms)
      .number(report.silence_ms);
}

/// Where a rank's step writes how far it is. One thread writes, any thread reads; the values are
/// for people and need not be of one moment, so nothing is ordered.
class progress_board {
 public:
  /// Begins a step.
  void begin_step(std::int64_t step) noexcept {
    step_.store(step, std::memory_order_relaxed);
    place_.store({}, std::memory_order_relaxed);
    wait({});
    enter(progress_phase::between);
  }
  /// Begins the step after the one that stands there, or that one again.
  void begin_attempt(bool is_next) noexcept {
    begin_step(step_.load(std::memory_order_relaxed) + (is_next ? 1 : 0));
  }
  /// Notes what the rank does, which is in `phase` from now on.
  void enter(progress_phase phase, instruction const& at) noexcept {
    kind_.store(at.kind, std::memory_order_relaxed);
    place_.store({at.stage, at.microbatch}, std::memory_order_relaxed);
    enter(phase);
  }
  /// Notes what the rank does from now on.
  void enter(progress_phase phase) noexcept { phase_.store(phase, std::memory_order_relaxed); }
  /// Notes for whom the rank waits, in `progress_phase::waiting` or in a call of a group or of all;
  /// nobody by default.
  void wait(progress_wait const& on) noexcept { wait_.store(on, std::memory_order_relaxed); }

  /// @return what stands there; `rank` and the times are for the caller to fill in
  [[nodiscard]] progress_report read() const noexcept {
    progress_report report;
    report.phase = phase_.load(std::memory_order_relaxed);
    report.step = step_.load(std::memory_order_relaxed);
    auto const [stage, microbatch] = place_.load(std::memory_order_relaxed);
    if (stage >= 0)
      report.at = instruction{kind_.load(std::memory_order_relaxed), stage, microbatch};
    report.wait = wait_.load(std::memory_order_relaxed);
    return report;
  }

 private:
  // What an instruction is about.
  struct alignas(8) place {
    std::int32_t stage = -1;  // -1: of none
    std::int32_t microbatch = 0;
  };
  static_assert(std::atomic<place>::is_always_lock_free);
  static_assert(std::atomic<progress_wait>::is_always_lock_free);

  std::atomic<std::int64_t> step_{0};
  std::atomic<place> place_{place{}};
  std::atomic<progress_wait> wait_{progress_wait{}};
  std::atomic<instruction_kind> kind_{instruction_kind::forward};
  std::atomic<progress_phase> phase_{progress_phase::outside};
};

/// Reads a board time and again, and knows since when it has not changed. For one thread at a time.
class progress_reader {
 public:
  progress_reader(progress_board const& board, int rank) noexcept : board_(&board), rank_(rank) {}

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
