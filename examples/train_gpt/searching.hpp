// SPDX-License-Identifier: Apache-2.0
//
// What takes the searches of zbpp's planner: a program has searching.cpp, or handcrafted.cpp, which
// refuses it.
#pragma once

#include "options.hpp"
#include "planning.hpp"
#include "runs.hpp"

#include <vector>

namespace gpt {

/// @return the policies that the program has
/// @throws setting_error when the user asked for a search, and it has none
[[nodiscard]] std::vector<zbpp::any_policy> policies(options const& o);

/// Finds the order of a policy for blocks: that of the stages that they make up.
/// @param blocks  on `blocks_of(where)`
/// @throws zbpp::error (unsupported_problem) when the policy recomputes, or has F and B in pairs
[[nodiscard]] zbpp::schedule order_of_blocks(
    zbpp::any_policy const& policy,
    zbpp::placement const& where,
    model_config const& model,
    zbpp::problem const& blocks);

/// Runs a plan on threads, and better ones where passes take other times than planned; stages
/// change ranks then.
/// Parameters are as for `run_pipeline`.
[[nodiscard]] run_record run_adapting(
    zbpp::plan const& planned,
    training const& how,
    zbpp::threads const& backend,
    std::vector<chunk_stage>& stages,
    zbpp::training_state const& state,
    saver* save);

}  // namespace gpt
