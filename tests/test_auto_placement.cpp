// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/auto_placement.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/cuts.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/save_memory.hpp>
#include <zbpp/planner/with_placement.hpp>

#include <support/catch.hpp>
#include <support/changed_problems.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace test_auto_placement {

using namespace zbpp;

using test::with_gradients;
using test::with_limits;

namespace {

auto_placement brief(bool halve = true) {
  return {.search = {.seconds = 0.06}, .halve_stages = halve};
}

stage_costs some_costs(test::seeded_random& random) {
  stage_costs c;
  c.forward = random.integer(1, 150);
  c.backward_input = random.integer(1, 150);
  c.backward_weight = random.integer(0, 150);
  if (random.chance(0.5))
    c.backward_fused = random.integer(
        std::max(c.backward_input, c.backward_weight), c.backward_input + c.backward_weight);
  c.activation = random.integer(0, 150);
  c.weight_gradient_input = random.integer(0, c.activation);
  if (random.chance(0.3)) {
    c.recompute = random.integer(0, 99);
    c.recompute_input = random.integer(0, c.activation / 2);
  }
  c.edge = random.integer(0, 20);
  c.static_memory = random.integer(0, 300);
  return c;
}

problem some_problem(
    test::seeded_random& random,
    placement const& placement,
    int microbatches,
    bool splits_only = false) {
  std::vector<stage_costs> stages;
  for (int s = 0; s < placement.stages(); ++s) {
    stages.push_back(some_costs(random));
    if (!splits_only) continue;
    stages.back().backward_fused.reset();
    stages.back().recompute.reset();
    stages.back().recompute_input = 0;
  }
  return {placement, microbatches, stages, random.integer(0, 20)};
}

problem even(placement const& placement, int microbatches, ticks hop = 0, bytes limit = 1 << 20) {
  return {
      placement,
      microbatches,
      stage_costs{
          .forward = 100,
          .backward_input = 100,
          .backward_weight = 100,
          .activation = 100,
          .weight_gradient_input = 100},
      hop,
      {limit}};
}

// Placement and stages of each way to place a model, such as `linear 4`.
std::string names(problem const& problem, bool halve = true) {
  std::string text;
  for (auto const& one : detail::regroupings(problem, halve))
    text.append(text.empty() ? "" : ", ")
        .append(one.placement().name() + " " + std::to_string(one.stages()));
  return text;
}

std::vector<int> ranks_of(int stages) {
  std::vector<int> list;
  for (int s = 0; s < stages; ++s) list.push_back(s < 2 ? 1 - s : s % 2);
  return list;
}

}  // namespace

