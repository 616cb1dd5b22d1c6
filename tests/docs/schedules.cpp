// SPDX-License-Identifier: Apache-2.0
//
// The C++ blocks of docs/schedules.md.

// [best_plan
#include <zbpp/plan.hpp>

// best_plan]
namespace docs_schedules {

// [best_plan
zbpp::plan best_plan(zbpp::problem const& measured) {
  return make_plan(find_plan(measured, {.seconds = 1}));
}
// best_plan]

}  // namespace docs_schedules

// [plans_on_v
#include <zbpp/plan.hpp>

// plans_on_v]
namespace docs_schedules {

// [plans_on_v
zbpp::plan papers_order(zbpp::problem const& problem) { return make_plan(zbpp::zb_v{}, problem); }

zbpp::plan order_that_fits(zbpp::problem const& problem) {
  return make_plan(zbpp::greedy_auto{.search = {.seconds = 1}}, problem);
}
// plans_on_v]

}  // namespace docs_schedules

// [fuse_if_it_pays
#include <zbpp/plan.hpp>

// fuse_if_it_pays]
namespace docs_schedules {

// [fuse_if_it_pays
zbpp::plan fuse_if_it_pays(zbpp::problem const& problem) {
  auto const split = zbpp::make_plan(zbpp::zb_h1{}, problem);
  auto const fused =
      zbpp::make_plan("ZB-H1, fused", zbpp::fuse_backward(split.schedule()), problem);
  return zbpp::cost(fused.timeline()) < zbpp::cost(split.timeline()) ? fused : split;
}
// fuse_if_it_pays]

}  // namespace docs_schedules

// [reversed_tail
#include <zbpp/plan.hpp>

#include <string_view>

// reversed_tail]
namespace docs_schedules {

// [reversed_tail
struct reversed_tail {
  static constexpr std::string_view name = "reversed_tail";
  static constexpr std::string_view title = "Reversed tail";
  static constexpr std::string_view summary = "shows the shape of a policy";
  int setting = 0;

  zbpp::schedule operator()(zbpp::problem const& problem) const {
    if (!problem.placement().is_linear())
      throw zbpp::error(zbpp::errc::unsupported_problem, "Reversed tail needs a linear placement");
    return zbpp::zb_h1{}(problem);
  }
};
static_assert(zbpp::policy<reversed_tail>);
// reversed_tail]

}  // namespace docs_schedules

// [all_policies
#include <zbpp/plan.hpp>

#include <vector>

// all_policies]
namespace docs_schedules {

// [all_policies
std::vector<zbpp::any_policy> all_policies() {
  auto all = zbpp::builtin_policies();
  all.push_back(reversed_tail{});
  return all;
}
// all_policies]

}  // namespace docs_schedules

// [with_recompute
#include <zbpp/plan.hpp>

#include <utility>

// with_recompute]
namespace docs_schedules {

// [with_recompute
zbpp::schedule with_recompute(zbpp::schedule const& order) {
  zbpp::rows<zbpp::pass> passes;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    for (auto const& p : order.passes(rank)) {
      if (p.makes_input_gradient())
        passes.push({zbpp::pass_kind::recompute, p.stage, p.microbatch});
      passes.push(p);
    }
    passes.end_row();
  }
  return {order.placement(), order.microbatches(), std::move(passes)};
}
// with_recompute]

}  // namespace docs_schedules
