// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/greedy_auto.hpp>
// What the checks need besides.
#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/known_orders.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/plan_search.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/registry.hpp>

#include <support/against_policies.hpp>
#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/planner_problems.hpp>
#include <support/random_pairs.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/tiny_problem.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace test_greedy_auto {

using zbpp::bytes;
using zbpp::found_schedule;
using zbpp::greedy_auto;
using zbpp::pass;
using zbpp::pass_kind;
using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::ticks;
using zbpp::test::even_bubble;
using zbpp::test::paper_problem;
using zbpp::test::paper_rows;
using zbpp::test::thinned;

namespace {

greedy_auto with_budget(double seconds) {
  greedy_auto policy;
  policy.search.seconds = seconds;
  return policy;
}

// What every answer must be.
found_schedule find(problem const& problem, double seconds) {
  auto found = with_budget(seconds).find(problem);
  CHECK(cost(zbpp::simulate(found.schedule, problem)) == found.cost);
  CHECK(found.cost >= found.bound.cost);
  CHECK(holds(found.bound, problem));
  auto const faults = verify(zbpp::lower(found.schedule), problem);
  INFO((faults.empty() ? std::string() : to_string(faults.front())));
  CHECK(faults.empty());
  return found;
}

long count(zbpp::schedule const& order, pass_kind kind) {
  auto const all = order.passes().all();
  return std::count_if(all.begin(), all.end(), [&](pass const& p) { return p.kind == kind; });
}

}  // namespace

TEST_CASE("pairs are used where they pay, and never make a plan worse", "[greedy_auto]") {
  int better = 0;
  for (int trial = 0; trial < thinned(60, 20); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 4));
    auto const where = trial % 3 == 0   ? placement::linear(p)
                       : trial % 3 == 1 ? placement::v_shape(p)
                                        : placement::looped(p, 2);
    auto const m = static_cast<int>(random.integer(1, 3 * p));
    auto const plain = zbpp::test::tiny_problem_with_gradients(random, where, m);
    auto const paired = find(zbpp::test::with_overlapped(plain, random), 0.002);
    auto const alone = find(plain, 0.002).cost;
    CHECK(paired.cost <= alone);
    better += paired.cost < alone ? 1 : 0;
  }
  CHECK(better > 0);
}

