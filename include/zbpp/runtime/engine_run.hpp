// SPDX-License-Identifier: Apache-2.0
//
// What an engine is asked to run, and what it gives: the places of times and losses, and who is
// told when a step is judged.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/message_record.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace zbpp {

/// Tells how far `engine::advance` came.
enum class progress : std::uint8_t {
  done,     ///< all steps of the run are over
  blocked,  ///< the rank waits for another
  failed,   ///< the step has failed, here or on another rank
  paused,   ///< as many passes ran as were asked for
};

/// Gives an engine the places of what a step gives.
struct step_places {
  std::span<double> losses{};     ///< one per microbatch, written by the last stage
  std::span<timed_pass> trace{};  ///< one per pass, gets start and end of each
  rank_update* update = nullptr;  ///< null where ranks agree on nothing
  ticks* ended = nullptr;         ///< when it was done with the step; null where nobody may ask
  message_record* messages = nullptr;  ///< null where none are recorded
};

/// Hears of the steps of a run whose outcome is known, one after another.
class step_listener {
 public:
  virtual ~step_listener() = default;
  /// Called by an engine, on its thread, when it knows how a step came out. All ranks of this
  /// process have done with that step then, but for its optimizer step, unless ranks did not agree
  /// on it: they have done with the one before it. The next steps go on meanwhile.
  virtual void on_decided(std::int64_t step) = 0;
};

/// Says what an engine is to run.
struct engine_run {
  std::int64_t first = 0;                ///< number of the first step
  std::int64_t count = 1;                ///< of steps; more than one only where ranks agree
  std::int64_t evaluation = 0;           ///< evaluations since the last step, before this one
  std::array<step_places, 3> places{};   ///< of steps in turn, counted from `first`
  std::size_t places_in_turn = 2;        ///< how many of these there are
  step_listener* listener = nullptr;     ///< of one engine of a process; null for the others
  zbpp::detail::run_statement stated{};  ///< for other processes to compare

  [[nodiscard]] bool is_last(std::int64_t step) const noexcept { return step + 1 == first + count; }
  [[nodiscard]] step_places const& places_of(std::int64_t step) const noexcept {
    return places[zbpp::detail::index(step - first) % places_in_turn];
  }
};

namespace detail {

/// Says where an engine stands in its run.
enum class run_state : std::uint8_t {
  at_instruction,
  between_steps,
  going_back,  // after the step before was amended: what this one has run is void
  rejoining,   // that is undone; it begins again
};

/// Names what a rank waits for: a message, or, where it is none, a state of gradients, or that what
/// the rank sent is consumed, at the end of a step or, in an evaluation, at a send.
struct awaited_message {
  int channel = channel_map::none;
  std::int32_t sequence = -1;
};

}  // namespace detail
}  // namespace zbpp
