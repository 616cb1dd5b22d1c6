// SPDX-License-Identifier: Apache-2.0
//
// Cuts of layers into stages: those that a search tries, and what it knows of each placement.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/balanced_cut.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/stage_work.hpp>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- cuts --------------------------------------------------------------------------------------
//
// The ways in which the layers of a model can be cut into stages and stages be chosen to recompute:
// all of them one after another, and the changes that lead from one to its neighbours.

/// Says which layers go into which stage, and which stages recompute.
struct cut {
  std::vector<int> first_layer;  // of each stage
  std::vector<bool> recompute;   // for each stage

  friend auto operator<=>(cut const&, cut const&) = default;
};

[[nodiscard]] inline cut cut_of(problem const& model) {
  cut own{{model.first_layer().begin(), model.first_layer().end()}, {}};
  for (auto const& c : model.all_costs()) own.recompute.push_back(c.recompute.has_value());
  return own;
}

/// @param work  of one microbatch on a rank, whose stages take at least that together
/// @return what a step takes at least for it
[[nodiscard]] inline ticks least_of_step(problem const& model, ticks work) {
  if (model.microbatch_factors().empty()) return model.microbatches() * work;
  ticks all = 0;
  for (auto const factor : model.microbatch_factors())
    all += time_at_least(work, 1 / factor, model.stages());
  return all;
}

/// Moves the starts of the stages from `first` to `last` by one layer or, where `by` is 0, changes
/// whether these two recompute. A chain of starts carries a layer past stages that are full.
struct cut_change {
  int first = 0;
  int last = 0;
  int by = 0;
};

/// Knows which cuts a model has.
class cut_space {
 public:
  explicit cut_space(problem const& model)
      : model_(model),
        layers_(static_cast<int>(model.layers().size())),
        stages_(model.stages()),
        work_{0},
        can_recompute_{0} {
    for (auto const& c : model.layers()) {
      work_.push_back(work_.back() + least_work_of(c));
      can_recompute_.push_back(can_recompute_.back() + (c.recompute ? 1 : 0));
    }
  }

  /// Says whether recomputing is worth a thought: without limits it only takes time.
  [[nodiscard]] bool may_recompute() const noexcept {
    return !model_.memory_limits().empty() && can_recompute_.back() > 0;
  }

  /// Makes a cut in which those of the first stages recompute that can: these keep activations for
  /// longest.
  [[nodiscard]] cut with_first_recomputing(std::vector<int> first_layer, int stages) const {
    cut c{std::move(first_layer), std::vector<bool>(index(stages_))};
    for (int s = 0; s < stages; ++s) c.recompute[index(s)] = can_recompute(c, s);
    return c;
  }

  /// Makes a cut in which no stage recomputes, or all that can.
  [[nodiscard]] cut with_choice(std::vector<int> first_layer, bool recompute) const {
    return with_first_recomputing(std::move(first_layer), recompute ? stages_ : 0);
  }

  /// Makes the cut with the least bottleneck of those in which all stages recompute that can.
  [[nodiscard]] cut all_recomputing() const {
    std::vector<layer_costs> slower(model_.layers().begin(), model_.layers().end());
    for (auto& c : slower) {
      c.forward += c.recompute.value_or(0);
      c.recompute.reset();
      c.overlapped.reset();  // lies between those times, and a cut is balanced without it
      c.overlapped_fused.reset();
    }
    return with_choice(balanced_cut(slower, model_).first_layer, true);
  }

  /// Says what a cut costs at least: a rank has all the work of all microbatches, in any order.
  [[nodiscard]] ticks least_cost(cut const& c) const {
    std::vector<ticks> work(index(model_.placement().ranks()));
    for (int s = 0; s < stages_; ++s)
      work[index(model_.placement().rank_of(s))] +=
          work_[index(end_of(c, s))] - work_[index(c.first_layer[index(s)])];
    if (!model_.rank_speeds().empty())
      for (std::size_t r = 0; r < work.size(); ++r)
        work[r] = time_at_least(work[r], model_.rank_speeds()[r], model_.stages());
    return least_of_step(model_, *std::max_element(work.begin(), work.end()));
  }

  /// Says whether there are at most `most` cuts; a stage that cannot recompute is counted as if.
  [[nodiscard]] bool has_at_most(std::int64_t most) const {
    auto const inner = std::int64_t{layers_} - 1;  // boundaries, of which stages - 1 are taken
    auto const taken = std::min<std::int64_t>(stages_ - 1, inner - stages_ + 1);
    std::int64_t count = 1;
    for (std::int64_t i = 0; i < taken && count <= most; ++i) count = count * (inner - i) / (i + 1);
    for (int s = 0; may_recompute() && s < stages_ && count <= most; ++s) count *= 2;
    return count <= most;
  }

  /// Calls `visit(cut)` for every cut.
  template <class Visit>
  void for_each(Visit visit) const {
    cut c{{}, std::vector<bool>(index(stages_))};
    for (int s = 0; s < stages_; ++s) c.first_layer.push_back(s);
    for (;;) {
      for_each_choice(c, 0, visit);
      int s = stages_ - 1;  // the last stage that can begin one layer later
      while (s > 0 && c.first_layer[index(s)] == layers_ - stages_ + s) --s;
      if (s == 0) return;
      for (int first = c.first_layer[index(s)] + 1; s < stages_; ++s)
        c.first_layer[index(s)] = first++;
    }
  }

