// SPDX-License-Identifier: Apache-2.0
//
// Layers as stages, and stages as layers: how they are cut, merged, divided, and placed elsewhere.
#include <zbpp/model/problem.hpp>
// What the checks need besides.
#include <zbpp/model/detail/divided_stages.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/scaled_costs.hpp>

#include <support/catch.hpp>
#include <support/changed_problems.hpp>
#include <support/random_layers.hpp>
#include <support/random_stages.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace test_layers {

using namespace zbpp;

using test::random_layers;
using test::random_placement;
using test::refusal;

TEST_CASE("the costs of a stage are those of its layers together", "[layers]") {
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

TEST_CASE("a stage takes on a rank of another speed what its layers do there", "[layers]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const layers = random_layers(random, 3);
    auto whole = merge_layers(layers);
    if (random.chance(0.5)) whole.overlapped = std::max(whole.forward, whole.backward_input) + 1;
    if (random.chance(0.5))
      whole.overlapped_fused =
          std::max(whole.forward, whole.of(pass_kind::backward)) + random.integer(0, 5);
    auto const speed = static_cast<double>(random.integer(1, 400)) / 100;
    auto const there = at_speed(whole, speed);
    there.check(0);  // no two numbers contradict
    CHECK(at_speed(whole, 1) == whole);
    for (auto const kind :
         {pass_kind::forward,
          pass_kind::backward_input,
          pass_kind::backward_weight,
          pass_kind::backward,
          pass_kind::recompute})
      CHECK(
          std::abs(
              static_cast<double>(there.of(kind)) * speed - static_cast<double>(whole.of(kind))) <=
          speed * 1.01);
    CHECK(there.activation == whole.activation);
    problem const model(
        {whole, whole, whole}, {.ranks = 2, .microbatches = 3, .rank_speeds = {1.0, speed}});
    auto const cut = with_cut(model, {0, 2});
    auto const keeping = [](stage_costs costs) {
      costs.recompute.reset();
      return costs;
    };
    CHECK(cut.costs(0) == keeping(merge_layers(std::vector{whole, whole})));
    CHECK(cut.costs(1) == at_speed(keeping(merge_layers(std::vector{whole})), speed));
  }
}

TEST_CASE("layers are cut so that the longest stage takes the least time", "[layers]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const place = random_placement(random);
    auto const count = place.stages() + static_cast<int>(random.integer(0, 4));
    auto const model = with_placement(
        problem(
            random_layers(random, count),
            {.ranks = place.ranks(), .rank_speeds = test::random_speeds(random, place.ranks())}),
        place);
    auto const longest = [](problem const& cut) {
      ticks most = 0;
      for (auto const& c : cut.all_costs())
        most = std::max(most, c.forward + c.of(pass_kind::backward));
      return most;
    };
    auto least = longest(model);
    test::for_each_composition(count, place.stages(), [&](std::vector<int> const& first) {
      auto const cut = with_cut(model, first);
      least = std::min(least, longest(cut));
      CHECK((cut == model) == std::ranges::equal(model.first_layer(), first));
    });
    // Times of a rank of another speed are rounded, three of each stage.
    CHECK(longest(model) <= least + (model.rank_speeds().empty() ? 0 : 3));
  }
}

