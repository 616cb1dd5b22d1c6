// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/partition.hpp>
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
#include <zbpp/planner/partition_by_name.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/random_layers.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_partition {

using zbpp::bytes;
using zbpp::errc;
using zbpp::found_plan;
using zbpp::layer_costs;
using zbpp::layered_problem;
using zbpp::partition;
using zbpp::placement;
using zbpp::problem;
using zbpp::schedule;
using zbpp::stage_costs;
using zbpp::ticks;
using zbpp::detail::bottleneck_partition;
using zbpp::test::for_each_composition;
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
std::optional<ticks> least_cost(layered_problem const& model, Policy const& decide) {
  std::optional<ticks> least;
  auto const stages = model.stages();
  for_each_composition(
      static_cast<int>(model.layers().size()), stages, [&](std::vector<int> const& first) {
        for (unsigned set = 0; set < 1U << stages; ++set) {
          std::vector<bool> recompute;
          for (int s = 0; s < stages; ++s) recompute.push_back((set >> s & 1U) != 0);
          auto const chosen = [&]() -> std::optional<problem> {
            try {
              return model.with(first, recompute);
            } catch (zbpp::error const&) {
              return std::nullopt;  // a stage that cannot recompute
            }
          }();
          if (!chosen) continue;
          zbpp::rows<zbpp::pass> rows;
          auto const order = decide(*chosen);
          for (int rank = 0; rank < order.ranks(); ++rank) {
            for (auto const& p : order.passes(rank)) {
              if (p.makes_input_gradient() && recompute[static_cast<std::size_t>(p.stage)])
                rows.push({zbpp::pass_kind::recompute, p.stage, p.microbatch});
              rows.push(p);
            }
            rows.end_row();
          }
          schedule const whole(model.placement(), model.microbatches(), std::move(rows));
          auto const found = cost(simulate(whole, *chosen));
          if (found >= least.value_or(found + 1)) continue;  // whether it fits or not
          if (verify(lower(whole), *chosen).empty()) least = found;
        }
      });
  return least;
}

// @param adds  whether B adds something for W
layered_problem random_model(
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
  auto speeds = zbpp::test::random_speeds(random, placement.ranks());
  return {placement, m, std::move(costs), hop, limits, std::move(speeds)};
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

TEST_CASE("the costs of a stage are those of its layers together", "[partition]") {
  layer_costs const first{
      .forward = 1,
      .backward_input = 2,
      .backward_weight = 3,
      .recompute = 4,
      .activation = 50,
      .weight_gradient_input = 6,
      .output_gradient = 5,
      .recompute_input = 7,
      .edge = 8,
      .static_memory = 9,
      .workspace = 10};
  auto second = first;
  second.backward_fused = 4;
  second.edge = 80;
  second.workspace = 5;
  auto last = first;
  last.recompute.reset();
  using list = std::vector<layer_costs>;

  CHECK(merge_layers(list{first}) == first);
  CHECK(merge_layers(list{second}) == second);
  CHECK(
      merge_layers(list{first, second}) == stage_costs{
                                               .forward = 2,
                                               .backward_input = 4,
                                               .backward_weight = 6,
                                               .backward_fused = 9,
                                               .recompute = 8,
                                               .activation = 100,
                                               .weight_gradient_input = 12,
                                               .output_gradient = 10,
                                               .recompute_input = 7,
                                               .edge = 80,
                                               .static_memory = 18,
                                               .workspace = 10});
  // What is not made again stays, and each run of layers that are keeps its input.
  auto const mixed = merge_layers(list{first, first, last, first, first});
  CHECK(mixed.recompute == 16);
  CHECK(mixed.recompute_input == 7 + 50 + 7);
  CHECK_FALSE(merge_layers(list{last, last}).recompute);
}

TEST_CASE("a stage takes on a rank of another speed what its layers do there", "[partition]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const layers = random_layers(random, 3);
    auto whole = zbpp::merge_layers(layers);
    if (random.chance(0.5)) whole.overlapped = std::max(whole.forward, whole.backward_input) + 1;
    if (random.chance(0.5))
      whole.overlapped_fused =
          std::max(whole.forward, whole.of(zbpp::pass_kind::backward)) + random.integer(0, 5);
    auto const speed = static_cast<double>(random.integer(1, 400)) / 100;
    auto const there = zbpp::at_speed(whole, speed);
    there.check(0);  // no two numbers contradict
    CHECK(zbpp::at_speed(whole, 1) == whole);
    for (auto const kind :
         {zbpp::pass_kind::forward,
          zbpp::pass_kind::backward_input,
          zbpp::pass_kind::backward_weight,
          zbpp::pass_kind::backward,
          zbpp::pass_kind::recompute})
      CHECK(
          std::abs(
              static_cast<double>(there.of(kind)) * speed - static_cast<double>(whole.of(kind))) <=
          speed * 1.01);
    CHECK(there.activation == whole.activation);
    layered_problem const model(
        placement::linear(2), 3, {whole, whole, whole}, 0, {}, {1.0, speed});
    auto const cut = model.with({0, 2});
    auto const keeping = [](stage_costs costs) {
      costs.recompute.reset();
      return costs;
    };
    CHECK(cut.costs(0) == keeping(zbpp::merge_layers(std::vector{whole, whole})));
    CHECK(cut.costs(1) == zbpp::at_speed(keeping(zbpp::merge_layers(std::vector{whole})), speed));
  }
}

