// SPDX-License-Identifier: Apache-2.0
//
// From measured steps to costs: what the passes took, as a problem to plan for.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/timeline.hpp>

#include <span>

namespace zbpp {

/// Gives a problem whose times are what its passes took in measured steps: for each stage and kind
/// of pass the median over all microbatches of all steps. What did not run keeps its time. Where
/// microbatches have factors, which stay, what each pass took is divided by its factor first.
///
/// Sizes, transfers and limits stay as they are stated; state times that stay in nanoseconds, as
/// measured ones are. Let a first step or two pass by without measuring them: they meet cold
/// caches. Where only BW ran, B and W are scaled as BW was; where only B and W ran, BW is. A BW
/// that took longer than B and W together counts as both. A pair tells how much less it took than
/// its passes do in turn; those of its stages that never ran alone keep the times that are stated.
/// In a run of processes each one has the times of its own ranks: put the rows of all of them
/// together first, since all must plan for the same problem.
/// @param steps   `step_result::measured` of each; ranks that ran elsewhere may be empty in it
/// @param stated  the problem of the plan that ran, or any with its placement and microbatches
/// @throws error (bad_argument) when there is no step; when one holds a pass that the problem does
///         not have, or that ends before it starts; when the times are too large for a problem
[[nodiscard]] problem costs_from(std::span<timeline const> steps, problem const& stated);

namespace detail {

/// @return what a pass would have taken whose microbatch has the factor 1
[[nodiscard]] ticks at_factor_1(ticks took, double factor);

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/costs_from.ipp>
#endif
