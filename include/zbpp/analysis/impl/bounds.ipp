// SPDX-License-Identifier: Apache-2.0
//
// How each rule of analysis/bounds.hpp is tried, and how a claim is checked.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/detail/bounds/first_waits.hpp>
#include <zbpp/analysis/detail/bounds/forced_recompute.hpp>
#include <zbpp/analysis/detail/bounds/heads.hpp>
#include <zbpp/analysis/detail/bounds/memory.hpp>
#include <zbpp/analysis/detail/bounds/one_chunk.hpp>
#include <zbpp/analysis/detail/bounds/pass_windows.hpp>
#include <zbpp/analysis/detail/bounds/span.hpp>
#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/analysis/detail/bounds/view.hpp>
#include <zbpp/analysis/detail/exhaustive_search.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Holds what the rules need of a problem whose ranks have one stage each.
struct one_chunk_view {
  explicit one_chunk_view(bound_terms const& t) : terms(t) {
    for (int s = 0; s < t.stages(); ++s) facts.push_back(facts_of(t, s));
  }
  one_chunk_view(one_chunk_view const&) = delete;
  one_chunk_view& operator=(one_chunk_view const&) = delete;

  [[nodiscard]] warm_up_depths least_staircase() const {
    ticks low = 0;
    auto high = steps.enough();
    while (low < high) {
      auto const middle = low + (high - low) / 2;
      if (steps.depths(middle).stuck < 0)
        high = middle;
      else
        low = middle + 1;
    }
    return {high, steps.depths(high).forwards};
  }

  bound_terms const& terms;
  std::vector<stage_facts> facts;
  one_chunk_bounds rules{terms};
  staircase_steps steps{terms, facts};
};

[[nodiscard]] ZBPP_INLINE bool has_one_chunk(problem const& problem) {
  return problem.stages() == problem.ranks();
}

/// Adds up the passes of a rank.
[[nodiscard]] ZBPP_INLINE ticks
work_of(bound_terms const& terms, problem const& problem, int rank) {
  ticks recompute = 0;
  for (int k = 0; k < problem.distinct_microbatches(); ++k)
    recompute += forced_recompute(problem, rank, k);
  ticks sum = terms.are_alike() ? recompute * problem.microbatches() : recompute;
  for (int s : problem.placement().stages_of(rank)) sum += terms.all(s).all();
  return sum;
}

[[nodiscard]] ZBPP_INLINE std::vector<memory_terms> all_memory_terms(
    bound_terms const& terms, placement const& placement) {
  std::vector<memory_terms> all;
  for (int s = 0; s < terms.stages(); ++s)
    all.push_back(memory_terms_of(terms, placement.stages_of(placement.rank_of(s)), s));
  return all;
}

/// @return how many stages from 0 on have a rank each: it is known when their first F starts
[[nodiscard]] ZBPP_INLINE int leading_distinct_ranks(placement const& placement) {
  std::vector<bool> met(index(placement.ranks()), false);
  int s = 0;
  for (; s < placement.stages() && !met[index(placement.rank_of(s))]; ++s)
    met[index(placement.rank_of(s))] = true;
  return s;
}

/// Looks at a problem from each of its ranks. It refers to what it is made of.
///
/// A rank begins with F of the first microbatch on its first stage. Where it is known when, the
/// rank shares the heads that count from the start of stage 0. Others count from their own.
class rank_views {
 public:
  rank_views(bound_terms const& terms, placement const& placement)
      : terms_(terms), where_(placement) {}
  rank_views(rank_views const&) = delete;
  rank_views& operator=(rank_views const&) = delete;

  /// Calls `ask(span)` with the bounds on the span of a rank. @return what it answers
  template <class Ask>
  auto from(int rank, Ask ask) const {
    rank_view const view(terms_, where_, memory_, rank);
    if (view.from < straight_) return ask(span_bound(heads_, view, terms_.down(0, 0, view.from)));
    pass_heads const own(view);
    return ask(span_bound(own, view, 0));
  }

 private:
  bound_terms const& terms_;
  placement const& where_;
  std::vector<memory_terms> memory_ = all_memory_terms(terms_, where_);
  int straight_ = leading_distinct_ranks(where_);
  rank_view first_{terms_, where_, memory_, where_.rank_of(0)};
  pass_heads heads_{first_};
};

/// Estimates the nanoseconds that looking at a problem from one rank takes.
[[nodiscard]] ZBPP_INLINE double view_effort(problem const& problem) {
  double effort = 0;
  for (int r = 0; r < problem.ranks(); ++r) {
    auto const chunks = static_cast<double>(problem.placement().stages_of(r).size());
    effort += 36 * chunks * chunks * chunks;
  }
  return effort * problem.microbatches();
}

// About a second for all views, so that a problem of any size gets an answer.
inline constexpr double most_view_effort = 9e8;

