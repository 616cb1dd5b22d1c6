// SPDX-License-Identifier: Apache-2.0
//
// The exhaustive search of analysis/detail/exhaustive_search.hpp.
#pragma once

#include <zbpp/analysis/detail/exhaustive_search.hpp>
#include <zbpp/analysis/detail/order_so_far.hpp>
#include <zbpp/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Searches all orders of F, B and W, and of BW and R where they may pay, one decision after
/// another.
///
/// A decision takes one rank and says which pass it runs next. Where the input of that pass has no
/// time yet, the rank is committed to it and another rank is asked; so each combination of orders
/// is met once, whatever the times are. Three things cut the tree:
///  - A state with the same passes in the order as one visited before, and no time earlier, leads
///    to nothing better.
///  - A pass that fits in front of another without delaying it may as well run there, unless that
///    takes memory: it delays nobody.
///  - A state whose lower bound is no better than what was found.
///
/// The first two need that nothing gets worse when a pass runs earlier. A first pass that starts
/// earlier makes the span of its rank longer, so they wait until the first start of each rank is
/// settled; for linear, looped and V placements it always is.
class exhaustive_search {
 public:
  exhaustive_search(problem const& problem, exhaustive_limits const& limits)
      : problem_(problem), limits_(limits), state_(problem), best_(limits.below) {}

  /// @return the optimum, or the best that was found when the limits were reached
  [[nodiscard]] optimum run() {
    bool fits = true;
    for (int r = 0; r < problem_.ranks(); ++r)
      fits = fits && state_.rank(r).held <= state_.rank(r).limit;
    if (fits) visit();
    return std::move(found_);
  }

 private:
  using option = order_so_far::option;

  void visit() {
    if (best_ <= enough_ || !found_.complete) return;
    if (is_over()) {
      found_.complete = false;
      return;
    }
    if (!state_.look_ahead()) return;
    auto const bound = state_.bound();
    if (found_.nodes == 1) enough_ = std::max(limits_.enough, bound);
    if (bound >= best_) return;
    int chosen = -1;
    bool over = true;
    for (int r = 0; r < problem_.ranks(); ++r) {
      auto const& rank = state_.rank(r);
      if (rank.passes_left == 0) continue;
      over = false;
      if (auto const next = state_.ready(r)) return visit_with(r, *next);
      if (rank.committed.stage >= 0) continue;
      if (chosen < 0 || rank.free < state_.rank(chosen).free) chosen = r;
    }
    if (over) {
      found_.cost = best_ = bound;
      found_.order = state_.rows();
      return;
    }
    if (chosen < 0) return;  // each rank waits for another
    bool const settled = state_.all_settled();
    if (settled && is_dominated()) return;
    auto const begin = options_.size();
    add_options(chosen, settled);
    auto const end = options_.size();
    for (auto i = begin; i < end; ++i) {
      auto const next = options_[i];  // more are added after it meanwhile
      if (next.known) {
        visit_with(chosen, next);
      } else {
        state_.commit(chosen, next.next);
        visit();
        state_.commit(chosen, {});
      }
    }
    options_.resize(begin);
  }

  void visit_with(int rank, option const& next) {
    state_.run(rank, next);
    visit();
    state_.take_back();
  }

  // Counts a state.
  [[nodiscard]] bool is_over() {
    constexpr int states_per_question = 256;
    return ++found_.nodes > limits_.nodes ||
           (found_.nodes % states_per_question == 0 && limits_.stop && limits_.stop());
  }

  // Remembers the state.
  // @return whether one at least as good has been visited
  [[nodiscard]] bool is_dominated() {
    state_.describe(key_, times_);
    auto& seen = seen_[key_];  // the times of one state after another
    auto const n = times_.size();
    auto const no_later = [n](ticks const* a, ticks const* b) {
      return std::equal(a, a + n, b, [](ticks x, ticks y) { return x <= y; });
    };
    for (std::size_t at = 0; at < seen.size(); at += n)
      if (no_later(seen.data() + at, times_.data())) return true;
    std::size_t kept = 0;
    for (std::size_t at = 0; at < seen.size(); at += n) {
      if (no_later(times_.data(), seen.data() + at)) continue;
      std::copy_n(seen.data() + at, n, seen.data() + kept);
      kept += n;
    }
    seen.resize(kept);
    seen.insert(seen.end(), times_.begin(), times_.end());
    return false;
  }

  // Puts the options of a rank after all others, the most promising first.
  void add_options(int rank, bool settled) {
    auto const begin = static_cast<std::ptrdiff_t>(options_.size());
    state_.add_options(rank, settled, options_);
    if (settled) {
      bool const limited = state_.rank(rank).limit != order_so_far::none;
      all_.assign(options_.begin() + begin, options_.end());
      auto const is_needless = [&](option const& one) {
        return std::any_of(all_.begin(), all_.end(), [&](option const& other) {
          return other.next != one.next && may_go_before(other, one, limited);
        });
      };
      options_.erase(
          std::remove_if(options_.begin() + begin, options_.end(), is_needless), options_.end());
    }
    std::stable_sort(
        options_.begin() + begin, options_.end(), [](option const& a, option const& b) {
          return a.start < b.start;
        });
  }

  // Whether `first` would be over when `second` starts, and so may as well run before it.
  [[nodiscard]] bool may_go_before(option const& first, option const& second, bool limited) const {
    if (!first.known || first.end > second.start) return false;
    // F may have to keep more later, for there need not be time for R.
    if (first.next.does == order_so_far::lean_forward) return false;
    if (limited && state_.adds(first.next)) return false;
    if (second.known && second.end <= first.start)  // neither takes time: one has to be first
      return first.next < second.next;
    return true;
  }

  problem const& problem_;
  exhaustive_limits const& limits_;
  order_so_far state_;
  std::unordered_map<std::string, std::vector<ticks>> seen_;
  std::string key_;
  std::vector<ticks> times_;
  std::vector<option> options_;  // of all states on the way
  std::vector<option> all_;      // of one of them
  ticks best_;
  ticks enough_ = 0;
  optimum found_;
};

ZBPP_INLINE optimum find_optimum(problem const& problem, exhaustive_limits const& limits) {
  return exhaustive_search(problem, limits).run();
}

ZBPP_INLINE bool is_tiny(problem const& problem) noexcept {
  constexpr std::int64_t most_passes = 60;
  auto const costs = problem.all_costs();
  return std::int64_t{3} * problem.stages() * problem.microbatches() <= most_passes &&
         !problem.gains_by_pairing() &&
         std::all_of(costs.begin(), costs.end(), [](stage_costs const& c) { return c.edge == 0; });
}

ZBPP_INLINE bool no_order_costs_less(ticks cost, problem const& problem) {
  if (!is_tiny(problem)) return false;
  // What found the cost may have begun with a greater one, and met other states first.
  constexpr auto enough_nodes = 2 * tiny_nodes;
  auto const found = find_optimum(problem, {.nodes = enough_nodes, .below = cost});
  return found.complete && !found.cost;
}

}  // namespace zbpp::detail
