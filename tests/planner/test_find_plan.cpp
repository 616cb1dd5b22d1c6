// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/find_plan.hpp>
// What the checks need besides.
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/bottleneck.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/found_plans.hpp>
#include <support/random_layers.hpp>
#include <support/random_pairs.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace test_find_plan {

using namespace zbpp;

using test::all_placements;
using test::check_plan;
using test::layers_on;
using test::random_model;
using test::refusal;
using test::thinned;
using test::try_plan;

namespace {

template <class Visit>
void for_each_problem(problem const& model, Visit visit) {
  for (auto const& placement : all_placements(model))
    test::for_each_cut(with_placement(model, placement), visit);
}

int recomputing_stages(found_plan const& found) {
  return static_cast<int>(std::ranges::count_if(
      found.problem.all_costs(), [](stage_costs const& c) { return c.recompute.has_value(); }));
}

}  // namespace

TEST_CASE("the plan of a small model is the best over placements, cuts and orders", "[find_plan]") {
  int best = 0;
  int fitting = 0;
  int refused = 0;
  int proved = 0;
  int moved = 0;
  for (int trial = 0; trial < thinned(100, 20); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = trial % 3 == 2 ? 3 : 2;
    auto const count = static_cast<int>(random.integer(p, p == 2 ? 5 : 4));
    auto const m = static_cast<int>(random.integer(1, count > 3 ? 2 : 3));
    auto const placement =
        trial % 5 == 0 && count > p
            ? placement::custom(p == 2 ? std::vector{1, 0, 0} : std::vector{2, 0, 1, 0})
            : placement::linear(p);
    auto const model = random_model(random, placement, count, m, true);
    std::optional<ticks> least;
    for_each_problem(model, [&](problem const& one) {
      auto const cost = test::optimal_cost(one);
      if (cost && *cost < least.value_or(*cost + 1)) least = cost;
    });
    auto const found = try_plan(model, {.seconds = 1});
    CHECK(found.has_value() == least.has_value());
    ++(found ? fitting : refused);
    if (!found || !least) continue;
    check_plan(*found, model);
    CHECK(found->cost >= *least);
    if (found->is_optimal()) CHECK(found->cost == *least);
    best += found->cost == *least ? 1 : 0;
    proved += found->is_optimal() ? 1 : 0;
    moved += found->problem.placement().is_linear() ? 0 : 1;
  }
  CAPTURE(fitting, best, refused, proved, moved);
  CHECK(best * 100 >= fitting * 90);  // 94 to 100 with the seeds that were tried
  CHECK(fitting > thinned(50, 5));
  CHECK(refused > thinned(1, -1));
  CHECK(proved > thinned(25, 2));
  CHECK(moved > thinned(8, 0));
}

TEST_CASE("seldom any cut with any set of recomputing stages costs less", "[find_plan]") {
  int fitting = 0;
  int recomputing = 0;
  int good = 0;
  for (int trial = 0; trial < thinned(40, 2); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 3));
    auto const count = p + static_cast<int>(random.integer(0, 2));
    auto const m = static_cast<int>(random.integer(2, 6));
    auto const model = random_model(random, placement::linear(p), count, m, false);
    std::optional<ticks> least;
    for_each_problem(model, [&](problem const& one) {
      try {
        auto const cost = detail::find_order(one, {.seconds = 0.008}, 0).cost;
        least = std::min(least.value_or(cost), cost);
      } catch (error const& does_not_fit) {
        CHECK(does_not_fit.code() == errc::unsupported_problem);
      }
    });
    auto const found = try_plan(model, {.seconds = 0.2});
    CHECK(found.has_value() == least.has_value());
    if (!found || !least) continue;
    ++fitting;
    check_plan(*found, model);
    good += found->cost <= *least ? 1 : 0;
    recomputing += recomputing_stages(*found) > 0 ? 1 : 0;
  }
  CAPTURE(fitting, good, recomputing);
  CHECK((good + thinned(0, 1)) * 100 >= fitting * 90);  // of few, one is more than a tenth
  CHECK(fitting > thinned(10, 0));
  CHECK(recomputing > thinned(0, -1));
}

