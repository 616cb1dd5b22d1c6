// SPDX-License-Identifier: Apache-2.0
//
// What is done to an order that is there: putting R in, making BW of B and W, and pairing F with B.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- R -----------------------------------------------------------------------------------------
//
// Puts recomputation into schedules of policies that know nothing of it.

/// Puts an R in front of each B and BW of stages that state a time for R and have none yet.
[[nodiscard]] inline schedule insert_recompute(schedule order, problem const& problem) {
  std::vector<bool> lacks(index(problem.stages()));
  for (int s = 0; s < problem.stages(); ++s)
    lacks[index(s)] = problem.costs(s).recompute.has_value();
  for (auto const& p : order.passes().all())
    if (p.kind == pass_kind::recompute) lacks[index(p.stage)] = false;
  if (std::find(lacks.begin(), lacks.end(), true) == lacks.end()) return order;
  rows<pass> result;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    auto const row = order.passes(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const& next = next_is_paired(row, i) ? row[i + 1] : row[i];  // R stands before a pair
      if (next.makes_input_gradient() && !row[i].is_paired && lacks[index(next.stage)])
        result.push({pass_kind::recompute, next.stage, next.microbatch});
      result.push(row[i]);
    }
    result.end_row();
  }
  return {order.placement(), order.microbatches(), std::move(result)};
}

// ---- BW ----------------------------------------------------------------------------------------
//
// Turns a B that its own W follows into BW where that is cheaper and delays nobody.

/// Chooses among the pairs of B and W that `fuse_backward` joins. A BW saves time on its rank, but
/// its gradient leaves later, so each choice is simulated: all pairs at once, and where that costs
/// more, halves, quarters and so on.
class fusion {
 public:
  fusion(schedule order, problem const& problem)
      : problem_(problem),
        order_(std::move(order)),
        joined_(fuse_backward(order_)),
        stays_split_(order_.stages(), order_.microbatches()),
        cost_(cost(simulate(order_, problem))) {
    for (auto const& p : order_.passes().all())
      if (p.kind == pass_kind::backward_input) stays_split_(p.stage, p.microbatch) = 1;
    for (auto const& p : joined_.passes().all())
      if (is_pair(p) && problem.costs(p.stage, p.microbatch).gains_by_fusing()) pairs_.push_back(p);
  }

  [[nodiscard]] schedule run() {
    if (!pairs_.empty()) fuse(0, pairs_.size());
    return std::move(order_);
  }

  static constexpr int most_trials = 128;  ///< orders that may be simulated

  [[nodiscard]] int trials() const noexcept { return most_trials - trials_; }

 private:
  // Whether a pass of `joined_` stands for a B and a W that stay as they were.
  [[nodiscard]] bool is_pair(pass const& p) const {
    return p.kind == pass_kind::backward && stays_split_(p.stage, p.microbatch) != 0;
  }

  // Pairs stand in the order of ranks, as the passes do.
  void fuse(std::size_t begin, std::size_t end) {
    if (trials_ == 0) return;
    --trials_;
    split(begin, end, 0);
    auto fused = chosen();
    if (auto const found = cost(simulate(fused, problem_)); found <= cost_) {
      cost_ = found;
      order_ = std::move(fused);
      return;
    }
    split(begin, end, 1);
    if (end - begin == 1) return;
    auto const middle = begin + (end - begin) / 2;
    fuse(begin, middle);
    fuse(middle, end);
  }

  void split(std::size_t begin, std::size_t end, std::uint8_t stays) {
    for (; begin < end; ++begin)
      stays_split_(pairs_[begin].stage, pairs_[begin].microbatch) = stays;
  }

  // The order with the pairs joined that do not stay split.
  [[nodiscard]] schedule chosen() const {
    rows<pass> passes;
    for (int rank = 0; rank < joined_.ranks(); ++rank) {
      for (auto const& p : joined_.passes(rank)) {
        if (is_pair(p)) {
          passes.push({pass_kind::backward_input, p.stage, p.microbatch, p.is_paired});
          passes.push({pass_kind::backward_weight, p.stage, p.microbatch});
        } else {
          passes.push(p);
        }
      }
      passes.end_row();
    }
    return {joined_.placement(), joined_.microbatches(), std::move(passes)};
  }

  problem const& problem_;
  schedule order_;                   // the cheapest so far
  schedule joined_;                  // every pair is a BW
  cells<std::uint8_t> stays_split_;  // of (stage, microbatch): 1 where B and W stay apart
  std::vector<pass> pairs_;          // as BW: those for which BW is cheaper
  ticks cost_;
  int trials_ = most_trials;
};

/// Fuses B and W where `backward_fused` makes BW cheaper and the simulated cost does not rise.
/// @param trials  grows by how many orders are simulated for that; nullptr: nobody counts
[[nodiscard]] inline schedule fuse_where_it_pays(
    schedule order, problem const& problem, int* trials = nullptr) {
  auto const costs = problem.all_costs();
  bool const may_pay = std::any_of(
      costs.begin(), costs.end(), [](stage_costs const& c) { return c.gains_by_fusing(); });
  if (!may_pay) return order;
  fusion choice(std::move(order), problem);
  auto fused = choice.run();
  if (trials != nullptr) *trials += choice.trials();
  return fused;
}

