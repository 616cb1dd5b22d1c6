// SPDX-License-Identifier: Apache-2.0
//
// The C++ blocks of docs/concepts.md.

// [placements
#include <zbpp/model/placement.hpp>

// placements]
namespace docs_concepts {

void placements() {
  // [placements
  auto const line = zbpp::placement::linear(4);
  auto const loop = zbpp::placement::looped(4, 2);
  auto const v = zbpp::placement::v_shape(4);
  auto const any = zbpp::placement::custom({0, 0, 1, 1, 1, 0});
  // placements]
}

}  // namespace docs_concepts

// [make_problem
#include <zbpp/model/problem.hpp>

// make_problem]
namespace docs_concepts {

// [make_problem
zbpp::problem make_problem() {
  zbpp::stage_costs const block{
      .forward = zbpp::from_milliseconds(11.3),
      .backward_input = zbpp::from_milliseconds(11.2),
      .backward_weight = zbpp::from_milliseconds(8.1),
      .activation = 900 << 20,             // what F keeps
      .weight_gradient_input = 400 << 20,  // the part of it that W needs
      .edge = 20 << 20};                   // what the stage sends forward, and what comes back
  zbpp::bytes const limit = zbpp::bytes{8} << 30;
  return {zbpp::placement::linear(4), 16, block, zbpp::from_milliseconds(0.4), {limit}};
}
// make_problem]

}  // namespace docs_concepts
