// SPDX-License-Identifier: Apache-2.0
//
// Stages that change ranks between steps: plans with one stage for each layer cost what the cut
// stages do, and where a rank is slow its stages go elsewhere, with the same bits.
#include <zbpp/adapt/auto_pipeline.hpp>
#include <zbpp/adapt/replanner.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/planner/detail/cut_search.hpp>
#include <zbpp/planner/detail/stage_per_layer.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <support/adaptive_loop.hpp>
#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/found_plans.hpp>
#include <support/plain_flow.hpp>
#include <support/random_layers.hpp>
#include <support/toy_history.hpp>

namespace test_moving_stages {

using namespace zbpp;
using namespace zbpp::test;

namespace {

greedy_auto brief() { return {.search = {.seconds = 0.002}}; }

replan_settings at_once() {
  return {
      .first_steps = 1,
      .window = 2,
      .least_gain = 0.01,
      .least_steps = 5,
      .moves_stages = true,
      .in_background = false,
      .seconds = 0.1};
}

// Equal layers without limits.
problem even_model(placement const& place, int layers, int microbatches) {
  auto layer = checked::costs();
  layer.forward = 1000;
  layer.backward_input = 1100;
  layer.backward_weight = 900;
  layer.backward_fused.reset();
  return layers_on(
      place,
      std::vector<layer_costs>(detail::index(layers), layer),
      {.microbatches = microbatches, .transfer = 20});
}

// One stage per layer, in an order that is good while all ranks are equally fast.
plan first_plan(problem const& model, lower_options const& options = {}) {
  auto found = detail::stage_per_layer(detail::search_cuts(model, brief(), {20}));
  return {"first", std::move(found.problem), std::move(found.schedule), options};
}

// Each pass takes what the first plan says of its stage, and on one rank so many times that.
virtual_noise slow_rank(plan const& first, int slow, double factor) {
  return {.pass_time = [costs = first.problem(), slow, factor](int rank, pass const& p, ticks) {
    auto const stated = costs.costs(p.stage).of(p.kind);
    return rank == slow ? static_cast<ticks>(static_cast<double>(stated) * factor) : stated;
  }};
}

int stages_of_rank(plan const& planned, int rank) {
  return static_cast<int>(planned.problem().placement().stages_of(rank).size());
}

}  // namespace

TEST_CASE("with a stage per layer a plan costs the same, in no more memory", "[moving]") {
  for (int trial = 0; trial < thinned(200, 40); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const place = random_placement(random);
    auto layers = random_layers(random, place.stages() + static_cast<int>(random.integer(0, 4)));
    for (auto& c : layers) c.edge = 3;
    auto const m = static_cast<int>(random.integer(1, 6));
    auto const model =
        layers_on(place, layers, {.microbatches = m, .transfer = random.integer(0, 10)});
    auto const found = detail::search_cuts(detail::plain_layers(model), brief(), {.schedules = 5});
    auto const split = detail::stage_per_layer(found);
    CHECK(split.cost == found.cost);
    CHECK(split.cost == cost(simulate(split.schedule, split.problem)));
    CHECK(split.problem.stages() == static_cast<int>(layers.size()));
    CHECK(verify(lower(split.schedule), split.problem).empty());
    auto const whole = peak_memory(lower(found.schedule), found.problem);
    auto const parts = peak_memory(lower(split.schedule), split.problem);
    for (int rank = 0; rank < place.ranks(); ++rank) {
      // What layers of a rank hand to each other is inside the pass of a stage that has them all.
      auto const own = static_cast<bytes>(split.problem.placement().stages_of(rank).size());
      CHECK(parts[detail::index(rank)].total <= whole[detail::index(rank)].total + 3 * own);
    }
    for (int l = 0; l < split.problem.stages(); ++l) {
      auto const first = found.problem.first_layer();
      auto const stage = static_cast<int>(std::ranges::upper_bound(first, l) - first.begin()) - 1;
      CHECK(split.problem.placement().rank_of(l) == place.rank_of(stage));
    }
  }
}

TEST_CASE("a plan with a stage per layer is that of layers that never recompute", "[moving]") {
  for (int trial = 0; trial < thinned(10, 3); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const model = random_model(random, placement::linear(3), 8, 6, false);
    plan_choices choices{.seconds = 0.004};
    auto const whole = try_plan(detail::plain_layers(model), choices);
    choices.stage_per_layer = true;
    auto const split = try_plan(model, choices);
    REQUIRE(whole.has_value() == split.has_value());
    if (split) CHECK(*split == detail::stage_per_layer(*whole));
    // Of a model that states stages those are the stages.
    problem const stages(
        placement::linear(3), 6, {model.layers().begin(), model.layers().begin() + 3});
    auto const found = find_plan(stages, choices);
    CHECK(found.problem.stages() == 6);  // halves of three
    CHECK(detail::find_beside_or_again(found.schedule) == std::nullopt);
  }
}

TEST_CASE("neighbouring stages of a rank merge into the placement that was cut", "[moving]") {
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 5));
    auto const place = trial % 3 == 0 ? placement::linear(p)
                       : trial % 3 == 1
                           ? placement::v_shape(p)
                           : placement::looped(p, static_cast<int>(random.integer(2, 3)));
    std::vector<int> ranks;
    for (int const rank : place.rank_of_stages())
      ranks.insert(ranks.end(), detail::index(random.integer(1, 4)), rank);
    CHECK(detail::merged_placement(placement::custom(ranks)) == place);
  }
  CHECK(detail::merged_placement(placement::custom({0, 0, 0})) == placement::linear(1));
  auto const other = placement::custom({0, 1, 0, 2});
  CHECK(detail::merged_placement(other) == other);
  // A V whose last rank has one stage cannot be cut as a V.
  CHECK(detail::merged_placement(placement::custom({0, 1, 0})) == placement::custom({0, 1, 0}));
}

