// SPDX-License-Identifier: Apache-2.0
//
// One search: rounds of it until an order fits the memory with its edges, and then the handcrafted
// orders, where the search has not met the bound.
#pragma once

#include <zbpp/analysis/detail/exhaustive_search.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/plan_search.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/memory_needs.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp {
namespace detail {

/// Runs searches of one problem until an order fits with its edges, which are known only once there
/// is an order.
class memory_search {
 public:
  /// @param near  what it may take near its bound, as a multiple of its budget
  memory_search(
      problem const& problem, search_budget const& budget, cost_bound const& bound, double near)
      : problem_(problem),
        budget_(budget.share(1 - share_of_interim_proofs)),
        near_(near),
        proofs_(budget.share(share_of_interim_proofs)),
        first_bound_(lower_bound(problem)),
        bound_(bound.cost > first_bound_.cost ? bound : first_bound_) {}

  /// Searches for a schedule that costs no more than `target` and no longer.
  memory_search(problem const& problem, search_budget const& budget, ticks target)
      : problem_(problem),
        budget_(budget),
        near_(1),
        proofs_(budget.of(0)),
        first_bound_{.cost = target},
        bound_(first_bound_),
        has_target_(true) {}

  [[nodiscard]] found_order run() {
    auto const depths =
        problem_.placement().is_linear() ? staircase(problem_).forwards : std::vector<int>{};
    std::vector<bytes> reserve(index(problem_.ranks()), 0);
    std::optional<std::vector<schedule>> known;
    auto const known_once = [&]() -> std::vector<schedule>& {
      if (!known) known = known_orders(problem_);
      return *known;
    };
    auto share = share_of_round(problem_);
    constexpr int most_rounds = 8;
    for (int round = 0; round < most_rounds; ++round, share /= 2) {
      plan_search search(problem_, first_bound_.cost, depths, reserve, budget_.share(share), near_);
      search.stop_at(bound_.cost);
      search.try_known();
      if (!search.is_done()) search.try_orders(seeds_of(problem_, known_once(), search.room()));
      if (search.has_found()) improve(search);
      tries_ += search.tries();
      work_ += search.work();
      if (!search.has_found()) break;
      // An order within the limits is taken, whether or not the search goes on for its edges.
      if (auto changed = search.best_by_order())
        if (is_within_limits(*changed, problem_)) take(fuse(std::move(*changed)));
      auto order = fuse(search.best_by_rules());
      auto const used = memory_of(order, problem_);
      if (keeps_limits(used, problem_)) {
        take(std::move(order));
        break;
      }
      if (!set_aside_excess(used, reserve)) break;
    }
    if (!best_ || cost_ > bound_.cost)
      for (auto& order : known_once())
        if (is_within_limits(order, problem_)) take(fuse(std::move(order)));
    if (!best_) take(one_by_one(problem_));
    return {std::move(*best_), cost_, bound_, tries_, work_ + proofs_.spent()};
  }

 private:
  // Of the budget, for bounds that are raised while the search goes on.
  static constexpr double share_of_interim_proofs = 0.08;

  // A search often finds an optimum early, and the bound can be raised to it with little effort. So
  // that is tried each time that the search has taken twice as long.
  void improve(plan_search& search) {
    ticks tried = never;
    for (double budgets = 1.0 / 8; !search.is_done(); budgets *= 2) {
      if (!has_target_ && search.cost() < tried && !budget_.is_stopped()) {
        tried = search.cost();
        bound_ = raise_within(proofs_, bound_, tried, problem_);
        search.stop_at(bound_.cost);
      }
      search.improve(budgets);
    }
  }

  // Where an order meets a target, there is nothing to gain.
  [[nodiscard]] schedule fuse(schedule order) {
    if (has_target_ && cost(simulate(order, problem_)) <= bound_.cost) return order;
    int trials = 0;
    auto fused = fuse_where_it_pays(std::move(order), problem_, &trials);
    work_ += passes_per_simulation * trials * static_cast<double>(fused.passes().size());
    return fused;
  }

  void take(schedule order) {
    auto const found = cost(simulate(order, problem_));
    if (best_ && found >= cost_) return;
    cost_ = found;
    best_ = std::move(order);
  }

  // What edges take beyond a limit is not there for activations.
  // @return whether there is more to set aside than before
  bool set_aside_excess(std::vector<bytes> const& used, std::vector<bytes>& reserve) const {
    auto const least = least_memory(with_free_edges(problem_, {}));
    bool any = false;
    for (int rank = 0; rank < problem_.ranks(); ++rank) {
      auto const limit = problem_.memory_limit(rank);
      if (!limit || used[index(rank)] <= *limit) continue;
      auto& kept = reserve[index(rank)];
      auto const more = std::min(kept + used[index(rank)] - *limit, *limit - least[index(rank)]);
      any = any || more > kept;
      kept = std::max(kept, more);
    }
    return any;
  }