TEST_CASE("a cut is kept with its layers, and only by what does not move them", "[layers]") {
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const place = random_placement(random);
    auto const count = place.stages() + static_cast<int>(random.integer(1, 4));
    auto const layers = random_layers(random, count);
    auto const even = with_placement(problem(layers, {.ranks = place.ranks()}), place);
    std::vector<int> first;
    for (int s = 0; s < place.stages(); ++s) first.push_back(s);
    std::vector<bool> recompute;
    for (int s = 0; s < place.stages(); ++s) {
      auto const end = s + 1 < place.stages() ? s + 1 : count;
      recompute.push_back(
          merge_layers(std::span(layers).subspan(detail::index(s), detail::index(end - s)))
              .recompute &&
          random.chance(0.5));
    }
    auto const cut = with_cut(even, first, recompute);
    CHECK(std::ranges::equal(cut.layers(), layers));
    CHECK(std::ranges::equal(cut.first_layer(), first));
    for (int s = 0; s < place.stages(); ++s) {
      CHECK(cut.end_layer(s) == (s + 1 < place.stages() ? s + 1 : count));
      CHECK(cut.costs(s).recompute.has_value() == recompute[detail::index(s)]);
    }
    CHECK(
        with_cut(
            with_cut(cut, {even.first_layer().begin(), even.first_layer().end()}),
            first,
            recompute) == cut);
    CHECK(with_cut(cut, {even.first_layer().begin(), even.first_layer().end()}) == even);
    CHECK(with_placement(cut, place) == cut);
    CHECK(with_layers(cut, layers) == even);
    CHECK(std::ranges::equal(with_microbatches(cut, 5).first_layer(), first));
    CHECK(std::ranges::equal(with_memory_limit(cut, 1 << 20).first_layer(), first));
    CHECK(with_microbatches(with_transfer(with_microbatches(cut, 5), 0), 1) == cut);
    auto const stages = with_stages(cut, {cut.all_costs().begin(), cut.all_costs().end()});
    CHECK(stages != cut);
    CHECK(stages.layers().empty());
    CHECK(stages == problem(place, 1, {cut.all_costs().begin(), cut.all_costs().end()}));
    CHECK(refusal([&] {
            (void)with_cut(stages, first);
          }) == "the problem states stages; only layers can be cut");
  }
}

TEST_CASE("a model with one part changed keeps the others", "[layers]") {
  std::vector<layer_costs> const layers(4, {.forward = 3, .activation = 2});
  std::vector<layer_costs> const others(5, {.forward = 7});
  auto const made = [](std::vector<layer_costs> of, int microbatches, std::vector<bytes> limits) {
    return problem(
        std::move(of),
        {.ranks = 2,
         .microbatches = microbatches,
         .transfer = 5,
         .memory_limits = std::move(limits),
         .rank_speeds = {1, 0.5}});
  };
  auto const model = made(layers, 3, {9});
  CHECK(with_layers(model, others) == made(others, 3, {9}));
  CHECK(with_memory_limits(model, {8, 9}) == made(layers, 3, {8, 9}));
  CHECK(with_microbatches(model, 8) == made(layers, 8, {9}));
  auto const on_v = with_placement(model, placement::v_shape(2));
  CHECK(on_v.placement() == placement::v_shape(2));
  CHECK(with_placement(on_v, placement::linear(2)) == model);
  auto const factors = with_microbatch_factors(model, {1, 2, 3});
  CHECK(with_microbatch_factors(with_placement(factors, on_v.placement()), {}) == on_v);
  CHECK(
      with_replicas(with_layers(with_replicas(model, {.count = 2}), others), {}) ==
      made(others, 3, {9}));
  auto const refused = [](auto const& change) {
    return !refusal(errc::bad_argument, change).empty();
  };
  CHECK(refused([&] { (void)with_layers(model, {{}}); }));
  CHECK(refused([&] { (void)with_memory_limits(model, {1, 2, 3}); }));
  CHECK(refused([&] { (void)with_placement(model, placement::linear(3)); }));
  CHECK(refused([&] { (void)with_microbatches(model, 0); }));
}

TEST_CASE("speeds of ranks that are none are refused", "[layers]") {
  auto const refused = [](std::vector<double> const& speeds, ticks forward) {
    return refusal(errc::bad_argument, [&] {
      (void)problem(
          std::vector<layer_costs>(2, {.forward = forward}),
          {.ranks = 2, .microbatches = 2, .rank_speeds = speeds});
    });
  };
  CHECK(refused({1}, 0) == "there are 1 speeds for 2 ranks; give one for each, or none");
  for (double const wrong : {0.0, -1.0, 1e-4, 1001.0, std::nan(""), HUGE_VAL})
    CHECK(
        refused({1, wrong}, 0) ==
        "rank 1: the speed is not from 0.001 to 1000; at 0.5 all takes twice as long");
  // What takes longer than any problem may is refused as well.
  CHECK(refused({1, 0.001}, ticks{1} << 58).find("add up to more than 2^62") != std::string::npos);
}

