// SPDX-License-Identifier: Apache-2.0
//
// Random problems within little memory, with random rules for the list scheduler.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>

#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace zbpp::test {

[[nodiscard]] inline placement some_placement(seeded_random& random) {
  auto const p = static_cast<int>(random.integer(1, 5));
  switch (random.integer(0, 3)) {
    case 0: return placement::linear(p);
    case 1: return placement::v_shape(p);
    case 2: return placement::looped(p, static_cast<int>(random.integer(2, 3)));
    default: break;
  }
  std::vector<int> ranks;
  for (int r = 0; r < p; ++r) ranks.push_back(r);
  for (int i = 0; i < 4; ++i) ranks.push_back(static_cast<int>(random.integer(0, p - 1)));
  random.shuffle(std::span(ranks));
  return placement::custom(ranks);
}

[[nodiscard]] inline stage_costs some_costs(seeded_random& random, bool recompute) {
  stage_costs c;
  c.forward = random.integer(0, 20);
  c.backward_input = random.integer(0, 20);
  c.backward_weight = random.integer(0, 20);
  c.backward_fused = std::max(c.backward_input, c.backward_weight) +
                     random.integer(0, std::min(c.backward_input, c.backward_weight));
  c.activation = random.integer(0, 10);
  c.weight_gradient_input = random.integer(0, c.activation);
  if (recompute) {
    c.recompute = random.integer(0, 9);
    c.recompute_input = random.integer(0, c.activation);
  }
  return c;
}

/// Holds a problem whose limits leave between nothing and 20 bytes beyond the least, and rules for
/// it.
struct rules_trial {
  zbpp::problem problem;
  detail::planner_rules rules;
};

/// Makes one.
/// @param may_settle_too_much  whether a warm-up may be over before the first B can be back
/// @param adds  whether B adds something for W on some stages
[[nodiscard]] inline rules_trial some_trial(
    seeded_random& random, bool may_settle_too_much, bool adds = false) {
  auto const placement = some_placement(random);
  bool const recompute = random.chance(0.5);
  std::vector<stage_costs> costs;
  for (int s = 0; s < placement.stages(); ++s) costs.push_back(some_costs(random, recompute));
  if (adds)
    for (auto& c : costs) {
      c.output_gradient = random.chance(0.2) ? 0 : random.integer(0, 10);
      c.weight_gradient_input += c.output_gradient;
    }
  detail::planner_rules rules(placement.ranks(), placement.stages());
  for (auto& s : rules.stages) {
    s.recomputes = recompute && random.chance(0.5);
    s.fuses = random.chance(0.2);
    if (random.chance(0.25)) s.in_flight = static_cast<int>(random.integer(1, 4));
  }
  std::vector<bytes> limits;
  for (int r = 0; r < placement.ranks(); ++r) {
    bytes kept = 0;
    bytes most_added = 0;
    for (int s : placement.stages_of(r)) {
      auto const& c = costs[static_cast<std::size_t>(s)];
      auto const& rule = rules.stages[static_cast<std::size_t>(s)];
      auto const k = rule.recomputes ? c.recompute_input : c.activation;
      kept += k;
      most_added = std::max(most_added, c.activation - k + (rule.fuses ? 0 : c.output_gradient));
    }
    limits.push_back(kept + most_added + random.integer(0, 20));
    auto& rule = rules.ranks[static_cast<std::size_t>(r)];
    if (may_settle_too_much && random.chance(0.2))
      rule.warm_up = static_cast<int>(random.integer(1, 9));
    rule.wait_for_backward = random.integer(0, 10);
    rule.overrun = random.integer(0, 20);
    if (random.chance(0.5)) rule.idle_allowance = random.integer(0, 60);
    rule.weights_kept = static_cast<int>(random.integer(0, 9));
    rule.forward_first = random.chance(0.5);
    rule.unblock = random.chance(0.5);
    rule.deep_forward_first = random.chance(0.5);
    rule.deep_backward_first = random.chance(0.5);
    rule.wait_for_deep_forward = random.integer(0, 10);
  }
  auto const m = static_cast<int>(random.integer(1, 9));
  return {problem(placement, m, costs, random.integer(0, 7), limits), rules};
}

}  // namespace zbpp::test