TEST_CASE("pairs that hide much of a pass make steps shorter", "[greedy_auto]") {
  // Without pairs no plan takes less than 16 * chunks * (F + B + W).
  struct row {
    placement where;
    ticks most;
  };
  stage_costs stage{.forward = 1000, .backward_input = 1000, .backward_weight = 600};
  for (auto const& [where, most] :
       {row{placement::linear(4), 37'400},
        row{placement::v_shape(4), 74'800},
        row{placement::looped(4, 2), 75'000}}) {
    INFO(where.name());
    stage.overlapped.reset();
    auto const chunks = where.stages() / where.ranks();
    CHECK(find({where, 16, stage}, 0.1).cost >= chunks * 16 * 2600);
    stage.overlapped = 1400;
    CHECK(find({where, 16, stage}, 0.1).cost <= most);
    stage.overlapped = 2000;  // F + B hides nothing
    CHECK(zbpp::test::pairs_in(find({where, 16, stage}, 0.01).schedule) == 0);
  }
}

// @source arXiv 2401.10241v1 table 5
TEST_CASE("all ZB-1p and ZB-2p of the paper are met, ZB-1p with a proof", "[greedy_auto][paper]") {
  constexpr std::array zb_1p{
      .1585, .1242, .0674, .1323, .1045, .0554, .1397, .1088, .0576, .1421, .1106, .0594};
  constexpr std::array zb_2p{
      .0433, .0039, .0026, .0029, .0022, .0010, .0066, .0054, .0028, .0038, .0029, .0018};
  for (std::size_t i = 0; i < paper_rows.size(); ++i) {
    auto const& row = paper_rows[i];
    INFO(row.model << ", m = " << row.microbatches);
    auto const tight = paper_problem(row, 1);
    auto const found = find(tight, 0.05);
    CHECK(found.is_optimal());
    CHECK(even_bubble(tight, found.cost) < zb_1p[i] + 0.00005);
    auto const wide = paper_problem(row, 2);
    CHECK(even_bubble(wide, find(wide, 0.3).cost) < zb_2p[i] + 0.00005);
  }
}

// @source arXiv 2401.10241v1 table 8
TEST_CASE("on a V no bubble is larger than that of ZB-V in the paper", "[greedy_auto][paper]") {
  for (auto const& row : zbpp::test::table_8) {
    if (row.microbatches > thinned(256, 96)) continue;
    auto const what = row.on_v();
    auto const found = find(what, row.microbatches < 100 ? 0.02 : 0.1);
    INFO(row.model << ", m = " << row.microbatches << ": " << even_bubble(what, found.cost));
    CHECK(even_bubble(what, found.cost) < row.bubble_zb_v + 0.00005);
  }
}

TEST_CASE("nearly all cells of the memory sweep are proved", "[greedy_auto][paper]") {
  int proved = 0;
  int cells = 0;
  for (auto const& row : paper_rows) {
    if (row.ranks > thinned(16, 8)) continue;
    for (auto const limit : zbpp::test::sweep_limits) {
      auto const what = paper_problem(row, limit);
      auto const found = find(what, 0.1);
      ++cells;
      proved += found.is_optimal() ? 1 : 0;
      INFO(row.model << ", m = " << row.microbatches << ", limit " << limit << " p");
      CHECK(static_cast<double>(found.cost) < 1.001 * static_cast<double>(found.bound.cost));
    }
  }
  std::printf("memory sweep: %d of %d proved\n", proved, cells);
  CHECK(cells == thinned(81, 54));
  CHECK(proved >= thinned(72, 48));  // more budget proves more: bench/report_planner.cpp
}

TEST_CASE("limits below those of 1F1B cost little more", "[greedy_auto]") {
  stage_costs even{.forward = 1000000, .backward_input = 1000000, .backward_weight = 1000000};
  even.activation = 1000;
  even.weight_gradient_input = 500;
  auto const with_room = [&](bytes room) {
    return problem(placement::linear(8), 24, even, 0, {room * even.activation});
  };
  CHECK(even_bubble(with_room(6), find(with_room(6), 0.05).cost) < 0.172);
  CHECK(even_bubble(with_room(4), find(with_room(4), 0.05).cost) < 0.385);
  auto const row = paper_problem(paper_rows[6], 0.75);
  CHECK(even_bubble(row, find(row, 0.1).cost) < 0.237);
}

TEST_CASE(
    "a V at the memory of 1F1B is optimal, and has no bubble at half as much again",
    "[greedy_auto][paper]") {
  struct goal {
    std::size_t row;
    double at_1p;
  };
  for (auto const& [row, at_1p] : {goal{3, .0403}, goal{6, .0498}, goal{0, .0703}}) {
    INFO(paper_rows[row].model);
    auto const tight = zbpp::test::paper_problem_on_v(paper_rows[row], 1);
    auto const found = find(tight, 0.1);
    CHECK(found.is_optimal());
    CHECK(even_bubble(tight, found.cost) < at_1p + 0.00005);
  }
  for (std::size_t row : {std::size_t{6}, std::size_t{9}}) {
    auto const wide = zbpp::test::paper_problem_on_v(paper_rows[row], 1.5);
    CHECK(even_bubble(wide, find(wide, 0.1).cost) < 0.00005);
  }
}

// The goals are what repeated blocks with the transfers of the paper and W placed greedily reach.
TEST_CASE("a V below the memory of 1F1B is within a percent of its bound", "[greedy_auto]") {
  struct goal {
    std::size_t row;
    int microbatches;  // that a rank has room for
    double milliseconds;
  };
  for (auto const& [row, room, most] :
       thinned<std::vector<goal>>({{0, 5, 1325}, {3, 5, 2220}, {6, 9, 1773.1}}, {{3, 5, 2220}})) {
    INFO(paper_rows[row].model << ", room for " << room);
    auto const what = zbpp::test::paper_problem_on_v(
        paper_rows[row], static_cast<double>(room) / paper_rows[row].ranks);
    auto const found = find(what, 0.3);
    CHECK(static_cast<double>(found.cost) / 1e6 <= most);
    CHECK(static_cast<double>(found.cost) < 1.0101 * static_cast<double>(found.bound.cost));
  }
}

// interleaved_zb and v_half search with less memory to fill, which is sometimes the easier problem.
TEST_CASE(
    "no policy of the registry is cheaper, or as cheap with less memory, within the same limits",
    "[greedy_auto]") {
  for (std::uint64_t seed = 0; seed < thinned<std::uint64_t>(45, 15); ++seed) {
    auto const what = zbpp::test::any_planner_problem(seed, 8);
    for (auto const& better : zbpp::test::better_policies(seed, what, {.seconds = 0.003})) {
      INFO("seed " << seed << ", " << better.placement << ": " << better.policy);
      CHECK(better.found <= better.cost);
      CHECK(better.is_cheaper());  // takes less memory at the same cost
    }
  }
}

TEST_CASE("uneven pipelines are planned close to their bound", "[greedy_auto]") {
  struct goal {
    char kind;
    int cases;
    int proved;  // percent; more budget proves more: bench/report_planner.cpp
    double gap;
  };
  for (auto const& [kind, cases, least, most] :
       {goal{'l', thinned(40, 10), 75, thinned(0.002, 0.003)},
        goal{'v', thinned(30, 10), 90, 0.0005},
        goal{'o', thinned(30, 6), 50, thinned(0.0015, 0.003)}}) {
    zbpp::test::plain_random random(20);
    double gap = 0;
    int proved = 0;
    for (int i = 0; i < cases; ++i) {
      auto const found = find(zbpp::test::uneven_problem(random, kind), 0.05);
      gap += static_cast<double>(found.cost - found.bound.cost) / static_cast<double>(found.cost);
      proved += found.is_optimal() ? 1 : 0;
    }
    std::printf(
        "uneven, %c: %d of %d proved, mean gap %.4f %%\n", kind, proved, cases, 100 * gap / cases);
    INFO(kind);
    CHECK(proved >= cases * least / 100);
    CHECK(gap / cases < most);
  }
}

TEST_CASE("no handcrafted schedule that fits is cheaper", "[greedy_auto]") {
  zbpp::test::plain_random random(8);
  int compared = 0;
  auto const compare = [&](problem const& problem, ticks found) {
    for (auto const& policy : zbpp::builtin_policies()) {
      constexpr std::array<std::string_view, 5> searched{
          "greedy_auto", "zb_v", "v_half", "v_min", "interleaved_zb"};
      if (std::ranges::find(searched, policy.name()) != searched.end()) continue;
      CAPTURE(policy.name(), problem.microbatches());
      try {
        auto const schedule = policy(problem);
        if (!zbpp::detail::is_within_limits(schedule, problem)) continue;
        CHECK(found <= cost(zbpp::simulate(schedule, problem)));
        ++compared;
      } catch (zbpp::error const& e) {
        REQUIRE(e.code() == zbpp::errc::unsupported_problem);
      }
    }
    for (auto const& known : zbpp::detail::known_orders(problem))
      if (zbpp::detail::is_within_limits(known, problem))
        CHECK(found <= cost(zbpp::simulate(known, problem)));
  };
  for (char kind : {'l', 'v', 'o'})
    for (int i = 0; i < thinned(12, 4); ++i) {
      auto const given = zbpp::test::uneven_problem(random, kind);
      compare(given, find(given, 0).cost);
      auto const costs = given.all_costs();
      problem const unlimited(
          given.placement(), given.microbatches(), {costs.begin(), costs.end()}, given.transfer());
      compare(unlimited, find(unlimited, 0).cost);
    }
  CHECK(compared > thinned(100, 30));
}

TEST_CASE("tiny problems are often planned to the true optimum", "[greedy_auto][exhaustive]") {
  int equal = 0;
  int solved = 0;
  for (int i = 0; i < thinned(300, 100); ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i));
    auto const where = zbpp::test::tiny_placement(random, i);
    auto const what =
        zbpp::test::tiny_problem(random, where, static_cast<int>(random.integer(1, 3)));
    auto const best = zbpp::test::find_optimum(what);
    if (!best.complete || !best.cost) continue;
    auto const found = find(what, 0.01);
    ++solved;
    equal += found.cost == *best.cost ? 1 : 0;
    CHECK(found.cost >= *best.cost);
    if (found.is_optimal()) CHECK(found.cost == *best.cost);
  }
  std::printf("tiny: %d of %d equal to the optimum\n", equal, solved);
  CHECK(equal > solved * 9 / 10);
}

TEST_CASE("tiny problems whose B adds for W are planned, too", "[greedy_auto][exhaustive]") {
  int equal = 0;
  int solved = 0;
  int fused = 0;
  for (int i = 0; i < thinned(200, 10); ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i));
    auto const where = zbpp::test::tiny_placement(random, i);
    auto const what = zbpp::test::tiny_problem_with_gradients(
        random, where, static_cast<int>(random.integer(1, 3)));
    auto const best = zbpp::test::find_optimum(what);
    if (!best.complete) continue;
    REQUIRE(best.cost);
    auto const found = find(what, 0.01);
    ++solved;
    equal += found.cost == *best.cost ? 1 : 0;
    fused += count(found.schedule, pass_kind::backward) > 0 ? 1 : 0;
    CHECK(found.cost >= *best.cost);
    if (found.is_optimal()) CHECK(found.cost == *best.cost);
  }
  std::printf("tiny, B adds for W: %d of %d equal to the optimum\n", equal, solved);
  CHECK(equal > solved * 8 / 10);
  CHECK(fused > solved / 10);
}

