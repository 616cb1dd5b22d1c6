// SPDX-License-Identifier: Apache-2.0
//
// Your own costs: uneven stages, a slow link and a memory limit go in; out comes a table of what
// each policy would cost, what it would keep, and which ones do not fit.
#include <zbpp/plan.hpp>

#include <cstdio>
#include <string>
#include <vector>

using namespace zbpp;

namespace {

constexpr bytes mebibyte = 1 << 20;

problem measured_problem(bytes limit) {
  stage_costs const block{
      .forward = from_milliseconds(11.3),
      .backward_input = from_milliseconds(11.2),
      .backward_weight = from_milliseconds(8.1),
      .activation = 900 * mebibyte,
      .weight_gradient_input = 400 * mebibyte,
      .edge = 20 * mebibyte};
  auto head = block;  // the last stage has the head and the loss on top
  head.forward += from_milliseconds(2.5);
  head.backward_input += from_milliseconds(2.5);
  return {placement::linear(4), 16, {block, block, block, head}, from_milliseconds(0.4), {limit}};
}

}  // namespace

int main() {
  auto const what = measured_problem(4800 * mebibyte);
  int fitting = 0;
  int refused = 0;
  std::printf("policy          cost [ms]  bubble  peak of each rank [MiB]\n");
  for (auto const& decide : builtin_policies()) {
    try {
      auto const plan = make_plan(decide, what);
      std::printf(
          "%-14s  %9.1f  %5.1f%%",
          plan.policy().c_str(),
          to_milliseconds(cost(plan.timeline())),
          100 * bubble_rate(plan.timeline()));
      for (auto const& peak : peak_memory(plan.program(), what))
        std::printf("  %5ld", static_cast<long>(peak.total / mebibyte));
      auto const faults = verify(plan.program(), what);
      std::printf("  %s\n", faults.empty() ? "fits" : to_string(faults.front()).c_str());
      ++(faults.empty() ? fitting : refused);
    } catch (error const& e) {
      std::printf("%s\n", e.what());
    }
  }
  // 1F1B, 1F1B-I, grouped 1F1B-I, ZB-I, ZB-H1 and greedy-auto fit; GPipe and ZB-H2 do not
  return fitting == 6 && refused == 2 ? 0 : 1;
}
