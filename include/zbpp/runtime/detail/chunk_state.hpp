// SPDX-License-Identifier: Apache-2.0
//
// What an engine knows of each chunk, a stage of its rank: the stage to run, and its costs.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/callback.hpp>
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
};

/// Makes the chunks of a rank from its stages, which stand in the order of the model.
/// @param grid     of the rank; outlives them
/// @param outputs  of an evaluation; null in training
[[nodiscard]] std::vector<chunk_state> make_chunk_states(
    program const& program,
    problem const& problem,
    int rank,
    std::span<stage_ref const> stages,
    rank_grid& grid,
    callback<evaluation_output> const* outputs);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/chunk_state.ipp>
#endif
