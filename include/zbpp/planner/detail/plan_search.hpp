// SPDX-License-Identifier: Apache-2.0
//
// The search of one problem within one memory: begins with the handcrafted orders, and spends its
// budget on rules, blocks and orders.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/order_search.hpp>
#include <zbpp/planner/detail/rule_search.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/search.hpp>
#include <zbpp/policy/handcrafted.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- handcrafted orders ------------------------------------------------------------------------
//
// The handcrafted schedules of a problem: a search begins with their orders of F and B, and is
// never worse than those that fit the memory.

/// 1F1B with its warm-up cut down to what the memory of every rank allows, in proportion.
[[nodiscard]] inline schedule scaled_one_f_one_b(problem const& problem) {
  auto const p = problem.ranks();
  auto const room = std::min(p, tightest_room(problem));
  return one_chunk(problem, one_f_one_b::title, [&](int rank) {
    auto const depth = (static_cast<std::int64_t>(p - rank) * room + p - 1) / p;
    return one_chunk_rule{.warm_up = static_cast<int>(depth) - 1, .fused = true};
  });
}

/// @return how many F each rank of a looped placement may run before its first B, so that it keeps
///         no more than its room, where `group` microbatches at a time go through its chunks
[[nodiscard]] inline std::vector<int> most_warm_up(
    problem const& problem, std::span<bytes const> room, int group) {
  std::vector<int> most;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto const stages = problem.placement().stages_of(rank);
    auto const all = static_cast<std::int64_t>(stages.size()) * problem.microbatches();
    auto left = room[index(rank)];
    std::int64_t count = 0;
    while (count < all) {
      auto const chunk = count / group % static_cast<std::int64_t>(stages.size());
      left -= problem.costs(stages[index(chunk)]).activation;
      if (left < 0) break;
      ++count;
    }
    most.push_back(static_cast<int>(count));
  }
  return most;
}

/// Lists grouped orders of a looped placement to begin a search with, the likeliest first: groups
/// of the largest size that has room, and smaller ones; for each size, as many F ahead as 1F1B-I
/// has, as far as there is room, and as few as grouped 1F1B-I.
/// @source the orders: arXiv 2503.01328 sec. 3; what lies between them and 1F1B-I is ours
[[nodiscard]] inline std::vector<interleaved_rule> grouped_rules(
    problem const& problem, std::span<bytes const> room) {
  constexpr int most_sizes = 6;
  auto const m = problem.microbatches();
  auto const chunks = problem.stages() / problem.ranks();
  std::vector<interleaved_rule> rules;
  int last_groups = 0;
  for (int size = std::min(problem.ranks(), m), sizes = 0; size > 0 && sizes < most_sizes; --size) {
    auto const groups = (m + size - 1) / size;
    if (groups == last_groups) continue;
    auto const largest = largest_group(m, groups);
    auto const most = most_warm_up(problem, room, largest);
    if (*std::min_element(most.begin(), most.end()) <= (chunks - 1) * largest) continue;
    last_groups = groups;
    ++sizes;
    for (int const ahead : {2, 1}) {
      auto rule = rule_for_groups(problem, groups, ahead, false);
      for (std::size_t rank = 0; rank < most.size(); ++rank) {
        auto& warm_up = rule.warm_up[rank];
        warm_up = std::min(warm_up, most[rank]);
        // A rank that runs fewer F ahead than the next one would wait for it, and that one for it.
        if (rank > 0) warm_up = std::min(warm_up, rule.warm_up[rank - 1]);
      }
      rules.push_back(std::move(rule));
    }
  }
  return rules;
}

/// @return the grouped order with the largest groups for which there is room, if there is any
[[nodiscard]] inline std::optional<schedule> largest_groups(problem const& problem) {
  auto const p = problem.ranks();
  auto const m = problem.microbatches();
  auto const all = problem.stages() / p * m;
  std::vector<bytes> room;
  for (int rank = 0; rank < p; ++rank) room.push_back(room_for_passes(problem, rank));
  for (int size = p; size >= (p + 1) / 2; --size) {
    auto const rule = rule_for_groups(problem, (m + size - 1) / size, 1, false);
    auto const most = most_warm_up(problem, room, largest_group(m, rule.groups));
    bool const fits = std::ranges::equal(
        rule.warm_up, most, [all](int needed, int has) { return std::min(needed, all) <= has; });
    if (fits) return interleaved_order(problem, rule);
  }
  return std::nullopt;
}

