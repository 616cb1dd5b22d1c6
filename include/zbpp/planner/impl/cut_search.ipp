// SPDX-License-Identifier: Apache-2.0
//
// The search of cuts.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/balanced_cut.hpp>
#include <zbpp/planner/detail/bottleneck.hpp>
#include <zbpp/planner/detail/cut_search.hpp>
#include <zbpp/planner/detail/cuts.hpp>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>

namespace zbpp::detail {

/// Searches cuts: all of them where the policy may be asked that often, else by descents from the
/// bottleneck's optimum and from random changes of what they give.
class cut_search {
 public:
  cut_search(
      problem const& model,
      std::function<schedule(problem const&)> decide,
      cut_settings settings,
      bottleneck const* balanced)
      : model_(model),
        balanced_(balanced),
        space_(model),
        decide_(std::move(decide)),
        settings_(settings),
        random_(settings.seed) {
    require(settings.schedules >= 1, "schedules is less than 1; the policy is asked at least once");
  }

  [[nodiscard]] found_plan run() {
    auto const balanced = balanced_ != nullptr ? *balanced_ : balanced_cut(model_.layers(), model_);
    if (balanced.optimal) least_cost_ = least_of_step(model_, balanced.work);
    auto const start = space_.with_choice(balanced.first_layer, false);
    auto const start_score = consider(start);
    bool const all = space_.has_at_most(settings_.schedules);
    if (all)
      space_.for_each([&](cut const& c) {
        if (!is_stopped() && !cannot_beat(best_score_, c)) consider(c);
      });
    else
      search_from(start, start_score);
    if (!best_score_.fits()) refuse();
    auto problem = with_cut(model_, best_.first_layer, best_.recompute);
    auto const cost = best_score_.cost;
    bool const is_least = (all && !is_stopped()) || cost == least_cost_;
    return {
        .problem = std::move(problem),
        .schedule = *std::move(best_order_),
        .cost = cost,
        .lower_bound = is_least             ? cost
                       : cost > least_cost_ ? std::max<ticks>(least_cost_, 0)
                                            : 0,  // pairs may take less than the work of a rank
        .tries = asked_};
  }

 private:
  // What one cut is worth; the least is the best.
  struct score {
    bool refused = false;    // by the policy
    bytes worst_excess = 0;  // over the limit of a rank; where refused, of the least it could need
    bytes all_excess = 0;    // of all ranks together
    ticks cost = 0;
    ticks recompute = 0;  // of all stages; tells apart cuts where others set the pace

    [[nodiscard]] bool fits() const noexcept { return !refused && worst_excess == 0; }
    friend auto operator<=>(score const&, score const&) = default;
  };

  // Gives the score of a cut, and keeps the cut if it is the best so far.
  score consider(cut const& c) {
    auto const known = known_.find(c);
    if (known != known_.end()) return known->second;
    auto const result = score_of(with_cut(model_, c.first_layer, c.recompute));
    if (known_.empty() || result < best_score_) {
      best_score_ = result;
      best_ = c;
      best_order_ = std::move(order_);
    }
    known_.emplace(c, result);
    if (settings_.on_progress && best_score_.fits())
      settings_.on_progress(
          {.cost = best_score_.cost,
           .lower_bound = std::max<ticks>(least_cost_, 0),
           .spent = static_cast<double>(asked_) / settings_.schedules});
    return result;
  }

  [[nodiscard]] score score_of(problem const& problem) {
    ++asked_;
    try {
      order_ = insert_recompute(decide_(problem), problem);
    } catch (error const& refused) {
      // Without limits it is not about this cut.
      if (refused.code() != errc::unsupported_problem || model_.memory_limits().empty()) throw;
      if (refusal_.empty()) refusal_ = refused.what();
      return {.refused = true, .worst_excess = least_excess(problem)};
    }
    score result{.cost = cost(simulate(*order_, problem))};
    for (auto const& c : problem.all_costs()) result.recompute += c.recompute.value_or(0);
    if (model_.memory_limits().empty()) return result;
    auto const peaks = peak_memory(lower(*order_), problem);
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      auto const excess =
          std::max<bytes>(0, peaks[index(rank)].total - *problem.memory_limit(rank));
      result.worst_excess = std::max(result.worst_excess, excess);
      result.all_excess += excess;
    }
    return result;
  }

