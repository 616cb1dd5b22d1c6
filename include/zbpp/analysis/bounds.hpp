// SPDX-License-Identifier: Apache-2.0
//
// Lower bounds on the cost of the schedules of a problem, each with what a checker needs to see
// that it holds. docs/bounds.md says which schedules are meant, and states and proves the rules. A
// plan that costs no more is optimal.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace zbpp {

/// Says why no schedule of a problem costs less, of those that `lower_bound` is about.
enum class bound_rule : std::uint8_t {
  work,             ///< the passes of a rank
  path,             ///< down to a rank, what that one does up to its last B, and up again
  staircase,        ///< the waits of all ranks, each as long as those after it make it
  first_waits,      ///< the same for ranks with two stages: waits for first F and for first B
  heads_and_tails,  ///< passes of one rank, with what must come before and after them
  windows,          ///< when each pass can run, narrowed until one has no time left
  all_orders,       ///< every order of a tiny problem; `rank` is 0
};

[[nodiscard]] constexpr std::string_view to_string(bound_rule rule) noexcept {
  switch (rule) {
    case bound_rule::work: return "work";
    case bound_rule::path: return "path";
    case bound_rule::staircase: return "staircase";
    case bound_rule::first_waits: return "first waits";
    case bound_rule::heads_and_tails: return "heads and tails";
    case bound_rule::windows: return "windows";
    case bound_rule::all_orders: return "all orders";
  }
  return "?";
}

/// Says what each schedule with microbatches in order costs at least, and why.
struct cost_bound {
  ticks cost = 0;
  bound_rule rule{};
  /// whose span is bounded; staircase, first_waits, windows: the rank that cannot end earlier
  int rank = 0;
  int through = -1;  ///< path, heads_and_tails: the rank whose passes are counted; -1: one pass
  /// heads_and_tails: from the first start on `rank` to that of those passes; negative: before it
  ticks head = 0;
  ticks tail = 0;  ///< heads_and_tails: from where they can end to the last end on `rank`

  friend bool operator==(cost_bound const&, cost_bound const&) = default;
};

/// States how many F each rank runs before its first B.
struct warm_up_depths {
  ticks cost = 0;             ///< the least that leaves each rank the time to wait for that B
  std::vector<int> forwards;  ///< one number per rank
};

/// Finds the least cost that leaves each rank of a linear placement the idle time to wait for its
/// first B, and how many F it best runs before.
/// @throws error (unsupported_problem) when the placement is not linear
/// @complexity O(ranks * (microbatches + log of the cost))
[[nodiscard]] warm_up_depths staircase(problem const& problem);

/// Finds a cost that no schedule of a problem can go below which runs the microbatches of each
/// stage in order, as `simulate` times it: with BW, R and pairs or without, and however long ranks
/// idle once they have begun. Microbatches out of turn, or a rank that waits at will before its
/// first pass, may cost less; so may the period. It says nothing where limits admit no schedule.
/// @complexity with one stage per rank O(ranks * (microbatches + log of the cost)); else bounded by
///             looking from fewer ranks at large problems, at about a second in all
[[nodiscard]] cost_bound lower_bound(problem const& problem);

/// Looks for a greater bound than `lower_bound` finds: supposes that a schedule costs less, and
/// narrows the times at which each pass can run until one has none. It does so for placements whose
/// first stages are on a rank each, such as linear, V and looped ones.
/// @param bound   of the problem
/// @param cost    of a schedule of the problem; the answer is no greater
/// @param effort  comparisons of a pass with a line of passes, for each of at most nine costs that
///                are tried: 1e7 take about a second, and no more than 2e7 are used
/// @param spent   grows by the comparisons that were made; nullptr: nobody counts
/// @return the greater bound, or `bound`
[[nodiscard]] cost_bound raise_bound(
    cost_bound const& bound,
    ticks cost,
    problem const& problem,
    double effort = 1e6,
    double* spent = nullptr);

/// Checks a bound from the problem alone: whether its rule, at its rank, gives at least its cost.
/// It takes any claim, wherever that comes from, and about a second at most. It searches nothing
/// but for `all_orders`, where it goes through them again; it refuses such a claim of a problem of
/// more than 60 passes, or with pairs that gain or messages that take memory.
[[nodiscard]] bool holds(cost_bound const& claim, problem const& problem);

namespace detail {

/// Estimates the nanoseconds that `lower_bound` takes, within a factor of two.
[[nodiscard]] double time_of_lower_bound(problem const& problem);

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/bounds.ipp>
#endif
