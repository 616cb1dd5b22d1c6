// SPDX-License-Identifier: Apache-2.0
//
// The search: it tries rules that are known to be good, then changes the best it has, until it
// meets the lower bound or its budget is spent. What it tries does not depend on the budget, so
// more time never gives a worse schedule, and every rank that plans finds the same one.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/candidates.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>
#include <zbpp/planner/detail/order_search.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/detail/v_block_orders.hpp>
#include <zbpp/planner/search.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Looks for the cheapest schedule of one problem. A candidate is either rules alone, or an order
/// of all F and B for which rules place the W, of a building block or any; all three kinds are kept
/// and changed side by side. Beside them the best schedule of all is changed pass by pass. What the
/// candidates do does not depend on that.
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
        engine_(problem, reserve),
        make_(problem, bound, std::move(depths), settings.seed),
        start_(problem),
        rules_(problem),
        champion_(problem),
        steps_(problem),
        blocks_(problem),
        changed_(problem.ranks(), problem.stages()),
        has_edges_(std::ranges::any_of(
            problem.all_costs(), [](stage_costs const& c) { return c.edge > 0; })),
        passes_(3.0 * problem.stages() * problem.microbatches()),
        changes_orders_(passes_ <= most_passes) {
    constexpr double with_orders = 2;  // budgets are for candidates, changes come on top
    if (changes_orders_) budget_ *= with_orders;
    if (!problem.placement().is_v_shape() || problem.ranks() < 2) return;
    constexpr double for_blocks = 1.1;  // what they take where they do not lead
    budget_ *= for_blocks;
    std::vector<bytes> room;
    for (int rank = 0; rank < problem.ranks(); ++rank) room.push_back(engine_.room(rank));
    block_orders_.emplace(problem, std::move(room), settings.seed);
  }

  /// Tries the rules that are known to be good, the likeliest first.
  void try_known() {
    for (auto& rules : make_.known()) {
      if (is_done()) return;
      attempt(rules_, std::move(rules));
    }
    start_ = rules_;
  }

  /// Stops at a greater bound than the one it began with. What is tried does not depend on it.
  void stop_at(ticks bound) { bound_ = bound; }

  /// Tries orders of F and B that are known to be good.
  void try_orders(std::vector<std::vector<std::vector<step_code>>> const& orders) {
    for (auto const& order : orders) try_steps(order);
    if (block_orders_) try_first_blocks();
  }

  /// Changes the best rules and orders until `budgets` times the budget is spent, or until it is
  /// done. There must be some.
  void improve(double budgets) {
    improves_ = true;
    while (!is_done() && all_work() < budgets * budget_) {
      try_change();
      change_order();
    }
  }

  /// @return whether the bound is met, the budget is spent, or a stop was asked for
  [[nodiscard]] bool is_done() const {
    if (!has_found()) return false;
    // Whether an order has room for its edges is known only once it is there.
    auto const least = has_edges_ ? cost_by_rules() : cost();
    return least <= bound_ || all_work() >= most_work() || settings_.stop.stop_requested();
  }

  /// @return whether any schedule was found; where memory is as short as can be there may be none
  [[nodiscard]] bool has_found() const noexcept { return cost() != never; }
  /// @return the cost of the best schedule; `never` when none was found
  [[nodiscard]] ticks cost() const noexcept {
    return orders_ ? std::min(orders_->cost(), cost_by_rules()) : cost_by_rules();
  }
  /// @return how many schedules were tried
  [[nodiscard]] std::int64_t tries() const noexcept { return tries_; }
  /// @return the best schedule that rules make; there must be one
  [[nodiscard]] schedule best_by_rules() {
    auto const its = cost_by_rules();
    auto const& rules = its == steps_.cost    ? steps_.rules
                        : its == blocks_.cost ? blocks_.rules
                        : its == rules_.cost  ? rules_.rules
                                              : champion_.rules;
    static_cast<void>(engine_.run(rules));
    return engine_.order();
  }
  /// @return a schedule that costs less, if one was found
  [[nodiscard]] std::optional<schedule> best_by_order() {
    if (cost() == cost_by_rules()) return std::nullopt;
    return orders_->best();
  }

 private:
  static constexpr int first_tries = 1000;
  // The work for changes of the order, as a share of that for candidates: less while these make
  // gains. Chosen by us: with one share for all of the time, be it small or large, more plans of
  // docs/benchmarks.md and docs/large_models.md cost more.
  static constexpr double share = 0.3;
  static constexpr double share_without_gains = 4;
  static constexpr double most_passes = 1 << 20;  // then a change takes some ten milliseconds

  struct candidate {
    explicit candidate(problem const& problem) : rules(problem.ranks(), problem.stages()) {}
    planner_rules rules;
    ticks cost = never;
  };

  [[nodiscard]] ticks cost_by_rules() const noexcept {
    return std::min({rules_.cost, steps_.cost, blocks_.cost, champion_.cost});
  }
  [[nodiscard]] double all_work() const noexcept { return work_ + work_on_order_; }
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

  // Keeps rules that are as good as the best of their kind, so that a search can cross plains.
  // @param most  what they may cost
  // @return whether it kept them
  bool attempt(candidate& best, planner_rules&& rules, ticks most = never) {
    auto const found = engine_.run(rules, std::min(best.cost, most));
    ++tries_;
    constexpr double overhead = 100;  // of a try, in passes
    work_ += static_cast<double>(engine_.placed()) + overhead;
    bool const keeps = found <= best.cost && found != never;
    if (keeps) {
      if (found < cost_by_rules()) work_at_gain_ = work_;
      if (found < best.cost && &best == &rules_) rules_are_new_ = true;
      best.cost = found;
      std::swap(best.rules, rules);
    }
    report();
    return keeps;
  }

  // An order of F and B leaves open where W goes.
  void try_steps(std::vector<std::vector<step_code>> const& steps) {
    ticks const w = problem_.costs(0).backward_weight;
    for (auto const overrun : {ticks{0}, w / 2, w})
      for (int const kept : {rank_rule::no_limit, 1}) {
        if (is_done()) return;
        planner_rules rules(problem_.ranks(), problem_.stages());
        for (auto& r : rules.ranks) {
          r.overrun = overrun;
          r.weights_kept = kept;
        }
        for (std::size_t s = 0; s < rules.stages.size(); ++s)
          rules.stages[s] = {
              .fuses = rules_.rules.stages[s].fuses,
              .recomputes = rules_.rules.stages[s].recomputes};
        rules.steps = steps;
        attempt(steps_, std::move(rules));
      }
  }

  // Where memory is short, few blocks fit.
  void try_first_blocks() {
    constexpr int most_tries = 32;
    constexpr int most_shapes = 1000;
    int tried = 0;
    for (int i = 0; i < most_shapes && tried < most_tries && !is_done(); ++i)
      tried += try_block() ? 1 : 0;
  }

  // A block that is like the best so far, or any.
  // @return whether there was a new one to try
  bool try_block() {
    bool const any = blocks_.cost == never || block_orders_->below(4) == 0;
    if (any)
      changed_.stages = rules_.rules.stages;
    else
      changed_ = blocks_.rules;
    work_ += v_block_orders::work(problem_);
    if (!(any ? block_orders_->sample(changed_) : block_orders_->change(changed_))) return false;
    // A block that costs much more than the best of all leads nowhere.
    auto const its = cost_by_rules();
    auto const most = has_found() ? its + its / 16 : never;
    if (attempt(blocks_, std::move(changed_), most)) block_orders_->keep();
    return true;
  }

  void try_change() {
    if (block_orders_ && block_orders_->below(16) < (blocks_.cost == cost_by_rules() ? 12 : 2)) {
      try_block();
      return;
    }
    if (rules_are_new_ && rules_.cost < steps_.cost && make_.below(8) == 0)
      return continue_in_steps();
    bool const steps_lead = steps_.cost < rules_.cost;
    auto const dice = make_.below(16);
    if (steps_.cost != never && dice < (steps_lead ? 11 : 2)) {
      auto changed = steps_.rules;
      if (make_.below(4) == 0)
        make_.change_rules(changed);
      else
        make_.change_steps(changed);
      attempt(steps_, std::move(changed), most_for_change(steps_.cost));
    } else if (dice == 15 || rules_.cost == never) {
      attempt(rules_, make_.sample());
    } else {
      if (--tries_left_ == 0) start_again();
      auto changed = rules_.rules;
      make_.change_rules(changed);
      attempt(rules_, std::move(changed), most_for_change(rules_.cost));
    }
  }

  // What a changed candidate may cost. With several chunks per rank, every other change is for a
  // gain alone: it is given up as soon as a rank has idled for as long as in the best schedule.
  // That is early, since most of what there is to gain is lost before the first B.
  [[nodiscard]] ticks most_for_change(ticks best) {
    if (problem_.placement().is_linear() || best == never) return never;
    return make_.below(2) == 0 ? best - 1 : never;
  }

  // Where changes lead differs from one start to the next: on the hard problems that were tried, a
  // quarter of the starts meets the bound within the first tries. Most starts are short, a few are
  // longer, as the reluctant doubling of D. Knuth has it: 1 1 2 1 1 2 4 1 1 2 ... times
  // first_tries.
  void start_again() {
    if ((run_ & -run_) == length_) {
      ++run_;
      length_ = 1;
    } else {
      length_ *= 2;
    }
    tries_left_ = length_ * first_tries;
    if (rules_.cost < champion_.cost) champion_ = std::move(rules_);
    rules_ = start_;
    if (make_.below(2) == 0) return;
    rules_.cost = never;  // another style, the best of a few
    constexpr int samples = 24;
    for (int i = 0; i < samples; ++i) attempt(rules_, make_.sample());
    if (rules_.cost == never) rules_ = start_;
  }

  // Takes the order of F and B from the best rules, to change it where rules are too coarse.
  void continue_in_steps() {
    rules_are_new_ = false;
    static_cast<void>(engine_.run(rules_.rules));
    auto rules = rules_.rules;
    rules.steps = steps_of(engine_.order());
    attempt(steps_, std::move(rules));
  }

  // Changes the best schedule pass by pass, for a share of what the candidates take. The share is
  // larger once these made no gain for half of their time, and had time for some tries. Starts anew
  // where candidates overtake.
  void change_order() {
    if (!changes_orders_) return;
    bool const gains = work_ <= 2 * work_at_gain_ || work_ <= first_tries * passes_;
    auto const now = gains ? share : share_without_gains;
    while (work_on_order_ < now * work_ && cost() > bound_ && !is_done()) {
      if (!orders_ || cost_by_rules() < orders_->cost()) start_order();
      auto const before = orders_->work();
      orders_->step();
      work_on_order_ += orders_->work() - before;
      ++tries_;
      report();
    }
  }
  void start_order() {
    if (!orders_) {
      std::vector<bytes> room;
      for (int rank = 0; rank < problem_.ranks(); ++rank) room.push_back(engine_.room(rank));
      orders_.emplace(problem_, std::move(room), settings_.seed);
    }
    orders_->start(best_by_rules());
    work_on_order_ += static_cast<double>(engine_.placed());
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
  list_scheduler engine_;
  candidate_maker make_;
  candidate start_;     // the best known rules
  candidate rules_;     // what has become of them
  candidate champion_;  // the best rules of earlier starts
  candidate steps_;
  candidate blocks_;
  planner_rules changed_;  // the next block
  bool has_edges_;
  double passes_;
  bool changes_orders_;  // of problems whose networks of passes are not too large
  std::optional<v_block_orders> block_orders_;  // on a V
  std::optional<order_search> orders_;
  double work_on_order_ = 0;
  int tries_left_ = first_tries;  // of this start
  int run_ = 1;
  int length_ = 1;
  bool rules_are_new_ = false;
  bool improves_ = false;
  double work_ = 0;          // on candidates
  double work_at_gain_ = 0;  // when the best of them was found
  double next_report_ = 0;
  double spent_ = 0;  // as last reported
  std::int64_t tries_ = 0;
};

}  // namespace zbpp::detail
