// SPDX-License-Identifier: Apache-2.0
//
// Schedules with pairs of F and B or BW, and costs that say what those take, for the tests of all
// that has to know pairs.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace zbpp::test {

/// The same problem with an `overlapped` of any size on most of its stages.
[[nodiscard]] inline problem with_overlapped(problem const& what, seeded_random& random) {
  std::vector<stage_costs> costs(what.all_costs().begin(), what.all_costs().end());
  for (auto& c : costs)
    if (random.chance(0.9))
      c.overlapped =
          random.integer(std::max(c.forward, c.backward_input), c.forward + c.backward_input);
  return {
      what.placement(),
      what.microbatches(),
      std::move(costs),
      what.transfer(),
      {what.memory_limits().begin(), what.memory_limits().end()}};
}

/// Pairs some F and B or BW that stand side by side, in either order, so that the order may run.
[[nodiscard]] inline schedule pair_at_random(
    schedule const& order, problem const& what, seeded_random& random, double share = 0.5) {
  auto best = order;
  auto rows = order.passes().nested();
  for (auto& row : rows)
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      auto const before = std::pair(row[i], row[i + 1]);
      if (row[i].makes_input_gradient()) std::swap(row[i], row[i + 1]);
      bool const may = detail::may_pair(row[i], row[i + 1]) && !before.first.is_paired &&
                       (i + 2 == row.size() || !row[i + 2].is_paired);
      row[i + 1].is_paired = may && random.chance(share);
      try {
        if (!row[i + 1].is_paired) throw error(errc::refused_program, "not chosen");
        schedule const paired(order.placement(), order.microbatches(), rows);
        static_cast<void>(simulate(paired, what));
        best = paired;
        ++i;
      } catch (error const& stuck) {
        if (stuck.code() != errc::refused_program) throw;
        std::tie(row[i], row[i + 1]) = before;
      }
    }
  return best;
}

/// How many pairs there are in a schedule.
[[nodiscard]] inline std::ptrdiff_t pairs_in(schedule const& order) {
  return std::ranges::count_if(order.passes().all(), &pass::is_paired);
}

}  // namespace zbpp::test
