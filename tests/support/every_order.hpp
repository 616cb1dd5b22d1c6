// SPDX-License-Identifier: Apache-2.0
//
// Every order of a problem with a handful of passes, one after another: what is true of all orders
// can be looked at. A stage may run BW, too, where that takes less time or memory, and R where it
// can, each microbatch on its own.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Enumerates the orders of one rank, and then their combinations.
class every_order {
 public:
  /// @param in_turn  whether each stage takes the microbatches of its F, B and W in ascending order
  every_order(problem const& problem, bool in_turn) : problem_(problem), in_turn_(in_turn) {
    for (rank_ = 0; rank_ < problem.ranks(); ++rank_) {
      left_.clear();
      bytes fixed = 0;
      for (int s : problem.placement().stages_of(rank_)) {
        fixed += problem.costs(s).static_memory;
        for (int m = 0; m < problem.microbatches(); ++m)
          for (auto kind :
               {pass_kind::forward, pass_kind::backward_input, pass_kind::backward_weight})
            left_.push_back({kind, s, m});
      }
      rows_.emplace_back();
      if (fixed <= limit()) extend(fixed);
    }
  }

  /// Calls `visit(schedule)` for each combination in which each rank's order keeps its own
  /// dependences and its memory limit; ranks may still wait for each other.
  template <class Visit>
  void for_each(Visit visit) const {
    std::vector<std::vector<pass>> chosen;
    combine(chosen, visit);
  }

 private:
  [[nodiscard]] bytes limit() const {
    return problem_.memory_limit(rank_).value_or(std::numeric_limits<bytes>::max());
  }

  // How far along its microbatch's way a pass is: down the stages, and back.
  [[nodiscard]] int way(pass const& p) const {
    return p.kind == pass_kind::forward ? p.stage : 2 * problem_.stages() - p.stage;
  }

  [[nodiscard]] bool must_follow(pass const& p, pass const& other) const {
    if (p.kind == pass_kind::recompute) return false;  // its F has run
    if (p.microbatch != other.microbatch)
      return in_turn_ && p.kind == other.kind && p.stage == other.stage &&
             p.microbatch > other.microbatch;
    if (other.kind == pass_kind::recompute)
      return p.kind != pass_kind::forward && p.stage <= other.stage;
    if (other.kind == pass_kind::backward_weight) return false;
    if (p.kind == pass_kind::backward_weight && p.stage != other.stage) return false;
    return way(p) > way(other) || (p.kind == pass_kind::backward_weight && p != other);
  }

  void extend(bytes held) {
    if (left_.empty()) {
      rows_.back().push_back(row_);
      return;
    }
    for (std::size_t i = 0; i < left_.size(); ++i) {
      auto const p = left_[i];
      bool follows = false;
      for (auto const& other : left_) follows = follows || must_follow(p, other);
      if (follows) continue;
      auto const& c = problem_.costs(p.stage);
      auto const before = left_;
      left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(i));
      switch (p.kind) {
        case pass_kind::forward:
          run(p, held + c.activation, held + c.activation);
          if (!c.recompute) break;
          left_.push_back({pass_kind::recompute, p.stage, p.microbatch});
          run(p, held + c.recompute_input, held + c.recompute_input);
          break;
        case pass_kind::recompute: {
          auto const made = held + c.activation - c.recompute_input;
          run(p, made, made);
          break;
        }
        case pass_kind::backward_input:
          run(p, held + c.output_gradient, held - c.activation + c.weight_gradient_input);
          if (c.output_gradient > 0 || problem_.costs(p.stage, p.microbatch).gains_by_fusing())
            run_fused(p, held);
          break;
        default: run(p, held, held - c.weight_gradient_input);
      }
      left_ = before;
    }
  }

  void run(pass const& p, bytes during, bytes after) {
    if (during + problem_.costs(p.stage).workspace > limit()) return;
    row_.push_back(p);
    extend(after);
    row_.pop_back();
  }

  // Runs BW in place of a B, which is not left any more, and its W.
  void run_fused(pass const& b, bytes held) {
    pass const w{pass_kind::backward_weight, b.stage, b.microbatch};
    for (auto const& other : left_)
      if (must_follow(w, other)) return;
    std::erase(left_, w);
    run({pass_kind::backward, b.stage, b.microbatch},
        held,
        held - problem_.costs(b.stage).activation);
  }

  template <class Visit>
  void combine(std::vector<std::vector<pass>>& chosen, Visit& visit) const {
    if (chosen.size() == rows_.size()) {
      visit(schedule(problem_.placement(), problem_.microbatches(), chosen));
      return;
    }
    for (auto const& row : rows_[chosen.size()]) {
      chosen.push_back(row);
      combine(chosen, visit);
      chosen.pop_back();
    }
  }

  problem const& problem_;
  bool in_turn_;
  int rank_ = 0;
  std::vector<pass> left_;
  std::vector<pass> row_;
  std::vector<std::vector<std::vector<pass>>> rows_;  // of each rank
};

/// The least that `value(schedule)` is over all orders but those that deadlock; nothing
/// when none is left. `value` throws `errc::refused_program` for such an order, as `simulate` does.
template <class Value>
[[nodiscard]] auto least_of_orders(problem const& problem, bool in_turn, Value value) {
  std::optional<decltype(value(std::declval<schedule const&>()))> least;
  every_order(problem, in_turn).for_each([&](schedule const& order) {
    try {
      auto const found = value(order);
      if (!least || found < *least) least = found;
    } catch (error const& stuck) {
      if (stuck.code() != errc::refused_program) throw;
    }
  });
  return least;
}

}  // namespace zbpp::test
