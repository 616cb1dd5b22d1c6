// SPDX-License-Identifier: Apache-2.0
//
// What an engine knows of each chunk, a stage of its rank: the stage to run, and its costs.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/detail/rank_setup.hpp>
#include <zbpp/runtime/stage.hpp>

#include <vector>

namespace zbpp::detail {

/// Holds one chunk of a rank.
struct chunk_state {
  stage_context common;
  stage_ref run;
  stage_costs costs;
  bytes activation_in;
};

/// Makes the chunks of a rank from its stages.
[[nodiscard]] std::vector<chunk_state> make_chunk_states(rank_setup const& setup);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/chunk_state.ipp>
#endif
