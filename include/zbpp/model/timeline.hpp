// SPDX-License-Identifier: Apache-2.0
//
// A timeline: when each pass ran, planned by `simulate` or measured by the engine. What it cost and
// how much of it was bubble follow from it alone.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>

namespace zbpp {

/// Says when one pass ran, in ticks from the start of the step, or of the run of several.
struct timed_pass {
  zbpp::pass pass;
  ticks start = 0;
  ticks end = 0;

  friend bool operator==(timed_pass const&, timed_pass const&) = default;
};

/// Holds the timed passes of every rank, in the order in which they ran.
using timeline = rows<timed_pass>;

/// Says when a rank did its part in an optimizer step, in the clock of the timeline. Where ranks
/// agree on nothing, only `ended` is known.
struct rank_update {
  ticks measured = 0;     ///< its gradients were complete
  ticks stepped = 0;      ///< it stepped for the first time
  ticks validated = 0;    ///< it learned the verdict
  ticks ended = 0;        ///< it was done with all of the step; 0 where that is not known, as on
                          ///< GPUs and in `run` where ranks agree, where the next step goes on
  bool is_early = false;  ///< it stepped before that

  friend bool operator==(rank_update const&, rank_update const&) = default;
};

/// Says when the gradients of a stage are added up over replicas, in the clock of the timeline.
struct timed_reduction {
  int stage = 0;
  ticks start = 0;
  ticks end = 0;

  friend bool operator==(timed_reduction const&, timed_reduction const&) = default;
};

/// @return the greatest time of a rank from the start of its first to the end of its last pass
/// @source arXiv 2401.10241 sec. 5.3
[[nodiscard]] ticks cost(timeline const& line) noexcept;

/// @return the end of the last pass of all, from the start of the step
[[nodiscard]] ticks makespan(timeline const& line) noexcept;

/// @return the same step, counted from its first start; an empty one stays empty
[[nodiscard]] timeline from_first_start(timeline line);

/// @return how long a rank works; recomputing does not count, and a pair counts once
[[nodiscard]] ticks busy(timeline const& line, int rank) noexcept;

/// @return the share of the ranks' time that is lost, 1 - sum of busy / (ranks * cost); 0 for an
///         empty timeline. For even ranks this is the paper's (cost - m(F+B+W)) / cost.
/// @source arXiv 2401.10241 sec. 5.3
[[nodiscard]] double bubble_rate(timeline const& line) noexcept;

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/timeline.ipp>
#endif
