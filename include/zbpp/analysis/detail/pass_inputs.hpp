// SPDX-License-Identifier: Apache-2.0
//
// When the inputs of passes are there, from when the passes that make them ended.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <span>

namespace zbpp::detail {

/// Keeps the ends of the passes of one step, and knows which pass needs which.
class pass_inputs {
 public:
  static constexpr ticks never = -1;

  explicit pass_inputs(problem const& problem)
      : problem_(problem),
        forward_(problem.stages(), problem.microbatches(), never),
        backward_(problem.stages(), problem.microbatches(), never) {}

  /// @return when the input of a pass is there: 0 if it needs none, `never` if not made yet
  [[nodiscard]] ticks operator()(pass const& p) const {
    switch (p.kind) {
      case pass_kind::forward:
        return p.stage == 0 ? 0 : arrival(forward_(p.stage - 1, p.microbatch), p, p.stage - 1);
      case pass_kind::backward_input:
      case pass_kind::backward:  // a gradient that arrives has come by way of the stage's own F
        return p.stage == problem_.stages() - 1
                   ? forward_(p.stage, p.microbatch)
                   : arrival(backward_(p.stage + 1, p.microbatch), p, p.stage + 1);
      case pass_kind::recompute: return forward_(p.stage, p.microbatch);
      case pass_kind::backward_weight: return backward_(p.stage, p.microbatch);
    }
    return never;
  }

  /// @return the first pass of a row, or the first two where they are a pair
  [[nodiscard]] static std::span<timed_pass> next_of(std::span<timed_pass> row) noexcept {
    return row.first(next_is_paired(row, 0) ? 2 : 1);
  }
  /// @return when the inputs of a pass, or of both of a pair, are there
  [[nodiscard]] ticks operator()(std::span<timed_pass const> together) const {
    auto const first = (*this)(together.front().pass);
    if (together.size() == 1 || first == never) return first;
    auto const second = (*this)(together.back().pass);
    return second == never ? never : std::max(first, second);
  }
  /// Gives a pass, or both of a pair, its times. @return the end
  ticks run(std::span<timed_pass> together, ticks start) {
    auto const& first = together.front().pass;
    auto const last =
        start + (together.size() == 1 ? problem_.time(first)
                                      : problem_.pair_time(first, together.back().pass));
    for (auto& timed : together) {
      timed.start = start;
      timed.end = last;
      end(timed);
    }
    return last;
  }
  /// Makes what a pass that has its times gives to others.
  void end(timed_pass const& done) {
    auto const& p = done.pass;
    if (p.kind == pass_kind::forward) forward_(p.stage, p.microbatch) = done.end;
    if (p.makes_input_gradient()) backward_(p.stage, p.microbatch) = done.end;
  }

 private:
  [[nodiscard]] ticks arrival(ticks end, pass const& to, int from) const {
    return end == never ? never : end + problem_.transfer_time(from, to.stage, to.microbatch);
  }

  problem const& problem_;
  cells<ticks> forward_;   // end of F
  cells<ticks> backward_;  // end of B or BW
};

}  // namespace zbpp::detail