  problem const& problem_;
  search_budget budget_;
  double near_;
  search_budget proofs_;
  cost_bound
      first_bound_;  // what is tried depends on this one, which does not depend on the budget
  cost_bound bound_;
  std::optional<schedule> best_;
  ticks cost_ = 0;
  bool has_target_ = false;
  std::int64_t tries_ = 0;
  double work_ = 0;
};

[[nodiscard]] ZBPP_INLINE problem without_pairs(problem const& problem) {
  std::vector<stage_costs> costs(problem.all_costs().begin(), problem.all_costs().end());
  for (auto& c : costs) {
    c.overlapped.reset();
    c.overlapped_fused.reset();
  }
  return with_stages(problem, std::move(costs));
}

/// 1F1B that runs twice as far ahead, within the memory of every rank: so far that no rank waits
/// for the other half of a pair (docs/planner.md, "Pairs").
[[nodiscard]] ZBPP_INLINE schedule deep_one_f_one_b(problem const& problem, bool fused) {
  auto const p = problem.ranks();
  auto const room = tightest_room(problem);
  auto const order = one_chunk(problem, one_f_one_b::title, [&](int rank) {
    auto const depth = std::min(2 * (p - rank) - 1, std::max(room - 1, 1));
    return one_chunk_rule{.warm_up = depth, .fused = fused};
  });
  return insert_recompute(order, problem);
}

/// Pairs what the search without pairs found, and the known orders; so it is never worse.
/// @param in_turn   the problem without pairs
/// @param budget    for that; but each choice is tried once at least
ZBPP_INLINE void pair_up(
    problem const& problem,
    zbpp::problem const& in_turn,
    search_budget budget,
    found_order& found) {
  auto orders = known_orders(in_turn);
  if (problem.placement().is_linear())
    for (bool fused : {false, true}) orders.push_back(deep_one_f_one_b(problem, fused));
  for (auto& order : known_orders(problem)) orders.push_back(std::move(order));
  orders.insert(orders.begin(), found.schedule);
  auto const take = [&](schedule order) {
    ++found.tries;
    auto const now = cost(simulate(order, problem));
    if (now >= found.cost || !is_within_limits(order, problem)) return;
    found.cost = now;
    found.schedule = std::move(order);
  };
  auto const passes = static_cast<double>(found.schedule.passes().size());
  constexpr std::array choices{
      pair_order::forward_first, pair_order::backward_first, pair_order::any};
  auto attempts = static_cast<double>(orders.size() * choices.size());
  for (auto const& order : orders) {
    bool const is_paired = has_pairs(order.passes().all());
    if (is_paired) take(order);
    if (is_paired || !is_within_limits(order, problem)) {
      attempts -= static_cast<double>(choices.size());
      continue;
    }
    for (auto preference : choices) {
      if (budget.is_stopped() || found.cost <= found.bound.cost) return;
      // An equal share of what is left.
      auto const trials = static_cast<int>(
          std::clamp(budget.left() / (attempts * passes_per_pair_trial * passes), 1.0, 256.0));
      pairing pairs(order, problem, preference, trials);
      auto paired = pairs.run();
      int fusions = 0;
      take(fuse_where_it_pays(std::move(paired), problem, &fusions));
      auto const work =
          passes * (passes_per_pair_trial * (pairs.trials() + 1) + passes_per_simulation * fusions);
      budget.spend(work);
      found.work += work;
      attempts -= 1;
      if (trials == 1) break;  // a large problem
    }
  }
}

/// What pairs take beside a search, of its budget: with pairs no plan costs more than without.
inline constexpr double share_of_pairs = 0.4;

ZBPP_INLINE found_order
search_for(problem const& problem, search_budget const& budget, ticks target) {
  if (!problem.gains_by_pairing()) return memory_search(problem, budget, target).run();
  auto const in_turn = without_pairs(problem);
  auto found = memory_search(in_turn, budget, cost_bound{}, 1).run();
  found.bound = {.cost = target};
  pair_up(problem, in_turn, budget.share(share_of_pairs), found);
  return found;
}

ZBPP_INLINE bool search_all_orders(
    problem const& problem, search_budget const& budget, found_order& found) {
  if (found.cost <= found.bound.cost) return true;
  if (!is_tiny(problem) || budget.is_stopped()) return false;
  auto const best = find_optimum(
      problem, {.nodes = tiny_nodes, .below = found.cost, .enough = found.bound.cost, .stop = [&] {
                  return budget.is_stopped();
                }});
  if (best.cost) {
    found.cost = *best.cost;
    found.schedule = schedule(problem.placement(), problem.microbatches(), best.order);
  }
  if (best.complete && found.cost > found.bound.cost)
    found.bound = {found.cost, bound_rule::all_orders};
  return best.complete;
}

ZBPP_INLINE found_order search_once(
    problem const& problem, search_budget const& budget, cost_bound const& bound, double near) {
  require_memory(problem);
  if (!problem.gains_by_pairing()) return memory_search(problem, budget, bound, near).run();
  auto const in_turn = without_pairs(problem);
  auto found = memory_search(in_turn, budget, cost_bound{}, near).run();
  static_cast<void>(search_all_orders(in_turn, budget, found));
  found.bound = lower_bound(problem);
  pair_up(problem, in_turn, budget.share(share_of_pairs), found);
  return found;
}

}  // namespace detail
}  // namespace zbpp
