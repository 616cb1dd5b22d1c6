// SPDX-License-Identifier: Apache-2.0
//
// Turns a B that its own W follows into BW where that is cheaper and delays nobody.
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

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

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
      if (is_pair(p) && problem.costs(p.stage).gains_by_fusing()) pairs_.push_back(p);
  }

  [[nodiscard]] schedule run() {
    if (!pairs_.empty()) fuse(0, pairs_.size());
    return std::move(order_);
  }

  static constexpr int most_trials = 128;  ///< orders that may be simulated

  /// @return how many orders were simulated
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
  schedule order_;                  // the cheapest so far
  schedule joined_;                 // every pair is a BW
  grid<std::uint8_t> stays_split_;  // of (stage, microbatch): 1 where B and W stay apart
  std::vector<pass> pairs_;         // as BW: those for which BW is cheaper
  ticks cost_;
  int trials_ = most_trials;
};

/// Fuses B and W where `backward_fused` says that BW is cheaper and the simulated cost does not
/// rise.
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

}  // namespace zbpp::detail
