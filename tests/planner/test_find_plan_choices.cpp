// SPDX-License-Identifier: Apache-2.0
//
// What `find_plan` does with each choice: what is fixed by hand, and policies.
#include <zbpp/planner/find_plan.hpp>
// What the checks need besides.
#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/cut_search.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/found_plans.hpp>
#include <support/random_layers.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace test_find_plan_choices {

using namespace zbpp;

using test::check_plan;
using test::random_model;
using test::refusal;
using test::thinned;
using test::try_plan;

TEST_CASE(
    "a policy has the best of all placements that suit it, which beats no plan", "[find_plan]") {
  int compared = 0;
  int worse = 0;  // than a search within less memory than there is
  for (int trial = 0; trial < thinned(5, 1); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 3));
    auto const count = static_cast<int>(random.integer(2 * p, 2 * p + 1));
    auto const m = p * static_cast<int>(random.integer(1, 2));
    auto const model = random_model(random, placement::linear(p), count, m, false);
    auto const found = try_plan(model, {.seconds = 1});
    auto const placements = test::all_placements(model);
    for (auto const& policy : builtin_policies()) {
      plan_choices choices{.policy = policy, .most_cuts = 40, .seconds = 0x1p-5};
      std::optional<ticks> least;
      for (auto const& placement : placements) {
        choices.placement = placement;
        auto const fixed = try_plan(model, choices);
        if (!fixed) continue;
        CHECK(fixed->problem.placement() == placement);
        least = std::min(least.value_or(fixed->cost), fixed->cost);
      }
      choices.placement.reset();
      choices.seconds *= static_cast<double>(placements.size());
      auto const free = try_plan(model, choices);
      INFO(policy.name());
      REQUIRE(free.has_value() == least.has_value());
      if (!free) continue;
      check_plan(*free, model);
      CHECK(free->cost == *least);
      REQUIRE(found.has_value());
      ++compared;
      if (policy.name() == v_half::name || policy.name() == v_min::name)
        worse += found->cost > free->cost ? 1 : 0;
      else
        CHECK(found->cost <= free->cost);
    }
  }
  CAPTURE(compared, worse);
  CHECK(compared > thinned(15, 2));
  CHECK(worse * 10 <= compared);
}

TEST_CASE("what is fixed stays", "[find_plan]") {
  int cut = 0;
  for (int trial = 0; trial < thinned(30, 8); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = test::random_placement(random);
    auto const count = placement.stages() + static_cast<int>(random.integer(0, 4));
    auto const m = static_cast<int>(random.integer(1, 8));
    auto const model = random_model(random, placement::linear(placement.ranks()), count, m, false);
    plan_choices choices{.placement = placement, .seconds = 0.004};
    if (auto const found = try_plan(model, choices)) {
      CHECK(found->problem.placement() == placement);
      check_plan(*found, model);
    }
    auto const unlimited = with_placement(with_memory_limits(model, {}), placement);
    choices.first_layer = {unlimited.first_layer().begin(), unlimited.first_layer().end()};
    for (int s = placement.stages() - 1; s > 0; --s)
      if (unlimited.end_layer(s) - choices.first_layer[detail::index(s)] > 1 &&
          random.chance(0.5)) {
        ++choices.first_layer[detail::index(s)];
        ++cut;
      }
    auto const moved = with_cut(unlimited, choices.first_layer);
    for (int s = 0; s < placement.stages(); ++s) {
      auto const first = choices.first_layer[detail::index(s)];
      choices.recompute.push_back(
          model.layers()[detail::index(first)].recompute.has_value() && random.chance(0.5));
    }
    auto const as_fixed = with_cut(moved, choices.first_layer, choices.recompute);
    CHECK(find_plan(unlimited, choices) == detail::find_order(as_fixed, choices.search(), 0));
    choices.policy = greedy_auto{};
    auto const ordered = find_plan(unlimited, choices);
    CHECK(
        ordered.schedule ==
        detail::insert_recompute((*choices.policy)(as_fixed, choices.search()), as_fixed));
    CHECK(ordered.problem == as_fixed);
    CHECK(ordered.cost == cost(simulate(ordered.schedule, as_fixed)));
    CHECK(ordered.lower_bound <= ordered.cost);
  }
  CHECK(cut > thinned(8, 1));
}

