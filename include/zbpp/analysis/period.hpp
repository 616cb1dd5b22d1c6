// SPDX-License-Identifier: Apache-2.0
//
// What a schedule costs when it is repeated. Where nothing makes the ranks meet between two steps,
// a rank begins the next step when it is done with its own part of this one. A step then takes the
// period, which is at most the cost.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <compare>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace zbpp {

/// Holds a mean of times exactly: `whole + part / of` ticks, in lowest terms.
struct mean_ticks {
  ticks whole = 0;
  int part = 0;  ///< from 0 to `of - 1`
  int of = 1;

  /// @return `whole + parts / divisor` ticks, in lowest terms; there may be more parts than that
  [[nodiscard]] static constexpr mean_ticks reduced(
      ticks whole, std::int64_t parts, std::int64_t divisor) noexcept {
    auto const rest = parts % divisor;
    auto const common = std::gcd(rest, divisor);
    return {
        whole + parts / divisor,
        static_cast<int>(rest / common),
        static_cast<int>(divisor / common)};
  }
  /// @return the least number of whole ticks that is no less
  [[nodiscard]] constexpr ticks rounded_up() const noexcept { return whole + (part > 0 ? 1 : 0); }

  friend bool operator==(mean_ticks const&, mean_ticks const&) = default;
  /// Compares values.
  friend constexpr std::strong_ordering operator<=>(
      mean_ticks const& a, mean_ticks const& b) noexcept {
    if (a.whole != b.whole) return a.whole <=> b.whole;
    return std::int64_t{a.part} * b.of <=> std::int64_t{b.part} * a.of;
  }
};

/// States how the steps of a schedule follow one another; times in ticks.
struct period_report {
  /// What a step takes in the long run. It is also the least cost that the order can have when
  /// ranks may begin later than they could, see `offsets`.
  mean_ticks period{};
  /// The ranks that set the period, in a cycle: the step of each holds up the next step of the one
  /// that follows it, and that of the last one the first.
  std::vector<int> critical_ranks{};
  /// How long after the rank of stage 0 each rank begins its steps, for good: then no rank takes
  /// longer than the period, rounded up, from the start of its first to the end of its last pass.
  std::vector<ticks> offsets{};
  /// After how many steps the ranks stand to each other as they will again and again, when all of
  /// them begin at once; nothing after more than `period_steps` steps, or `period_passes` passes.
  std::optional<int> transient{};
  ticks first_step = 0;   ///< cost of a step on its own, as `simulate` shows it
  ticks synchronous = 0;  ///< what a step takes where all ranks meet after each: the makespan
};

/// Says how many steps `period` follows to find the transient.
inline constexpr int period_steps = 1000;
/// Says how many passes of all ranks it follows for that: seconds of work.
inline constexpr std::int64_t period_passes = 400'000'000;

/// Says what a step takes when a schedule is repeated and no rank waits for others between steps.
///
/// With L(i, j) the longest path from the first start of rank i to the last end of rank j in one
/// step, a rank ends step k + 1 at the maximum over i of (end of step k on i) + L(i, j). Such a
/// system advances in the long run by the greatest mean of L over a cycle of ranks.
/// @throws error (bad_argument) when schedule and problem differ in placement or microbatches, or
///         naming an F or B that is missing; (refused_program) naming a pass that can never start
///         or that stands twice
/// @source Baccelli, Cohen, Olsder, Quadrat: Synchronization and Linearity (1992), ch. 3
/// @complexity O(passes) for each walk through a step: a few for each cycle that is tried, at most
///             one per rank; likewise for the offsets; and one per step for the transient
[[nodiscard]] period_report period(schedule const& schedule, problem const& problem);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/period.ipp>
#endif
