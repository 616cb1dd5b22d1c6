// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/bounds.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/paper.hpp>
#include <support/policy_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/tiny_optima.hpp>

#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace test_bounds {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// The profile of a row of table 5 with the sizes of table 1: M_B / M_W is 2.73 for the 1.5B model
// and 2.31 for the others.
problem paper_problem(zbpp::test::paper_row const& row, double times_pipeline) {
  auto costs = row.costs();
  costs.activation = std::string(row.model) == "1.5B" ? 273 : 231;
  costs.weight_gradient_input = 100;
  auto const limit = std::floor(times_pipeline * row.ranks * static_cast<double>(costs.activation));
  return {
      placement::linear(row.ranks),
      row.microbatches,
      costs,
      zbpp::from_milliseconds(row.transfer),
      {static_cast<bytes>(limit)}};
}

double bubble_of(problem const& problem, ticks cost) {
  auto const& c = problem.costs(0);
  auto const work = problem.microbatches() * (c.forward + c.backward_input + c.backward_weight);
  return 1 - static_cast<double>(work) / static_cast<double>(cost);
}

std::string text_of(cost_bound const& b) {
  return std::string(to_string(b.rule)) + " gives " + std::to_string(b.cost) + " on rank " +
         std::to_string(b.rank) + " through " + std::to_string(b.through);
}

// How often a bound is the optimum, over random problems of a few shapes.
struct sharpness {
  int problems = 0;
  int equal = 0;

  [[nodiscard]] double rate() const { return static_cast<double>(equal) / problems; }
};