TEST_CASE("a model with one part changed keeps the others", "[partition]") {
  std::vector<layer_costs> const layers(4, {.forward = 3, .activation = 2});
  std::vector<layer_costs> const others(5, {.forward = 7});
  auto const linear = placement::linear(2);
  auto const v = placement::v_shape(2);
  layered_problem const model(linear, 3, layers, 5, {9}, {1, 0.5});
  CHECK(with_layers(model, others) == layered_problem(linear, 3, others, 5, {9}, {1, 0.5}));
  CHECK(
      with_memory_limits(model, {8, 9}) == layered_problem(linear, 3, layers, 5, {8, 9}, {1, 0.5}));
  CHECK(with_placement(model, v) == layered_problem(v, 3, layers, 5, {9}, {1, 0.5}));
  CHECK(with_microbatches(model, 8) == layered_problem(linear, 8, layers, 5, {9}, {1, 0.5}));
  auto const refused = [](auto const& change) {
    return !refusal(errc::bad_argument, change).empty();
  };
  CHECK(refused([&] { (void)with_layers(model, {{}}); }));
  CHECK(refused([&] { (void)with_memory_limits(model, {1, 2, 3}); }));
  CHECK(refused([&] { (void)with_placement(model, placement::linear(3)); }));
  CHECK(refused([&] { (void)with_microbatches(model, 0); }));
}

TEST_CASE("a slow rank gets fewer layers", "[partition][long]") {
  layer_costs const layer{.forward = 100, .backward_input = 100, .backward_weight = 100};
  for (auto const& place : {placement::linear(4), placement::v_shape(4), placement::looped(4, 2)})
    for (int slow = 0; slow < 4; ++slow) {
      std::vector<double> speeds(4, 1.0);
      speeds[static_cast<std::size_t>(slow)] = 0.5;
      layered_problem const model(place, 16, std::vector<layer_costs>(28, layer), 0, {}, speeds);
      auto const found = partition(model, zbpp::greedy_auto{.search = {.seconds = 0.002}}, {20});
      std::vector<int> layers(4);
      for (int s = 0; s < place.stages(); ++s) {
        auto const end =
            s + 1 < place.stages() ? found.first_layer[zbpp::detail::index(s + 1)] : 28;
        layers[zbpp::detail::index(place.rank_of(s))] +=
            end - found.first_layer[zbpp::detail::index(s)];
      }
      for (int rank = 0; rank < 4; ++rank)
        CHECK(layers[zbpp::detail::index(rank)] == (rank == slow ? 4 : 8));
    }
}

TEST_CASE("speeds of ranks that are none are refused", "[partition]") {
  auto const refused = [](std::vector<double> const& speeds) {
    return refusal(errc::bad_argument, [&] {
      (void)layered_problem(placement::linear(2), 2, std::vector<layer_costs>(2), 0, {}, speeds);
    });
  };
  CHECK(refused({1}) == "there are 1 speeds for 2 ranks; give one for each, or none");
  for (double const wrong : {0.0, -1.0, 1e-4, 1001.0, std::nan(""), HUGE_VAL})
    CHECK(
        refused({1, wrong}) ==
        "rank 1: the speed is not from 0.001 to 1000; at 0.5 all takes twice as long");
  // What takes longer than any problem may is refused as well.
  CHECK(refusal(errc::bad_argument, [] {
          (void)layered_problem(
              placement::linear(2),
              2,
              std::vector<layer_costs>(2, {.forward = ticks{1} << 58}),
              0,
              {},
              {1, 0.001});
        }).find("add up to more than 2^62") != std::string::npos);
}

