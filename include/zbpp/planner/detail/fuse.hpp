// SPDX-License-Identifier: Apache-2.0
//
// Turns a B that its own W follows into BW where that is cheaper and delays nobody.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Chooses among the pairs of B and W that stand together. A BW saves time on its rank, but its
/// gradient leaves later, so each choice is simulated: all pairs at once, and where that costs
/// more, halves, quarters and so on.
class fusion {
 public:
  fusion(schedule order, problem const& problem)
      : order_(std::move(order)), problem_(problem), cost_(cost(simulate(order_, problem))) {}

  [[nodiscard]] schedule run() {
    auto const pairs = find_pairs();
    if (!pairs.empty()) fuse(pairs, 0, pairs.size());
    return std::move(order_);
  }

 private:
  [[nodiscard]] std::vector<pass> find_pairs() const {
    std::vector<pass> pairs;
    for (int rank = 0; rank < order_.ranks(); ++rank) {
      auto const row = order_.passes(rank);
      for (std::size_t i = 0; i + 1 < row.size(); ++i) {
        pass const own_w{pass_kind::backward_weight, row[i].stage, row[i].microbatch};
        if (row[i].kind == pass_kind::backward_input && row[i + 1] == own_w &&
            problem_.costs(row[i].stage).gains_by_fusing())
          pairs.push_back(row[i]);
      }
    }
    return pairs;
  }

  // Pairs stand in the order of ranks, as the passes do.
  void fuse(std::vector<pass> const& pairs, std::size_t begin, std::size_t end) {
    if (trials_ == 0) return;
    --trials_;
    auto joined = with_fused(pairs, begin, end);
    if (auto const found = cost(simulate(joined, problem_)); found <= cost_) {
      cost_ = found;
      order_ = std::move(joined);
      return;
    }
    if (end - begin == 1) return;
    auto const middle = begin + (end - begin) / 2;
    fuse(pairs, begin, middle);
    fuse(pairs, middle, end);
  }

  [[nodiscard]] schedule with_fused(
      std::vector<pass> const& pairs, std::size_t begin, std::size_t end) const {
    rows<pass> passes;
    for (int rank = 0; rank < order_.ranks(); ++rank) {
      auto const row = order_.passes(rank);
      for (std::size_t i = 0; i < row.size(); ++i) {
        bool const joins = begin < end && row[i] == pairs[begin];
        passes.push(joins ? pass{pass_kind::backward, row[i].stage, row[i].microbatch} : row[i]);
        if (!joins) continue;
        ++begin;
        ++i;
      }
      passes.end_row();
    }
    return {order_.placement(), order_.microbatches(), std::move(passes)};
  }

  schedule order_;
  problem const& problem_;
  ticks cost_;
  int trials_ = 128;
};

/// Fuses B and W where `backward_fused` says that BW is cheaper and the simulated cost does not
/// rise.
[[nodiscard]] inline schedule fuse_where_it_pays(schedule order, problem const& problem) {
  return fusion(std::move(order), problem).run();
}

}  // namespace zbpp::detail