/// Says from how many ranks the rule of heads and tails looks at a problem.
[[nodiscard]] ZBPP_INLINE int views_of(problem const& problem) {
  auto const effort = view_effort(problem);
  if (has_one_chunk(problem))  // the other rules do nearly as well there, in much less time
    return effort * problem.ranks() <= 4e6 ? problem.ranks() : 0;
  return static_cast<int>(std::min<double>(problem.ranks(), most_view_effort / effort));
}

ZBPP_INLINE double time_of_lower_bound(problem const& problem) {
  constexpr double per_pass = 150;
  return view_effort(problem) * views_of(problem) +
         per_pass * 3 * problem.stages() * problem.microbatches();
}

// About a tenth of a second.
inline constexpr double most_first_waits = 1e6;

/// Says whether the rule of first waits is for a problem, and does not take long.
[[nodiscard]] ZBPP_INLINE bool has_first_waits(problem const& problem, bound_terms const& terms) {
  auto const& placement = problem.placement();
  if (!terms.are_alike() || has_one_chunk(problem) ||
      leading_distinct_ranks(placement) < placement.ranks())
    return false;
  auto const m = static_cast<double>(problem.microbatches());
  double most = 0;  // pairs of numbers of F that fit a rank
  for (int r = 0; r < placement.ranks(); ++r) {
    auto const stages = placement.stages_of(r);
    if (stages.size() != 2) continue;
    auto const& a = terms[stages.front()];
    auto const& b = terms[stages.back()];
    auto const size = static_cast<double>(std::min(a.activation, b.activation));
    auto const room = static_cast<double>(std::max(a.room, b.room));
    auto const fit = 2 * m * size <= room ? 2 * m : room / size;
    most = std::max(most, std::min(fit * fit / 4, m * m / 2));
  }
  return most > 0 && most * placement.ranks() <= most_first_waits;
}

// About a second for one cost.
inline constexpr double most_windows_effort = 2e7;

/// Says whether the rule of windows is for a problem: it is known when each rank begins, and the
/// effort is enough to look at all passes a few times.
[[nodiscard]] ZBPP_INLINE bool has_windows(problem const& problem, double effort) {
  auto const& placement = problem.placement();
  if (leading_distinct_ranks(placement) < placement.ranks()) return false;
  double once = 0;
  for (int r = 0; r < placement.ranks(); ++r) {
    auto const lines = 3 * static_cast<double>(placement.stages_of(r).size());
    once += lines * lines * problem.microbatches();
  }
  constexpr double least_times = 4;
  return least_times * once <= effort;
}

/// Keeps the greatest of the bounds it is shown, of equal ones the first.
struct best_bound {
  cost_bound best;

  void operator()(cost_bound const& found) {
    if (found.cost > best.cost) best = found;
  }
};

ZBPP_INLINE void try_one_chunk_rules(
    problem const& problem, bound_terms const& terms, best_bound& take) {
  one_chunk_view const view(terms);
  auto const& rules = view.rules;
  auto const rank_of = [&](int s) { return problem.placement().rank_of(s); };
  // Which stage a path turns at does not depend on where it starts.
  int turn = terms.stages() - 1;
  for (int s = turn; s >= 0; --s) {
    auto const length = [&](int q) { return rules.path(s, q, view.facts[index(q)]); };
    if (length(s) >= length(turn)) turn = s;
    take({length(turn), bound_rule::path, rank_of(s), rank_of(turn)});
  }
  auto const least = view.least_staircase().cost;
  if (least > 0) take({least, bound_rule::staircase, rank_of(view.steps.depths(least - 1).stuck)});
}

ZBPP_INLINE void try_heads_and_tails_rule(
    problem const& problem, bound_terms const& terms, best_bound& take) {
  auto const views = views_of(problem);
  if (views == 0) return;
  rank_views const all(terms, problem.placement());
  for (std::int64_t i = 0; i < views; ++i) {
    // Spread over all ranks, the first and the last among them.
    auto const rank = views == 1 ? 0 : static_cast<int>(i * (problem.ranks() - 1) / (views - 1));
    auto const found = all.from(rank, [](span_bound const& span) { return span.most_crowded(); });
    take({found.span, bound_rule::heads_and_tails, rank, found.rank, found.head, found.tail});
  }
}

ZBPP_INLINE void try_first_waits_rule(
    problem const& problem, bound_terms const& terms, best_bound& take) {
  if (!has_first_waits(problem, terms)) return;
  first_waits waits(terms, problem.placement());
  auto low = take.best.cost;
  auto rank = waits.stuck(low);
  if (rank == first_waits::none) return;
  // Enough to wait for the first B with one F of each stage before it, and for the next after it.
  ticks enough = 0;
  for (int r = 0; r < problem.ranks(); ++r) enough = std::max(enough, work_of(terms, problem, r));
  enough += 2 * terms.there_and_back(0, 0);
  auto high = enough;
  // Whether `cost` is enough; if not, `low` is at least that.
  auto const try_cost = [&](ticks cost) {
    auto const found = waits.stuck(cost);
    (found == first_waits::none ? high : low) = cost;
    if (found != first_waits::none) rank = found;
    return found == first_waits::none;
  };
  // Most often a little more is enough.
  for (auto step = low / 4096 + 1; step < enough - low && !try_cost(low + step);) step *= 2;
  while (low + 1 < high) try_cost(low + (high - low) / 2);
  take({high, bound_rule::first_waits, rank});
}

