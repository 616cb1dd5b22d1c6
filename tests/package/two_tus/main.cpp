// SPDX-License-Identifier: Apache-2.0
//
// Prints a plan that this translation unit makes, and what the other one says of it.
#include <zbpp/zbpp.hpp>

#include <cstdio>

bool other_unit_accepts(zbpp::plan const& plan);
zbpp::ticks bound_of_other_unit(zbpp::problem const& problem);

int main() {
  zbpp::problem const problem(
      zbpp::placement::linear(4),
      8,
      {.forward = 10, .backward_input = 9, .backward_weight = 8, .activation = 3, .edge = 1},
      2);
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, problem);
  for (int rank = 0; rank < plan.program().ranks(); ++rank) {
    for (auto const& instruction : plan.program().instructions(rank))
      std::printf("%s ", zbpp::to_string(instruction).c_str());
    std::printf("\n");
  }
  auto const cost = zbpp::cost(plan.timeline());
  auto const bound = bound_of_other_unit(problem);
  std::printf(
      "cost %lld, at least %lld\n", static_cast<long long>(cost), static_cast<long long>(bound));
  return other_unit_accepts(plan) && 0 < bound && bound <= cost ? 0 : 1;
}
