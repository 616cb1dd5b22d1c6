// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/partition.md.

// [cut_and_plan
#include <zbpp/plan.hpp>

#include <utility>
#include <vector>

// cut_and_plan]
namespace docs_partition {

// [cut_and_plan
zbpp::plan cut_and_plan(std::vector<zbpp::layer_costs> layers) {
  zbpp::problem const model(
      std::move(layers),
      {.ranks = 8,
       .microbatches = 32,
       .transfer = zbpp::from_milliseconds(0.4),
       .memory_limits = {zbpp::bytes{80} << 30}});
  return make_plan(find_plan(model, {.policy = zbpp::zb_h1{}}));  // what will order the passes
}
// cut_and_plan]

// [plan_all
zbpp::plan plan_all(std::vector<zbpp::layer_costs> layers) {
  zbpp::problem const model(
      std::move(layers),
      {.ranks = 8,
       .microbatches = 32,
       .transfer = zbpp::from_milliseconds(0.4),
       .memory_limits = {zbpp::bytes{80} << 30}});
  zbpp::found_plan const found = find_plan(model);  // placement, cut and order; all are searched
  return make_plan(found);
}
// plan_all]

}  // namespace docs_partition
