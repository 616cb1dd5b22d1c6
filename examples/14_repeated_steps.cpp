// SPDX-License-Identifier: Apache-2.0
//
// Simulates steps one after another: ranks that wait for the norm of all gradients before they
// step, and ranks that step at once and validate afterwards. Prints what a step takes, or, with any
// argument, an SVG picture of two steps of each kind.
#include <zbpp/plan.hpp>

#include <cstdio>
#include <iostream>
#include <vector>

int main(int argc, char**) {
  using namespace zbpp;
  auto const ms = from_milliseconds(1);
  stage_costs const stage{
      .forward = 2 * ms,
      .backward_input = 2 * ms,
      .backward_weight = 2 * ms,
      .norm = ms / 4,
      .optimizer_step = ms};
  problem const model(placement::linear(4), 8, stage, transfer_costs(ms / 4));
  auto const planned = [&](step_kind kind) { return make_plan(zb_h2{}, model, {.step = kind}); };
  auto const waiting = planned(step_kind::synchronous);
  auto const early = planned(step_kind::post_validated);

  if (argc > 1) {
    auto const draw = [&](char const* name, plan const& of) {
      auto const two = simulate_steps(of.program(), model, 2);
      return named_timeline{name, two.line, {}, two.updates};
    };
    std::cout << to_svg(
        {draw("synchronous", waiting), draw("post-validated", early)}, {.width = 880});
    return 0;
  }
  std::printf("a step takes     alone  in the long run\n");
  auto const print = [](char const* name, step_times const& times) {
    auto const steady =
        to_milliseconds(times.steady.whole) + 1e-6 * times.steady.part / times.steady.of;
    std::printf("%-14s %5.2f ms  %12.2f ms\n", name, to_milliseconds(times.alone), steady);
  };
  print("synchronous", times_of_steps(waiting));
  print("post-validated", times_of_steps(early));
  return times_of_steps(early).steady < times_of_steps(waiting).steady ? 0 : 1;
}
