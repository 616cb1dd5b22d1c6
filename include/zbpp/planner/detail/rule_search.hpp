// SPDX-License-Identifier: Apache-2.0
//
// The part of the search that changes rules: it tries those that are known to be good, then changes
// the best it has. What it tries depends on the problem and the seed alone.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/candidates.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>
#include <zbpp/planner/detail/v_block_orders.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Looks for rules that make a cheap schedule of one problem. A candidate is either rules alone, or
/// an order of all F and B for which rules place the W, of a building block or any; all three kinds
/// are kept and changed side by side.
class rule_search {
 public:
  static constexpr int first_tries = 1000;  ///< of one start

  /// @param bound    of the cost: how long ranks idle at best
  /// @param depths   F before the first B, for each rank of a linear placement; else empty
  /// @param reserve  bytes of each rank that are not to be used; empty for none
  rule_search(
      problem const& problem,
      ticks bound,
      std::vector<int> depths,
      std::vector<bytes> const& reserve,
      std::uint64_t seed)
      : problem_(problem),
        engine_(problem, reserve),
        make_(problem, bound, std::move(depths), seed),
        start_(problem),
        rules_(problem),
        champion_(problem),
        steps_(problem),
        blocks_(problem),
        changed_(problem.ranks(), problem.stages()) {
    if (problem.placement().is_v_shape() && problem.ranks() > 1)
      block_orders_.emplace(problem, room(), seed);
  }

  /// Tries the rules that are known to be good, the likeliest first.
  /// @param goes_on  asked before each try
  template <class Goes_on>
  void try_known(Goes_on const& goes_on) {
    for (auto& rules : make_.known()) {
      if (!goes_on()) return;
      attempt(rules_, std::move(rules));
    }
    start_ = rules_;
  }

  /// Tries orders of F and B that are known to be good.
  /// @param goes_on  asked before each try
  template <class Goes_on>
  void try_orders(
      std::vector<std::vector<std::vector<step_code>>> const& orders, Goes_on const& goes_on) {
    for (auto const& order : orders) try_steps(order, goes_on);
    if (block_orders_) try_first_blocks(goes_on);
  }

  /// Tries a change of the best rules or orders, or others. There must be some.
  void change() {
    if (block_orders_ && block_orders_->below(16) < (blocks_.cost == cost() ? 12 : 2)) {
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

  /// @return whether it tries building blocks
  [[nodiscard]] bool has_blocks() const noexcept { return block_orders_.has_value(); }
  /// @return bytes that the passes of each rank may hold
  [[nodiscard]] std::vector<bytes> room() const {
    std::vector<bytes> room;
    for (int rank = 0; rank < problem_.ranks(); ++rank) room.push_back(engine_.room(rank));
    return room;
  }

  /// @return the cost of the best candidate; `never` when none was found
  [[nodiscard]] ticks cost() const noexcept {
    return std::min({rules_.cost, steps_.cost, blocks_.cost, champion_.cost});
  }
  /// @return its schedule; there must be one
  [[nodiscard]] schedule best() {
    auto const its = cost();
    auto const& rules = its == steps_.cost    ? steps_.rules
                        : its == blocks_.cost ? blocks_.rules
                        : its == rules_.cost  ? rules_.rules
                                              : champion_.rules;
    static_cast<void>(engine_.run(rules));
    return engine_.order();
  }
  /// @return how many schedules were tried
  [[nodiscard]] std::int64_t tries() const noexcept { return tries_; }
  /// @return what the tries took so far, in passes
  [[nodiscard]] double work() const noexcept { return work_; }
  /// @return what they had taken when the best was found
  [[nodiscard]] double work_at_gain() const noexcept { return work_at_gain_; }

 private:
  struct candidate {
    explicit candidate(problem const& problem) : rules(problem.ranks(), problem.stages()) {}
    planner_rules rules;
    ticks cost = never;
  };

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
      if (found < cost()) work_at_gain_ = work_;
      if (found < best.cost && &best == &rules_) rules_are_new_ = true;
      best.cost = found;
      std::swap(best.rules, rules);
    }
    return keeps;
  }

  // An order of F and B leaves open where W goes.
  template <class Goes_on>
  void try_steps(std::vector<std::vector<step_code>> const& steps, Goes_on const& goes_on) {
    ticks const w = problem_.costs(0).backward_weight;
    for (auto const overrun : {ticks{0}, w / 2, w})
      for (int const kept : {rank_rule::no_limit, 1}) {
        if (!goes_on()) return;
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
  template <class Goes_on>
  void try_first_blocks(Goes_on const& goes_on) {
    constexpr int most_tries = 32;
    constexpr int most_shapes = 1000;
    int tried = 0;
    for (int i = 0; i < most_shapes && tried < most_tries && goes_on(); ++i)
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
    auto const its = cost();
    auto const most = its != never ? its + its / 16 : never;
    if (attempt(blocks_, std::move(changed_), most)) block_orders_->keep();
    return true;
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

  problem const& problem_;
  list_scheduler engine_;
  candidate_maker make_;
  candidate start_;     // the best known rules
  candidate rules_;     // what has become of them
  candidate champion_;  // the best rules of earlier starts
  candidate steps_;
  candidate blocks_;
  planner_rules changed_;                       // the next block
  std::optional<v_block_orders> block_orders_;  // on a V
  int tries_left_ = first_tries;                // of this start
  int run_ = 1;
  int length_ = 1;
  bool rules_are_new_ = false;
  double work_ = 0;
  double work_at_gain_ = 0;
  std::int64_t tries_ = 0;
};

}  // namespace zbpp::detail