TEST_CASE("the answer depends on problem, seed and budget alone", "[greedy_auto]") {
  zbpp::test::plain_random random(5);
  for (char kind : {'l', 'v', 'o'}) {
    auto const what = zbpp::test::uneven_problem(random, kind);
    auto const once = with_budget(0.01).find(what);
    auto const again = with_budget(0.01).find(what);
    CHECK(once.schedule == again.schedule);
    CHECK(once.tries == again.tries);
    ticks last = with_budget(0).find(what).cost;
    for (double seconds : {0.003, 0.01, 0.03}) {
      auto const found = with_budget(seconds).find(what).cost;
      CHECK(found <= last);
      last = found;
    }
  }
}

TEST_CASE("a search that is stopped answers with the best so far", "[greedy_auto]") {
  auto const what = paper_problem(paper_rows[10], 1.125);
  std::stop_source source;
  auto policy = with_budget(1000);
  policy.search.stop = source.get_token();
  int reports = 0;
  ticks last = 0;
  policy.search.on_progress = [&](zbpp::search_progress const& now) {
    if (reports > 0) CHECK(now.cost <= last);
    last = now.cost;
    CHECK(now.spent <= 1);
    CHECK(now.lower_bound <= now.cost);
    if (++reports == 1) source.request_stop();
  };
  auto const found = policy.find(what);
  CHECK(reports == 1);
  CHECK(found.cost <= last);
  CHECK(verify(zbpp::lower(found.schedule), what).empty());
}