  /// @return all changes, of which some are not possible for some cuts
  [[nodiscard]] std::vector<cut_change> changes() const {
    std::vector<cut_change> list;
    for (int first = 0; first < stages_; ++first)
      for (int last = first; last < stages_; ++last) {
        if (may_recompute()) list.push_back({first, last, 0});
        if (first == 0) continue;
        list.push_back({first, last, 1});
        list.push_back({first, last, -1});
      }
    return list;
  }

  /// Changes a cut if that gives a cut. @return whether it did
  bool apply(cut& c, cut_change const& change) const {
    auto next = c;
    if (change.by == 0) {
      next.recompute[index(change.first)].flip();
      if (change.first != change.last) next.recompute[index(change.last)].flip();
    } else {
      for (int s = change.first; s <= change.last; ++s) next.first_layer[index(s)] += change.by;
    }
    for (int s = 0; s < stages_; ++s) {
      if (next.first_layer[index(s)] >= end_of(next, s)) return false;
      if (next.recompute[index(s)] && !can_recompute(next, s)) return false;
    }
    c = std::move(next);
    return true;
  }

 private:
  template <class Visit>
  void for_each_choice(cut& c, int stage, Visit& visit) const {
    if (stage == stages_) return visit(c);
    for_each_choice(c, stage + 1, visit);
    if (!may_recompute() || !can_recompute(c, stage)) return;
    c.recompute[index(stage)] = true;
    for_each_choice(c, stage + 1, visit);
    c.recompute[index(stage)] = false;
  }

  [[nodiscard]] int end_of(cut const& c, int stage) const {
    return stage + 1 < stages_ ? c.first_layer[index(stage) + 1] : layers_;
  }

  [[nodiscard]] bool can_recompute(cut const& c, int stage) const {
    return can_recompute_[index(end_of(c, stage))] >
           can_recompute_[index(c.first_layer[index(stage)])];
  }

  problem const& model_;
  int layers_;
  int stages_;
  std::vector<ticks> work_;         // of the layers before each
  std::vector<int> can_recompute_;  // how many of the layers before each
};

// ---- placements with cuts ----------------------------------------------------------------------
//
// What is known about each placement on which a model of layers can be planned.

/// @return whether a plan is cheaper than another, or costs as much with fewer stages
[[nodiscard]] inline bool is_better(found_plan const& a, found_plan const& b) {
  return a.cost < b.cost || (a.cost == b.cost && a.problem.stages() < b.problem.stages());
}

/// Knows one placement of a model, and the best plan found for it.
struct placement_candidate {
  explicit placement_candidate(problem uncut)
      : model(std::move(uncut)),
        space(model),
        balanced(balanced_cut(model.layers(), model)),
        passes(3.0 * model.stages() * model.microbatches()),
        bound(least_cost()) {}
  placement_candidate(placement_candidate const&) = delete;  // `space` refers to `model`
  placement_candidate& operator=(placement_candidate const&) = delete;

  // The work of the busiest rank; where cuts are few, also the least bound of all of them.
  [[nodiscard]] ticks least_cost() {
    ticks most = 0;
    ticks all = 0;
    bool may_pair = false;  // then ranks may take less than the work that was balanced
    for (auto const& c : model.layers()) {
      most = std::max(most, least_work_of(c));
      all += least_work_of(c);
      may_pair = may_pair || c.most_saved_by_pairing() > 0;
    }
    auto const ranks = model.placement().ranks();
    auto const speeds = model.rank_speeds();
    auto const least_of_busiest = [&] {
      if (balanced.optimal && !may_pair) return balanced.work;
      if (speeds.empty()) return std::max(most, (all + ranks - 1) / ranks);
      // At best the layers lie as the speeds do, and the longest on the quickest rank.
      auto const quickest = *std::max_element(speeds.begin(), speeds.end());
      return std::max(
          time_at_least(most, quickest, 1),
          time_at_least(all, std::accumulate(speeds.begin(), speeds.end(), 0.0), model.stages()));
    };
    auto const work = least_of_step(model, least_of_busiest());
    constexpr double most_passes = 1 << 17;  // to look at, about a tenth of a second
    auto const without_limits = with_memory_limits(model, {});  // where nothing recomputes
    cut_space const cuts(without_limits);
    if (!cuts.has_at_most(static_cast<std::int64_t>(most_passes / passes))) return work;
    std::optional<ticks> least;
    cuts.for_each([&](cut const& c) {
      auto const any = space.with_choice(c.first_layer, true);  // a bound for each set of stages
      auto const placed = with_cut(model, any.first_layer, any.recompute);
      spent += work_of_bound(placed);
      auto const cost = lower_bound(placed).cost;
      least = std::min(least.value_or(cost), cost);
    });
    return std::max(work, *least);
  }

  problem model;
  cut_space space;
  bottleneck balanced;
  double passes;
  // A search for the best balance that was given up has taken about a tenth of a second.
  static constexpr double given_up = 2e6;
  double spent = balanced.optimal ? 0 : given_up;  // what making this took, in passes
  ticks bound;                                     // no cut costs less
  std::optional<found_plan> best;
};

}  // namespace zbpp::detail