TEST_CASE("bad layers and bad cuts are refused", "[layers]") {
  auto const refused = [](std::vector<layer_costs> const& layers, int microbatches = 1) {
    return refusal([&] { (void)problem(layers, {.ranks = 2, .microbatches = microbatches}); });
  };
  std::vector<layer_costs> const three(3, {.forward = 1});
  CHECK(refused({{}}) == "there are 1 layers for 2 stages; each stage needs at least 1");
  CHECK(refused(std::vector<layer_costs>(4097)) == "there are 4097 layers; at most 4096");
  auto wrong = three;
  wrong[1].forward = -1;
  CHECK(refused(wrong) == "layer 1: forward is -1; at least 0");
  wrong[1].forward = ticks{1} << 61;
  CHECK(
      refused(wrong) ==
      "times or sizes of all layers, for each rank, add up to more than 2^62; use a coarser unit");
  CHECK(refused(three, 0) == "microbatches is 0; a step has at least 1");

  problem const model(three, {.ranks = 2});
  auto const cut = [&](std::vector<int> const& first, std::vector<bool> const& recompute = {}) {
    return refusal([&] { (void)with_cut(model, first, recompute); });
  };
  auto const entries = "first_layer has one entry per stage, the first of them 0";
  CHECK(cut({0}) == entries);
  CHECK(cut({1, 2}) == entries);
  for (int const second : {0, -1})
    CHECK(
        cut({0, second}) == "stage 0: has the layers from 0 to before " + std::to_string(second) +
                                "; give it at least one of the 3");
  CHECK(cut({0, 3}) == "stage 1: has the layers from 3 to before 3; give it at least one of the 3");
  CHECK(cut({0, 1}, {true}) == "recompute is empty or has one entry per stage");
  CHECK(
      cut({0, 1}, {true, false}) ==
      "stage 0: is to recompute, but none of its layers says how long that takes");
}

TEST_CASE("halves of a stage are valid and make the stage again", "[layers]") {
  for (int trial = 0; trial < 2000; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto whole = test::some_costs(random);
    whole.workspace = random.integer(0, 50);
    whole.norm = random.integer(0, 50);
    whole.optimizer_step = random.integer(0, 50);
    if (trial % 2 == 1) {
      whole.output_gradient = random.integer(0, 150);
      // Often as much as can be, where halves come out even only with care.
      whole.weight_gradient_input =
          random.chance(0.5)
              ? whole.activation + whole.output_gradient
              : random.integer(whole.output_gradient, whole.activation + whole.output_gradient);
    }
    if (whole.backward_fused == whole.backward_input + whole.backward_weight)
      whole.backward_fused.reset();  // says the same
    if (random.chance(0.5))
      whole.overlapped = random.integer(
          std::max(whole.forward, whole.backward_input), whole.forward + whole.backward_input - 1);
    auto const [first, second] = detail::split_stage(whole, 2);
    CHECK_NOTHROW(first.check(0));
    CHECK_NOTHROW(second.check(1));
    CHECK(first.forward - second.forward == whole.forward % 2);
    CHECK(first.backward_input - second.backward_input == whole.backward_input % 2);
    CHECK(first.activation - second.activation == whole.activation % 2);
    CHECK(first.edge == whole.edge);
    CHECK(merge_layers(std::array{first, second}) == whole);
  }
}

TEST_CASE("parts of stages are valid and make the stages again", "[layers]") {
  for (int trial = 0; trial < 1000; ++trial) {
    ZBPP_SEEDED(random, trial);
    std::vector<stage_costs> stages;
    for (auto left = random.integer(1, 3); left > 0; --left) {
      auto& whole = stages.emplace_back(test::some_costs(random));
      whole.output_gradient = random.integer(0, 50);
      whole.weight_gradient_input = whole.activation + whole.output_gradient;
      whole.workspace = random.integer(0, 50);
      if (random.chance(0.5))
        whole.overlapped = random.integer(
            std::max(whole.forward, whole.backward_input),
            whole.forward + whole.backward_input - 1);
      if (auto const fused = whole.of(pass_kind::backward); random.chance(0.5))
        whole.overlapped_fused =
            random.integer(std::max(whole.forward, fused), whole.forward + fused);
    }
    auto const parts = static_cast<int>(random.integer(1, 7));
    auto const all = detail::divided_stages(stages, parts);
    REQUIRE(all.size() == stages.size() * detail::index(parts));
    for (std::size_t s = 0; s < stages.size(); ++s) {
      auto const run = std::span(all).subspan(s * detail::index(parts), detail::index(parts));
      for (auto const& part : run) {
        CHECK_NOTHROW(part.check(0));
        CHECK(part.edge == stages[s].edge);
        CHECK(run.front().forward - part.forward <= 1);
        CHECK(run.front().forward >= part.forward);
        CHECK(run.front().activation - part.activation <= 1);
      }
      auto sum = merge_layers(run);
      auto whole = merge_layers(std::span(stages).subspan(s, 1));
      // Each part keeps an input of its own for R, which is no more than what it keeps at all.
      CHECK(sum.recompute_input <= whole.recompute_input);
      sum.recompute_input = whole.recompute_input;
      // B and W of a part are rounded apart, and an F and a BW hide no more than either takes.
      auto const saved = sum.saved_by_pairing(pass_kind::backward);
      auto const whole_saved = whole.saved_by_pairing(pass_kind::backward);
      CHECK(saved <= whole_saved);
      CHECK(saved >= whole_saved - 2 * parts);
      sum.overlapped_fused = whole.overlapped_fused;
      CHECK(sum == whole);
    }
  }
}

