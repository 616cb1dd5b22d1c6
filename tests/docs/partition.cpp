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
  zbpp::layered_problem const model(
      zbpp::placement::linear(8),
      32,
      std::move(layers),
      zbpp::from_milliseconds(0.4),
      {zbpp::bytes{80} << 30});
  auto found = zbpp::partition(model, zbpp::zb_h1{});  // the policy that will order the passes
  return zbpp::make_plan("ZB-H1", std::move(found.schedule), std::move(found.problem));
}
// cut_and_plan]

// [plan_all
zbpp::plan plan_all(std::vector<zbpp::layer_costs> layers) {
  zbpp::layered_problem const model(  // the placement says how many ranks there are
      zbpp::placement::linear(8),
      32,
      std::move(layers),
      zbpp::from_milliseconds(0.4),
      {zbpp::bytes{80} << 30});
  auto found = zbpp::auto_plan{}(model);  // found.problem has the placement that was chosen
  return zbpp::make_plan("auto-plan", std::move(found.schedule), std::move(found.problem));
}
// plan_all]

}  // namespace docs_partition
