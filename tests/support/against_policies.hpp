// SPDX-License-Identifier: Apache-2.0
//
// Compares what greedy_auto finds with the schedule of every policy of the registry that keeps the
// same limits, on seeded problems.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <support/planner_problems.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zbpp::test {

/// A policy whose schedule costs less than that of greedy_auto, or no more and takes less memory.
struct better_policy {
  std::uint64_t seed;
  std::string policy;
  std::string placement;
  int microbatches;
  ticks cost;
  ticks found;
  memory_use memory;
  memory_use found_memory;

  [[nodiscard]] bool is_cheaper() const noexcept { return cost < found; }
};

/// A problem of any placement: 2 to `most_ranks` ranks, up to 4 microbatches for each, alike stages
/// or uneven ones, transfers up to 0.3 of F, room from that of V-Min to twice that of 1F1B, or any.
[[nodiscard]] inline problem any_planner_problem(std::uint64_t seed, int most_ranks) {
  plain_random random(seed);
  auto const p = random.integer(2, most_ranks);
  auto const placement = seed % 3 == 0   ? placement::linear(p)
                         : seed % 3 == 1 ? placement::v_shape(p)
                                         : placement::looped(p, 2);
  auto const m = placement.is_looped() && random.integer(0, 1) == 0 ? p * random.integer(1, 4)
                                                                    : random.integer(p, 4 * p);
  auto const chunks = placement.stages() / p;
  auto const spread = random.integer(0, 1) == 0 ? 0.0 : random.real(0, 0.5);
  auto const forward = 12e6 / chunks;
  auto const backward = forward * random.real(0.8, 1.2);
  auto const weight = forward * random.real(0.4, 1.0);
  std::vector<stage_costs> stages;
  for (int s = 0; s < placement.stages(); ++s) {
    auto const of = [&](double mean) {
      return std::llround(mean * random.real(1 - spread, 1 + spread));
    };
    stages.push_back(planner_stage(of, forward, backward, weight));
  }
  auto const transfer = std::llround(forward * random.real(0, 0.3));
  if (random.integer(0, 4) == 0) return {placement, m, stages, transfer};
  auto const room = random.real((p + 4) / 3, 2 * p);
  return {placement, m, stages, transfer, {static_cast<bytes>(room) * chunks * 1000}};
}

/// @return the policies of the registry that beat greedy_auto on a problem within its limits
[[nodiscard]] inline std::vector<better_policy> better_policies(
    std::uint64_t seed, problem const& problem, search_settings const& search) {
  auto const found = detail::find_order(problem, search, 0);
  auto const memory = [&](schedule const& order) {
    return memory_use_of(detail::memory_of(order, problem), problem);
  };
  auto const of_found = memory(found.schedule);
  std::vector<better_policy> better;
  for (auto const& policy : builtin_policies()) {
    if (policy.name() == greedy_auto::name) continue;
    std::optional<schedule> order;
    try {
      order = policy(problem, search);
    } catch (error const& e) {
      if (e.code() != errc::unsupported_problem) throw;
      continue;
    }
    if (!detail::is_within_limits(*order, problem)) continue;
    auto const taken = cost(simulate(*order, problem));
    if (taken < found.cost || (taken == found.cost && memory(*order) < of_found))
      better.push_back(
          {seed,
           std::string(policy.name()),
           std::string(problem.placement().name()),
           problem.microbatches(),
           taken,
           found.cost,
           memory(*order),
           of_found});
  }
  return better;
}

}  // namespace zbpp::test
