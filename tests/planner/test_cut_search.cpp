// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/detail/cut_search.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/bottleneck.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/found_plans.hpp>
#include <support/instructions.hpp>
#include <support/random_layers.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace test_cut_search {

namespace detail = zbpp::detail;
namespace test = zbpp::test;

using zbpp::bytes;
using zbpp::errc;
using zbpp::found_plan;
using zbpp::layer_costs;
using zbpp::placement;
using zbpp::problem;
using zbpp::schedule;
using zbpp::stage_costs;
using zbpp::ticks;
using zbpp::detail::bottleneck_partition;
using zbpp::detail::search_cuts;
using zbpp::test::layers_on;
using zbpp::test::passes;
using zbpp::test::random_layers;
using zbpp::test::random_placement;
using zbpp::test::refusal;
using zbpp::test::seeded_random;
using zbpp::test::thinned;

namespace {

// The least cost of all cuts and choices that fit, with R in front of each B; nothing when none
// fits.
template <class Policy>
std::optional<ticks> least_cost(problem const& model, Policy const& decide) {
  std::optional<ticks> least;
  test::for_each_cut(model, [&](problem const& cut) {
    auto const whole = detail::insert_recompute(decide(cut), cut);
    auto const found = cost(simulate(whole, cut));
    if (found >= least.value_or(found + 1)) return;  // whether it fits or not
    if (verify(lower(whole), cut).empty()) least = found;
  });
  return least;
}

// @param adds  whether B adds something for W
problem random_model(
    seeded_random& random, placement const& placement, int layers, bool adds = false) {
  auto costs = random_layers(random, layers);
  if (adds)
    for (auto& c : costs) {
      c.output_gradient = c.activation / 2;
      c.weight_gradient_input += c.output_gradient;
    }
  auto const m = static_cast<int>(random.integer(1, 6));
  std::vector<bytes> limits;
  if (random.chance(0.75)) {
    // Around what a balanced cut needs, so that some models fit only with R and some not at all.
    auto const balanced = bottleneck_partition(costs, placement);
    for (int rank = 0; rank < placement.ranks(); ++rank)
      limits.push_back(balanced.memory + random.integer(-20, 60 * m));
    if (random.chance(0.5)) limits.resize(1);
  }
  auto const hop = random.integer(0, 10);
  auto speeds = test::random_speeds(random, placement.ranks());
  return layers_on(
      placement,
      std::move(costs),
      {.microbatches = m,
       .transfer = hop,
       .memory_limits = std::move(limits),
       .rank_speeds = std::move(speeds)});
}

// A schedule for any placement: all F, then all B and W in one go, microbatch by microbatch.
struct all_forward_first {
  schedule operator()(problem const& problem) const {
    std::vector<std::vector<zbpp::pass>> rows(static_cast<std::size_t>(problem.ranks()));
    auto add = [&](zbpp::pass_kind kind, int s, int m) {
      rows[static_cast<std::size_t>(problem.placement().rank_of(s))].push_back({kind, s, m});
    };
    for (int m = 0; m < problem.microbatches(); ++m)
      for (int s = 0; s < problem.stages(); ++s) add(zbpp::pass_kind::forward, s, m);
    for (int m = 0; m < problem.microbatches(); ++m)
      for (int s = problem.stages() - 1; s >= 0; --s) add(zbpp::pass_kind::backward, s, m);
    return {problem.placement(), problem.microbatches(), rows};
  }
};

}  // namespace

TEST_CASE("a slow rank gets fewer layers", "[cut_search][long]") {
  layer_costs const layer{.forward = 100, .backward_input = 100, .backward_weight = 100};
  for (auto const& place : {placement::linear(4), placement::v_shape(4), placement::looped(4, 2)})
    for (int slow = 0; slow < 4; ++slow) {
      std::vector<double> speeds(4, 1.0);
      speeds[static_cast<std::size_t>(slow)] = 0.5;
      auto const model = layers_on(
          place, std::vector<layer_costs>(28, layer), {.microbatches = 16, .rank_speeds = speeds});
      auto const found =
          search_cuts(model, zbpp::greedy_auto{.search = {.seconds = 0.002}}, {20}).problem;
      std::vector<int> layers(4);
      for (int s = 0; s < place.stages(); ++s)
        layers[detail::index(place.rank_of(s))] +=
            found.end_layer(s) - found.first_layer()[detail::index(s)];
      for (int rank = 0; rank < 4; ++rank)
        CHECK(layers[detail::index(rank)] == (rank == slow ? 4 : 8));
    }
}