TEST_CASE("the first chunks recompute where that costs least", "[find_plan]") {
  int fitting = 0;
  int gaining = 0;
  for (int trial = 0; trial < thinned(30, 3); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 4));
    auto const count = p * static_cast<int>(random.integer(2, 4));
    layer_costs const layer{
        .forward = random.integer(10, 20),
        .backward_input = random.integer(10, 20),
        .backward_weight = random.integer(10, 20),
        .recompute = random.integer(5, 15),
        .activation = 100,
        .weight_gradient_input = 80,
        .recompute_input = 10};
    problem const model(
        std::vector<layer_costs>(detail::index(count), layer),
        {.ranks = p,
         .microbatches = static_cast<int>(random.integer(p, 4 * p)),
         .transfer = random.integer(0, 3),
         .memory_limits = {count * random.integer(30, 110)}});
    auto const found = try_plan(model, {.seconds = 0});
    if (!found) continue;
    ++fitting;
    check_plan(*found, model);
    auto again = layer;
    again.forward += *again.recompute;
    std::vector<layer_costs> const all_again(detail::index(count), again);
    for (auto const& placement : all_placements(model)) {
      auto const first_layer = detail::bottleneck_partition(all_again, placement).first_layer;
      for (int chunks = 0; chunks <= placement.stages() / p; ++chunks) {
        CAPTURE(placement.name(), chunks);
        std::vector<bool> recompute(detail::index(placement.stages()));
        std::fill_n(recompute.begin(), chunks * p, true);
        auto const problem = with_cut(with_placement(model, placement), first_layer, recompute);
        if (detail::fits_memory(problem))
          CHECK(
              found->cost <=
              detail::search_once(problem, detail::search_budget({.seconds = 0})).cost);
      }
    }
    auto const recomputing = recomputing_stages(*found);
    gaining += recomputing > 0 && recomputing < found->problem.stages() ? 1 : 0;
  }
  CAPTURE(fitting, gaining);
  CHECK(fitting > thinned(25, 1));
  CHECK(gaining > thinned(12, -1));
}

TEST_CASE("a plan is what it says, twice, and no worse with more budget", "[find_plan]") {
  int fitting = 0;
  for (int trial = 0; trial < thinned(4, 1); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = test::random_placement(random);
    auto const count = placement.stages() + static_cast<int>(random.integer(0, 10));
    auto const m = static_cast<int>(random.integer(1, 12));
    auto const model = random_model(random, placement, count, m, false);
    std::optional<found_plan> last;
    double const most = thinned(0.03, 0.004);
    for (double const seconds : {0.0, 0.004, 0.01, 0.03}) {
      if (seconds > most) break;
      auto const found = try_plan(model, {.seconds = seconds});
      CHECK((!last || found));
      if (!found) continue;
      ++fitting;
      check_plan(*found, model);
      if (last) CHECK(found->cost <= last->cost);
      last = found;
    }
    if (last) CHECK(find_plan(model, {.seconds = most}) == *last);
  }
  CHECK(fitting > thinned(4, 0));
}

TEST_CASE("a plan with pairs is what it says, and its bound stays below", "[find_plan]") {
  int paired = 0;
  for (int trial = 0; trial < thinned(12, 4); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = test::random_placement(random);
    auto const count = placement.stages() + static_cast<int>(random.integer(0, 4));
    auto const plain =
        random_model(random, placement, count, 2 * placement.ranks() + trial % 3, trial % 2 == 0);
    std::vector<layer_costs> layers(plain.layers().begin(), plain.layers().end());
    for (auto& c : layers)
      if (random.chance(0.8)) c.overlapped = std::max(c.forward, c.backward_input);
    auto const limits = plain.memory_limits();
    auto const model = layers_on(
        placement,
        layers,
        {.microbatches = plain.microbatches(),
         .transfer = plain.transfer(),
         .memory_limits = {limits.begin(), limits.end()}});
    auto const found = try_plan(model, {.seconds = 0.004});
    if (!found) continue;
    check_plan(*found, model);
    paired += static_cast<int>(test::pairs_in(found->schedule));
  }
  CHECK(paired > 0);
}