TEST_CASE(
    "with schedules enough for all cuts the partition is the best there is", "[partition][long]") {
  int fitting = 0;
  int recomputing = 0;
  int refused = 0;
  auto const check = [&](layered_problem const& model, auto const& decide) {
    auto const least = least_cost(model, decide);
    try {
      auto const found = partition(model, decide, {.schedules = 1 << 20});
      CHECK(found.is_optimal());
      CHECK(least == found.cost);
      ++fitting;
      if (std::find(found.recompute.begin(), found.recompute.end(), true) != found.recompute.end())
        ++recomputing;
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

TEST_CASE("with fewer schedules the partition is seldom worse", "[partition][long]") {
  int least = 0;
  int all = 0;
  auto const check = [&](layered_problem const& model, auto const& decide) {
    std::optional<found_plan> best;
    try {
      best = partition(model, decide, {.schedules = 1 << 20});
    } catch (zbpp::error const&) {
      return;  // nothing fits
    }
    ++all;
    try {
      auto const found = partition(model, decide, {.schedules = 200});
      CHECK(found.tries <= 200);
      CHECK(found.cost >= best->cost);
      if (found.is_optimal()) CHECK(found.cost == best->cost);
      if (found.cost == best->cost) ++least;
      auto const start =
          model.with(bottleneck_partition(model.layers(), model.placement()).first_layer);
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

TEST_CASE("what a partition says of itself holds", "[partition]") {
  int fitting = 0;
  for (int trial = 0; trial < thinned(100, 30); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const model = random_model(random, placement::linear(4), 12);
    try {
      auto const found = partition(model, zbpp::zb_h1{}, {.schedules = 60});
      ++fitting;
      CHECK(found.problem == model.with(found.first_layer, found.recompute));
      auto const plan = make_plan("", found.schedule, found.problem);
      CHECK(verify(plan.program(), found.problem).empty());
      CHECK(cost(plan.timeline()) == found.cost);
      for (int s = 0; s < model.stages(); ++s) {
        bool const has_r = std::any_of(
            found.schedule.passes().all().begin(),
            found.schedule.passes().all().end(),
            [&](auto const& p) { return p.kind == zbpp::pass_kind::recompute && p.stage == s; });
        CHECK(has_r == found.recompute[static_cast<std::size_t>(s)]);
      }
      auto const again = partition(model, zbpp::zb_h1{}, {.schedules = 60});
      CHECK(again.first_layer == found.first_layer);
      CHECK(again.recompute == found.recompute);
    } catch (zbpp::error const& nothing_fits) {
      CHECK(nothing_fits.code() == errc::unsupported_problem);
    }
  }
  CHECK(fitting > thinned(30, 5));
}

TEST_CASE("a policy that keeps limits by itself is led to cuts that it takes", "[partition]") {
  // Takes no problem in which a rank could not keep two microbatches, and places R by itself.
  struct careful {
    schedule operator()(problem const& problem) const {
      for (int rank = 0; rank < problem.ranks(); ++rank) {
        auto const& c = problem.costs(rank);
        auto const kept = c.recompute ? c.activation + c.recompute_input : 2 * c.activation;
        if (c.static_memory + kept > *problem.memory_limit(rank))
          throw zbpp::error(errc::unsupported_problem, "careful needs room for two");
      }
      return zbpp::detail::insert_recompute(zbpp::gpipe{}(problem), problem);
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
  layered_problem const model(
      placement::linear(4), 2, std::vector<layer_costs>(24, layer), 0, {86});
  auto const found = partition(model, careful{}, {.schedules = 300});
  CHECK(found.first_layer == std::vector<int>{0, 6, 12, 18});  // nothing else fits
  CHECK(found.recompute == std::vector<bool>(4, true));
  CHECK(
      found.schedule ==
      zbpp::detail::insert_recompute(zbpp::gpipe{}(found.problem), found.problem));
  CHECK(
      refusal(errc::unsupported_problem, [&] {
        (void)partition(
            layered_problem(placement::linear(4), 2, std::vector<layer_costs>(24, layer), 0, {80}),
            careful{},
            {.schedules = 300});
      }) == "none of the 300 partitions tried fits: careful needs room for two");
}

TEST_CASE("R goes in front of each B of the stages that have none", "[partition]") {
  auto const placement = placement::linear(2);
  stage_costs const again{.forward = 1, .recompute = 1};
  problem const problem(placement, 2, {stage_costs{.forward = 1}, again});
  auto const plain =
      schedule(placement, 2, passes({"0F0 0F1 0B0 0BW1 0W0", "1F0 1B0 1F1 1W0 1BW1"}));
  auto const with_r =
      schedule(placement, 2, passes({"0F0 0F1 0B0 0BW1 0W0", "1F0 1R0 1B0 1F1 1W0 1R1 1BW1"}));
  CHECK(zbpp::detail::insert_recompute(plain, problem) == with_r);
  auto const some =
      schedule(placement, 2, passes({"0F0 0F1 0B0 0BW1 0W0", "1F0 1B0 1F1 1W0 1R1 1BW1"}));
  CHECK(zbpp::detail::insert_recompute(some, problem) == some);
}

TEST_CASE("bad layers and bad cuts are refused", "[partition]") {
  auto const two = placement::linear(2);
  auto const layers = [](int count) {
    return std::vector<layer_costs>(static_cast<std::size_t>(count), {.forward = 1});
  };
  CHECK(refusal([&] {
          (void)bottleneck_partition(layers(1), two);
        }) == "there are 1 layers for 2 stages; each stage needs at least 1");
  CHECK(refusal([&] {
          (void)bottleneck_partition(layers(4097), two);
        }) == "there are 4097 layers; at most 4096");
  auto wrong = layers(3);
  wrong[1].forward = -1;
  CHECK(refusal([&] {
          (void)layered_problem(two, 1, wrong);
        }) == "layer 1: forward is -1; at least 0");
  wrong[1].forward = ticks{1} << 61;
  CHECK(
      refusal([&] { (void)bottleneck_partition(wrong, two); }) ==
      "times or sizes of all layers, for each rank, add up to more than 2^62; use a coarser "
      "unit");
  CHECK(refusal([&] {
          (void)layered_problem(two, 0, layers(2));
        }) == "microbatches is 0; a step has at least 1");

  layered_problem const model(two, 1, layers(3));
  CHECK(refusal([&] {
          (void)model.with({0});
        }) == "first_layer has one entry per stage, the first of them 0");
  CHECK(refusal([&] {
          (void)model.with({1, 2});
        }) == "first_layer has one entry per stage, the first of them 0");
  CHECK(refusal([&] {
          (void)model.with({0, 0});
        }) == "stage 0: has the layers from 0 to before 0; give it at least one of the 3");
  CHECK(refusal([&] {
          (void)model.with({0, 3});
        }) == "stage 1: has the layers from 3 to before 3; give it at least one of the 3");
  CHECK(refusal([&] {
          (void)model.with({0, -1});
        }) == "stage 0: has the layers from 0 to before -1; give it at least one of the 3");
  CHECK(refusal([&] {
          (void)model.with({0, 1}, {true});
        }) == "recompute is empty or has one entry per stage");
  CHECK(refusal([&] {
          (void)model.with({0, 1}, {true, false});
        }) == "stage 0: is to recompute, but none of its layers says how long that takes");
  CHECK(refusal([&] {
          (void)partition(model, zbpp::zb_h1{}, {.schedules = 0});
        }) == "schedules is less than 1; the policy is asked at least once");
}

TEST_CASE("progress ascends to the end, and tells what is found", "[partition]") {
  ZBPP_SEEDED(random, 0);
  layered_problem const model(placement::linear(3), 6, random_layers(random, 30), 5, {});
  double spent = 0;
  ticks last = 0;
  auto const found = partition(
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

TEST_CASE("a partition by name is that of the policy", "[partition]") {
  for (int trial = 0; trial < 8; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const model =
        random_model(random, placement::linear(static_cast<int>(random.integer(1, 3))), 7);
    auto const outcome = [&](auto act) {
      try {
        auto const found = act();
        return std::to_string(found.cost) + " " + std::to_string(found.tries) + " " +
               std::to_string(found.first_layer.back());
      } catch (zbpp::error const& refused) {
        return std::string(refused.what());
      }
    };
    CHECK(
        outcome([&] { return partition_by_name(model, "zb_h1", {.seed = 5}, 40); }) ==
        outcome([&] { return partition(model, zbpp::zb_h1{}, {.schedules = 40, .seed = 5}); }));
    CHECK(outcome([&] { return partition_by_name(model, "1F1B"); }) == outcome([&] {
            return partition(model, zbpp::one_f_one_b{}, {.seed = 3});
          }));
  }
}

TEST_CASE("a policy that searches shares its budget among cuts", "[partition]") {
  ZBPP_SEEDED(random, 0);
  std::vector<layer_costs> layers(10, random_layers(random, 1).front());
  layers.back().forward *= 3;
  for (auto const* name : {"greedy_auto", "v_half", "v_min", "interleaved_zb"}) {
    INFO(name);
    bool const is_looped = std::string(name) == "interleaved_zb";
    layered_problem const model(
        is_looped ? placement::looped(2, 2) : placement::v_shape(2), 6, layers, 2, {100'000});
    double first = 0;
    double spent = 0;
    auto const found = partition_by_name(
        model,
        name,
        {.seconds = 0.01,
         .on_progress =
             [&](zbpp::search_progress const& now) {
               CHECK(now.spent >= spent);
               CHECK(now.lower_bound <= now.cost);
               if (spent == 0) first = now.spent;
               spent = now.spent;
             }},
        10);
    CHECK(first <= 0.05);  // half of all is for ten cuts, the first of which tells how far it is
    CHECK(spent > 0.4);
    CHECK(found.tries <= 10);
    CHECK(cost(simulate(found.schedule, found.problem)) == found.cost);
    CHECK(verify(lower(found.schedule), found.problem).empty());
    CHECK(partition_by_name(model, name, {.seconds = 0.01}, 10).schedule == found.schedule);
  }
}

TEST_CASE("what a name cannot be asked for is refused", "[partition]") {
  layer_costs const layer{.forward = 1, .activation = 10};
  layered_problem const model(placement::linear(2), 4, std::vector<layer_costs>(5, layer), 0, {1});
  CHECK(refusal([&] {
          (void)partition_by_name(model, "fastest");
        }).starts_with("no policy is called 'fastest'; there are gpipe"));
  CHECK(refusal([&] {
          (void)partition_by_name(model, "gpipe", {}, -1);
        }) == "schedules is less than 0; 0 leaves it to zbpp");
  CHECK(refusal([&] {
          (void)partition_by_name(model, "gpipe", {.seconds = -1});
        }).starts_with("a budget of -1"));
  // Not the memory that no cut has, but the placement.
  for (auto const* name : {"zb_v", "v_half", "dualpipe_v"})
    CHECK(refusal(errc::unsupported_problem, [&] {
            (void)partition_by_name(model, name);
          }).find("needs a v placement") != std::string::npos);
  CHECK(refusal(errc::unsupported_problem, [&] {
          (void)partition_by_name(model, "greedy_auto", {.seconds = 0.001});
        }).starts_with("none of the "));
}

TEST_CASE("a partition that cannot be is refused by what it lacks", "[partition]") {
  layer_costs const layer{.forward = 1, .activation = 10, .static_memory = 5};
  std::vector<layer_costs> const layers(5, layer);
  CHECK(
      refusal(
          errc::unsupported_problem,
          [&] {
            (void)partition(
                layered_problem(placement::linear(2), 4, layers, 0, {38}), zbpp::zb_h1{});
          }) == "rank 0: none of the 4 partitions tried fits: the closest needs 50 bytes, the "
                "limit is 38; it "
                "fits when every limit is higher by 12");
  auto const fits =
      partition(layered_problem(placement::linear(2), 4, layers, 0, {50}), zbpp::zb_h1{});
  CHECK(fits.first_layer == std::vector<int>{0, 2});
  CHECK(refusal(errc::unsupported_problem, [&] {
          (void)partition(layered_problem(placement::v_shape(2), 4, layers), zbpp::zb_h1{});
        }) == "ZB-H1 needs a linear placement, one stage per rank; this one is v");
}

}  // namespace test_partition
