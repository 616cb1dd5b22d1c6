// SPDX-License-Identifier: Apache-2.0
//
// From the names of policies to plans: which placement a policy takes, or why it takes none, and
// what the passes cost, measured by running a few steps of a pipeline and looking at its timeline.
#pragma once

#include "stages.hpp"
#include <zbpp/plan.hpp>
#include <zbpp/runtime/measure.hpp>
#include <zbpp/train.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Says how long a message takes from one rank to the next; 0 where there is one rank.
[[nodiscard]] inline zbpp::ticks message_time(zbpp::problem const& problem) {
  return problem.ranks() > 1 ? problem.transfer()(0, 1, problem.costs(0).edge) : 0;
}

/// Says where a policy would put the stages, or why it cannot.
struct choice {
  zbpp::any_policy policy;
  std::optional<zbpp::placement> where;
  std::string why_not;
};

/// Finds the first placement that a policy takes: two chunks per rank as a V, two in a loop, one.
/// Where the head is divided into shards, the second chunk of each rank is one of them, and each
/// first chunk has a block.
[[nodiscard]] inline choice choose(
    zbpp::any_policy const& policy, int ranks, int microbatches, model_config const& model) {
  choice found{policy, {}, {}};
  bool lacks_layers = false;
  bool const has_shards = model.shards > 1;
  for (auto const& where :
       {zbpp::placement::v_shape(ranks),
        zbpp::placement::looped(ranks, 2),
        zbpp::placement::linear(ranks)}) {
    if (has_shards && where.stages() == ranks) continue;
    if (!has_shards && where.stages() > model.layers) {
      found.why_not = "needs " + std::to_string(where.stages()) +
                      " stages with a block each; there are " + std::to_string(model.layers) +
                      " layers";
      lacks_layers = true;
      continue;
    }
    try {
      zbpp::stage_costs const equal{.forward = 1, .backward_input = 1, .backward_weight = 1};
      auto const order = policy(zbpp::problem(where, microbatches, equal));
      static_cast<void>(order);
      found.where = where;
      return found;
    } catch (zbpp::error const& refused) {
      if (refused.code() != zbpp::errc::unsupported_problem) throw;
      // With more layers it might have taken another placement, which is the better advice.
      if (!lacks_layers) found.why_not = refused.what();
    }
  }
  if (has_shards) found.why_not += "; --vocabulary-parallel takes two stages per rank";
  return found;
}

/// Says how large the stages here are, and what their optimizer steps take, which changes them.
[[nodiscard]] inline std::vector<zbpp::stage_costs> sizes_of(std::vector<chunk_stage>& stages) {
  std::vector<zbpp::stage_costs> costs;
  for (auto& s : stages) {
    costs.push_back(s.sizes());
    s.measure_update(costs.back());
  }
  return costs;
}

/// Makes the plan whose steps are measured: the order of a policy, with B and W apart.
[[nodiscard]] inline zbpp::plan plan_to_measure(
    zbpp::any_policy const& policy, zbpp::problem const& sizes) {
  return zbpp::make_plan("measuring", split_backward(policy(sizes)), sizes);
}

/// Measures the problem of a placement in this process.
/// @param policy  takes the placement
[[nodiscard]] inline zbpp::problem measure_on_threads(
    training const& how,
    text const& on,
    zbpp::any_policy const& policy,
    zbpp::placement const& placement) {
  auto stages = make_stages(how, on, placement);
  zbpp::problem const sizes(placement, how.microbatches, sizes_of(stages));
  zbpp::pipeline pipe(plan_to_measure(policy, sizes), zbpp::threads{}, stages);
  return zbpp::measure(pipe);
}

/// Gives all problems the quickest message among them: they are of one machine, and policies are
/// compared across placements.
inline void share_messages(std::vector<zbpp::problem>& measured) {
  auto quickest = std::numeric_limits<zbpp::ticks>::max();
  for (auto const& p : measured) quickest = std::min(quickest, message_time(p));
  for (auto& p : measured) p = with_transfer(p, zbpp::transfer_costs(quickest));
}

}  // namespace gpt
