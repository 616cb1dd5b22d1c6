// SPDX-License-Identifier: Apache-2.0
//
// How the chunks of a rank are looked up in a problem.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/chunk_state.hpp>

#include <vector>

namespace zbpp::detail {

ZBPP_INLINE std::vector<chunk_state> make_chunk_states(rank_setup const& setup) {
  auto const& program = setup.program;
  auto const& problem = setup.problem;
  bool recomputes = false;
  for (auto const& each : program.instructions().all())
    recomputes = recomputes || each.kind == instruction_kind::recompute;
  std::vector<chunk_state> chunks;
  for (int s : program.placement().stages_of(setup.rank)) {
    chunks.push_back(
        {.common =
             {.stage = s,
              .stages = program.stages(),
              .microbatches = program.microbatches(),
              .is_training = setup.is_training(),
              .recomputes = recomputes,
              .grid = &setup.grid,
              .outputs = setup.outputs},
         .run = setup.stages[chunks.size()],
         .costs = problem.costs(s),
         .activation_in = s > 0 ? problem.costs(s - 1).edge : 0});
  }
  return chunks;
}

}  // namespace zbpp::detail
