// SPDX-License-Identifier: Apache-2.0
//
// One search of a problem, within its own limits, and searches with a budget for activations alone:
// static memory, workspace and edges come on top of that, up to the memory limits of the problem.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/policy/interleaved.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- one search --------------------------------------------------------------------------------
//
// One search of a problem, within its own limits.

/// Holds an order that one search found.
struct found_order {
  zbpp::schedule schedule;
  ticks cost = 0;
  cost_bound bound = {};
  std::int64_t tries = 0;
  double work = 0;  ///< that this took of the budget, in passes
};

/// Searches for the cheapest schedule of a problem.
/// @param bound  of its cost, where a greater one may be known than `lower_bound` gives
/// @param near   what the search may take near its bound, as a multiple of its budget
/// @throws error as `greedy_auto`
[[nodiscard]] found_order search_once(
    problem const& problem,
    search_budget const& budget,
    cost_bound const& bound = {},
    double near = 1);

/// Looks at all orders of a tiny problem that cost less than what was found, down to its bound.
/// @return whether that ended, or met the bound: then what was found is optimal by its bound
[[nodiscard]] bool search_all_orders(
    problem const& problem, search_budget const& budget, found_order& found);

/// Searches for a schedule that costs no more than `target`, and ends with the first.
/// @param problem  one for which there is memory
/// @return the cheapest schedule found; its bound says nothing
[[nodiscard]] found_order search_for(
    problem const& problem, search_budget const& budget, ticks target);

// ---- shares of a budget ------------------------------------------------------------------------

/// The share of a budget that goes into less memory at the cost that was found.
inline constexpr double share_of_saving = 0.03;
/// The share of what is left that goes into the bounds of what searches have found.
inline constexpr double share_of_proofs = 0.17;
/// What the first search may take near its bound, as a multiple of its share.
inline constexpr double most_near_bound = 1.5;

/// Divides a budget among a search, others in smaller memories, and proofs. Chosen by us: a search
/// of all the memory finds the best order more often than one of less.
struct budget_shares {
  explicit budget_shares(std::size_t smaller)
      : first(
            (1 - share_of_proofs) / (most_near_bound + of_smaller * static_cast<double>(smaller))),
        each_smaller(of_smaller * first) {}

  static constexpr double of_smaller = 0.75;  // of the share of the first
  double first;                               ///< `most_near_bound` times as much near the bound
  double each_smaller;
};

/// @param smaller  memories that policies have on the placement
/// @return what a policy that searches has for one of them: as much as `greedy_auto` has for it, so
///         that the policy does not find more
[[nodiscard]] inline search_budget share_of_policy(
    search_budget const& budget, std::size_t smaller) {
  return budget.share(1 - share_of_saving).share(budget_shares(smaller).each_smaller);
}

// ---- budgets for activations -------------------------------------------------------------------
//
// Searches with a budget for activations alone: static memory, workspace and edges come on top of
// it, up to the memory limits of the problem.

/// Says how long the messages that two ranks exchange one way take, where their sizes differ.
enum class edge_times { longest, shortest };

/// Makes the messages of a problem take no memory, and as much time as before. Where the edges that
/// two ranks exchange one way differ in size, by stage or by microbatch, all of them take as long
/// as one of them.
[[nodiscard]] inline problem with_free_edges(
    problem const& problem, std::vector<bytes> limits, edge_times times = edge_times::longest) {
  std::vector<stage_costs> costs(problem.all_costs().begin(), problem.all_costs().end());
  for (auto& c : costs) c.edge = 0;
  auto transfer = problem.transfer();
  if (!transfer.time_per_byte().empty()) {
    auto const p = problem.ranks();
    std::vector<std::optional<ticks>> chosen(index(p) * index(p));
    auto const choose = [&](int from, int to) {
      auto& one = chosen
          [index(problem.placement().rank_of(from)) * index(p) +
           index(problem.placement().rank_of(to))];
      for (int m = 0; m < problem.distinct_microbatches(); ++m) {
        auto const time = problem.transfer_time(from, to, m);
        one = times == edge_times::longest ? std::max(one.value_or(time), time)
                                           : std::min(one.value_or(time), time);
      }
    };
    for (int s = 1; s < problem.stages(); ++s) {
      choose(s - 1, s);
      choose(s, s - 1);
    }
    std::vector<ticks> latency;
    for (auto const& time : chosen) latency.push_back(time.value_or(0));
    transfer = {p, std::move(latency)};
  }
  return with_memory_limits(
      with_transfer(with_stages(problem, std::move(costs)), std::move(transfer)),
      std::move(limits));
}