  // What the tightest rank needs for one microbatch, which has passed all its chunks when the first
  // B begins, less its limit. May be negative; it leads away from cuts that a policy refuses.
  [[nodiscard]] static bytes least_excess(problem const& problem) {
    std::vector<bytes> excess;
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      bytes held = 0;
      bytes made_again = 0;
      for (int s : problem.placement().stages_of(rank)) {
        auto const& c = problem.costs(s);
        held += problem.fixed_memory(s) + (c.recompute ? c.recompute_input : c.activation);
        if (c.recompute) made_again = std::max(made_again, c.activation - c.recompute_input);
      }
      excess.push_back(held + made_again - *problem.memory_limit(rank));
    }
    return *std::max_element(excess.begin(), excess.end());
  }

  [[nodiscard]] bool cannot_beat(score const& value, cut const& c) const {
    return value.fits() && space_.least_cost(c) >= value.cost;
  }

  void search_from(cut current, score value) {
    descend(current, value);
    if (space_.may_recompute()) {
      auto const other = space_.all_recomputing();
      if (!is_over()) take_better(current, value, other);
    }
    while (!is_over()) {
      auto next = current;
      for (auto left = 1 + below(3); left > 0 && !is_over(); ++looked_at_)
        if (space_.apply(next, changes_[below(changes_.size())])) --left;
      if (!is_over()) take_better(current, value, next);
    }
  }

  // Descends from `other`, and goes there unless that is worse.
  void take_better(cut& current, score& value, cut other) {
    auto other_value = consider(other);
    descend(other, other_value);
    if (other_value > value) return;
    current = std::move(other);
    value = other_value;
  }

  // Applies changes that make a cut better, in random order, until there are none.
  void descend(cut& current, score& value) {
    auto const count = changes_.size();
    for (auto left = count; left > 1; --left) std::swap(changes_[left - 1], changes_[below(left)]);
    for (std::size_t i = 0, in_vain = 0; in_vain < count && !is_over(); i = (i + 1) % count) {
      ++in_vain;
      ++looked_at_;
      auto next = current;
      if (!space_.apply(next, changes_[i]) || cannot_beat(value, next)) continue;
      if (auto const result = consider(next); result < value) {
        current = std::move(next);
        value = result;
        in_vain = 0;
      }
    }
  }

  // What is dismissed or known costs no schedule, so what is looked at has an end of its own.
  [[nodiscard]] bool is_over() const {
    return is_stopped() || changes_.empty() || asked_ >= settings_.schedules ||
           looked_at_ / 100 >= settings_.schedules ||
           (best_score_.fits() && best_score_.cost == least_cost_);
  }

  [[nodiscard]] bool is_stopped() const { return settings_.stop && settings_.stop(); }

  // The engines of the standard library give the same numbers everywhere; its distributions do not.
  [[nodiscard]] std::size_t below(std::size_t count) {
    return static_cast<std::size_t>(random_() % count);
  }

  [[noreturn]] void refuse() {
    std::string const tried = joined("none of the ", asked_, " partitions tried fits: ");
    if (best_score_.refused) throw error(errc::unsupported_problem, tried + refusal_);
    auto const problem = with_cut(model_, best_.first_layer, best_.recompute);
    auto const peaks = peak_memory(lower(*best_order_), problem);
    auto const excess = [&](int rank) {
      return peaks[index(rank)].total - *problem.memory_limit(rank);
    };
    int worst = 0;
    for (int rank = 1; rank < problem.ranks(); ++rank)
      if (excess(rank) > excess(worst)) worst = rank;
    throw error(errc::unsupported_problem, {.rank = worst}) + tried + "the closest needs " +
        peaks[index(worst)].total + " bytes, the limit is " + *problem.memory_limit(worst) +
        "; it fits when every limit is higher by " + excess(worst);
  }

  zbpp::problem const& model_;
  bottleneck const* balanced_;
  cut_space space_;
  std::function<schedule(problem const&)> decide_;
  cut_settings settings_;
  std::mt19937_64 random_;
  std::vector<cut_change> changes_ = space_.changes();
  ticks least_cost_ = -1;  // that any cut can have, where it is known
  std::map<cut, score> known_;
  std::optional<schedule> order_;  // of the cut that was scored last, unless that was refused
  cut best_;
  score best_score_;
  std::optional<schedule> best_order_;
  std::string refusal_;  // the policy's first
  int asked_ = 0;
  std::int64_t looked_at_ = 0;
};

ZBPP_INLINE found_plan search_cuts(
    problem const& model,
    std::function<schedule(problem const&)> decide,
    cut_settings settings,
    bottleneck const* balanced) {
  return cut_search(model, std::move(decide), settings, balanced).run();
}

}  // namespace zbpp::detail
