// SPDX-License-Identifier: Apache-2.0
//
// A loop that trains a pipeline and plans again, and a problem in which that pays.
#pragma once

#include <zbpp/adapt/replanner.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Runs the steps of a plan, and of those that a replanner gives.
template <backend Backend>
class adaptive_loop {
 public:
  template <class Stages>
  adaptive_loop(
      plan const& first,
      Backend backend,
      Stages&& stages,
      replan_settings settings = {},
      report_call on_report = {},
      training_options const& training = {})
      : pipe_(first, std::move(backend), stages, training),
        again_(pipe_, std::move(settings), std::move(on_report)) {}

  step_result const& step() {
    again_.apply_to(pipe_);
    auto const& result = pipe_.step();
    static_cast<void>(again_.after(result));
    return result;
  }

  [[nodiscard]] pipeline<Backend>& current() { return pipe_; }
  [[nodiscard]] replanner const& planner() const { return again_; }
  [[nodiscard]] std::vector<plan_switch> const& switches() const { return again_.switches(); }

 private:
  pipeline<Backend> pipe_;
  replanner again_;
};

template <class Backend, class Stages, class... More>
adaptive_loop(plan const&, Backend, Stages&&, More&&...) -> adaptive_loop<Backend>;

/// @return even costs on a line of ranks, and memory for more activations than 1F1B holds, so that
///         another order can help
[[nodiscard]] inline problem roomy_problem(int ranks, int microbatches, bytes edge) {
  stage_costs const even{
      .forward = 1000,
      .backward_input = 1000,
      .backward_weight = 900,
      .activation = 10,
      .weight_gradient_input = 5,
      .edge = edge};
  return {placement::linear(ranks), microbatches, even, 20, {20 * ranks + 4000}};
}

/// @return the same stages, of which the first takes longer than planned, and all of them `factor`
///         times what they did
[[nodiscard]] inline problem with_slow_first(problem const& stated, ticks factor = 1) {
  std::vector<stage_costs> costs(stated.all_costs().begin(), stated.all_costs().end());
  costs[0].forward = costs[0].backward_input = 1600;
  for (auto& c : costs)
    for (auto* const time : {&c.forward, &c.backward_input, &c.backward_weight}) *time *= factor;
  return with_stages(stated, costs);
}

/// @return settings by which a plan changes soon, where that saves something
[[nodiscard]] inline replan_settings at_once() {
  return {
      .first_steps = 1,
      .window = 3,
      .least_gain = 0.01,
      .least_steps = 10,
      .in_background = false,
      .seconds = 0.16};
}

[[nodiscard]] inline bool says(std::vector<std::string> const& lines, std::string const& part) {
  return std::ranges::any_of(
      lines, [&](std::string const& line) { return line.find(part) != std::string::npos; });
}

/// @return a callback that keeps the lines
[[nodiscard]] inline report_call keep_in(std::vector<std::string>& lines) {
  return [&lines](std::string const& line) { lines.push_back(line); };
}

}  // namespace zbpp::test
