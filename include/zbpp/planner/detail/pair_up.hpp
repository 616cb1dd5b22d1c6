// SPDX-License-Identifier: Apache-2.0
//
// Pairs F with B or BW in a finished order where that makes it cheaper.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
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

/// Says which of two passes that stand near each other may become a pair.
enum class pair_order : std::uint8_t { forward_first, backward_first, any };

/// Chooses among the F and B or BW that stand side by side, or with one W or R between them. A pair
/// saves time on its rank, but what its first pass makes leaves later, so each choice is simulated:
/// all pairs at once, and where that costs more, those of one half of the step, a quarter and so
/// on.
class pairing {
 public:
  /// @param order   without pairs, within the limits
  /// @param trials  how many orders it may simulate
  pairing(schedule const& order, problem const& problem, pair_order which, int trials)
      : problem_(problem), rows_(order.passes().nested()), best_(order), trials_(trials) {
    auto const line = simulate(order, problem);
    cost_ = cost(line);
    for (int rank = 0; rank < order.ranks(); ++rank) find_places(rank, line[rank], which);
    std::ranges::sort(places_, {}, &place::start);
    is_chosen_.resize(places_.size(), false);
  }

  /// @return the cheapest order that was found, at worst the one without pairs
  [[nodiscard]] schedule run() {
    if (!places_.empty()) choose(0, places_.size());
    return std::move(best_);
  }

 private:
  struct place {
    ticks start;
    int rank;
    std::size_t position;
    std::size_t size;  // of the passes that it is about
  };

  // Takes what it can from left to right; places of one rank do not overlap.
  void find_places(int rank, std::span<timed_pass const> row, pair_order which) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      if (auto const size = pair_at(row.subspan(i), which); size > 0) {
        places_.push_back({row[i].start, rank, i, size});
        i += size - 1;
      }
  }

  // @return how many of the first passes could become a pair and what stands between them; or 0
  [[nodiscard]] std::size_t pair_at(std::span<timed_pass const> row, pair_order which) const {
    auto const may = [&](pass const& a, pass const& b) {
      bool const is_forward_first = a.kind == pass_kind::forward;
      auto const& f = is_forward_first ? a : b;
      auto const& g = is_forward_first ? b : a;
      if (which != pair_order::any && is_forward_first != (which == pair_order::forward_first))
        return false;
      return may_pair(f, g) && problem_.pair_time(f, g) < problem_.costs(f.stage).forward +
                                                              problem_.costs(g.stage).of(g.kind);
    };
    if (may(row[0].pass, row[1].pass)) return 2;
    auto const between = row[1].pass.kind;
    bool const moves = between == pass_kind::backward_weight || between == pass_kind::recompute;
    return moves && row.size() > 2 && may(row[0].pass, row[2].pass) ? 3 : 0;
  }

  // What is between goes in front of the pair; but W behind it, where it may need the B.
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
  int trials_;
};

}  // namespace zbpp::detail