TEST_CASE("a long search tells of its progress as often as a short one", "[greedy_auto]") {
  auto const what = paper_problem(paper_rows[10], 1.125);
  std::stop_source source;
  auto policy = with_budget(5);
  policy.search.stop = source.get_token();
  std::vector<double> spent;
  policy.search.on_progress = [&](zbpp::search_progress const& now) {
    spent.push_back(now.spent);
    if (spent.size() == 3) source.request_stop();
  };
  static_cast<void>(policy.find(what));
  REQUIRE(spent.size() == 3);
  CHECK(spent.back() < 0.03);  // 0.15 seconds; three 64ths of the budget would be 0.05
}

TEST_CASE(
    "a search that has the optimum proves it long before its budget is spent", "[greedy_auto]") {
  // Found within the first hundredth of the budget; only a raised bound proves it.
  constexpr std::array problems{24, 357, 430};
  zbpp::test::plain_random random(20);
  for (int i = 0; i <= problems.back(); ++i) {
    auto const what = zbpp::test::uneven_problem(random, 'o');
    if (std::ranges::find(problems, i) == problems.end()) continue;
    INFO("problem " << i);
    auto policy = with_budget(0.3);
    double spent = 0;
    policy.search.on_progress = [&](zbpp::search_progress const& now) { spent = now.spent; };
    CHECK(policy.find(what).is_optimal());
    CHECK(spent < 0.2);  // 0.5 where it goes on, as another search of less memory could follow
  }
}