TEST_CASE("with schedules enough for all cuts the best there is is found", "[cut_search][long]") {
  int fitting = 0;
  int recomputing = 0;
  int refused = 0;
  auto const check = [&](problem const& model, auto const& decide) {
    auto const least = least_cost(model, decide);
    try {
      auto const found = search_cuts(model, decide, {.schedules = 1 << 20});
      CHECK(found.is_optimal());
      CHECK(least == found.cost);
      ++fitting;
      auto const again = detail::cut_of(found.problem).recompute;
      recomputing += std::ranges::find(again, true) != again.end() ? 1 : 0;
    } catch (zbpp::error const& nothing_fits) {
      CHECK(nothing_fits.code() == errc::unsupported_problem);
      CHECK_FALSE(least);
      ++refused;
    }
  };
  for (int trial = 0; trial < 120; trial += thinned(1, 5)) {
    ZBPP_SEEDED(random, trial % 90);
    auto const placement = random_placement(random);
    auto const count = placement.stages() + static_cast<int>(random.integer(0, thinned(3, 2)));
    auto const model = random_model(random, placement, count, trial >= 90);
    check(model, all_forward_first{});
    if (placement.is_linear()) check(model, zbpp::zb_h1{});
    if (placement.is_linear()) check(model, zbpp::one_f_one_b{});
    if (placement.is_v_shape()) check(model, zbpp::zb_v{});
  }
  CHECK(fitting > thinned(50, 8));
  CHECK(recomputing > thinned(10, -1));
  CHECK(refused > thinned(10, 0));
}

TEST_CASE("with fewer schedules the cut is seldom worse", "[cut_search][long]") {
  int least = 0;
  int all = 0;
  auto const check = [&](problem const& model, auto const& decide) {
    std::optional<found_plan> best;
    try {
      best = search_cuts(model, decide, {.schedules = 1 << 20});
    } catch (zbpp::error const&) {
      return;  // nothing fits
    }
    ++all;
    try {
      auto const found = search_cuts(model, decide, {.schedules = 200});
      CHECK(found.tries <= 200);
      CHECK(found.cost >= best->cost);
      if (found.is_optimal()) CHECK(found.cost == best->cost);
      if (found.cost == best->cost) ++least;
      auto const start =
          with_cut(model, bottleneck_partition(model.layers(), model.placement()).first_layer);
      auto const plan = make_plan(decide, start);
      if (verify(plan.program(), start).empty()) CHECK(found.cost <= cost(plan.timeline()));
    } catch (zbpp::error const& not_found) {
      CHECK(not_found.code() == errc::unsupported_problem);
    }
  };
  for (int trial = 0; trial < thinned(120, 12); ++trial) {
    ZBPP_SEEDED(random, trial);
    if (trial % 3 == 0)
      check(random_model(random, placement::v_shape(2), 10), zbpp::zb_v{});
    else
      check(random_model(random, placement::linear(4), 10), zbpp::zb_h1{});
  }
  // 84 cuts and 16 choices each.
  CAPTURE(least, all);
  CHECK(all > thinned(40, 3));
  CHECK(least * 100 >= all * thinned(90, 60));
}

TEST_CASE("what a search for cuts says of its plan holds", "[cut_search]") {
  int fitting = 0;
  for (int trial = 0; trial < thinned(100, 30); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const model = random_model(random, placement::linear(4), 12);
    try {
      auto const found = search_cuts(model, zbpp::zb_h1{}, {.schedules = 60});
      ++fitting;
      CHECK(found.bound == zbpp::cost_bound());
      auto again = found;
      again.bound = lower_bound(found.problem);
      test::check_plan(again, model);
      CHECK(search_cuts(model, zbpp::zb_h1{}, {.schedules = 60}) == found);
    } catch (zbpp::error const& nothing_fits) {
      CHECK(nothing_fits.code() == errc::unsupported_problem);
    }
  }
  CHECK(fitting > thinned(30, 5));
}

