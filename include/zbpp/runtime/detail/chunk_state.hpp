// SPDX-License-Identifier: Apache-2.0
//
// What an engine knows of each chunk, a stage of its rank: the stage to run, its costs, and how
// long its messages travel.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/stage.hpp>

#include <span>
#include <vector>

namespace zbpp::detail {

/// Holds what the passes of a chunk take for a microbatch, and what its messages do.
struct chunk_times {
  stage_costs costs;
  ticks next_transfer;
  ticks previous_transfer;
};

/// Holds one chunk of a rank.
struct chunk_state {
  stage_context common;
  stage_ref run;
  stage_costs costs;
  bytes activation_in;
  std::vector<chunk_times> times;  ///< of each microbatch, or of all

  [[nodiscard]] chunk_times const& times_of(int microbatch) const noexcept {
    return times[times.size() > 1 ? index(microbatch) : 0];
  }
};

/// Makes the chunks of a rank from its stages, which stand in the order of the model.
/// @param outputs  of an evaluation; null in training
[[nodiscard]] std::vector<chunk_state> make_chunk_states(
    program const& program,
    problem const& problem,
    int rank,
    std::span<stage_ref const> stages,
    callback<evaluation_output> const* outputs);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/chunk_state.ipp>
#endif
