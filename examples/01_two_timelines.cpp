// SPDX-License-Identifier: Apache-2.0
//
// Draws 1F1B above ZB-V for the same model: each stage of 1F1B is two chunks of ZB-V. Prints text,
// or, with any argument, an SVG picture.
#include <zbpp/plan.hpp>

#include <iostream>
#include <vector>

int main(int argc, char**) {
  using namespace zbpp;
  auto const ms = from_milliseconds(1);
  stage_costs const chunk{.forward = ms, .backward_input = ms, .backward_weight = ms};
  stage_costs const stage{.forward = 2 * ms, .backward_input = 2 * ms, .backward_weight = 2 * ms};

  auto const before = make_plan(one_f_one_b{}, problem(placement::linear(4), 8, stage));
  auto const after = make_plan(zb_v{}, problem(placement::v_shape(4), 8, chunk));

  std::vector<named_timeline> const both{{"1F1B", before.timeline()}, {"ZB-V", after.timeline()}};
  std::cout << (argc > 1 ? to_svg(both, {.width = 880}) : to_ascii(both, {.width = 120}));

  return bubble_rate(after.timeline()) < bubble_rate(before.timeline()) / 4 ? 0 : 1;
}