TEST_CASE("the cuts of a policy without a search are those of a search for cuts", "[find_plan]") {
  for (int trial = 0; trial < 8; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 3));
    auto const model = random_model(random, placement::linear(p), 7, 4, false);
    auto const outcome = [&](auto act) {
      try {
        auto const found = act();
        return std::tuple(
            std::optional(std::pair(found.problem, found.schedule)),
            found.cost,
            found.lower_bound,
            found.tries,
            std::string());
      } catch (error const& refused) {
        return std::tuple(
            std::optional<std::pair<problem, schedule>>(),
            ticks(),
            ticks(),
            std::int64_t(),
            std::string(refused.what()));
      }
    };
    plan_choices choices{.placement = model.placement(), .policy = zb_h1{}, .seed = 5};
    choices.most_cuts = trial % 2 == 0 ? 40 : 0;
    CHECK(outcome([&] { return find_plan(model, choices); }) == outcome([&] {
            return detail::search_cuts(
                model, zb_h1{}, {.schedules = trial % 2 == 0 ? 40 : 1000, .seed = 5});
          }));
  }
}

TEST_CASE("a policy that searches shares its budget among cuts", "[find_plan]") {
  ZBPP_SEEDED(random, 0);
  std::vector<layer_costs> layers(10, test::random_layers(random, 1).front());
  layers.back().forward *= 3;
  for (auto const* name : {"greedy_auto", "v_half", "v_min", "interleaved_zb"}) {
    INFO(name);
    bool const is_looped = std::string(name) == "interleaved_zb";
    problem const model(
        layers, {.ranks = 2, .microbatches = 6, .transfer = 2, .memory_limits = {100'000}});
    plan_choices choices{
        .placement = is_looped ? placement::looped(2, 2) : placement::v_shape(2),
        .policy = find_policy(name),
        .most_cuts = 10,
        .seconds = 0.01};
    double first = 0;
    double spent = 0;
    choices.on_progress = [&](search_progress const& now) {
      CHECK(now.spent >= spent);
      CHECK(now.lower_bound <= now.cost);
      if (spent == 0) first = now.spent;
      spent = now.spent;
    };
    auto const found = find_plan(model, choices);
    CHECK(first <= 0.05);  // half of all is for ten cuts, the first of which tells how far it is
    CHECK(spent > 0.4);
    CHECK(found.tries <= 10);
    check_plan(found, model);
    choices.on_progress = {};
    CHECK(find_plan(model, choices) == found);
  }
}

TEST_CASE("choices out of range or without what they need are refused", "[find_plan]") {
  layer_costs const layer{.forward = 1, .activation = 10};
  problem const model(
      std::vector<layer_costs>(5, layer), {.ranks = 2, .microbatches = 4, .memory_limits = {1}});
  auto const refused = [&](plan_choices const& choices) {
    return refusal([&] { (void)find_plan(model, choices); });
  };
  CHECK(
      refused({.seconds = -1}) ==
      "a budget of -1.000000 seconds; it lies between 0 and 1000000.000000");
  CHECK(
      refused({.most_chunks = 1}) ==
      "most_chunks is less than 2; a looped placement has at least 2");
  CHECK(refused({.most_cuts = -1}) == "most_cuts is less than 0; 0 leaves it to zbpp");
  CHECK(refused({.most_memory_for = 2}).starts_with("most_memory_for is "));
  CHECK(
      refused({.first_layer = {0, 2}}) ==
      "plan_choices fixes a cut without a placement; give the placement, too");
  CHECK(
      refused({.placement = placement::linear(2), .recompute = {true, true}}) ==
      "plan_choices fixes the stages that recompute without a cut; give first_layer, too");
  CHECK(refused({.placement = placement::linear(3)}).starts_with("the placement has 3 ranks"));
  CHECK(
      refused({.placement = placement::linear(2), .first_layer = {0}}) ==
      "first_layer has one entry per stage, the first of them 0");
  // Not the memory that no cut has, but the placement.
  for (auto const* name : {"zb_v", "v_half", "dualpipe_v"})
    CHECK(refusal(errc::unsupported_problem, [&] {
            (void)find_plan(model, {.placement = model.placement(), .policy = find_policy(name)});
          }).find("needs a v placement") != std::string::npos);
  CHECK(refusal(errc::unsupported_problem, [&] {
          (void)find_plan(
              model, {.placement = model.placement(), .policy = greedy_auto{}, .seconds = 0.001});
        }).starts_with("none of the "));
}

}  // namespace test_find_plan_choices
