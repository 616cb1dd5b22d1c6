// SPDX-License-Identifier: Apache-2.0
//
// What every backend promises: the bits of one process. A test gives `same_bits` what one process
// makes of a plan, the ways in which a backend runs it, and rows that say for which plans:
//
//   same_bits(
//       toy::train_reference,
//       {{"threads", on(threads{})}, {"one thread", on(threads{.count = 1})}},
//       {{"every policy", {1, 2, 3}},
//        {"pairs", {3}, times(2, 1), toy_problem, {.recomputed = true, .pairing = 0.8}}});
//
// A failed check prints the row, the plan, the way and its seed.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/seeded.hpp>
#include <support/toy_mlp.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace zbpp::test {

/// Numbers of microbatches for a number of ranks.
using counts_by_ranks = std::function<std::vector<int>(int ranks)>;

/// @return always the same number
[[nodiscard]] inline counts_by_ranks only(int microbatches) {
  return [=](int) { return std::vector{microbatches}; };
}
/// @return so many for each rank, and some more
[[nodiscard]] inline counts_by_ranks times(int factor, int more = 0) {
  return [=](int ranks) { return std::vector{factor * ranks + more}; };
}

[[nodiscard]] inline std::vector<placement> vs(int ranks) { return {placement::v_shape(ranks)}; }
[[nodiscard]] inline std::vector<placement> lines_and_vs(int ranks) {
  return {placement::linear(ranks), placement::v_shape(ranks)};
}

/// Makes the problem of toy stages with uneven costs.
[[nodiscard]] inline problem toy_problem(placement const& placement, int microbatches) {
  auto costs = uneven_costs();
  costs.edge = toy::edge;
  return {placement, microbatches, costs, 87};
}

/// Chooses among the plans of a problem.
struct plan_choice {
  bool fused = true;
  bool recomputed = false;
  int receive_ahead = 0;
  channel_layout layout = channel_layout::one_per_directed_pair;
  std::vector<std::string> policies{};  ///< by name; all when empty
  double pairing = 0;  ///< the share of possible pairs; plans without a pair are then left out
  std::vector<step_kind> steps{step_kind::unchecked};
  std::function<std::vector<placement>(int ranks)> placements = placements_to_run;
};

/// One row: the plans with which a backend is tried.
struct variation {
  std::string name;
  std::vector<int> ranks;
  counts_by_ranks microbatches = microbatches_to_run;
  std::function<zbpp::problem(placement const&, int microbatches)> problem = toy_problem;
  plan_choice plans{};
};

/// Calls `visit(plan)` for every plan of a row, with its name in the messages of failed checks.
template <class Visit>
void for_each_plan(variation const& row, Visit visit) {
  auto const& of = row.plans;
  for (int ranks : row.ranks)
    for (auto const& placement : of.placements(ranks))
      for (int microbatches : row.microbatches(ranks))
        for (auto const step : of.steps) {
          ZBPP_SEEDED(random, ranks * 1000 + microbatches);
          auto const problem = row.problem(placement, microbatches);
          plan_variants const plans{
              of.fused, of.recomputed, of.receive_ahead, of.layout, step, of.policies};
          for_each_plan_of(problem, plans, [&](std::string const& name, plan const& plain) {
            INFO(row.name << ": " << name << ", step_kind " << static_cast<int>(step));
            if (of.pairing == 0) return visit(plain);
            auto const order = pair_at_random(plain.schedule(), problem, random, of.pairing);
            if (pairs_in(order) == 0) return;
            INFO(pairs_in(order) << " pairs");
            visit(make_plan(plain.policy(), order, problem, plans.lowering()));
          });
        }
}

/// One way in which a backend runs a plan.
template <class Result>
struct way {
  std::string name;
  std::function<Result(plan const&, std::uint64_t seed)> run;
  int times = 1;  ///< with a seed each
};

/// How often plans have run, by the title of their policy.
using runs_of_policies = std::map<std::string, int>;

/// Checks that a backend gives the bits of one process for every plan of some rows.
/// @param one_process  called with a plan: what one process makes of it
/// @param ways         what has to give the same
/// @param seed         that of the first run; each has the next one
template <class OneProcess, class Result = std::invoke_result_t<OneProcess const&, plan const&>>
runs_of_policies same_bits(
    OneProcess const& one_process,
    std::vector<way<Result>> const& ways,
    std::vector<variation> const& rows,
    std::uint64_t seed = run_seed()) {
  runs_of_policies runs;
  for (auto const& row : rows) {
    std::size_t plans = 0;
    for_each_plan(row, [&](plan const& planned) {
      ++plans;
      Result const expected = one_process(planned);
      for (auto const& each : ways)
        for (int i = 0; i < each.times; ++i, ++seed) {
          INFO(each.name << ", seed " << seed);
          auto const found = each.run(planned, seed);
          if constexpr (requires { difference(found, expected); }) {
            CHECK(difference(found, expected) == "");
          } else {
            bool const has_same_bits = found == expected;
            CHECK(has_same_bits);
          }
          ++runs[planned.policy()];
        }
    });
    INFO(row.name);
    CHECK(plans > 0);
  }
  return runs;
}

}  // namespace zbpp::test
