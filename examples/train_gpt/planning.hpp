// SPDX-License-Identifier: Apache-2.0
//
// From the names of policies to plans: which placement a policy takes, or why it takes none, and
// what the passes cost, measured by running a few steps of a pipeline and looking at its timeline.
#pragma once

#include "measured_steps.hpp"
#include "stages.hpp"
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Says where a policy would put the stages, or why it cannot.
struct choice {
  zbpp::any_policy policy;
  std::optional<zbpp::placement> where;
  std::string why_not;
};

/// Finds the first placement that a policy takes: two chunks per rank as a V, two in a loop, one.
[[nodiscard]] inline choice choose(
    zbpp::any_policy const& policy, int ranks, int microbatches, index layers) {
  choice found{policy, {}, {}};
  bool lacks_layers = false;
  for (auto const& where :
       {zbpp::placement::v_shape(ranks),
        zbpp::placement::looped(ranks, 2),
        zbpp::placement::linear(ranks)}) {
    if (where.stages() > layers) {
      found.why_not = "needs " + std::to_string(where.stages()) +
                      " stages with a block each; there are " + std::to_string(layers) + " layers";
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
  return found;
}

/// Measures a problem by steps of a pipeline.
/// @param sizes    says how large everything is
/// @param policy   takes the placement; its order is run, with B and W apart
/// @param stages   those that the backend runs here; they are trained, and then thrown away
/// @param whole    makes of the order and the timeline of a step here the timeline of all ranks
template <class Backend, class Whole>
[[nodiscard]] zbpp::problem measure(
    zbpp::problem const& sizes,
    zbpp::any_policy const& policy,
    Backend backend,
    std::vector<chunk_stage> stages,
    Whole const& whole) {
  // Own choice: enough for a median of hundreds of passes; the first steps find cold caches.
  constexpr int warm_up_steps = 3;
  constexpr int steps = 25;
  auto const order = split_backward(policy(sizes));
  zbpp::pipeline pipe(zbpp::make_plan("measuring", order, sizes), std::move(backend), stages);
  std::vector<zbpp::timeline> measured;
  for (int i = 0; i < warm_up_steps + steps; ++i) {
    auto line = whole(order, pipe.step().measured);
    if (i >= warm_up_steps) measured.push_back(std::move(line));
  }
  return problem_from(measured, sizes, quick_message_quantile);
}

/// Measures the problem of a placement in this process.
/// @param policy  takes the placement
[[nodiscard]] inline zbpp::problem measure_on_threads(
    training const& how,
    text const& on,
    zbpp::any_policy const& policy,
    zbpp::placement const& placement) {
  auto stages = make_stages(how, on, placement);
  std::vector<zbpp::stage_costs> costs;
  for (auto& s : stages) {
    costs.push_back(s.sizes());
    s.measure_update(costs.back());
  }
  zbpp::problem const sizes(placement, how.microbatches, std::move(costs));
  auto const as_it_is = [](zbpp::schedule const&, zbpp::timeline const& line) { return line; };
  return measure(sizes, policy, zbpp::threads{}, std::move(stages), as_it_is);
}

/// Gives all problems the quickest message among them: they are of one machine, and policies are
/// compared across placements.
inline void share_messages(std::vector<zbpp::problem>& measured) {
  auto quickest = std::numeric_limits<zbpp::ticks>::max();
  for (auto const& p : measured) quickest = std::min(quickest, message_time(p));
  for (auto& p : measured) p = with_message_time(p, quickest);
}

}  // namespace gpt
