// SPDX-License-Identifier: Apache-2.0
//
// A profile of measured steps: what each kind of pass of each stage took, and how much that varied;
// the same of messages between ranks; and the problem that follows.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/timeline.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace zbpp {

/// Says how times vary.
struct time_spread {
  std::int64_t count = 0;  ///< of samples
  ticks least = 0;
  ticks median = 0;
  ticks most = 0;
  /// The median distance from the median, which outliers do not change.
  ticks deviation = 0;

  friend bool operator==(time_spread const&, time_spread const&) = default;
};

/// Says what the passes of one kind of one stage took. Passes in pairs count for themselves. Where
/// microbatches have factors, all is divided by them, as in `costs_from`.
struct pass_profile {
  int stage = 0;
  pass_kind kind = pass_kind::forward;
  time_spread took = {};

  friend bool operator==(pass_profile const&, pass_profile const&) = default;
};

/// Says what the messages from one rank to another took that their receiver waited for.
struct message_profile {
  int from = 0;
  int to = 0;
  time_spread took = {};

  friend bool operator==(message_profile const&, message_profile const&) = default;
};

/// Holds what measured steps tell.
struct step_profile {
  problem costs;                          ///< as `costs_and_messages_from`, to plan with
  std::vector<pass_profile> passes = {};  ///< by stage, then kind; without those that did not run
  std::vector<message_profile> messages = {};  ///< by ranks; without those nobody waited for
  time_spread step = {};                       ///< of the cost of the steps

  friend bool operator==(step_profile const&, step_profile const&) = default;
};

/// States what a profile leaves out.
struct profile_options {
  int first_steps = 3;             ///< left out at the beginning, at least 0: they meet cold caches
  double message_quantile = 0.02;  ///< of `costs_and_messages_from`
};

/// Profiles measured steps of one plan. Its costs serve every plan of that placement.
/// @param steps   `step_result::measured` of each, with the passes of all ranks, on one clock
/// @param stated  the problem of the plan that ran
/// @throws error (bad_argument) as `costs_and_messages_from`, when an option is out of range, or
///         when no step is left
[[nodiscard]] step_profile profile(
    std::span<timeline const> steps, problem const& stated, profile_options const& options = {});

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/profile.ipp>
#endif
