// SPDX-License-Identifier: Apache-2.0
//
// Searches an order for measured times and a memory limit, and says how good it is: the lower bound
// beside it proves that nothing cheaper exists.
#include <zbpp/plan.hpp>

#include <iomanip>
#include <iostream>
#include <vector>

int main() {
  using namespace zbpp;
  constexpr bytes mebi = 1024 * 1024;
  stage_costs stage{
      .forward = from_milliseconds(18.5),
      .backward_input = from_milliseconds(18.1),
      .backward_weight = from_milliseconds(9.3)};
  stage.activation = 900 * mebi;
  stage.weight_gradient_input = 330 * mebi;
  std::vector<stage_costs> stages(8, stage);
  stages.back().forward += from_milliseconds(2);  // the head of the model
  auto const what = [&](bytes limit) {
    return problem(placement::linear(8), 32, stages, from_milliseconds(0.6), {limit});
  };

  double last = 1;
  std::cout << std::fixed << std::setprecision(2);
  for (bytes limit : {8 * 900 * mebi, 10 * 900 * mebi, 12 * 900 * mebi, 16 * 900 * mebi}) {
    auto const found = find_plan(what(limit), {.placement = placement::linear(8)});
    auto const rate = bubble_rate(simulate(found.schedule, what(limit)));
    std::cout << std::setw(6) << limit / mebi << " MiB: cost " << to_milliseconds(found.cost)
              << " ms, bubble rate " << 100 * rate << " %, "
              << (found.is_optimal() ? "optimal, proved by the rule "
                                     : "not proved; bound by the rule ")
              << to_string(found.bound.rule) << '\n';
    if (rate > last || !holds(found.bound, what(limit))) return 1;  // more memory is never worse
    last = rate;
  }
  return 0;
}
