// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/bounds.md.

// [is_optimal
#include <zbpp/plan.hpp>

// is_optimal]
namespace docs_bounds {

// [is_optimal
bool is_optimal(zbpp::plan const& made) {
  auto const bound = zbpp::lower_bound(made.problem());
  return zbpp::holds(bound, made.problem()) && bound.cost == zbpp::cost(made.timeline());
}
// is_optimal]

}  // namespace docs_bounds
