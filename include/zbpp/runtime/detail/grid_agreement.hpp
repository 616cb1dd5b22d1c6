// SPDX-License-Identifier: Apache-2.0
//
// What the pipelines of a grid compare before they run: whether they have the same plan and the
// same weights, and, where they share a process, make the same calls with the same options. What
// differs ends the calls of all of them, so that nobody waits for what will not come.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/stage.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Compares the plan of a rank with those of the ranks that it waits for: in passes its tensor
/// group and those that it shares experts with, in training its replicas, where they add gradients
/// up. Blocks until they are here; call it in front of the first call, and of the first step.
/// @param is_training  with the replicas, in place of the others
/// @throws error (no_agreement) that names what differs, the same on all of them
void compare_plans(plan const& planned, int rank, rank_grid& grid, bool is_training);

/// @return a digest of weights: that of others is another one, but for one in 2^64
[[nodiscard]] std::uint64_t digest_of(std::span<float const> weights) noexcept;

/// Compares the weights that the optimizers of a rank step, as far as they can be read: those of
/// replicas, and of a tensor group the layers that each member has whole. Where ranks agree on a
/// norm, it also refuses a layer that is the same on all members and not marked so, which the norm
/// would count too often. Blocks as `compare_plans`, and reads each weight once.
/// @param stages  those of the rank, in the order of the model
/// @throws error (no_agreement) that names the first layers, the same on all of them
void compare_weights(
    plan const& planned,
    int rank,
    std::span<stage_ref const> stages,
    rank_grid& grid,
    pass_context ctx);

/// Compares a call of a pipeline with those of the pipelines that it waits for, by one of its
/// ranks, where all of them share a process; over processes their control does.
/// @param all  keeps its memory, so that only the first call allocates
/// @throws error (no_agreement), the same on all, that says what differs, where and how
void compare_calls(
    plan const& planned,
    run_statement const& own,
    rank_grid& grid,
    std::vector<std::vector<std::byte>>& all);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/grid_agreement.ipp>
#endif