TEST_CASE("a policy that keeps limits by itself is led to cuts that it takes", "[cut_search]") {
  // Takes no problem in which a rank could not keep two microbatches, and places R by itself.
  struct careful {
    schedule operator()(problem const& problem) const {
      for (int rank = 0; rank < problem.ranks(); ++rank) {
        auto const& c = problem.costs(rank);
        auto const kept = c.recompute ? c.activation + c.recompute_input : 2 * c.activation;
        if (c.static_memory + kept > *problem.memory_limit(rank))
          throw zbpp::error(errc::unsupported_problem, "careful needs room for two");
      }
      return detail::insert_recompute(zbpp::gpipe{}(problem), problem);
    }
  };
  layer_costs const layer{
      .forward = 5,
      .backward_input = 5,
      .backward_weight = 5,
      .recompute = 5,
      .activation = 10,
      .recompute_input = 1,
      .static_memory = 4};
  auto const model = [&](bytes limit) {
    return problem(
        std::vector<layer_costs>(24, layer),
        {.ranks = 4, .microbatches = 2, .memory_limits = {limit}});
  };
  auto const found = search_cuts(model(86), careful{}, {.schedules = 300});
  // Nothing else fits.
  CHECK(found.problem == with_cut(model(86), {0, 6, 12, 18}, std::vector<bool>(4, true)));
  CHECK(found.schedule == detail::insert_recompute(zbpp::gpipe{}(found.problem), found.problem));
  CHECK(refusal(errc::unsupported_problem, [&] {
          (void)search_cuts(model(80), careful{}, {.schedules = 300});
        }) == "none of the 300 partitions tried fits: careful needs room for two");
}

TEST_CASE("R goes in front of each B of the stages that have none", "[cut_search]") {
  auto const placement = placement::linear(2);
  stage_costs const again{.forward = 1, .recompute = 1};
  problem const problem(placement, 2, {stage_costs{.forward = 1}, again});
  auto const plain =
      schedule(placement, 2, passes({"0F0 0F1 0B0 0BW1 0W0", "1F0 1B0 1F1 1W0 1BW1"}));
  auto const with_r =
      schedule(placement, 2, passes({"0F0 0F1 0B0 0BW1 0W0", "1F0 1R0 1B0 1F1 1W0 1R1 1BW1"}));
  CHECK(detail::insert_recompute(plain, problem) == with_r);
  auto const some =
      schedule(placement, 2, passes({"0F0 0F1 0B0 0BW1 0W0", "1F0 1B0 1F1 1W0 1R1 1BW1"}));
  CHECK(detail::insert_recompute(some, problem) == some);
}

TEST_CASE("progress ascends to the end, and tells what is found", "[cut_search]") {
  ZBPP_SEEDED(random, 0);
  problem const model(random_layers(random, 30), {.ranks = 3, .microbatches = 6, .transfer = 5});
  double spent = 0;
  ticks last = 0;
  auto const found = search_cuts(
      model, zbpp::zb_h1{}, {.schedules = 50, .on_progress = [&](zbpp::search_progress const& now) {
                               CHECK(now.spent >= spent);
                               CHECK((last == 0 || now.cost <= last));
                               CHECK(now.lower_bound <= now.cost);
                               spent = now.spent;
                               last = now.cost;
                             }});
  CHECK(spent > 0);
  CHECK(spent <= 1);
  CHECK(last == found.cost);
}

TEST_CASE("a search for cuts that is stopped asks no more", "[cut_search]") {
  int asked = 0;
  auto const counting = [&](problem const& one) {
    ++asked;
    return zbpp::gpipe{}(one);
  };
  problem const model(
      std::vector<layer_costs>(40, {.forward = 1}), {.ranks = 2, .microbatches = 3});
  auto const cut =
      search_cuts(model, counting, {.schedules = 1000, .stop = [&] { return asked == 7; }});
  CHECK(asked == 7);
  CHECK(cut.tries == 7);
}

TEST_CASE("a cut that cannot be is refused by what it lacks", "[cut_search]") {
  layer_costs const layer{.forward = 1, .activation = 10, .static_memory = 5};
  auto const model = [&](bytes limit) {
    return problem(
        std::vector<layer_costs>(5, layer),
        {.ranks = 2, .microbatches = 4, .memory_limits = {limit}});
  };
  auto const refused = [](problem const& of, int schedules, errc code) {
    return refusal(code, [&] { (void)search_cuts(of, zbpp::zb_h1{}, {.schedules = schedules}); });
  };
  CHECK(
      refused(model(38), 1000, errc::unsupported_problem) ==
      "rank 0: none of the 4 partitions tried fits: the closest needs 50 bytes, the limit is 38; "
      "it fits when every limit is higher by 12");
  auto const fits = search_cuts(model(50), zbpp::zb_h1{}, {}).problem;
  CHECK(std::ranges::equal(fits.first_layer(), std::vector{0, 2}));
  auto const on_v = with_placement(with_memory_limits(model(50), {}), placement::v_shape(2));
  CHECK(
      refused(on_v, 1000, errc::unsupported_problem) ==
      "ZB-H1 needs a linear placement, one stage per rank; this one is v");
  CHECK(
      refused(model(50), 0, errc::bad_argument) ==
      "schedules is less than 1; the policy is asked at least once");
}

}  // namespace test_cut_search