TEST_CASE("stages are put on any placement of their ranks with their sums", "[layers]") {
  for (int trial = 0; trial < 400; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const ranks = static_cast<int>(random.integer(1, 4));
    auto const some_placement = [&] {
      auto const kind = random.integer(0, 2);
      return kind == 0   ? placement::linear(ranks)
             : kind == 1 ? placement::v_shape(ranks)
                         : placement::looped(ranks, static_cast<int>(random.integer(2, 5)));
    };
    auto from = test::some_problem(random, some_placement(), 4);
    if (trial % 2 == 1) from = test::with_gradients(random, from);
    from = with_memory_limits(from, std::vector<bytes>(detail::index(ranks), 77));
    from = with_microbatch_factors(with_replicas(from, {.count = 2}), {1, 2, 3, 4});
    auto const placement = some_placement();
    auto const placed = with_placement(from, placement);
    CHECK(placed.placement() == placement);
    CHECK(placed.microbatches() == from.microbatches());
    CHECK(placed.transfer() == from.transfer());
    CHECK(placed.replicas() == from.replicas());
    CHECK(std::ranges::equal(placed.memory_limits(), from.memory_limits()));
    CHECK(std::ranges::equal(placed.microbatch_factors(), from.microbatch_factors()));
    CHECK(placed.costs(placed.stages() - 1).edge == from.costs(from.stages() - 1).edge);
    auto const sums = [](problem const& of) {
      std::array<std::int64_t, 8> sum{};
      for (auto const& c : of.all_costs()) {
        sum[0] += c.forward;
        sum[1] += c.backward_input;
        sum[2] += c.backward_weight;
        sum[3] += c.of(pass_kind::backward);
        sum[4] += c.activation;
        sum[5] += c.weight_gradient_input;
        sum[6] += c.static_memory;
        sum[7] += c.output_gradient;
      }
      return sum;
    };
    CHECK(sums(placed) == sums(from));
    if (placement == from.placement()) CHECK(placed == from);
  }
  problem const four(placement::linear(4), 8, stage_costs{.forward = 10, .edge = 7});
  auto const looped = with_placement(four, placement::looped(4, 3));
  for (int s = 0; s < 12; ++s) {
    CHECK(looped.costs(s).forward == (s % 3 == 0 ? 4 : 3));
    CHECK(looped.costs(s).edge == 7);
  }
  CHECK(refusal([&] {
          (void)with_placement(four, placement::linear(3));
        }) == "the placement has 3 ranks and the problem 4; a model stays on its ranks");
  problem const many(placement::linear(1 << 11), 1, stage_costs{.forward = 1});
  CHECK(refusal([&] {
          (void)with_placement(many, placement::looped(1 << 11, 513));
        }).find("would be divided into 1050624 parts; at most 1048576 are") != std::string::npos);
}

TEST_CASE("halves keep tied weights at the ends of the model", "[layers]") {
  auto const halves = [](int ranks) {
    std::vector<stage_costs> costs(detail::index(ranks), {.forward = 2});
    costs.front().tied = costs.back().tied = 64;
    problem const whole(placement::linear(ranks), 4, costs);
    return with_placement(whole, placement::v_shape(ranks)).tied_stages();
  };
  CHECK(halves(1) == std::vector{0, 1});
  CHECK(halves(3) == std::vector{0, 5});
}

}  // namespace test_layers
