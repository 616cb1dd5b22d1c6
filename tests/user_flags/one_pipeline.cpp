// SPDX-License-Identifier: Apache-2.0
//
// A user's program: what a trainer needs, header-only, and one pipeline that trains and evaluates.
// compile.sh compiles it with the flags of strict users.
#include "scale.hpp"
#include <zbpp/zbpp.hpp>

#include <vector>

int main() {
  zbpp::problem const problem(
      zbpp::placement::linear(2),
      4,
      zbpp::stage_costs{.forward = 1, .backward_input = 1, .backward_weight = 1});
  std::vector<scale> stages(2);
  zbpp::pipeline pipe{zbpp::make_plan(zbpp::zb_h1{}, problem), zbpp::threads{}, stages};
  auto const before = pipe.evaluate().loss();
  for (int i = 0; i < 3; ++i) pipe.step();
  return pipe.evaluate().loss() < before ? 0 : 1;
}
