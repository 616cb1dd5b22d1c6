// SPDX-License-Identifier: Apache-2.0
//
// The ways in which the layers of a model can be cut into stages and stages be chosen to recompute:
// all of them one after another, and the changes that lead from one to its neighbours.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/planner/bottleneck.hpp>
#include <zbpp/planner/detail/work.hpp>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Says which layers go into which stage, and which stages recompute.
struct cut {
  std::vector<int> first_layer;  // of each stage
  std::vector<bool> recompute;   // for each stage

  friend auto operator<=>(cut const&, cut const&) = default;
};

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
  explicit cut_space(layered_problem const& model)
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
    return model_.has_limits() && can_recompute_.back() > 0;
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
    }
    return with_choice(bottleneck_partition(slower, model_.placement()).first_layer, true);
  }

  /// Says what a cut costs at least: a rank has all the work of all microbatches, in any order.
  [[nodiscard]] ticks least_cost(cut const& c) const {
    std::vector<ticks> work(index(model_.placement().ranks()));
    for (int s = 0; s < stages_; ++s)
      work[index(model_.placement().rank_of(s))] +=
          work_[index(end_of(c, s))] - work_[index(c.first_layer[index(s)])];
    return model_.microbatches() * *std::max_element(work.begin(), work.end());
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

  layered_problem const& model_;
  int layers_;
  int stages_;
  std::vector<ticks> work_;         // of the layers before each
  std::vector<int> can_recompute_;  // how many of the layers before each
};

}  // namespace zbpp::detail