[[nodiscard]] inline std::vector<bytes> budget_of(problem const& problem, int microbatches) {
  std::vector<bytes> budget;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes kept = 0;
    for (int s : problem.placement().stages_of(rank)) kept += problem.costs(s).activation;
    budget.push_back(kept * std::min(microbatches, problem.microbatches()));
  }
  return budget;
}
[[nodiscard]] inline std::vector<bytes> v_half_budget(problem const& problem) {
  return budget_of(problem, (problem.ranks() + 2) / 2);
}
[[nodiscard]] inline std::vector<bytes> v_min_budget(problem const& problem) {
  return budget_of(problem, (problem.ranks() + 4) / 3);
}
/// @return the budget of interleaved zero bubble, what 1F1B-I takes
[[nodiscard]] inline std::vector<bytes> interleaved_budget(problem const& problem) {
  return peak_activations(interleaved{}(problem), problem);
}
/// Makes the budget of a policy for a problem.
using budget_call = std::vector<bytes> (*)(problem const&);
/// The budgets of the policies that search on a V, the largest first.
inline constexpr std::array<budget_call, 2> v_budgets{v_half_budget, v_min_budget};
/// The budget of the policy that searches on a looped placement.
inline constexpr std::array<budget_call, 1> looped_budgets{interleaved_budget};
/// @return the budgets of all policies that search on a placement, the largest first
[[nodiscard]] inline std::span<budget_call const> activation_budgets(placement const& placement) {
  if (placement.is_v_shape()) return v_budgets;
  if (placement.is_looped()) return looped_budgets;
  return {};
}

/// @return the limits of a problem, lowered to what a budget for activations comes to with static
///         memory and workspace
[[nodiscard]] inline std::vector<bytes> limits_within(
    problem const& problem, std::vector<bytes> const& budget) {
  std::vector<bytes> limits;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes fixed = 0;
    bytes workspace = 0;
    for (int s : problem.placement().stages_of(rank)) {
      fixed += problem.fixed_memory(s);
      workspace = std::max(workspace, problem.costs(s).workspace);
    }
    auto const sum = fixed + workspace + budget[index(rank)];
    limits.push_back(std::min(sum, problem.memory_limit(rank).value_or(sum)));
  }
  return limits;
}

/// @return the share of a budget for the first of several rounds that a search may need because
///         edges count against limits; each of the next has half as much as the one before
[[nodiscard]] inline double share_of_round(problem const& problem) {
  bool const may_need_others =
      !problem.memory_limits().empty() &&
      std::ranges::any_of(problem.all_costs(), [](stage_costs const& c) { return c.edge > 0; });
  return may_need_others ? 0.5 : 1;
}

/// Searches for the cheapest schedule in which no rank holds more activations than its budget, nor
/// more memory than its limit.
/// @param activations  bytes of each rank, at least those of one microbatch
/// @param bound        of the cost within these, where one is known
/// @return the schedule and how many were tried; cost and bound are those of the smaller memory
/// @throws error (unsupported_problem) when no schedule fits the limits of the problem
[[nodiscard]] inline found_order find_within(
    problem const& problem,
    std::vector<bytes> const& activations,
    search_budget const& budget,
    cost_bound const& bound = {}) {
  require_memory(problem);
  auto limits = limits_within(problem, activations);
  auto const least = least_memory(with_free_edges(problem, {}));
  auto share = share_of_round(problem);
  constexpr int most_rounds = 8;
  std::int64_t tries = 0;
  double work = 0;
  for (int round = 0; round < most_rounds; ++round, share /= 2) {
    auto found = search_once(with_free_edges(problem, limits), budget.share(share), bound);
    found.tries = tries += found.tries;
    found.work = work += found.work;
    // What edges take beyond a limit of the problem is not there for activations.
    bool fits = true;
    auto const used = memory_of(found.schedule, problem);
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      auto const limit = problem.memory_limit(rank);
      if (!limit || used[index(rank)] <= *limit) continue;
      fits = false;
      auto& left = limits[index(rank)];
      left = std::max(left - (used[index(rank)] - *limit), least[index(rank)]);
    }
    if (fits) return found;
  }
  auto order = one_by_one(problem);
  auto const taken = cost(simulate(order, problem));
  return {std::move(order), taken, lower_bound(problem), tries, work};
}

/// Searches again in each smaller memory that could hold a cheaper order; takes the cheapest.
/// @param limits    of the memory that was searched; empty where it had none
/// @param memories  the smaller ones
/// @param budget    of each
/// @param proofs    for bounds of the smaller memories
/// @param found     what a search, or a rule, has found in the larger memory; its bound stays
inline void search_smaller(
    problem const& problem,
    std::span<bytes const> limits,
    std::span<budget_call const> memories,
    search_budget const& budget,
    search_budget& proofs,
    found_order& found) {
  std::size_t done = 0;
  for (auto const memory_for : memories) {
    ++done;
    auto const activations = memory_for(problem);
    auto const smaller_limits = limits_within(problem, activations);
    if (budget.is_stopped() || std::ranges::equal(smaller_limits, limits)) continue;
    auto const smaller = with_free_edges(problem, smaller_limits, edge_times::shortest);
    if (!fits_memory(smaller)) continue;
    auto const bound = raise_within(proofs, lower_bound(smaller), found.cost, smaller);
    if (bound.cost >= found.cost) continue;
    auto const part = budget.part(done, 1 + memories.size()).below(found.cost, found.bound.cost);
    auto other = find_within(problem, activations, part, bound);
    found.tries += other.tries;
    found.work += other.work;
    auto const taken = cost(simulate(other.schedule, problem));
    if (taken >= found.cost) continue;
    found.schedule = std::move(other.schedule);
    found.cost = taken;
  }
}

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/search_once.ipp>
#endif
