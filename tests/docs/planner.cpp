// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/planner.md.

// [plan_measured
#include <zbpp/zbpp.hpp>

#include <iostream>
#include <utility>
#include <vector>

// plan_measured]
namespace docs_planner {

// [plan_measured
zbpp::plan plan_measured(zbpp::problem const& measured) {
  zbpp::greedy_auto const planner{.search = {.seconds = 1}};  // budget; 0.3 by default
  zbpp::found_schedule found = planner.find(measured);
  if (found.is_optimal()) std::cout << "proved, by " << to_string(found.bound.rule) << '\n';
  return zbpp::make_plan("greedy-auto", std::move(found.schedule), measured);
}
// plan_measured]

// [costs_from
template <class Pipeline>
zbpp::problem measure(Pipeline& pipe, zbpp::problem const& stated) {
  pipe.run(2, [](zbpp::step_result const&) {});  // caches are cold
  std::vector<zbpp::timeline> steps;
  pipe.run(20, [&](zbpp::step_result const& result) { steps.push_back(result.measured); });
  return zbpp::costs_from(steps, stated);
}
// costs_from]

}  // namespace docs_planner
