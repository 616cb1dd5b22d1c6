// SPDX-License-Identifier: Apache-2.0
//
// Plans to run: every policy on every shape it takes, as it is, with B and W fused where they stand
// together, and with recomputation.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>

#include <support/policy_grid.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace zbpp::test {

/// Chooses which variants of a schedule are visited.
struct plan_variants {
  bool fused = true;
  bool recomputed = false;
  int receive_ahead = 0;
  channel_layout layout = channel_layout::one_per_directed_pair;
  step_kind step = step_kind::unchecked;
  std::vector<std::string> policies{};  ///< by name; all that take the problem when empty

  /// How these plans are lowered.
  [[nodiscard]] lower_options lowering() const {
    return {.receive_ahead = receive_ahead, .step = step, .layout = layout};
  }
};

/// Whether a policy stands for those of its placement where the order of passes matters little.
[[nodiscard]] inline bool is_typical(any_policy const& policy) {
  auto const name = policy.name();
  return name == "zb_h1" || name == "zb_v" || name == "interleaved_zb";
}

/// Calls `visit(name, plan)` for every policy that takes a problem, and for its variants. Under
/// sanitizers optimizer steps have one policy for each placement, as they depend on it little.
template <class Visit>
void for_each_plan_of(problem const& problem, plan_variants const& variants, Visit visit) {
  for (auto const& policy : grid_policies()) {
    if (!is_supported(policy, problem)) continue;
    if (auto const& some = variants.policies;
        !some.empty() && std::ranges::find(some, policy.name()) == some.end())
      continue;
    if (is_slow_build && variants.step != step_kind::unchecked && !is_typical(policy)) continue;
    auto const name = name_of(policy, problem);
    auto const title = std::string(policy.title());
    auto const order = policy(problem);
    auto const options = variants.lowering();
    visit(name, make_plan(title, order, problem, options));
    auto const fused = fuse_backward(order);
    if (variants.fused && fused != order)
      visit(name + ", fused", make_plan(title, fused, problem, options));
    if (variants.recomputed)
      visit(name + ", recomputed", make_plan(title, with_recompute(order), problem, options));
  }
}

/// The placements of `ranks` ranks that a run tells apart: linear, V, two chunks looped.
[[nodiscard]] inline std::vector<placement> placements_to_run(int ranks) {
  return {placement::linear(ranks), placement::v_shape(ranks), placement::looped(ranks, 2)};
}

/// Numbers of microbatches around which orders change, fewer than ranks among them; under
/// sanitizers one on each side.
[[nodiscard]] inline std::vector<int> microbatches_to_run(int ranks) {
  auto counts =
      thinned<std::set<int>>({1, ranks - 1, ranks, 2 * ranks + 1}, {ranks - 1, 2 * ranks + 1});
  counts.erase(0);
  return {counts.begin(), counts.end()};
}

}  // namespace zbpp::test
