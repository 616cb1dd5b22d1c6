// SPDX-License-Identifier: Apache-2.0
//
// A policy of your own is a type with a name, a title, a summary and a call operator. This one runs
// 1F1B's order of F and B and leaves every W for the end; the tools judge it like any other.
#include <zbpp/plan.hpp>

#include <algorithm>
#include <iostream>
#include <vector>

using namespace zbpp;

struct all_w_last {
  static constexpr std::string_view name = "all_w_last";
  static constexpr std::string_view title = "W last";
  static constexpr std::string_view summary = "1F1B, then every W";

  schedule operator()(problem const& problem) const {
    std::vector<std::vector<pass>> ranks;
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      auto& row = ranks.emplace_back();
      auto const m = problem.microbatches();
      auto const warm_up = std::min(problem.ranks() - 1 - rank, m);
      for (int f = 0; f < warm_up; ++f) row.push_back({pass_kind::forward, rank, f});
      for (int b = 0; b < m; ++b) {
        if (b + warm_up < m) row.push_back({pass_kind::forward, rank, b + warm_up});
        row.push_back({pass_kind::backward_input, rank, b});
      }
      for (int w = 0; w < m; ++w) row.push_back({pass_kind::backward_weight, rank, w});
    }
    return {problem.placement(), problem.microbatches(), ranks};
  }
};
static_assert(policy<all_w_last>);

int main() {
  problem const problem(
      placement::linear(4),
      8,
      stage_costs{
          .forward = 1'000'000,
          .backward_input = 1'000'000,
          .backward_weight = 1'000'000,
          .activation = 10,
          .weight_gradient_input = 5});
  auto policies = builtin_policies();
  policies.push_back(all_w_last{});
  bool good = true;
  for (auto const* name : {"one_f_one_b", "zb_h1", "all_w_last"}) {
    auto const plan = make_plan(find_policy(name, policies), problem);
    auto const peaks = peak_activations(plan.schedule(), problem);
    std::cout << to_ascii({{plan.policy(), plan.timeline()}}, {.legend = false})
              << "most activations on a rank: " << *std::max_element(peaks.begin(), peaks.end())
              << "\n\n";
    good = good && verify(plan.program(), problem).empty();
  }
  return good ? 0 : 1;
}
