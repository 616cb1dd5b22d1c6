// SPDX-License-Identifier: Apache-2.0
//
// The search: it tries rules that are known to be good, then changes the best it has, until it
// meets the lower bound or its budget is spent. What it tries does not depend on the budget, so
// more time never gives a worse schedule, and every rank that plans finds the same one.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/order_search.hpp>
#include <zbpp/planner/detail/pipeline_state.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>
#include <zbpp/planner/detail/rule_search.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/search.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Looks for the cheapest schedule of one problem: by rules, and beside them the best schedule of
/// all is changed pass by pass. What the rules do does not depend on that.
class plan_search {
 public:
  /// @param bound    of the cost: where to stop, and how long ranks idle at best
  /// @param depths   F before the first B, for each rank of a linear placement; else empty
  /// @param reserve  bytes of each rank that are not to be used; empty for none
  plan_search(
      problem const& problem,
      ticks bound,
      std::vector<int> depths,
      std::vector<bytes> const& reserve,
      search_settings const& settings)
      : problem_(problem),
        settings_(settings),
        first_bound_(bound),
        bound_(bound),
        budget_(settings.seconds * passes_a_second),
        rules_(problem, bound, std::move(depths), reserve, settings.seed),
        has_edges_(std::ranges::any_of(
            problem.all_costs(), [](stage_costs const& c) { return c.edge > 0; })),
        passes_(3.0 * problem.stages() * problem.microbatches()),
        changes_orders_(passes_ <= most_passes) {
    constexpr double with_orders = 2;  // budgets are for candidates, changes come on top
    if (changes_orders_) budget_ *= with_orders;
    constexpr double for_blocks = 1.1;  // what they take where they do not lead
    if (rules_.has_blocks()) budget_ *= for_blocks;
  }

  /// Tries the rules that are known to be good, the likeliest first.
  void try_known() {
    rules_.try_known([this] { return goes_on(); });
  }

  /// Stops at a greater bound than the one it began with. What is tried does not depend on it.
  void stop_at(ticks bound) { bound_ = bound; }

  /// Tries orders of F and B that are known to be good.
  void try_orders(std::vector<std::vector<std::vector<step_code>>> const& orders) {
    rules_.try_orders(orders, [this] { return goes_on(); });
  }

  /// Changes the best rules and orders until `budgets` times the budget is spent, or until it is
  /// done. There must be some.
  void improve(double budgets) {
    improves_ = true;
    while (goes_on() && all_work() < budgets * budget_) {
      rules_.change();
      change_order();
    }
  }

  /// @return whether the bound is met, the budget is spent, or a stop was asked for
  [[nodiscard]] bool is_done() const {
    if (!has_found()) return false;
    // Whether an order has room for its edges is known only once it is there.
    auto const least = has_edges_ ? rules_.cost() : cost();
    return least <= bound_ || all_work() >= most_work() || settings_.stop.stop_requested();
  }

  /// @return whether any schedule was found; where memory is as short as can be there may be none
  [[nodiscard]] bool has_found() const noexcept { return cost() != never; }
  /// @return the cost of the best schedule; `never` when none was found
  [[nodiscard]] ticks cost() const noexcept {
    return orders_ ? std::min(orders_->cost(), rules_.cost()) : rules_.cost();
  }
  /// @return what the search took so far, in passes
  [[nodiscard]] double work() const noexcept { return all_work(); }
  /// @return how many schedules were tried
  [[nodiscard]] std::int64_t tries() const noexcept { return rules_.tries() + changes_; }
  /// @return the best schedule that rules make; there must be one
  [[nodiscard]] schedule best_by_rules() { return rules_.best(); }
  /// @return a schedule that costs less, if one was found
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
    report();
    return !is_done();
  }
  [[nodiscard]] double all_work() const noexcept { return rules_.work() + work_on_order_; }
  // A search that is near its bound most often meets it if it goes on, so it takes longer than its
  // budget, the nearer the longer. The bound is the first, which does not depend on the budget: at
  // the same work a larger budget goes on where a smaller one does. Chosen by us, by what 500
  // uneven looped problems need (docs/benchmarks.md).
  [[nodiscard]] double most_work() const noexcept {
    constexpr double near = 0.002;  // of the cost
    constexpr double most_budgets = 2;
    if (!improves_) return budget_;
    auto const its = static_cast<double>(cost());
    auto const gap = its - static_cast<double>(first_bound_);
    if (gap * most_budgets <= near * its) return most_budgets * budget_;
    return std::max(near * its / gap, 1.0) * budget_;
  }

  // Changes the best schedule pass by pass, for a share of what the candidates take. The share is
  // larger once these made no gain for half of their time, and had time for some tries. Starts anew
  // where candidates overtake.
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
    if (!orders_) orders_.emplace(problem_, rules_.room(), settings_.seed);
    auto const best = rules_.best();
    orders_->start(best);
    work_on_order_ += static_cast<double>(best.passes().size());
  }

  void report() {
    if (!settings_.on_progress || all_work() < next_report_ || cost() == never) return;
    // Chosen by us: often enough that whoever watches a long search sees it move.
    constexpr double most_between = 1e6;
    next_report_ = all_work() + std::min(most_work() / 64, most_between);
    spent_ = std::max(spent_, std::min(1.0, all_work() / most_work()));
    settings_.on_progress({.cost = cost(), .lower_bound = bound_, .spent = spent_});
  }

  problem const& problem_;
  search_settings const& settings_;
  ticks first_bound_;
  ticks bound_;
  double budget_;  // in passes
  rule_search rules_;
  bool has_edges_;
  double passes_;
  bool changes_orders_;  // of problems whose networks of passes are not too large
  std::optional<order_search> orders_;
  double work_on_order_ = 0;
  bool improves_ = false;
  double next_report_ = 0;
  double spent_ = 0;          // as last reported
  std::int64_t changes_ = 0;  // of the order
};

}  // namespace zbpp::detail
