// SPDX-License-Identifier: Apache-2.0
//
// Prints the table of docs/grid.md: what a step takes with the sums of gradients over replicas, for
// every policy with a pipeline of 8 ranks and 24 microbatches, where F, B and W of a rank take as
// long as each other and the sums of a rank as long as 3, 12 or 24 of its W. `behind` is the step
// and then all sums, as with a call after each step; `beside` has the sums as the program has them;
// `in turn` orders the last W as end_stages_in_turn does.
#include <zbpp/plan.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int ranks = 8;
constexpr int microbatches = 24;
constexpr zbpp::ticks pass_time = 1'000'000;  // of a rank, over all its stages

zbpp::problem with_sums(zbpp::placement const& placement, int passes) {
  auto const chunks = placement.stages() / placement.ranks();
  auto const share = pass_time / chunks;
  zbpp::stage_costs const costs{
      .forward = share,
      .backward_input = share,
      .backward_weight = share,
      .gradients = passes * share};
  // Of two replicas a sum takes the time that its bytes take.
  return zbpp::with_replicas(
      zbpp::problem{placement, microbatches, costs}, {.count = 2, .time_per_byte = 1});
}

double in_passes(zbpp::ticks time) {
  return static_cast<double>(time) / static_cast<double>(pass_time);
}

}  // namespace

int main() {
  auto const policies = zbpp::builtin_policies();
  std::puts("| policy | placement | sums | passes | behind | beside | in turn | least |");
  std::puts("|---|---|---:|---:|---:|---:|---:|---:|");
  for (auto const& policy : policies)
    for (auto const& placement :
         {zbpp::placement::linear(ranks),
          zbpp::placement::v_shape(ranks),
          zbpp::placement::looped(ranks, 2)})
      for (int const passes : {3, 12, 24}) {
        auto const problem = with_sums(placement, passes);
        zbpp::timeline line;
        zbpp::timeline ended;
        try {
          auto const order = policy(problem, {.seconds = 0.2});
          line = simulate(order, problem);
          ended = simulate(end_stages_in_turn(order, problem), problem);
        } catch (zbpp::error const&) {
          continue;  // the policy is for other placements
        }
        zbpp::ticks sums = 0;
        for (int s : placement.stages_of(0)) sums += problem.reduction_time(s);
        std::printf(
            "| %s | %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f |\n",
            std::string(policy.title()).c_str(),
            placement.name().c_str(),
            passes,
            in_passes(cost(line)),
            in_passes(cost(line) + sums),
            in_passes(cost_with_reductions(line, problem)),
            in_passes(cost_with_reductions(ended, problem)),
            in_passes(lower_bound_with_reductions(problem)));
      }
  return 0;
}
