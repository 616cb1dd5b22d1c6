// SPDX-License-Identifier: Apache-2.0
//
// Models of layers to plan, every placement that a search looks at, and what holds of each plan.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/cuts.hpp>
#include <zbpp/planner/find_plan.hpp>

#include <support/catch.hpp>
#include <support/random_layers.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::test {

/// @return layers on a placement
[[nodiscard]] inline problem layers_on(
    placement const& placement, std::vector<layer_costs> layers, step_setup setup) {
  setup.ranks = placement.ranks();
  return with_placement(problem(std::move(layers), std::move(setup)), placement);
}

/// Every placement that the search promises to look at, listed by hand.
[[nodiscard]] inline std::vector<placement> all_placements(problem const& model) {
  auto const p = model.ranks();
  auto const layers = static_cast<int>(model.layers().size());
  std::vector<placement> list{placement::linear(p)};
  if (2 * p <= layers) list.push_back(placement::v_shape(p));
  for (int chunks = 2; chunks * p <= layers; ++chunks) list.push_back(placement::looped(p, chunks));
  if (model.placement().name() == "custom") list.push_back(model.placement());
  return list;
}

/// Calls `visit` with every problem that cuts and sets of recomputing stages make.
template <class Visit>
void for_each_cut(problem const& uncut, Visit visit) {
  auto const stages = uncut.stages();
  for_each_composition(
      static_cast<int>(uncut.layers().size()), stages, [&](std::vector<int> const& first) {
        for (unsigned set = 0; set < 1U << stages; ++set) {
          std::vector<bool> recompute;
          for (int s = 0; s < stages; ++s) recompute.push_back((set >> s & 1U) != 0);
          auto chosen = uncut;
          try {
            chosen = with_cut(std::move(chosen), first, recompute);
          } catch (error const&) {
            continue;  // a stage that cannot recompute
          }
          visit(chosen);
        }
      });
}

/// The rank with the most, one microbatch at a time, whatever is recomputed: a scale for limits.
[[nodiscard]] inline bytes usual_memory(problem const& model) {
  bytes all = 0;
  for (auto const& c : model.layers()) all += c.static_memory + 2 * c.activation;
  return all / model.ranks();
}

/// @param plain  no recomputation, edges and workspace: most often all orders can be searched
[[nodiscard]] inline problem random_model(
    seeded_random& random, placement const& placement, int count, int microbatches, bool plain) {
  auto layers = random_layers(random, count);
  for (auto& c : layers) {
    if (!plain) c.static_memory /= 4;  // so that activations decide
    if (!plain) continue;
    c.recompute.reset();
    c.backward_fused.reset();
    c.recompute_input = c.edge = c.workspace = 0;
  }
  bool const is_limited = random.chance(0.6);
  auto model = layers_on(
      placement,
      std::move(layers),
      {.microbatches = microbatches,
       .transfer = random.chance(0.5) ? 0 : random.integer(1, 10),
       .rank_speeds = random_speeds(random, placement.ranks())});
  if (!is_limited) return model;
  std::vector<bytes> limits;
  for (int rank = 0; rank < placement.ranks(); ++rank)
    limits.push_back(
        usual_memory(model) * random.integer(plain ? 70 : 60, plain ? 200 : 120) / 100);
  if (random.chance(0.5)) limits.resize(1);
  return with_memory_limits(std::move(model), std::move(limits));
}

/// @return what is found; nothing where no plan fits, or the policy takes none
[[nodiscard]] inline std::optional<found_plan> try_plan(
    problem const& model, plan_choices const& choices = {.seconds = 0.02}) {
  try {
    return find_plan(model, choices);
  } catch (error const& nothing_fits) {
    INFO(nothing_fits.what());
    CHECK(nothing_fits.code() == errc::unsupported_problem);
    if (!choices.policy) CHECK(nothing_fits.location().rank >= 0);
    return std::nullopt;
  }
}

/// Checks what holds of any plan that was searched.
inline void check_plan(found_plan const& found, problem const& model) {
  auto const& planned = found.problem;
  auto const cut = detail::cut_of(planned);
  if (!model.layers().empty())
    CHECK(
        planned ==
        with_cut(with_placement(model, planned.placement()), cut.first_layer, cut.recompute));
  CHECK(cost(simulate(found.schedule, planned)) == found.cost);
  CHECK(verify(lower(found.schedule), planned).empty());  // limits are among what it judges
  CHECK(holds(found.bound, planned));
  CHECK(found.bound.cost <= found.cost);
  CHECK(found.lower_bound <= found.cost);
  CHECK(found.is_optimal() == (found.lower_bound == found.cost));
  auto const& all = found.schedule.passes().all();
  for (int s = 0; s < planned.stages(); ++s) {
    bool const has_r = std::ranges::any_of(
        all, [&](pass const& p) { return p.kind == pass_kind::recompute && p.stage == s; });
    CHECK(has_r == cut.recompute[detail::index(s)]);
  }
}

}  // namespace zbpp::test
