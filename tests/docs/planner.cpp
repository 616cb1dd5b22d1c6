// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/planner.md.

// [plan_measured
#include <zbpp/plan.hpp>
#include <zbpp/runtime/measure.hpp>
#include <zbpp/zbpp.hpp>

#include <iostream>
#include <utility>
#include <vector>

// plan_measured]
namespace docs_planner {

// [plan_measured
zbpp::plan plan_measured(zbpp::problem const& measured) {
  zbpp::greedy_auto const planner{.search = {.seconds = 1}};  // budget; 2.5 by default
  zbpp::found_plan found = planner.find(measured);
  if (found.is_optimal()) std::cout << "proved, by " << to_string(found.bound.rule) << '\n';
  return zbpp::make_plan("greedy-auto", std::move(found.schedule), measured);
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