/// Makes the schedules that a search begins with, the likeliest first, whatever memory they need.
[[nodiscard]] inline std::vector<schedule> known_orders(problem const& problem) {
  auto const& placement = problem.placement();
  std::vector<schedule> orders;
  if (placement.is_linear()) {
    orders.push_back(zb_h2{}(problem));
    orders.push_back(zb_h1{}(problem));
    orders.push_back(scaled_one_f_one_b(problem));
  } else {
    orders = handcrafted_orders(problem);
    if (placement.is_looped())
      if (auto grouped = largest_groups(problem))
        orders.insert(orders.begin() + 1, *std::move(grouped));  // after 1F1B-I
  }
  for (auto& order : orders) order = insert_recompute(std::move(order), problem);
  return orders;
}

/// Lists orders of F and B to begin a search with.
/// @param known  handcrafted schedules of the problem
/// @param room   bytes that the passes of each rank may hold
[[nodiscard]] inline std::vector<std::vector<std::vector<fb_code>>> seeds_of(
    problem const& problem, std::vector<schedule> const& known, std::span<bytes const> room) {
  std::vector<std::vector<std::vector<fb_code>>> seeds;
  for (auto const& order : known) seeds.push_back(fb_orders_of(order));
  auto const& placement = problem.placement();
  if (placement.is_looped() && !placement.is_linear())
    for (auto const& rule : grouped_rules(problem, room))
      seeds.push_back(fb_orders_of(interleaved_order(problem, rule)));
  return seeds;
}

// ---- the search --------------------------------------------------------------------------------
//
// The search: it tries rules that are known to be good, then changes the best it has, until it
// meets the lower bound or its budget is spent. What it tries does not depend on the budget, so
// more time never gives a worse schedule, and every rank that plans finds the same one.

/// Looks for the cheapest schedule of one problem: by rules, and beside them the best schedule of
/// all is changed pass by pass. What the rules do does not depend on that.
class plan_search {
 public:
  /// @param bound    of the cost: where to stop, and how long ranks idle at best
  /// @param depths   F before the first B, for each rank of a linear placement; else empty
  /// @param reserve  bytes of each rank that are not to be used; empty for none
  /// @param near     what it may take near its bound, as a multiple of its budget; at least 1
  plan_search(
      problem const& problem,
      ticks bound,
      std::vector<int> depths,
      std::vector<bytes> const& reserve,
      search_budget const& budget,
      double near = 1)
      : problem_(problem),
        first_bound_(bound),
        bound_(bound),
        budget_(budget),
        most_budgets_(near),
        rules_(problem, bound, std::move(depths), reserve, budget.seed()),
        has_edges_(std::ranges::any_of(
            problem.all_costs(), [](stage_costs const& c) { return c.edge > 0; })),
        passes_(3.0 * problem.stages() * problem.microbatches()),
        changes_orders_(passes_ <= most_passes) {}

  /// Tries the rules that are known to be good, the likeliest first.
  void try_known() {
    rules_.try_known([this] { return goes_on(); });
  }

  /// Stops at a greater bound than the one it began with. What is tried does not depend on it.
  void stop_at(ticks bound) { bound_ = bound; }

  [[nodiscard]] std::vector<bytes> room() const { return rules_.room(); }

  /// Tries orders of F and B that are known to be good.
  void try_orders(std::vector<std::vector<std::vector<fb_code>>> const& orders) {
    rules_.try_orders(orders, [this] { return goes_on(); });
  }

  /// Changes the best rules and orders until `budgets` times the budget is spent, or until it is
  /// done. There must be some.
  void improve(double budgets) {
    improves_ = true;
    while (goes_on() && all_work() < budgets * budget_.passes()) {
      rules_.change();
      change_order();
    }
  }

