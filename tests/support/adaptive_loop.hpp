// SPDX-License-Identifier: Apache-2.0
//
// A loop that trains a pipeline and plans again.
#pragma once

#include <zbpp/adapt/replanner.hpp>
#include <zbpp/analysis/plan.hpp>
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

[[nodiscard]] inline bool says(std::vector<std::string> const& lines, std::string const& part) {
  return std::ranges::any_of(
      lines, [&](std::string const& line) { return line.find(part) != std::string::npos; });
}

/// @return a callback that keeps the lines
[[nodiscard]] inline report_call keep_in(std::vector<std::string>& lines) {
  return [&lines](std::string const& line) { lines.push_back(line); };
}

}  // namespace zbpp::test
