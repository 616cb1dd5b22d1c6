// SPDX-License-Identifier: Apache-2.0
#include <support/exhaustive.hpp>
#include <support/order_so_far.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace zbpp::test {

namespace {

// Searches all orders of F, B and W, and BW where B adds something for W, one decision after
// another.
//
// A decision takes one rank and says which pass it runs next. Where the input of that pass has no
// time yet, the rank is committed to it and another rank is asked; so each combination of orders
// is met once, whatever the times are. Three things cut the tree:
//  - A state with the same passes in the order as one visited before, and no time earlier, leads
//    to nothing better.
//  - A B or W that fits in front of a pass without delaying it may as well run there: it delays
//    nobody and frees memory. So may an F, and a B that adds something, where memory has no limit.
//  - A state whose lower bound is no better than what was found.
//
// The first two need that nothing gets worse when a pass runs earlier. A first pass that starts
// earlier makes the span of its rank longer, so they wait until the first start of each rank is
// settled; for linear, looped and V placements it always is.
class exhaustive_search {
 public:
  exhaustive_search(problem const& problem, search_limits limits)
      : problem_(problem), limits_(limits), state_(problem) {}

  // @return the optimum, or the best that was found when the limits were reached
  [[nodiscard]] optimum run() {
    bool fits = true;
    for (int r = 0; r < problem_.ranks(); ++r)
      fits = fits && state_.rank(r).held <= state_.rank(r).limit;
    if (fits) visit();
    if (best_ != order_so_far::none) found_.cost = best_;
    return std::move(found_);
  }

 private:
  using option = order_so_far::option;

  void visit() {
    if (best_ <= least_) return;  // nothing can be better
    if (++found_.nodes > limits_.nodes) {
      found_.complete = false;
      return;
    }
    if (!state_.look_ahead()) return;
    auto const bound = state_.bound();
    if (found_.nodes == 1) least_ = bound;
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
      best_ = bound;
      found_.order = state_.rows();
      return;
    }
    if (chosen < 0) return;  // each rank waits for another
    bool const settled = state_.all_settled();
    if (settled && is_dominated()) return;
    for (auto const& next : options_of(chosen, settled)) {
      if (next.known) {
        visit_with(chosen, next);
      } else {
        state_.commit(chosen, next.next);
        visit();
        state_.commit(chosen, {});
      }
    }
  }

  void visit_with(int rank, option const& next) {
    state_.run(rank, next);
    visit();
    state_.take_back();
  }

  // Remembers the state.
  // @return whether one at least as good has been visited
  [[nodiscard]] bool is_dominated() {
    state_.describe(key_, times_);
    auto& seen = seen_[key_];  // the times of one state after another
    auto const n = static_cast<std::ptrdiff_t>(times_.size());
    auto const no_later = [n](auto a, auto b) {
      return std::equal(a, a + n, b, [](ticks x, ticks y) { return x <= y; });
    };
    for (auto at = seen.begin(); at != seen.end(); at += n)
      if (no_later(at, times_.begin())) return true;
    for (auto at = seen.begin(); at != seen.end();) {
      if (no_later(times_.begin(), at))
        at = seen.erase(at, at + n);
      else
        at += n;
    }
    seen.insert(seen.end(), times_.begin(), times_.end());
    return false;
  }

  // The most promising first.
  [[nodiscard]] std::vector<option> options_of(int rank, bool settled) const {
    auto options = state_.options(rank);
    if (settled) {
      bool const limited = state_.rank(rank).limit != order_so_far::none;
      auto const all = options;
      std::erase_if(options, [&](option const& mine) {
        return std::any_of(all.begin(), all.end(), [&](option const& other) {
          return other.next != mine.next && fits_before(other, mine, limited);
        });
      });
    }
    std::stable_sort(options.begin(), options.end(), [](option const& a, option const& b) {
      return a.start < b.start;
    });
    return options;
  }

  // Whether `other` would be over when `mine` starts, and so may as well run first.
  [[nodiscard]] bool fits_before(option const& other, option const& mine, bool limited) const {
    if (!other.known || other.end > mine.start) return false;
    bool const adds =
        other.next.what == order_so_far::forward ||
        (other.next.what == order_so_far::backward && state_.may_fuse(other.next.stage));
    if (adds && limited) return false;
    if (mine.known && mine.end <= other.start)  // neither takes time: one of them has to be first
      return other.next < mine.next;
    return true;
  }

  problem const& problem_;
  search_limits limits_;
  order_so_far state_;
  std::unordered_map<std::string, std::vector<ticks>> seen_;
  std::string key_;
  std::vector<ticks> times_;
  ticks best_ = order_so_far::none;
  ticks least_ = 0;
  optimum found_;
};

}  // namespace

optimum find_optimum(problem const& problem, search_limits limits) {
  return exhaustive_search(problem, limits).run();
}

std::optional<ticks> optimal_cost(problem const& problem, search_limits limits) {
  auto const found = find_optimum(problem, limits);
  if (!found.complete)
    throw std::runtime_error(
        "exhaustive search: gave up after " + std::to_string(limits.nodes) + " states");
  return found.cost;
}

}  // namespace zbpp::test