TEST_CASE("a search that is near its bound takes up to twice its budget", "[greedy_auto]") {
  zbpp::test::plain_random random(5);
  for (char kind : {'l', 'v', 'o'}) {
    auto const what = zbpp::test::uneven_problem(random, kind);
    auto const least = find(what, 0.01).bound.cost;
    zbpp::search_settings const search{.seconds = 0.004};
    // Bounds that no schedule meets.
    auto const tries = [&](double share) {
      auto const bound = static_cast<ticks>(static_cast<double>(least) * share);
      auto const depths =
          what.placement().is_linear() ? zbpp::staircase(what).forwards : std::vector<int>{};
      zbpp::detail::plan_search made(what, bound, depths, {}, search);
      made.try_known();
      made.improve(3);  // more than it may take
      return static_cast<double>(made.tries());
    };
    INFO("kind " << kind);
    auto const far = tries(0.98);
    CHECK(tries(0.9998) > 1.5 * far);
    CHECK(tries(0.9998) < 2.5 * far);
  }
}

// Of one microbatch no passes can change places, and many bounds are not met.
TEST_CASE("a search keeps its budget where an order leaves nothing to change", "[greedy_auto]") {
  constexpr double seconds = 0.01;
  constexpr double passes_a_try = 75.0 / 2;  // at least: of two steps one changes an order
  constexpr double most_searches = 3;  // in all the memory and in less, each with the whole budget
  constexpr double most_budgets = 2 * 2.2;
  auto const most_tries =
      most_searches * most_budgets * seconds * zbpp::detail::passes_a_second / passes_a_try;
  int spent = 0;
  for (int i = 0; i < thinned(60, 20); ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i));
    auto const where = zbpp::test::tiny_placement(random, i);
    auto const found = find(zbpp::test::tiny_problem_with_gradients(random, where, 1), seconds);
    CHECK(static_cast<double>(found.tries) <= most_tries);
    spent += found.is_optimal() ? 0 : 1;
  }
  CHECK(spent > 0);
}

TEST_CASE("limits that no schedule keeps are refused with the least that works", "[greedy_auto]") {
  stage_costs const costs{.forward = 5, .activation = 10, .static_memory = 3, .workspace = 2};
  std::vector<bytes> limits{50, 24, 50};
  problem const problem(placement::v_shape(3), 4, costs, 0, limits);
  CHECK(
      zbpp::test::refusal(
          zbpp::errc::unsupported_problem, [&] { static_cast<void>(greedy_auto{}(problem)); }) ==
      "rank 1: no schedule fits: the rank needs 28 bytes for one microbatch at a time, its limit "
      "is 24; the least limit that works for every rank is 28");
  zbpp::problem const enough(placement::v_shape(3), 4, costs, 0, {28});
  CHECK(find(enough, 0).cost > 0);
}