TEST_CASE("halves of a stage are valid and make the stage again", "[auto_placement]") {
  for (int trial = 0; trial < 2000; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto whole = some_costs(random);
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

TEST_CASE("parts of stages are valid and make the stages again", "[auto_placement]") {
  for (int trial = 0; trial < 1000; ++trial) {
    ZBPP_SEEDED(random, trial);
    std::vector<stage_costs> stages;
    for (auto left = random.integer(1, 3); left > 0; --left) {
      auto& whole = stages.emplace_back(some_costs(random));
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
    REQUIRE(all.size() == stages.size() * static_cast<std::size_t>(parts));
    for (std::size_t s = 0; s < stages.size(); ++s) {
      auto const run = std::span(all).subspan(
          s * static_cast<std::size_t>(parts), static_cast<std::size_t>(parts));
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

TEST_CASE("a model is put on any placement of its ranks with its sums", "[auto_placement]") {
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const ranks = static_cast<int>(random.integer(1, 4));
    auto const some_placement = [&] {
      auto const kind = random.integer(0, 2);
      return kind == 0   ? placement::linear(ranks)
             : kind == 1 ? placement::v_shape(ranks)
                         : placement::looped(ranks, static_cast<int>(random.integer(2, 5)));
    };
    auto const from = some_problem(random, some_placement(), 4);
    auto const placement = some_placement();
    auto const placed = with_placement(from, placement);
    CHECK(placed.placement() == placement);
    CHECK(placed.microbatches() == from.microbatches());
    CHECK(placed.transfer() == from.transfer());
    CHECK(std::ranges::equal(placed.memory_limits(), from.memory_limits()));
    auto const sum = [](problem const& of) {
      std::vector<std::int64_t> sums(5);
      for (auto const& c : of.all_costs()) {
        sums[0] += c.forward;
        sums[1] += c.backward_input;
        sums[2] += c.backward_weight;
        sums[3] += c.activation;
        sums[4] += c.static_memory;
      }
      return sums;
    };
    CHECK(sum(placed) == sum(from));
    if (placement == from.placement()) CHECK(placed == from);
  }
  problem const four(placement::linear(4), 8, stage_costs{.forward = 10, .edge = 7});
  auto const looped = with_placement(four, placement::looped(4, 3));
  for (int s = 0; s < 12; ++s) {
    CHECK(looped.costs(s).forward == (s % 3 == 0 ? 4 : 3));
    CHECK(looped.costs(s).edge == 7);
  }
  CHECK(test::refusal([&] {
          static_cast<void>(with_placement(four, placement::linear(3)));
        }) == "the placement has 3 ranks and the problem 4; a model stays on its ranks");
}

TEST_CASE("halves keep tied weights at the ends of the model", "[auto_placement]") {
  auto const halves = [](int ranks) {
    std::vector<zbpp::stage_costs> costs(static_cast<std::size_t>(ranks), {.forward = 2});
    costs.front().tied = costs.back().tied = 64;
    zbpp::problem const problem(placement::linear(ranks), 4, costs);
    return detail::regroup(problem, placement::v_shape(ranks), 2)->tied_stages();
  };
  CHECK(halves(1) == std::vector{0, 1});
  CHECK(halves(3) == std::vector{0, 5});
}

TEST_CASE("a model goes where its stages come out even", "[auto_placement]") {
  CHECK(names(even(placement::linear(4), 8)) == "linear 4, v 8, looped 8");
  CHECK(names(even(placement::linear(4), 8), false) == "linear 4");
  CHECK(names(even(placement::v_shape(4), 8), false) == "linear 4, v 8, looped 8");
  CHECK(
      names(even(placement::looped(2, 12), 8)) ==
      "linear 2, v 4, looped 4, looped 6, looped 8, looped 12, looped 24");
  // 9 stages on 3 ranks are 18 halves, which make 6.
  CHECK(names(even(placement::looped(3, 3), 8)) == "linear 3, v 6, looped 6, looped 9");
  CHECK(names(even(placement::looped(3, 3), 8), false) == "linear 3, looped 9");
  CHECK(names(even(placement::custom({0, 1, 2, 1, 0, 1, 2}), 8)) == "custom 7");
  CHECK(names(even(placement::custom(ranks_of(6)), 8), false) == "linear 2, custom 6, looped 6");
  CHECK(names(even(placement::linear(1), 8)) == "linear 1, v 2");  // a V of one rank is looped, too
}

TEST_CASE("wherever it goes, a model has the same work and memory in all", "[auto_placement]") {
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 4));
    auto const v = static_cast<int>(random.integer(1, 6));
    auto free = some_problem(random, placement::looped(p, v), 3);
    if (trial % 2 == 1) free = with_gradients(random, free);
    auto const model = with_limits(free, std::vector<bytes>(detail::index(p), 77));
    auto const sums = [](problem const& one) {
      std::array<std::int64_t, 8> sum{};
      for (auto const& c : one.all_costs()) {
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
    for (auto const& one : detail::regroupings(model, true)) {
      CHECK(sums(one) == sums(model));
      CHECK(one.transfer() == model.transfer());
      CHECK(std::ranges::equal(one.memory_limits(), model.memory_limits()));
      CHECK(one.microbatches() == model.microbatches());
      CHECK(one.costs(one.stages() - 1).edge == model.costs(model.stages() - 1).edge);
    }
  }
}

TEST_CASE("each candidate is what it says, and the cheapest is taken", "[auto_placement][long]") {
  int moved = 0;
  for (int trial = 0; trial < test::thinned(40, 4); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 4));
    auto const v = static_cast<int>(random.integer(1, 4));
    auto const m = static_cast<int>(random.integer(1, 3 * p));
    auto problem = some_problem(random, placement::looped(p, v), m, trial % 2 == 0);
    if (trial % 4 >= 2) problem = with_gradients(random, problem);
    if (trial % 2 == 0) {
      auto limits = least_memory(problem);
      for (auto& limit : limits) limit += random.integer(0, 800);
      problem = with_limits(problem, limits);
    }
    auto const settings = brief(trial % 3 > 0);
    auto const found = settings.candidates(problem);
    REQUIRE_FALSE(found.empty());
    auto const best = settings(problem);
    auto const memory = [](found_plan const& one) {
      return memory_use_of(detail::memory_of(one.schedule, one.problem), one.problem);
    };
    for (auto const& one : found) {
      CHECK(cost(simulate(one.schedule, one.problem)) == one.cost);
      CHECK(verify(lower(one.schedule), one.problem).empty());
      CHECK(holds(one.bound, one.problem));
      CHECK(one.is_optimal() == (one.cost == one.bound.cost));
      CHECK(one.cost >= best.cost);
      if (one.cost > best.cost) continue;
      CHECK(memory(one) >= memory(best));
      CHECK((memory(one) > memory(best) || one.problem.stages() >= best.problem.stages()));
    }
    auto const placements = detail::regroupings(problem, settings.halve_stages).size();
    search_settings const share{
        .seconds = settings.search.seconds / static_cast<double>(placements)};
    CHECK(best.cost <= greedy_auto{.search = share}.find(problem).cost);
    CHECK(settings(problem).schedule == best.schedule);
    moved += best.problem.placement() != problem.placement() ? 1 : 0;
  }
  CHECK(moved > test::thinned(5, -1));
}

TEST_CASE("which placement is best depends on memory and transfers", "[auto_placement]") {
  auto const best = [](problem const& problem) { return brief()(problem).problem.placement(); };
  CHECK(best(even(placement::linear(4), 12, 0, 400)) == placement::v_shape(4));
  CHECK(best(even(placement::looped(4, 2), 12, 0, 800)) == placement::v_shape(4));
  // With so long a hop chunks only wait for each other.
  CHECK(best(even(placement::v_shape(2), 4, 5000)) == placement::linear(2));
  // At the same cost ZB-V takes half the memory of ZB-H2.
  CHECK(best(even(placement::looped(4, 2), 12)) == placement::v_shape(4));
  // All cost the same on one rank: the fewest stages.
  CHECK(best(even(placement::looped(1, 4), 3)) == placement::linear(1));
}

TEST_CASE("placements without enough memory are left out", "[auto_placement]") {
  // A custom placement has its first three stages on rank 0, so it needs more there.
  problem const problem(
      placement::custom({0, 0, 0, 1}), 4, stage_costs{.forward = 1, .activation = 100}, {}, {250});
  std::vector<std::string> fitting;
  for (auto const& one : brief().candidates(problem))
    fitting.push_back(one.problem.placement().name());
  CHECK(fitting == std::vector<std::string>{"linear", "v", "looped"});
  auto const refused = [](zbpp::problem const& tight) {
    return test::refusal(errc::unsupported_problem, [&] { (void)brief()(tight); });
  };
  CHECK(brief().candidates(with_limits(problem, {199})).empty());
  CHECK(
      refused(with_limits(problem, {199})) ==
      "rank 0: no schedule fits: the rank needs 200 bytes for "
      "one microbatch at a time, its limit is "
      "199; the least limit that works for every rank is 200");
}

TEST_CASE("a search of all placements tells how far it is and can be stopped", "[auto_placement]") {
  auto const problem = even(placement::looped(4, 2), 12, 7, 500);
  double last = 0;
  bool ascends = true;
  int calls = 0;
  auto settings = brief();
  settings.search.on_progress = [&](search_progress const& now) {
    ascends = ascends && now.spent >= last && now.spent <= 1;
    last = now.spent;
    ++calls;
  };
  (void)settings(problem);
  CHECK(ascends);
  CHECK(calls > 3);
  CHECK(last > 0.9);
  std::stop_source stop;
  stop.request_stop();
  auto_placement const stopped{.search = {.seconds = 1e6, .stop = stop.get_token()}};
  auto const found = stopped(problem);
  CHECK(verify(lower(found.schedule), found.problem).empty());
}

namespace {

bytes limit_of(found_plan const& found) { return found.problem.memory_limits().front(); }
double rate_of(found_plan const& found) {
  return bubble_rate(simulate(found.schedule, found.problem));
}

}  // namespace

TEST_CASE("with more memory no point of a sweep is worse", "[auto_placement]") {
  int points = 0;
  int proved = 0;
  for (int trial = 0; trial < test::thinned(12, 1); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 4));
    auto const v = static_cast<int>(random.integer(1, 2));
    auto const m = static_cast<int>(random.integer(1, 3 * p));
    auto const problem = some_problem(random, placement::looped(p, v), m, true);
    std::vector<bytes> limits;
    for (int i = 0; i < 6; ++i) limits.push_back(random.integer(0, 3000));
    limits.push_back(limits.front());
    auto const sweep = sweep_memory(problem, limits, brief());
    ticks work = 0;
    for (auto const& c : problem.all_costs())
      work += problem.microbatches() * (c.forward + c.backward_input + c.backward_weight);
    std::map<std::string, std::vector<found_plan>> by_placement;
    for (auto const& point : sweep) by_placement[point.problem.placement().text()].push_back(point);
    for (auto const& [name, line] : by_placement)
      for (std::size_t i = 0; i < line.size(); ++i) {
        ++points;
        proved += line[i].is_optimal() ? 1 : 0;
        CHECK(line[i].lower_bound <= line[i].cost);
        auto const available = static_cast<double>(p) * static_cast<double>(line[i].cost);
        CHECK(rate_of(line[i]) == 1 - static_cast<double>(work) / available);
        CHECK(line[i].is_optimal() == (line[i].lower_bound == line[i].cost));
        CHECK(std::count(limits.begin(), limits.end(), limit_of(line[i])) > 0);
        if (i == 0) continue;
        CHECK(limit_of(line[i]) > limit_of(line[i - 1]));
        CHECK(line[i].cost <= line[i - 1].cost);
        CHECK(line[i].lower_bound <= line[i - 1].lower_bound);
      }
    // A point is no worse than a search with its limit alone, and there is one wherever that fits.
    for (auto const limit : limits)
      for (auto const& one : brief().candidates(with_limits(problem, {limit}))) {
        auto const same = std::find_if(sweep.begin(), sweep.end(), [&](found_plan const& point) {
          return point.problem == one.problem;
        });
        REQUIRE(same != sweep.end());
        CHECK(same->cost <= one.cost);
        CHECK(same->lower_bound >= one.bound.cost);
      }
  }
  CHECK(points > test::thinned(60, 3));
  CHECK(proved > test::thinned(10, -1));
}

