// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/planner.md.

// [plan_measured
#include <zbpp/plan.hpp>
#include <zbpp/runtime/measure.hpp>
#include <zbpp/zbpp.hpp>

#include <iostream>
#include <vector>

// plan_measured]
namespace docs_planner {

// [plan_measured
zbpp::plan plan_measured(zbpp::problem const& measured) {
  auto const found = find_plan(
      measured,
      {.placement = measured.placement(),  // else others are searched, too
       .seconds = 1});                     // budget; 10 by default
  if (found.is_optimal()) std::cout << "proved, by " << to_string(found.bound.rule) << '\n';
  return make_plan(found);
}
// plan_measured]

// [measure
template <class Stages>
zbpp::problem measured_problem(zbpp::problem const& stated, Stages& stages) {
  auto const order = zbpp::split_backward(zbpp::zb_h1{}(stated));  // B and W apart
  zbpp::pipeline pipe{zbpp::make_plan("measuring", order, stated), zbpp::threads{}, stages};
  return zbpp::measure(pipe, {.steps = 20});
}
// measure]

}  // namespace docs_planner