// ---- pairs -------------------------------------------------------------------------------------
//
// Pairs F with B or BW in a finished order where that makes it cheaper.

/// Says which of two passes that stand near each other may become a pair.
enum class pair_order : std::uint8_t { forward_first, backward_first, any };

/// Chooses among the F and B or BW that stand side by side, or with one W or R between them. A pair
/// saves time on its rank, but what its first pass makes leaves later, so each choice is simulated:
/// all pairs at once, and where that costs more, those of half the step, and so on.
class pairing {
 public:
  /// @param order   without pairs, within the limits
  /// @param trials  how many orders it may simulate
  pairing(schedule const& order, problem const& problem, pair_order preference, int trials)
      : problem_(problem),
        rows_(order.passes().nested()),
        best_(order),
        most_trials_(trials),
        trials_(trials) {
    auto const line = simulate(order, problem);
    cost_ = cost(line);
    for (int rank = 0; rank < order.ranks(); ++rank) find_places(rank, line[rank], preference);
    std::ranges::sort(places_, {}, &place::start);
    is_chosen_.resize(places_.size(), false);
  }

  /// @return the cheapest order that was found, at worst the one without pairs
  [[nodiscard]] schedule run() {
    if (!places_.empty()) choose(0, places_.size());
    return std::move(best_);
  }

  [[nodiscard]] int trials() const noexcept { return most_trials_ - trials_; }

 private:
  struct place {
    ticks start;
    int rank;
    std::size_t position;
    std::size_t size;  // of the passes that it is about
  };

  // Takes what it can from left to right; places of one rank do not overlap.
  void find_places(int rank, std::span<timed_pass const> row, pair_order preference) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      if (auto const size = pair_at(row.subspan(i), preference); size > 0) {
        places_.push_back({row[i].start, rank, i, size});
        i += size - 1;
      }
  }

  // @return how many of the first passes could become a pair and what stands between them; or 0
  [[nodiscard]] std::size_t pair_at(std::span<timed_pass const> row, pair_order preference) const {
    auto const may = [&](pass const& a, pass const& b) {
      bool const is_forward_first = a.kind == pass_kind::forward;
      auto const& f = is_forward_first ? a : b;
      auto const& g = is_forward_first ? b : a;
      if (preference != pair_order::any &&
          is_forward_first != (preference == pair_order::forward_first))
        return false;
      return may_pair(f, g) && problem_.pair_time(f, g) < problem_.time(f) + problem_.time(g);
    };
    if (may(row[0].pass, row[1].pass)) return 2;
    auto const between = row[1].pass.kind;
    bool const moves = between == pass_kind::backward_weight || between == pass_kind::recompute;
    return moves && row.size() > 2 && may(row[0].pass, row[2].pass) ? 3 : 0;
  }

  // What is between goes in front of the pair; but W after it, where it may need the B.
  void write(place const& at, std::vector<pass>& row) const {
    auto const first = row.begin() + static_cast<std::ptrdiff_t>(at.position);
    bool const has_between = at.size == 3;
    bool const begins_with_forward = first->kind == pass_kind::forward;
    if (has_between && begins_with_forward) std::rotate(first, first + 1, first + 2);
    auto const pair = has_between && begins_with_forward ? first + 1 : first;
    if (has_between && !begins_with_forward) std::rotate(pair + 1, pair + 2, pair + 3);
    if (!begins_with_forward) std::swap(pair[0], pair[1]);
    pair[1].is_paired = true;
  }

  void choose(std::size_t begin, std::size_t end) {
    if (trials_ == 0) return;
    --trials_;
    auto const set = [&](bool chosen) {
      std::fill(
          is_chosen_.begin() + static_cast<std::ptrdiff_t>(begin),
          is_chosen_.begin() + static_cast<std::ptrdiff_t>(end),
          chosen);
    };
    set(true);
    if (try_chosen()) return;
    set(false);
    if (end - begin == 1) return;
    auto const middle = begin + (end - begin) / 2;
    choose(begin, middle);
    choose(middle, end);
  }

  // @return whether the order with the chosen pairs may run and costs no more
  [[nodiscard]] bool try_chosen() {
    auto rows = rows_;
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (is_chosen_[i]) write(places_[i], rows[index(places_[i].rank)]);
    schedule order(best_.placement(), best_.microbatches(), rows);
    auto const found = cost_of(order);
    if (found > cost_ || !is_within_limits(order, problem_)) return false;
    cost_ = found;
    best_ = std::move(order);
    return true;
  }

  // Pairs can wait for each other in a cycle.
  [[nodiscard]] ticks cost_of(schedule const& order) const {
    try {
      return cost(simulate(order, problem_));
    } catch (error const& stuck) {
      if (stuck.code() != errc::refused_program) throw;
      return std::numeric_limits<ticks>::max();
    }
  }

  problem const& problem_;
  std::vector<std::vector<pass>> rows_;  // without pairs
  std::vector<place> places_;            // in order of time
  std::vector<bool> is_chosen_;          // of the places
  schedule best_;
  ticks cost_ = 0;
  int most_trials_;
  int trials_;
};

}  // namespace zbpp::detail