TEST_CASE(
    "the points of a sweep are known where they can be computed by hand", "[auto_placement]") {
  // One microbatch at a time takes a way down and one up: 4 * 200, and W of the last is over by
  // then.
  std::array<bytes, 3> const limits{400, 99, 100};
  auto const sweep = sweep_memory(even(placement::linear(4), 8), limits, brief(false));
  REQUIRE(sweep.size() == 2);
  CHECK(sweep[0].problem.placement().text() == "linear");
  CHECK(limit_of(sweep[0]) == 100);
  CHECK(limit_of(sweep[1]) == 400);
  // 1F1B's memory: m S + (p-1)(F + B - W), which is the optimum, and its bubble rate.
  CHECK(sweep[1].cost == 8 * 300 + 3 * 100);
  CHECK(sweep[1].is_optimal());
  CHECK(rate_of(sweep[1]) == 1 - 2400.0 / 2700.0);
  auto const last = sweep_memory(even(placement::looped(2, 4), 4), limits, brief()).back();
  CHECK(last.problem.placement().text() == "looped 4");
  CHECK(sweep_memory(even(placement::linear(2), 4), {}, brief()).empty());
  // On the problem's own placement alone.
  auto const own =
      sweep_memory(even(placement::linear(4), 8), limits, greedy_auto{brief(false).search});
  CHECK(own == std::vector<found_plan>(sweep.begin(), sweep.begin() + 2));
  std::array<bytes, 1> const negative{-1};
  CHECK(test::refusal([&] {
          (void)sweep_memory(even(placement::linear(2), 4), negative, brief());
        }) == "memory_limit is -1; a limit is at least 0 bytes");
}

}  // namespace test_auto_placement
