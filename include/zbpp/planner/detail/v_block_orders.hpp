// SPDX-License-Identifier: Apache-2.0
//
// Candidates of a search on a V that come from building blocks: a change of one block moves passes
// of all microbatches on all ranks at once.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>
#include <zbpp/planner/detail/v_block.hpp>
#include <zbpp/planner/detail/v_block_shapes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Makes candidates from blocks, and remembers the best one's shape.
class v_block_orders {
 public:
  /// @param room  bytes that the passes of each rank may hold
  v_block_orders(problem const& problem, std::vector<bytes> room, std::uint64_t seed)
      : weight_(mean_weight(problem)),
        block_(problem, std::move(room)),
        shapes_(problem, seed),
        seen_(remembered) {}

  /// Makes the order of any block, and any rules for its W.
  /// @return whether there is such a block, and its order was not made a short while ago
  [[nodiscard]] bool sample(planner_rules& rules) {
    shape_ = shapes_.sample();
    auto const ranks = static_cast<int>(rules.ranks.size());
    auto const step = 1 + shapes_.below(3);
    for (int first = 0; first < step; ++first) set_overrun(rules, first, ranks - 1, step);
    return make(rules);
  }
  /// Changes the best shape, or where its W may go.
  [[nodiscard]] bool change(planner_rules& rules) {
    shape_ = best_;
    if (shapes_.below(3) == 0) {
      auto const ranks = static_cast<int>(rules.ranks.size());
      auto const a = shapes_.below(ranks);
      auto const b = shapes_.below(3) == 0 ? ranks - 1 : shapes_.below(ranks);
      set_overrun(rules, std::min(a, b), std::max(a, b), 1 + shapes_.below(3));
    } else {
      shapes_.change(shape_);
    }
    return make(rules);
  }
  /// @return a whole number from 0 to `end` - 1
  [[nodiscard]] int below(int end) { return shapes_.below(end); }
  /// Takes the last shape for the best.
  void keep() noexcept { best_ = shape_; }

  /// @return what making one costs, in passes of the list scheduler
  [[nodiscard]] static double work(problem const& problem) noexcept {
    return 10.0 * problem.stages() + 0.2 * problem.stages() * problem.microbatches();
  }

 private:
  static constexpr std::size_t remembered = 4096;

  [[nodiscard]] static ticks mean_weight(problem const& problem) {
    ticks sum = 0;
    for (auto const& c : problem.all_costs()) sum += c.backward_weight;
    return sum / problem.stages();
  }

  // Ranks whose passes are at the same places of the interval, every `step`-th, want the same.
  void set_overrun(planner_rules& rules, int first, int last, int step) {
    auto const overrun = weight_ * shapes_.below(9) / 8;
    bool const to_the_end = shapes_.below(8) == 0;
    for (int rank = first; rank <= last; rank += step) {
      rules.ranks[index(rank)].overrun = overrun;
      rules.ranks[index(rank)].overruns_to_the_end = to_the_end;
    }
  }

  // Different shapes often give the same order.
  [[nodiscard]] bool make(planner_rules& rules) {
    if (!block_.place(shape_, rules.stages)) return false;
    block_.order(shape_, rules.steps);
    std::uint64_t sum = 0xcbf29ce484222325U;
    auto const add = [&](std::uint64_t what) { sum = (sum ^ what) * 0x100000001b3U; };
    for (auto const& row : rules.steps)
      for (auto const step : row) add(step);
    for (auto const& r : rules.ranks) {
      add(static_cast<std::uint64_t>(r.overrun));
      add(static_cast<std::uint64_t>(r.weights_kept));
      add(static_cast<std::uint64_t>(r.idle_allowance));
      add(r.overruns_to_the_end ? 1 : 0);
    }
    for (auto const& s : rules.stages) add((s.fuses ? 1U : 0U) + (s.recomputes ? 2U : 0U));
    return std::exchange(seen_[sum % remembered], sum) != sum;
  }

  ticks weight_;
  v_block block_;
  v_block_shapes shapes_;
  v_block_shape shape_;
  v_block_shape best_;
  std::vector<std::uint64_t> seen_;  // sums of orders and rules, the last of each place
};

}  // namespace zbpp::detail