TEST_CASE("plans that recompute or pair have no stage per layer", "[moving]") {
  stage_costs layer{
      .forward = 10, .backward_input = 10, .backward_weight = 10, .recompute = 10, .activation = 9};
  problem const model({layer, layer}, {.microbatches = 2});
  auto const plan_of = [&](std::vector<pass> const& row, bool recomputes) {
    return found_plan{
        .problem = with_cut(model, {0}, {recomputes}),
        .schedule = schedule(placement::linear(1), 2, std::vector<std::vector<pass>>{row})};
  };
  using enum pass_kind;
  auto const again = plan_of(
      {{forward, 0, 0},
       {recompute, 0, 0},
       {backward, 0, 0},
       {forward, 0, 1},
       {recompute, 0, 1},
       {backward, 0, 1}},
      true);
  CHECK(
      refusal(errc::unsupported_problem, [&] { (void)detail::stage_per_layer(again); }) ==
      "stage_per_layer: 0R0 runs an F again; passes of layers run one after another and once");
  auto const paired =
      plan_of({{forward, 0, 0}, {forward, 0, 1}, {backward, 0, 0, true}, {backward, 0, 1}}, false);
  CHECK(
      refusal(errc::unsupported_problem, [&] { (void)detail::stage_per_layer(paired); }) ==
      "stage_per_layer: 0BW0 runs together with an F; passes of layers run one after another and "
      "once");
  // A replanner that may move stages refuses such a first plan as well.
  CHECK(
      refusal(
          errc::unsupported_problem,
          [&] {
            (void)replanner(plan("pairs", paired.problem, paired.schedule), {.moves_stages = true});
          }) ==
      "replan_settings::moves_stages: the first plan has 0BW0 in a pair; stages that change ranks "
      "neither recompute nor run F and B in pairs");
}

TEST_CASE("stages leave a slow rank, and the step takes what was foreseen", "[moving][long]") {
  for (auto const& place : {placement::linear(4), placement::v_shape(4), placement::looped(4, 2)})
    for (int slow = 0; slow < 4; ++slow) {
      CAPTURE(place.name(), slow);
      auto const model = even_model(place, 24, 12);
      auto const first = first_plan(model);
      std::vector<std::string> lines;
      std::vector<plain_flow> stages(24);
      adaptive_loop pipe{
          first, virtual_time{slow_rank(first, slow, 1.5)}, stages, at_once(), keep_in(lines)};
      std::vector<ticks> took;
      for (int i = 0; i < 20; ++i) {
        auto const& result = pipe.step();
        took.push_back(cost(result.measured));
        CHECK(plain_flow::are_expected(result.losses, 24));
      }
      REQUIRE(!pipe.switches().empty());
      auto const& change = pipe.switches().front();
      CHECK_FALSE(change.is_taken_back);
      CHECK(change.before == took.front());
      CHECK(!change.moved.empty());
      CHECK(stages_of_rank(pipe.current().planned(), slow) < stages_of_rank(first, slow));
      CHECK(took.back() == pipe.switches().back().foreseen);
      // A rank that takes 1.5 times as long makes the step so much longer, nearly. With 24 layers
      // on ranks of speed 1, 1, 1 and 2/3 the work takes 24 / (3 + 2/3) instead of 6: 1.09.
      auto const planned = static_cast<double>(cost(first.timeline()));
      CHECK(static_cast<double>(took.front()) > 1.3 * planned);
      CHECK(static_cast<double>(took.back()) < 1.22 * planned);
      CHECK(says(lines, "rank " + std::to_string(slow) + " takes 1.50 times as long"));
      CHECK(says(lines, "moves from rank " + std::to_string(slow) + " to rank "));
      CHECK(says(lines, "the new plan saved"));
    }
}

