// SPDX-License-Identifier: Apache-2.0
//
// What an engine knows of each chunk, a stage of its rank: the stage to run, its costs, and how
// long its messages travel.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/stage.hpp>

#include <span>
#include <vector>

namespace zbpp::detail {

/// Holds one chunk of a rank.
struct chunk_state {
  stage_context common;
  stage_ref run;
  stage_costs costs;
  bytes activation_in;
  ticks next_transfer;
  ticks previous_transfer;
};

/// Makes the chunks of a rank from its stages, which stand in the order of the model.
[[nodiscard]] std::vector<chunk_state> make_chunk_states(
    program const& program,
    problem const& problem,
    int rank,
    std::span<stage_ref const> stages,
    bool is_training);

/// Says what agreeing on an optimizer step takes a rank.
struct agreement_times {
  ticks norm = 0;     ///< to look at its gradients
  ticks states = 0;   ///< until what it knows of them is at the next rank
  ticks verdict = 0;  ///< until what it knows of all is at the rank before
};
[[nodiscard]] agreement_times agreement_times_of(problem const& problem, int rank);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/chunk_state.ipp>
#endif