// The scheduler sets memory aside for the largest workspace of a rank and for R; the least limits
// do not, and are planned one microbatch after another.
TEST_CASE("the least limits are planned, whatever shares the rank", "[greedy_auto]") {
  for (int i = 0; i < thinned(200, 50); ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i));
    auto const ranks = static_cast<int>(random.integer(1, 3));
    auto const where = random.chance(0.5) ? placement::v_shape(ranks) : placement::looped(ranks, 3);
    std::vector<stage_costs> stages;
    for (int s = 0; s < where.stages(); ++s) {
      stage_costs c{.forward = 10, .backward_input = 10, .backward_weight = 10};
      c.activation = random.integer(0, 100);
      c.weight_gradient_input = random.integer(0, c.activation);
      c.workspace = random.integer(0, 50);
      c.static_memory = random.integer(0, 9);
      if (random.chance(0.5)) {
        c.recompute = 5;
        c.recompute_input = random.integer(0, c.activation);
      }
      if (random.chance(0.3)) c.edge = random.integer(0, 20);
      if (i % 2 == 1) {
        c.output_gradient = random.integer(0, 100);
        c.weight_gradient_input += c.output_gradient;
      }
      stages.push_back(c);
    }
    auto limits = zbpp::least_memory(problem(where, 3, stages));
    for (auto& limit : limits) limit += random.chance(0.5) ? 0 : random.integer(0, 60);
    find(problem(where, 3, stages, 1, limits), 0.0005);
  }
}

TEST_CASE("a budget that is no time is refused", "[greedy_auto]") {
  problem const problem(placement::linear(2), 2, stage_costs{});
  for (double seconds : {-1.0, 1e7, std::nan("")})
    CHECK_THROWS_AS(with_budget(seconds).find(problem), zbpp::error);
}

TEST_CASE("edges count against the limits", "[greedy_auto]") {
  for (int i = 0; i < 40; ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i));
    auto const where = i % 2 == 0 ? placement::linear(4) : placement::v_shape(3);
    stage_costs const costs{
        .forward = 10,
        .backward_input = 10,
        .backward_weight = 7,
        .activation = 100,
        .weight_gradient_input = random.integer(0, 100),
        .edge = random.integer(1, 60),
        .static_memory = 30,
        .workspace = 5};
    auto limits = zbpp::least_memory(problem(where, 9, costs));
    for (auto& limit : limits) limit += random.integer(0, 400);
    find(problem(where, 9, costs, random.integer(0, 4), limits), 0.001);
  }
}

TEST_CASE("a cheaper BW is used where it pays", "[greedy_auto]") {
  stage_costs costs{.forward = 10, .backward_input = 10, .backward_weight = 8};
  problem const split(placement::linear(4), 12, costs);
  costs.backward_fused = 10;
  problem const fused(placement::linear(4), 12, costs);
  auto const without = find(split, 0.01);
  auto const with = find(fused, 0.01);
  CHECK(count(with.schedule, pass_kind::backward) > 0);
  CHECK(count(without.schedule, pass_kind::backward) == 0);
  CHECK(with.cost < without.cost);
}

TEST_CASE("R is used where memory is short, and not where it is not", "[greedy_auto]") {
  stage_costs const costs{
      .forward = 10,
      .backward_input = 10,
      .backward_weight = 8,
      .recompute = 5,
      .activation = 100,
      .weight_gradient_input = 40,
      .recompute_input = 10};
  problem const wide(placement::linear(4), 12, costs, 1, {1200});
  CHECK(count(find(wide, 0.01).schedule, pass_kind::recompute) == 0);
  problem const tight(placement::linear(4), 12, costs, 1, {140});
  auto const found = find(tight, 0.02);
  CHECK(count(found.schedule, pass_kind::recompute) > 0);
  auto plain = costs;
  plain.recompute.reset();
  CHECK(found.cost < find(problem(placement::linear(4), 12, plain, 1, {140}), 0.02).cost);
}

}  // namespace test_greedy_auto