TEST_CASE("a rank that recovers gets its stages back", "[moving][long]") {
  auto const model = even_model(placement::linear(3), 12, 9);
  auto const first = first_plan(model);
  std::vector<std::string> lines;
  std::vector<plain_flow> stages(12);
  double factor = 2;
  auto const noise = virtual_noise{.pass_time = [&](int rank, pass const& p, ticks) {
    auto const stated = first.problem().costs(p.stage).of(p.kind);
    return rank == 1 ? static_cast<ticks>(static_cast<double>(stated) * factor) : stated;
  }};
  adaptive_loop pipe{first, virtual_time{noise}, stages, at_once(), keep_in(lines)};
  for (int i = 0; i < 20; ++i) static_cast<void>(pipe.step());
  CHECK(stages_of_rank(pipe.current().planned(), 1) < 4);
  factor = 1;
  ticks last = 0;
  for (int i = 0; i < 30; ++i) last = cost(pipe.step().measured);
  CHECK(stages_of_rank(pipe.current().planned(), 1) == 4);
  CHECK(last <= cost(first.timeline()));
}

TEST_CASE(
    "with agreed steps weights are to the bit those of the plan that stays", "[moving][long]") {
  int moved = 0;
  int clipped = 0;
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated})
    for (int slow = 0; slow < 3; ++slow) {
      auto const model = even_model(placement::linear(3), 9, 6);
      lower_options const options{.step = kind};
      auto const first = first_plan(model, options);
      checked::model_settings const settings{.stages = 9, .dropout = true, .tied = {0, 8}};
      auto const tied = [&](plan const& planned) {
        std::vector<stage_costs> costs(
            planned.problem().all_costs().begin(), planned.problem().all_costs().end());
        for (int const s : settings.tied) costs[detail::index(s)].tied = sizeof(checked::matrix);
        return plan(
            "tied",
            problem(planned.problem().placement(), 6, costs, planned.problem().transfer()),
            planned.schedule(),
            options);
      };
      auto const begun = tied(first);
      training_options const training{.clip = 0.5};
      checked::model all(settings);
      checked::model same(settings);
      adaptive_loop pipe{
          begun, virtual_time{slow_rank(begun, slow, 1.6)}, all.stages(), at_once(), {}, training};
      pipeline kept(begun, threads{}, same.stages(), training);
      for (int i = 0; i < 20; ++i) {
        auto const& one = pipe.step();
        auto const& other = kept.step();
        CHECK(toy::is_same(one.losses, other.losses));
        CHECK(one.update.norm == other.update.norm);
        CHECK(one.update.coefficient == other.update.coefficient);
        clipped += one.update.coefficient < 1 ? 1 : 0;
      }
      CHECK(all.bits() == same.bits());
      moved += static_cast<int>(pipe.switches().size());
    }
  CHECK(moved >= 6);
  CHECK(clipped > 0);
}

TEST_CASE("a pipeline of layers moves them", "[moving]") {
  std::vector<std::string> lines;
  std::vector<std::pair<int, int>> made;
  auto_settings settings{
      .plan = {.seconds = 0.05}, .replan = at_once(), .on_report = keep_in(lines)};
  auto const model = even_model(placement::linear(3), 15, 9);
  auto layer = model.layers()[0];
  auto_pipeline pipe{
      model,
      virtual_time{
          {.pass_time =
               [layer](int rank, pass const& p, ticks) {
                 return (rank == 2 ? 2 : 1) * layer.of(p.kind);
               }}},
      [&](int first, int end) {
        made.emplace_back(first, end);
        return plain_flow{};
      },
      settings};
  CHECK(pipe.stages() == 15);
  for (int l = 0; l < 15; ++l) CHECK(made[detail::index(l)] == std::pair(l, l + 1));
  auto const before = cost(pipe.step().measured);
  for (int i = 0; i < 15; ++i) static_cast<void>(pipe.step());
  CHECK(cost(pipe.step().measured) < before);
  REQUIRE(!pipe.switches().empty());
  CHECK(!pipe.switches().front().moved.empty());
  CHECK(made.size() == 15);  // stages move, and none is made anew
  CHECK(lines.front() == to_text(pipe.chosen()));
}

TEST_CASE("on threads stages move between steps", "[moving]") {
  auto const first = first_plan(even_model(placement::linear(3), 9, 6));
  auto settings = at_once();
  settings.least_gain = 0;
  std::vector<plain_flow> stages(9);
  adaptive_loop pipe{first, threads{}, stages, settings};
  for (int i = 0; i < thinned(60, 20); ++i) {
    auto const& result = pipe.step();
    CHECK(plain_flow::are_expected(result.losses, 9));
  }
}

}  // namespace test_moving_stages
