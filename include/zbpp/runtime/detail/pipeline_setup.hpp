// SPDX-License-Identifier: Apache-2.0
//
// How a pipeline gets ready: it verifies its plan, and gives each rank its stages and its memory.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/rank_memory.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/stage.hpp>

#include <algorithm>  // declares std::ranges::range and its kin, for less than <ranges>
#include <concepts>
#include <span>
#include <type_traits>
#include <vector>

namespace zbpp::detail {

/// Whether `Stages` owns no stages: a container by name, a view, or a container of `stage_ref`.
template <class Stages>
concept refers_to_stages =
    std::is_lvalue_reference_v<Stages> || std::ranges::borrowed_range<Stages> ||
    std::same_as<std::ranges::range_value_t<Stages>, stage_ref>;

/// @throws error (bad_argument) unless the replicas of a rank are those that its plan adds
///         gradients up over, and its stages have optimizers that can
/// @param stages    those of the rank, in the order of the model
/// @param in_place  whether the backend adds gradients up where they lie
void check_replicas(
    plan const& planned,
    int rank,
    std::span<stage_ref const> stages,
    rank_grid& grid,
    bool in_place);

/// @return the most that a pipeline and its replicas ask for after a step; a collective call
[[nodiscard]] after_step most_asked(group& replicas, after_step asked);

/// @param devices  by rank: those on one hand messages over; none: no two ranks share one
/// @throws error (refused_program) with every fault that `verify` finds
[[nodiscard]] plan const& verified(plan const& planned, std::span<int const> devices);

template <class Stages>
[[nodiscard]] std::vector<stage_ref> refer_to(std::remove_reference_t<Stages>& stages) {
  std::vector<stage_ref> given;
  if constexpr (!std::ranges::range<Stages>) {
    static_assert(
        std::ranges::range<Stages>,
        "a pipeline takes its stages in a container, such as a std::vector or a std::array; for "
        "one stage, a std::array of it");
  } else if constexpr (!refers_to_stages<Stages>) {
    static_assert(
        refers_to_stages<Stages>,
        "a pipeline refers to its stages and does not own them: give the container a name, or "
        "make it one of stage_ref");
  } else {
    for (auto& one : stages) {
      if constexpr (std::constructible_from<stage_ref, decltype(one)>)
        given.push_back(stage_ref(one));
      else
        static_assert(
            std::constructible_from<stage_ref, decltype(one)>,
            "a pipeline takes a container of stages or of stage_ref: callables that give a "
            "zbpp::flow of a zbpp::microbatch; for pointers to them, stage_ref(*p); for objects "
            "with plain passes, as_flow(object)");
    }
  }
  return given;
}

/// Takes the stages of this process in the order of the model, gives them rank after rank.
/// @param ranks  those that run in this process
/// @throws error (bad_argument) unless there is one for each stage of these ranks
[[nodiscard]] std::vector<stage_ref> by_rank(
    std::vector<stage_ref> const& given, placement const& placement, std::span<int const> ranks);

/// Takes from the system what the ranks of this process need at their peaks.
/// @param devices  as above
void reserve_peaks(
    plan const& planned,
    std::span<int const> devices,
    std::span<int const> ranks,
    std::span<rank_memory> memory);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/pipeline_setup.ipp>
#endif
