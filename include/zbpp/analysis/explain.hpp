// SPDX-License-Identifier: Apache-2.0
//
// Explains a measured step by the plan that ran: where the time of each rank went, which passes and
// waits made the step as long as it was, and what each would give if it took its planned time.
#pragma once

#include <zbpp/analysis/clock_offsets.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/message_record.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace zbpp {

/// Says where the time of one rank went in a measured step. The parts add up to the step.
struct rank_account {
  ticks work = 0;    ///< passes, for no longer than planned
  ticks longer = 0;  ///< passes, for longer than planned
  /// Waits that the plan has, too; apart from `imbalance`.
  ticks bubble = 0;
  /// Of the waits that the plan has: as much as the rank has less work than the busiest one.
  ticks imbalance = 0;
  /// Waits beyond those of the plan for a pass of another rank to end, by that rank.
  std::vector<ticks> for_rank = {};
  /// Waits for messages whose pass had ended, until they were sent; 0 without a record of messages.
  ticks sent_late = 0;
  /// Waits beyond those of the plan for messages that had been sent; without a record of messages
  /// whose pass had ended, where they were not there yet by what others took on their way.
  ticks messages = 0;
  /// Waits in front of passes whose messages had arrived; 0 without a record of messages.
  ticks taken_late = 0;
  /// Waits in front of passes that need nothing of other ranks; without a record of messages also
  /// in front of those whose message was there before the rank was free.
  ticks host = 0;
  /// From its last pass until it was done with the step and its optimizer step was final; and
  /// between passes where an optimizer step, or what belongs to one, stands there.
  ticks optimizer = 0;

  /// How much sooner the step would have ended if no pass had taken longer than planned.
  ticks gain = 0;

  [[nodiscard]] ticks sum() const noexcept;

  friend bool operator==(rank_account const&, rank_account const&) = default;
};

/// Says what a pass of the critical path waited for.
enum class wait_cause : std::uint8_t { none, message, host, optimizer };

[[nodiscard]] std::string_view to_string(wait_cause cause) noexcept;

/// A pass, or a pair, of the critical path: it began `waited` after the end of the one before it
/// in the path.
struct critical_pass {
  int rank = 0;
  zbpp::pass pass = {};  ///< of a pair the F
  bool is_pair = false;
  ticks start = 0;    ///< from the start of the step
  ticks end = 0;      ///< from the start of the step
  ticks planned = 0;  ///< how long the plan has it
  ticks waited = 0;   ///< before its start, for `cause`
  wait_cause cause = wait_cause::none;
  ticks sent_late = 0;   ///< of `waited`: until the message was sent
  ticks taken_late = 0;  ///< of `waited`: after its arrival

  friend bool operator==(critical_pass const&, critical_pass const&) = default;
};

/// Says what was late.
enum class delay_kind : std::uint8_t {
  pass,     ///< a pass took longer than planned
  send,     ///< what a pass waited for was sent some time after it was made
  message,  ///< the message that a pass waited for took longer than stated
  start,    ///< a pass started some time after all that it needs was there
};

[[nodiscard]] std::string_view to_string(delay_kind kind) noexcept;

/// What took longer than planned.
struct delay {
  int rank = 0;          ///< that runs the pass
  zbpp::pass pass = {};  ///< of a pair the F
  delay_kind kind = delay_kind::pass;
  ticks planned = 0;  ///< 0 of a send and a start
  ticks took = 0;
  ticks gain = 0;  ///< by how much the step would have ended sooner at the planned time

  friend bool operator==(delay const&, delay const&) = default;
};

/// Explains a measured step.
struct explanation {
  ticks planned = 0;   ///< the step as it is predicted, from its first start to its last end
  ticks measured = 0;  ///< the step as it was; with the optimizer step, where that is given
  std::vector<rank_account> ranks = {};
  /// The chain of passes and waits that made the step as long as it was, from its start. All
  /// durations and waits in it add up to the end of the last pass.
  std::vector<critical_pass> critical = {};
  /// What costs most, the greatest gain first; all of it is on the critical path.
  std::vector<delay> worst = {};
  /// By how much the step would have ended sooner if all messages had taken their stated time.
  ticks message_gain = 0;
  /// By how much the step would have ended sooner if all messages had been sent when their pass
  /// ended; 0 without a record of messages.
  ticks send_gain = 0;
  /// By how much the step would have ended sooner if no rank had waited for nothing: in front of
  /// passes that need nothing of other ranks, or whose messages had arrived, optimizer steps apart.
  ticks host_gain = 0;
  bool has_messages = false;  ///< whether a record of messages was given
  /// The greatest error of the ranks' clocks against that of rank 0; 0 where it was not said.
  ticks clock_error = 0;

  friend bool operator==(explanation const&, explanation const&) = default;
};

/// States what `explain` looks at besides the passes.
struct explain_options {
  int worst = 5;                            ///< the most delays to list, at least 0
  std::span<rank_update const> ranks = {};  ///< `step_result::ranks`, of all ranks; or none
  /// `step_result::messages.all()`, of all ranks; or none.
  std::span<timed_message const> messages = {};
  std::span<clock_offset const> clocks = {};  ///< `asio::gathered_step::clocks`; or none
};

/// Explains a measured step.
///
/// A wait in front of a pass whose input another rank makes counts as one for the pass that makes
/// it, until that ends, and then for the message. A record of messages tells late sends and late
/// starts from slow messages. Without it a message takes as long as stated, and as much longer as
/// all between these ranks did that found the rank free; what was there by that before the rank was
/// free was taken late. Waits at optimizer steps count for these, other ones for the host.
/// Gains come from replaying the step with other times: each rank keeps its order, and each message
/// and late start takes as long as it took.
/// @param planned   the plan that ran
/// @param measured  the passes of all ranks, on one clock
/// @throws error (bad_argument) when the step is not one of the plan, a pass ends before it starts,
///         the record lacks a message or a time, or an option is out of range
/// @complexity O(passes * ranks)
[[nodiscard]] explanation explain(
    plan const& planned, timeline const& measured, explain_options const& options = {});

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/explain.ipp>
#endif