[[nodiscard]] ZBPP_INLINE bool one_chunk_rule_holds(
    cost_bound const& claim, problem const& problem, bound_terms const& terms) {
  if (!has_one_chunk(problem)) return false;
  auto const s = problem.placement().stages_of(claim.rank).front();
  if (claim.rule == bound_rule::staircase)
    return one_chunk_view(terms).steps.depths(claim.cost - 1).stuck == s;
  if (claim.rule != bound_rule::path) return false;
  auto const turn = problem.placement().stages_of(claim.through).front();
  return turn >= s && one_chunk_bounds(terms).path(s, turn, facts_of(terms, turn)) >= claim.cost;
}

}  // namespace detail

ZBPP_INLINE warm_up_depths staircase(problem const& problem) {
  if (!problem.placement().is_linear())
    throw error(errc::unsupported_problem) +
        "a staircase needs a linear placement, one stage per rank; this one is " +
        problem.placement().name();
  detail::bound_terms const terms(problem);
  return detail::one_chunk_view(terms).least_staircase();
}

ZBPP_INLINE cost_bound lower_bound(problem const& problem) {
  detail::bound_terms const terms(problem);
  detail::best_bound take;
  for (int r = 0; r < problem.ranks(); ++r)
    take({detail::work_of(terms, problem, r), bound_rule::work, r});
  if (detail::has_one_chunk(problem)) detail::try_one_chunk_rules(problem, terms, take);
  detail::try_heads_and_tails_rule(problem, terms, take);
  detail::try_first_waits_rule(problem, terms, take);
  return take.best;
}

ZBPP_INLINE cost_bound raise_bound(
    cost_bound const& bound, ticks cost, problem const& problem, double effort, double* spent) {
  effort = std::min(effort, detail::most_windows_effort);
  if (bound.cost >= cost || !detail::has_windows(problem, effort)) return bound;
  detail::bound_terms const terms(problem);
  detail::pass_windows windows(terms, problem.placement(), effort);
  auto raised = bound;
  auto high = cost - 1;
  // Whether no schedule costs `tried` or less; if so, that raises the bound.
  auto const try_cost = [&](ticks tried) {
    auto const rank = windows.stuck(tried);
    if (spent != nullptr) *spent += windows.spent();
    bool const is_stuck = rank != detail::pass_windows::none;
    if (is_stuck)
      raised = {tried + 1, bound_rule::windows, rank};
    else
      high = tried - 1;
    return is_stuck;
  };
  // Most often no schedule costs less, or nothing is gained.
  auto const least_step = (cost - bound.cost) / 64;
  if (try_cost(high) || !try_cost(bound.cost + least_step)) return raised;
  while (raised.cost <= high && high - raised.cost >= least_step)
    try_cost(raised.cost + (high - raised.cost) / 2);
  return raised;
}

ZBPP_INLINE bool holds(cost_bound const& claim, problem const& problem) {
  auto const is_rank = [&](int rank) { return rank >= 0 && rank < problem.ranks(); };
  auto const through = claim.through;
  if (!is_rank(claim.rank)) return false;
  if (claim.rule == bound_rule::path && !is_rank(through)) return false;
  if (claim.rule == bound_rule::heads_and_tails && !is_rank(through) && through != detail::one_pass)
    return false;
  if (claim.cost <= 0) return true;
  detail::bound_terms const terms(problem);
  switch (claim.rule) {
    case bound_rule::work: return detail::work_of(terms, problem, claim.rank) >= claim.cost;
    case bound_rule::heads_and_tails: {
      if (detail::view_effort(problem) > detail::most_view_effort) return false;
      return detail::rank_views(terms, problem.placement()).from(claim.rank, [&](auto const& span) {
        return span.span_of(through, claim.head, claim.tail) >= claim.cost;
      });
    }
    case bound_rule::first_waits:
      return detail::has_first_waits(problem, terms) &&
             detail::first_waits(terms, problem.placement()).stuck(claim.cost - 1) == claim.rank;
    case bound_rule::windows:
      return detail::has_windows(problem, detail::most_windows_effort) &&
             detail::pass_windows(terms, problem.placement(), detail::most_windows_effort)
                     .stuck(claim.cost - 1) == claim.rank;
    case bound_rule::all_orders: return detail::no_order_costs_less(claim.cost, problem);
    default: return detail::one_chunk_rule_holds(claim, problem, terms);
  }
}

}  // namespace zbpp
