// SPDX-License-Identifier: Apache-2.0
//
// Schedules with pairs of F and B or BW, and costs that say what those take, for the tests of all
// that has to know pairs.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <support/changed_problems.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Pairs some F and B or BW that stand side by side, in either order, so that the order may run.
[[nodiscard]] inline schedule pair_at_random(
    schedule const& order, problem const& problem, seeded_random& random, double share = 0.5) {
  auto best = order;
  auto rows = order.passes().nested();
  auto const can_run = [&] {
    try {
      schedule paired(order.placement(), order.microbatches(), rows);
      static_cast<void>(simulate(paired, problem));
      best = std::move(paired);
      return true;
    } catch (error const& stuck) {
      if (stuck.code() != errc::refused_program) throw;
      return false;
    }
  };
  for (auto& row : rows)
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      auto const before = std::pair(row[i], row[i + 1]);
      if (row[i].makes_input_gradient()) std::swap(row[i], row[i + 1]);
      bool const may = detail::may_pair(row[i], row[i + 1]) && !before.first.is_paired &&
                       (i + 2 == row.size() || !row[i + 2].is_paired);
      row[i + 1].is_paired = may && random.chance(share);
      if (row[i + 1].is_paired && can_run())
        ++i;
      else
        std::tie(row[i], row[i + 1]) = before;
    }
  return best;
}

/// @return how many pairs there are in a schedule
[[nodiscard]] inline std::ptrdiff_t pairs_in(schedule const& order) {
  return std::ranges::count_if(order.passes().all(), &pass::is_paired);
}

/// @return a plan with some pairs for the problem of another, whose order it takes
/// @param pairs  gets their number added
[[nodiscard]] inline plan paired_plan(
    plan const& plain,
    seeded_random& random,
    std::ptrdiff_t& pairs,
    double share = 0.8,
    lower_options const& options = {}) {
  auto const order = pair_at_random(plain.schedule(), plain.problem(), random, share);
  pairs += pairs_in(order);
  return make_plan("pairs", order, plain.problem(), options);
}

}  // namespace zbpp::test
