// SPDX-License-Identifier: Apache-2.0
//
// Cuts layers into stages so that the busiest rank has the least work. A rank has the work of all
// its chunks, so for several chunks per rank the stages cannot be cut one by one.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Holds a cut of layers into stages, and what it gives the ranks that have the most.
struct bottleneck {
  std::vector<int> first_layer;  ///< of each stage
  ticks work = 0;                ///< F and BW of one microbatch, on the rank with most of it
  bytes memory = 0;              ///< static memory and activations of one microbatch, likewise
  bool optimal = true;           ///< whether it is proved that no cut has less

  friend bool operator==(bottleneck const&, bottleneck const&) = default;
};

/// Limits the search of `bottleneck_partition`.
struct bottleneck_settings {
  std::int64_t steps = 1 << 19;  ///< after which it gives up looking for a cut below one bound
};

/// Cuts layers into stages so that the rank with the most work has the least possible; of such cuts
/// it looks for one whose greatest memory is least.
///
/// Where each rank has one stage both are exact at any size. On a V the states of the search are
/// polynomial in the layers; on other placements they are not. Either way the search is exact
/// unless it runs out of `settings.steps`, and then `optimal` is false.
/// @param layers  what each layer costs, from the input on
/// @throws error (bad_argument) naming a layer whose costs are wrong, or that layers are too few or
///         too many, or that `settings.steps` is below 0
/// @complexity one search for each halving of the interval between two sizes; where each rank has
///             one stage a search is O(layers)
[[nodiscard]] bottleneck bottleneck_partition(
    std::span<layer_costs const> layers,
    placement const& placement,
    bottleneck_settings settings = {});

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/bottleneck.ipp>
#endif
