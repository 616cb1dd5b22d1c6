// SPDX-License-Identifier: Apache-2.0
//
// From the names of policies to plans: which placement a policy takes, or why it takes none, and
// what the passes cost, measured by running a few steps of a pipeline and looking at its timeline.
#pragma once

#include "message_times.hpp"
#include "stages.hpp"
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <cstddef>
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

/// Sets each BW of a schedule to B and W, so that both can be measured.
[[nodiscard]] inline zbpp::schedule split_backward(zbpp::schedule const& order) {
  zbpp::rows<zbpp::pass> passes;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    for (auto const& p : order.passes(rank)) {
      if (p.kind != zbpp::pass_kind::backward) {
        passes.push(p);
        continue;
      }
      passes.push({zbpp::pass_kind::backward_input, p.stage, p.microbatch});
      passes.push({zbpp::pass_kind::backward_weight, p.stage, p.microbatch});
    }
    passes.end_row();
  }
  return {order.placement(), order.microbatches(), std::move(passes)};
}

/// Gives the value that a share of some values lies below, or a default one of none.
/// @param share  0 to 1; the default gives the median
template <class Value>
[[nodiscard]] Value quantile(std::vector<Value> values, double share = 0.5) {
  if (values.empty()) return {};
  auto const last = static_cast<double>(values.size() - 1);
  auto const place = values.begin() + static_cast<std::ptrdiff_t>(share * last + 0.5);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

/// Says how long a message takes from one rank to the next; 0 where there is one rank.
[[nodiscard]] inline zbpp::ticks message_time(zbpp::problem const& problem) {
  return problem.ranks() > 1 ? problem.transfer()(0, 1, problem.costs(0).edge) : 0;
}

/// @return the same problem without memory limits, in which each message takes `time`
[[nodiscard]] inline zbpp::problem with_message_time(
    zbpp::problem const& problem, zbpp::ticks time) {
  auto const costs = problem.all_costs();
  return {
      problem.placement(),
      problem.microbatches(),
      {costs.begin(), costs.end()},
      zbpp::transfer_costs(time)};
}

/// Gives the problem of measured steps: what its passes took, and its messages.
[[nodiscard]] inline zbpp::problem problem_from(
    std::vector<zbpp::timeline> const& steps, zbpp::problem const& sizes) {
  std::vector<zbpp::ticks> messages;
  for (auto const& line : steps)
    for_each_message(
        line,
        sizes.placement(),
        sizes.microbatches(),
        [&](int, int to, std::size_t i, zbpp::ticks made) {
          // Only a rank that was waiting starts as soon as the message is there.
          if (i > 0 && made > line[to][i - 1].end) messages.push_back(line[to][i].start - made);
        });
  // Own choice: a message is what the quickest few took. The rest is largely the wait of a woken
  // thread for a core, which a machine with other work to do makes as long as it likes.
  return with_message_time(zbpp::costs_from(steps, sizes), quantile(messages, 0.02));
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
  return problem_from(measured, sizes);
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