template <class Shape>
sharpness compare_with_optimum(std::uint64_t stream, int rounds, Shape shape) {
  ZBPP_SEEDED(rng, stream);
  sharpness found;
  for (int round = 0; round < rounds; ++round) {
    auto const problem = shape(rng);
    auto const best = zbpp::test::find_optimum(problem, {.nodes = 20'000});
    if (!best.complete) continue;
    auto const bound = lower_bound(problem);
    INFO("round " << round << ": " << text_of(bound));
    check_certificate(bound, problem);
    if (!best.cost) continue;
    ++found.problems;
    CHECK(bound.cost <= *best.cost);
    if (bound.cost == *best.cost) ++found.equal;
  }
  return found;
}

}  // namespace

TEST_CASE("no order of a tiny linear problem costs less than its bound", "[bounds]") {
  auto const found = compare_with_optimum(1, thinned(4000, 160), [](auto& rng) {
    auto const p = static_cast<int>(rng.integer(1, 4));
    auto const m = static_cast<int>(rng.integer(1, p == 4 ? 6 : 9));
    return zbpp::test::tiny_problem(rng, placement::linear(p), m);
  });
  CHECK(found.problems > thinned(3000, 100));
  CHECK(found.rate() > 0.95);
}

TEST_CASE("no order of a tiny V costs less than its bound", "[bounds]") {
  auto const found = compare_with_optimum(2, thinned(3000, 120), [](auto& rng) {
    auto const p = static_cast<int>(rng.integer(1, 3));
    auto const m = static_cast<int>(rng.integer(1, p == 3 ? 3 : 6));
    return zbpp::test::tiny_problem(rng, placement::v_shape(p), m);
  });
  CHECK(found.problems > thinned(500, 10));
  CHECK(found.rate() > 0.75);
}

TEST_CASE("no order of a tiny looped problem costs less than its bound", "[bounds]") {
  auto const found = compare_with_optimum(3, thinned(3000, 120), [](auto& rng) {
    auto const p = static_cast<int>(rng.integer(2, 3));
    auto const chunks = static_cast<int>(rng.integer(2, p == 2 ? 3 : 2));
    auto const m = static_cast<int>(rng.integer(1, p * chunks == 4 ? 5 : 3));
    return zbpp::test::tiny_problem(rng, placement::looped(p, chunks), m);
  });
  CHECK(found.problems > thinned(500, 10));
  CHECK(found.rate() > 0.6);
}

TEST_CASE("no order of a tiny problem on any placement costs less than its bound", "[bounds]") {
  auto const found = compare_with_optimum(4, thinned(3000, 120), [](auto& rng) {
    std::vector<int> rank_of_stage;
    auto const p = static_cast<int>(rng.integer(1, 3));
    auto const stages = static_cast<int>(rng.integer(p, 4));
    for (int s = 0; s < stages; ++s)
      rank_of_stage.push_back(s < p ? s : static_cast<int>(rng.integer(0, p - 1)));
    rng.shuffle(std::span(rank_of_stage));
    auto const m = static_cast<int>(rng.integer(1, stages == 4 ? 3 : 5));
    return zbpp::test::tiny_problem(rng, placement::custom(rank_of_stage), m);
  });
  CHECK(found.problems > thinned(500, 10));
  CHECK(found.rate() > 0.9);
}

TEST_CASE("bounds hold where B adds more for W than F keeps", "[bounds]") {
  auto const found = compare_with_optimum(7, thinned(3000, 120), [](auto& rng) {
    auto const p = static_cast<int>(rng.integer(1, 3));
    auto const kind = rng.integer(0, 2);
    auto const placement = kind == 0   ? placement::linear(p)
                           : kind == 1 ? placement::v_shape(p)
                                       : placement::looped(2, 2);
    auto const m = static_cast<int>(rng.integer(1, kind == 0 ? 6 : 3));
    return zbpp::test::tiny_problem_with_gradients(rng, placement, m);
  });
  CHECK(found.problems > thinned(1500, 50));
  CHECK(found.rate() > 0.5);
}

// @source arXiv 2401.10241v1 table 5
TEST_CASE("ZB-H1 is optimal within the memory of 1F1B on the paper's profiles", "[bounds][paper]") {
  for (auto const& row : zbpp::test::paper_rows) {
    auto const problem = paper_problem(row, 1);
    auto const order = zbpp::zb_h1{}(problem);
    CHECK(zbpp::peak_activations(order, problem)[0] == *problem.memory_limit(0));
    auto const bound = lower_bound(problem);
    INFO(row.model << ", m = " << row.microbatches << ": " << text_of(bound));
    CHECK(bound.cost == cost(zbpp::simulate(order, problem)));
    CHECK(bound.rule == bound_rule::path);
    check_certificate(bound, problem);
  }
}

// The limits are 1, 1.125, 1.25, 1.5, 1.75, 1.875, 2, 2.5 and 3 times p activations.
TEST_CASE("the paper's profiles have these least bubble rates", "[bounds][paper][long]") {
  constexpr std::array times{1.0, 1.125, 1.25, 1.5, 1.75, 1.875, 2.0, 2.5, 3.0};
  constexpr double known[12][9] = {
      {.1585, .1279, .0951, .0524, .0433, .0433, .0433, .0433, .0433},
      {.1242, .0995, .0735, .0400, .0163, .0039, .0017, .0006, 0},
      {.0674, .0536, .0394, .0210, .0088, .0026, .0011, .0004, 0},
      {.1323, .0997, .0751, .0475, .0182, .0029, .0012, .0004, 0},
      {.1045, .0787, .0578, .0363, .0138, .0022, .0009, .0003, 0},
      {.0554, .0412, .0298, .0185, .0069, .0010, .0004, .0001, 0},
      {.1397, .1077, .0837, .0571, .0289, .0142, .0031, .0004, 0},
      {.1088, .0833, .0643, .0437, .0222, .0110, .0025, .0004, 0},
      {.0576, .0435, .0333, .0224, .0113, .0057, .0013, .0002, 0},
      {.1421, .1103, .0867, .0604, .0326, .0180, .0033, .0002, 0},
      {.1106, .0852, .0665, .0461, .0247, .0137, .0025, .0002, 0},
      {.0594, .0454, .0350, .0242, .0131, .0075, .0018, .0001, 0}};
  for (std::size_t r = 0; r < 12; ++r)
    for (std::size_t i = 0; i < times.size(); ++i) {
      auto const problem = paper_problem(zbpp::test::paper_rows[r], times[i]);
      auto const bound = lower_bound(problem);
      INFO("row " << r << ", " << times[i] << " p: " << text_of(bound));
      CHECK(zbpp::test::is_printed_as(bubble_of(problem, bound.cost), known[r][i]));
      check_certificate(bound, problem);
    }
}

TEST_CASE("a staircase costs what its depths need, and not less", "[bounds]") {
  ZBPP_SEEDED(rng, 5);
  for (int round = 0; round < thinned(300, 100); ++round) {
    auto const p = static_cast<int>(rng.integer(1, 12));
    auto const m = static_cast<int>(rng.integer(1, 30));
    auto const problem = zbpp::test::tiny_problem(rng, placement::linear(p), m);
    auto const stairs = zbpp::staircase(problem);
    INFO("round " << round);
    CHECK(stairs.cost <= lower_bound(problem).cost);
    REQUIRE(stairs.forwards.size() == zbpp::detail::index(p));
    ticks wait = 0;
    for (int r = p - 1; r >= 0; --r) {
      auto const& c = problem.costs(r);
      auto const n = stairs.forwards[zbpp::detail::index(r)];
      CHECK(n >= 1);
      CHECK(n <= m);
      if (auto const limit = problem.memory_limit(r))
        CHECK(n * c.activation + c.static_memory <= *limit);
      ticks pace = 0;
      for (int before = 0; before <= r; ++before)
        pace = std::max(pace, problem.costs(before).forward);
      auto const need = r == p - 1 ? c.forward
                                   : c.forward + problem.transfer_time(r, r + 1, 0) + wait +
                                         problem.costs(r + 1).backward_input +
                                         problem.transfer_time(r + 1, r, 0);
      wait = std::max(need, (n - 1) * pace + c.forward);
      CHECK(
          stairs.cost >=
          m * (c.forward + c.backward_input + c.backward_weight) + wait - n * c.forward);
    }
    cost_bound claim{stairs.cost, bound_rule::staircase};
    bool held = false;
    for (claim.rank = 0; claim.rank < p; ++claim.rank) held = held || holds(claim, problem);
    CHECK(held);
    ++claim.cost;
    for (claim.rank = 0; claim.rank < p; ++claim.rank) CHECK_FALSE(holds(claim, problem));
  }
}

TEST_CASE("a staircase needs a linear placement", "[bounds]") {
  problem const problem(placement::v_shape(2), 3, stage_costs{});
  CHECK(zbpp::test::refusal(zbpp::errc::unsupported_problem, [&] {
          (void)zbpp::staircase(problem);
        }) == "a staircase needs a linear placement, one stage per rank; this one is v");
}

TEST_CASE("each rule gives what docs/bounds.md works out", "[bounds]") {
  stage_costs const costs{
      .forward = 4,
      .backward_input = 5,
      .backward_weight = 3,
      .activation = 10,
      .weight_gradient_input = 4};
  auto const most = [](problem const& problem, bound_rule rule, int rank, int through = -1) {
    cost_bound claim{1000, rule, rank, through};
    while (!holds(claim, problem)) --claim.cost;
    return claim.cost;
  };
  problem const tight(placement::linear(3), 6, costs, 1, {30});
  CHECK(most(tight, bound_rule::work, 0) == 72);
  CHECK(most(tight, bound_rule::path, 0, 0) == 92);
  CHECK(most(tight, bound_rule::path, 0, 2) == 79);
  CHECK(lower_bound(tight) == cost_bound{92, bound_rule::path, 0, 0});
  CHECK(zbpp::test::optimal_cost(tight) == 92);

  problem const wide(placement::linear(3), 20, costs, 1, {60});
  CHECK(most(wide, bound_rule::work, 0) == 240);
  CHECK(zbpp::staircase(wide).cost == 243);
  CHECK(zbpp::staircase(wide).forwards == std::vector<int>{6, 3, 1});
  CHECK(lower_bound(wide) == cost_bound{243, bound_rule::staircase, 0});

  problem const bent(placement::v_shape(2), 6, costs, 1, {40});
  CHECK(lower_bound(bent) == cost_bound{147, bound_rule::heads_and_tails, 1, 1, 19, 0});
  CHECK(lower_bound(problem(placement::v_shape(2), 6, costs, 1, {20})).cost == 182);
}

// Without the pace of the F that come from rank 0 the bounds would be 80 and 66, the passes of
// rank 1.
TEST_CASE("a slow rank before spreads the F of a rank out", "[bounds]") {
  auto const times = [](ticks f, ticks b, ticks w) {
    return stage_costs{.forward = f, .backward_input = b, .backward_weight = w};
  };
  problem const straight(
      placement::linear(3), 4, std::vector{times(10, 5, 1), times(4, 5, 11), times(4, 5, 11)});
  CHECK(lower_bound(straight) == cost_bound{86, bound_rule::staircase, 1});
  check_certificate(lower_bound(straight), straight);
  CHECK(zbpp::test::optimal_cost(straight) == 86);

  problem const bent(
      placement::v_shape(2),
      3,
      std::vector{times(10, 2, 1), times(2, 5, 4), times(2, 5, 4), times(3, 2, 1)});
  CHECK(lower_bound(bent) == cost_bound{71, bound_rule::heads_and_tails, 1, 1, 9, 0});
  check_certificate(lower_bound(bent), bent);
  CHECK(zbpp::test::optimal_cost(bent) == 71);
}

// Rank 1 fills the wait for its first B with 4 F where these come fast. Else it takes 2, of which
// the second is late, and rank 0 waits that much longer.
TEST_CASE("a staircase climbs no faster than F come", "[bounds]") {
  auto const stairs = [](ticks first_forward) {
    stage_costs const later{.forward = 4, .backward_input = 5, .backward_weight = 11};
    stage_costs const first{.forward = first_forward, .backward_input = 5, .backward_weight = 1};
    return zbpp::staircase({placement::linear(3), 4, std::vector{first, later, later}});
  };
  CHECK(stairs(4).cost == 80);
  CHECK(stairs(4).forwards == std::vector<int>{4, 4, 1});
  CHECK(stairs(10).cost == 86);
  CHECK(stairs(10).forwards == std::vector<int>{2, 2, 1});
}

TEST_CASE("a certificate that was tampered with is refused", "[bounds]") {
  std::vector<stage_costs> stages(4, {.forward = 7, .backward_input = 9, .backward_weight = 5});
  for (auto& s : stages) s.activation = 10, s.weight_gradient_input = 4;
  stages[1].forward = 8;
  for (auto const& placement : {placement::linear(4), placement::v_shape(2)}) {
    problem const problem(placement, 8, stages, 2, {20});
    auto const claim = lower_bound(problem);
    INFO(text_of(claim));
    CHECK(claim.cost > lower_bound(zbpp::problem(placement, 8, stages, 2)).cost);
    check_certificate(claim, problem);
    for (int rank : {-1, claim.rank + 1, problem.ranks(), 1 << 30}) {
      auto wrong = claim;
      wrong.rank = rank;
      INFO("rank " << rank);
      CHECK_FALSE(holds(wrong, problem));
    }
    for (auto rule :
         {bound_rule::work,
          bound_rule::path,
          bound_rule::staircase,
          bound_rule::first_waits,
          bound_rule::heads_and_tails,
          static_cast<bound_rule>(17)}) {
      auto wrong = claim;
      wrong.rule = rule;
      INFO("rule " << to_string(rule));
      CHECK(holds(wrong, problem) == (rule == claim.rule));
    }
    // Without the limit the same claim is wrong.
    CHECK_FALSE(holds(claim, zbpp::problem(placement, 8, stages, 2)));
  }
}

TEST_CASE("a claim about heads can name any times without harm", "[bounds]") {
  constexpr auto most = std::numeric_limits<ticks>::max();
  problem const problem(
      placement::v_shape(2),
      3,
      stage_costs{.forward = 3, .backward_input = 4, .backward_weight = 2});
  auto const claim = lower_bound(problem);
  for (ticks head : {ticks{-1}, ticks{0}, most})
    for (ticks tail : {ticks{-1}, ticks{0}, most})
      for (int through : {-2, -1, 0, 1, 2})
        CHECK_FALSE(
            holds({claim.cost + 1, bound_rule::heads_and_tails, 0, through, head, tail}, problem));
  CHECK_FALSE(holds({most, bound_rule::staircase, 0}, problem));
  CHECK_FALSE(holds({most, bound_rule::path, 0, 1}, problem));
}

TEST_CASE("no built-in policy beats the bound of its own memory", "[bounds]") {
  int tight = 0;
  auto const check = [&](problem const& problem, zbpp::schedule const& order) {
    auto const code = zbpp::lower(order);
    std::vector<bytes> limits;
    for (auto const& peak : zbpp::peak_memory(code, problem)) limits.push_back(peak.total);
    std::vector<stage_costs> stages(problem.all_costs().begin(), problem.all_costs().end());
    zbpp::problem const limited(
        problem.placement(), problem.microbatches(), stages, problem.transfer(), limits);
    auto const bound = lower_bound(limited);
    auto const reached = cost(zbpp::simulate(order, limited));
    INFO(text_of(bound));
    CHECK(bound.cost <= reached);
    CHECK(holds(bound, limited));
    if (bound.cost == reached) ++tight;
  };
  zbpp::test::for_each_schedule(
      thinned<std::vector<int>>({1, 2, 3, 5}, {1, 2, 3}),
      [&](auto const& policy, auto const& even, auto const&) {
        INFO(zbpp::test::name_of(policy, even));
        ZBPP_SEEDED(rng, even.stages() * 1000 + even.microbatches());
        std::vector<stage_costs> stages;
        for (int s = 0; s < even.stages(); ++s) {
          stages.push_back(even.costs(s));
          auto& c = stages.back();
          c.forward = rng.integer(500, 1500);
          c.backward_input = rng.integer(500, 1500);
          c.backward_weight = rng.integer(200, 1200);
          c.backward_fused = c.backward_input + c.backward_weight - rng.integer(0, 200);
          c.static_memory = rng.integer(0, 500);
          c.workspace = rng.integer(0, 500);
        }
        problem const uneven(even.placement(), even.microbatches(), stages, rng.integer(0, 200));
        auto const order = policy(uneven);
        check(uneven, order);
        check(uneven, zbpp::fuse_backward(order));
        check(uneven, zbpp::test::with_recompute(order));
      });
  CHECK(tight > thinned(50, 5));
}

TEST_CASE("more memory never raises the bound", "[bounds][long]") {
  for (int round = 0; round < thinned(60, 12); ++round) {
    ZBPP_SEEDED(rng, 100 + round);
    auto const p = static_cast<int>(rng.integer(2, 6));
    auto const m = static_cast<int>(rng.integer(1, 20));
    stage_costs costs{
        .forward = rng.integer(1, 30),
        .backward_input = rng.integer(1, 30),
        .backward_weight = rng.integer(1, 30),
        .activation = 12};
    costs.weight_gradient_input = rng.integer(0, 12);
    for (auto const& placement :
         {placement::linear(p), placement::v_shape(p), placement::looped(p, 2)}) {
      auto last = std::numeric_limits<ticks>::max();
      for (bytes limit = 24; limit <= 24 * (m + 1); limit += 3) {
        auto const now = lower_bound(problem(placement, m, costs, 2, {limit})).cost;
        INFO(placement.name() << ", m = " << m << ", limit " << limit);
        CHECK(now <= last);
        last = now;
      }
    }
  }
}

TEST_CASE("limits that admit no schedule do no harm", "[bounds]") {
  ZBPP_SEEDED(rng, 6);
  for (int round = 0; round < 100; ++round) {
    stage_costs costs{.forward = 3, .backward_input = 2, .backward_weight = 1, .activation = 100};
    costs.weight_gradient_input = rng.integer(0, 100);
    costs.static_memory = rng.integer(0, 200);
    costs.workspace = rng.integer(0, 200);
    costs.edge = rng.integer(0, 50);
    for (auto const& placement : {placement::linear(3), placement::v_shape(3)}) {
      problem const problem(placement, 5, costs, 1, {rng.integer(0, 99)});
      auto const bound = lower_bound(problem);
      CHECK(bound.cost >= 5 * 6);
      CHECK(holds(bound, problem));
    }
  }
}

TEST_CASE("bounds hold with workspace, BW that takes less, and R", "[bounds]") {
  auto const found = compare_with_optimum(8, thinned(1500, 60), [](auto& rng) {
    auto const kind = rng.integer(0, 3);
    auto const on = kind == 0   ? placement::linear(static_cast<int>(rng.integer(1, 3)))
                    : kind == 1 ? placement::v_shape(static_cast<int>(rng.integer(1, 2)))
                    : kind == 2 ? placement::looped(2, 2)
                                : placement::custom({0, 1, 0});
    auto const m = static_cast<int>(rng.integer(1, kind == 0 ? 6 : 3));
    return zbpp::test::tiny_problem_with_options(rng, on, m);
  });
  CHECK(found.problems > thinned(1200, 40));
}

TEST_CASE("a rank whose memory forces R upon it has to run that", "[bounds]") {
  stage_costs const first{
      .forward = 2,
      .backward_input = 2,
      .backward_weight = 1,
      .recompute = 3,
      .activation = 10,
      .recompute_input = 1,
      .workspace = 2};
  stage_costs const second{
      .forward = 2, .backward_input = 2, .backward_weight = 1, .activation = 10, .workspace = 2};
  auto const bound_within = [&](bytes limit) {
    auto const bound = lower_bound({placement::v_shape(1), 4, {first, second}, 0, {limit}});
    CHECK(bound.rule == bound_rule::work);
    return bound.cost;
  };
  CHECK(bound_within(22) == 4 * 10);
  CHECK(bound_within(21) == 4 * (10 + 3));
  CHECK(optimal_cost({placement::v_shape(1), 4, {first, second}, 0, {21}}) == 4 * (10 + 3));
  CHECK(bound_within(13) == 4 * (10 + 3));
  CHECK(bound_within(12) == 4 * 10);  // nothing fits
}

TEST_CASE("all orders of a tiny problem show what none of them goes below", "[bounds]") {
  ZBPP_SEEDED(rng, 9);
  int above = 0;
  for (int round = 0; round < thinned(60, 20); ++round) {
    auto const given = zbpp::test::tiny_problem_with_options(
        rng, zbpp::test::tiny_placement(rng, round), static_cast<int>(rng.integer(1, 3)));
    auto const best = optimal_cost(given);
    REQUIRE(best);
    check_certificate({*best, bound_rule::all_orders}, given);
    CHECK_FALSE(holds({*best, bound_rule::all_orders, given.ranks()}, given));
    above += lower_bound(given).cost < *best ? 1 : 0;
  }
  CHECK(above > 0);
  // Of others nothing is claimed.
  stage_costs costs{.forward = 3, .backward_input = 2, .backward_weight = 1};
  cost_bound const claim{1, bound_rule::all_orders};
  CHECK(holds(claim, {placement::linear(2), 10, costs}));
  CHECK_FALSE(holds(claim, {placement::linear(3), 7, costs}));
  costs.edge = 1;
  CHECK_FALSE(holds(claim, {placement::linear(2), 10, costs}));
  costs.edge = 0;
  costs.overlapped = 4;
  CHECK_FALSE(holds(claim, {placement::linear(2), 10, costs}));
}

TEST_CASE("the greatest times and sizes do not overflow", "[bounds]") {
  constexpr auto most = std::numeric_limits<std::int64_t>::max() / 2;
  ZBPP_SEEDED(rng, 7);
  for (int round = 0; round < thinned(300, 100); ++round) {
    auto const p = static_cast<int>(rng.integer(1, 4));
    auto const placement = round % 2 == 0 ? placement::linear(p) : placement::v_shape(p);
    auto const m = static_cast<int>(rng.integer(1, 6));
    // The sums that `problem` allows, shared out at random.
    auto const share = most / m / placement.stages();
    auto const cut = [&](std::int64_t whole) { return rng.integer(0, whole); };
    std::vector<stage_costs> stages;
    auto const hop = cut(share / 4);
    for (int s = 0; s < placement.stages(); ++s) {
      stage_costs c;
      auto left = share - 2 * hop;
      left -= c.forward = cut(left);
      left -= c.backward_input = cut(left);
      c.backward_weight = left - left / 1024;  // sums are checked in floating point
      c.activation = share - share / 1024;
      c.weight_gradient_input = cut(c.activation);
      stages.push_back(c);
    }
    std::vector<bytes> limits;
    if (round % 3 != 0) limits = {rng.integer(0, std::numeric_limits<bytes>::max())};
    problem const problem(placement, m, stages, hop, limits);
    auto const bound = lower_bound(problem);
    INFO("round " << round << ": " << text_of(bound));
    CHECK(bound.cost > 0);
    CHECK(bound.cost <= most);
    check_certificate(bound, problem);
  }
}

TEST_CASE("a problem of any size gets a bound", "[bounds]") {
  stage_costs const costs{.forward = 3, .backward_input = 2, .backward_weight = 1, .activation = 1};
  for (auto const& placement : {placement::linear(20000), placement::looped(2, 10000)}) {
    problem const problem(placement, 3, costs, 1, {20000});
    auto const bound = lower_bound(problem);
    CHECK(bound.cost >= 18);
    CHECK(holds(bound, problem));
  }
}

TEST_CASE("rules have names", "[bounds]") {
  CHECK(to_string(bound_rule::work) == "work");
  CHECK(to_string(bound_rule::staircase) == "staircase");
  CHECK(to_string(bound_rule::first_waits) == "first waits");
  CHECK(to_string(bound_rule::heads_and_tails) == "heads and tails");
  CHECK(to_string(bound_rule::windows) == "windows");
  CHECK(to_string(bound_rule::all_orders) == "all orders");
  CHECK(to_string(static_cast<bound_rule>(99)) == "?");
}

}  // namespace test_bounds