TEST_CASE("of placements that cost the same the fewest stages are taken", "[find_plan]") {
  layer_costs const layer{.forward = 5, .backward_input = 5, .backward_weight = 5};
  auto const best = [&](placement const& placement, int count, ticks hop) {
    std::vector<layer_costs> const layers(detail::index(count), layer);
    auto const model = layers_on(placement, layers, {.microbatches = 4, .transfer = hop});
    return find_plan(model, {.seconds = 0.02}).problem.placement();
  };
  CHECK(best(placement::linear(1), 6, 0) == placement::linear(1));
  CHECK(best(placement::custom({0, 0, 0}), 6, 0) == placement::linear(1));
  // With so long a hop chunks only wait for each other.
  CHECK(best(placement::v_shape(2), 8, 5000) == placement::linear(2));
}

TEST_CASE("a head that is split costs less than any plan with the whole head", "[find_plan]") {
  auto const found = [](int heads, ticks time) {
    std::vector<layer_costs> layers(
        28, {.forward = 10, .backward_input = 10, .backward_weight = 10, .edge = 1});
    layers.resize(
        28 + detail::index(heads),
        {.forward = time, .backward_input = time, .backward_weight = time, .edge = 1});
    problem const model(std::move(layers), {.ranks = 4, .microbatches = 16, .transfer = 1});
    return find_plan(model, {.seconds = 0.02});
  };
  auto const whole = found(1, 120);
  auto const split = found(4, 30);
  CHECK(whole.lower_bound == 16 * 3 * 120);           // the rank of the head does nothing else
  CHECK(split.cost == 16 * 3 * (28 * 10 + 120) / 4);  // and now all ranks have the same work
  CHECK(split.is_optimal());
}

TEST_CASE("a model that fits nowhere is refused with what would do", "[find_plan]") {
  layer_costs const layer{
      .forward = 5,
      .backward_input = 5,
      .backward_weight = 5,
      .activation = 10,
      .static_memory = 90};
  auto const model = [&](bytes limit) {
    return problem(
        std::vector<layer_costs>(7, layer),
        {.ranks = 2, .microbatches = 4, .memory_limits = {limit}});
  };
  CHECK(
      refusal(errc::unsupported_problem, [&] { (void)find_plan(model(390), {.seconds = 0.02}); }) ==
      "rank 0: no partition that was tried fits, on any placement: the closest, linear, needs 400 "
      "bytes, the limit is 390; it fits when every limit is higher by 10");
  CHECK(find_plan(model(400), {.seconds = 0.02}).cost > 0);
}

TEST_CASE("a search over placements tells how far it is and can be stopped", "[find_plan]") {
  ZBPP_SEEDED(random, 1);
  problem const unlimited(
      test::random_layers(random, 14), {.ranks = 3, .microbatches = 9, .transfer = 7});
  auto const model =  // hard to prove
      with_memory_limit(unlimited, test::usual_memory(unlimited) * 6 / 5);
  for (bool const has_policy : {false, true}) {
    double last = 0;
    bool ascends = true;
    int calls = 0;
    ticks least = 0;
    plan_choices choices{.seconds = has_policy ? 1 : 0.1};
    if (has_policy) choices.policy = greedy_auto{};
    choices.on_progress = [&](search_progress const& now) {
      ascends = ascends && now.spent >= last && now.spent <= 1 && now.lower_bound <= now.cost;
      last = now.spent;
      least = now.cost;
      ++calls;
    };
    auto const found = find_plan(model, choices);
    CHECK(ascends);
    CHECK(calls > 3);
    CHECK(last > 0.5);
    CHECK(least >= found.cost);
  }
  bool has_begun = false;
  plan_choices endless{.seconds = 1e6, .stop = [&] { return has_begun; }};
  endless.on_progress = [&](search_progress const& now) { has_begun = has_begun || now.spent > 0; };
  check_plan(find_plan(model, endless), model);  // stopped on its way
  has_begun = true;
  check_plan(find_plan(model, endless), model);  // stopped before it begins
}

}  // namespace test_find_plan