  [[nodiscard]] bool is_done() const {
    if (!has_found()) return false;
    // Whether an order has room for its edges is known only once it is there.
    auto const least = has_edges_ ? rules_.cost() : cost();
    return least <= bound_ || all_work() >= most_work() || budget_.is_stopped();
  }

  /// @return whether any schedule was found; where memory is as short as can be there may be none
  [[nodiscard]] bool has_found() const noexcept { return cost() != never; }
  /// @return the cost of the best schedule; `never` when none was found
  [[nodiscard]] ticks cost() const noexcept {
    return orders_ ? std::min(orders_->cost(), rules_.cost()) : rules_.cost();
  }
  [[nodiscard]] double work() const noexcept { return all_work(); }
  [[nodiscard]] std::int64_t tries() const noexcept { return rules_.tries() + changes_; }
  /// @return the best schedule that rules make; there must be one
  [[nodiscard]] schedule best_by_rules() { return rules_.best(); }
  [[nodiscard]] std::optional<schedule> best_by_order() {
    if (cost() == rules_.cost()) return std::nullopt;
    return orders_->best();
  }

 private:
  // The work for changes of the order, as a share of that for candidates: less while these make
  // gains. Chosen by us: with one share for all of the time, be it small or large, more plans of
  // docs/benchmarks.md and docs/large_models.md cost more.
  static constexpr double share = 0.3;
  static constexpr double share_without_gains = 4;
  static constexpr double most_passes = 1 << 20;  // then a change takes some ten milliseconds

  // Reports how far it is, and asks whether it is done.
  [[nodiscard]] bool goes_on() {
    if (cost() != never) budget_.report_work(cost(), bound_, all_work(), most_work());
    return !is_done();
  }
  [[nodiscard]] double all_work() const noexcept { return rules_.work() + work_on_order_; }
  // A search that is near its bound most often meets it if it goes on, so it may take longer than
  // its budget, the nearer the longer. The bound is the first, which does not depend on the budget:
  // at the same work a larger budget goes on where a smaller one does. Chosen by us, by what 500
  // uneven looped problems need (docs/benchmarks.md).
  [[nodiscard]] double most_work() const noexcept {
    constexpr double near = 0.002;  // of the cost
    auto const all = budget_.passes();
    if (!improves_) return all;
    auto const least = static_cast<double>(cost());
    auto const gap = least - static_cast<double>(first_bound_);
    if (gap * most_budgets_ <= near * least) return most_budgets_ * all;
    return std::max(near * least / gap, 1.0) * all;
  }

  // Changes the best schedule pass by pass, for a share of what the candidates take. The share is
  // larger once these made no gain for half of their time, and had time for some tries. Starts
  // again where candidates overtake.
  void change_order() {
    if (!changes_orders_) return;
    auto const work = rules_.work();
    bool const gains =
        work <= 2 * rules_.work_at_gain() || work <= rule_search::first_tries * passes_;
    auto const now = gains ? share : share_without_gains;
    while (work_on_order_ < now * work && cost() > bound_ && goes_on()) {
      if (!orders_ || rules_.cost() < orders_->cost()) start_order();
      auto const before = orders_->work();
      orders_->step();
      work_on_order_ += orders_->work() - before;
      ++changes_;
    }
  }
  void start_order() {
    if (!orders_) orders_.emplace(problem_, rules_.room(), budget_.seed());
    auto const best = rules_.best();
    orders_->start(best);
    work_on_order_ += static_cast<double>(best.passes().size());
  }

  problem const& problem_;
  ticks first_bound_;
  ticks bound_;
  search_budget budget_;
  double most_budgets_;  // near the bound
  rule_search rules_;
  bool has_edges_;
  double passes_;
  bool changes_orders_;  // of problems whose networks of passes are not too large
  std::optional<order_search> orders_;
  double work_on_order_ = 0;
  bool improves_ = false;
  std::int64_t changes_ = 0;  // of the order
};

}  // namespace zbpp::detail
