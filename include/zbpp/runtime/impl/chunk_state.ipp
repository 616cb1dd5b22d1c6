// SPDX-License-Identifier: Apache-2.0
//
// How the chunks of a rank are looked up in a problem.
#pragma once

#include <zbpp/analysis/detail/pass_inputs.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/chunk_state.hpp>

#include <span>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE std::vector<chunk_state> make_chunk_states(
    program const& program,
    problem const& problem,
    int rank,
    std::span<stage_ref const> stages,
    bool is_training) {
  std::vector<chunk_state> chunks;
  for (int s : program.placement().stages_of(rank)) {
    chunks.push_back(
        {.common =
             {.stage = s,
              .stages = program.stages(),
              .microbatches = program.microbatches(),
              .is_training = is_training},
         .run = stages[chunks.size()],
         .costs = problem.costs(s),
         .activation_in = s > 0 ? problem.costs(s - 1).edge : 0,
         .next_transfer = s + 1 < program.stages() ? problem.transfer_time(s, s + 1) : 0,
         .previous_transfer = s > 0 ? problem.transfer_time(s, s - 1) : 0});
  }
  return chunks;
}

ZBPP_INLINE agreement_times agreement_times_of(problem const& problem, int rank) {
  agreement_times times;
  for (int const s : problem.placement().stages_of(rank)) times.norm += problem.costs(s).norm;
  if (rank > 0) times.verdict = state_transfer(problem, rank, rank - 1);
  // The last rank knows the verdict instead.
  times.states =
      rank + 1 < problem.ranks() ? state_transfer(problem, rank, rank + 1) : times.verdict;
  return times;
}

}  // namespace zbpp::detail
