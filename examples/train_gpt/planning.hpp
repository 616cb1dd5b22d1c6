// SPDX-License-Identifier: Apache-2.0
//
// From the names of policies to plans: which placement a policy takes, or why it takes none, and
// what the passes cost, measured by running a few steps of a pipeline and looking at its timeline.
#pragma once

#include "stages.hpp"
#include <zbpp/plan.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/measure.hpp>
#include <zbpp/train.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
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

/// Gives the placement with a stage for each block, and for each shard of the head, on the ranks
/// where a placement of fewer stages has them: such stages can change ranks one by one.
[[nodiscard]] inline zbpp::placement blocks_of(
    zbpp::placement const& where, model_config const& model) {
  auto const blocks = model.layers + (model.shards > 1 ? model.shards : 0);
  std::vector<int> ranks;
  for (int s = 0; s < where.stages(); ++s) {
    auto const own = layers_of_stage(model, where.stages(), s);
    ranks.insert(
        ranks.end(),
        static_cast<std::size_t>(std::min(own.last, blocks) - own.first),
        where.rank_of(s));
  }
  return zbpp::placement::custom(std::move(ranks));
}

/// Says how large the stages here are, and what their optimizer steps take, which changes them.
[[nodiscard]] inline std::vector<zbpp::stage_costs> sizes_of(std::span<chunk_stage> stages) {
  std::vector<zbpp::stage_costs> costs;
  for (auto& s : stages) {
    costs.push_back(s.sizes());
    s.measure_update(costs.back());
  }
  return costs;
}

/// Makes the plan whose steps are measured: an order, with B and W apart.
[[nodiscard]] inline zbpp::plan plan_to_measure(
    zbpp::schedule const& order, zbpp::problem const& sizes) {
  return zbpp::make_plan("measuring", split_backward(order), sizes);
}

/// Measures what adding gradients up over replicas in this process takes.
[[nodiscard]] inline zbpp::replica_costs measure_sum(int replicas) {
  constexpr std::size_t count = std::size_t{1} << 18U;
  zbpp::replica_costs costs{.count = replicas};
  zbpp::in_process_grid grid({.data = replicas});
  grid.run([&](zbpp::grid_place const& place) {
    auto& all = place.grid_of(0)->data();
    std::vector<float> some(count, 1.0F);
    auto least = std::numeric_limits<double>::max();
    for (int i = 0; i < 5; ++i) {
      all.barrier();
      auto const start = std::chrono::steady_clock::now();
      all.all_reduce(some);
      std::chrono::duration<double, std::nano> const took =
          std::chrono::steady_clock::now() - start;
      least = std::min(least, took.count());
    }
    auto const moved = 4.0 * count * (replicas == 2 ? 1.0 : 2.0 * (replicas - 1) / replicas);
    if (place.data() == 0) costs.time_per_byte = least / moved;
  });
  return costs;
}

/// Measures the problem of a placement in this process.
/// @param order_of  gives an order of the problem whose times are not known yet
[[nodiscard]] inline zbpp::problem measure_on_threads(
    training const& how,
    text const& on,
    zbpp::placement const& placement,
    std::function<zbpp::schedule(zbpp::problem const&)> const& order_of) {
  auto stages = make_stages(how, on, placement);
  auto const members = static_cast<int>(how.model.members);
  zbpp::problem const sizes(
      placement, how.own_microbatches(), sizes_of(stages_of_member(stages, members, 0)));
  auto const planned = plan_to_measure(order_of(sizes), sizes);
  auto measured = sizes;
  zbpp::in_process_grid grid({.pipeline = placement.ranks(), .data = 1, .tensor = members});
  grid.run([&](zbpp::grid_place const& place) {
    auto own = stages_of_member(stages, members, place.tensor());
    zbpp::pipeline pipe(planned, zbpp::threads{.place = place}, own);
    auto found = zbpp::measure(pipe);
    if (place.tensor() == 0) measured = std::move(found);
  });
  return how.replicas == 1 ? measured
                           : with_replicas(std::move(measured), measure_sum(how.replicas));
}

/// Gives all problems the quickest message among them: they are of one machine, and policies are
/// compared across placements.
inline void share_messages(std::vector<zbpp::problem>& measured) {
  auto quickest = std::numeric_limits<zbpp::ticks>::max();
  for (auto const& p : measured) quickest = std::min(quickest, message_time(p));
  for (auto& p : measured) p = with_transfer(p, zbpp::transfer_costs(quickest));
}

}  // namespace gpt
