// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/period.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>

#include <support/catch.hpp>
#include <support/factors.hpp>
#include <support/instructions.hpp>
#include <support/paper.hpp>
#include <support/policy_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace test_period {

using zbpp::mean_ticks;
using zbpp::pass;
using zbpp::pass_kind;
using zbpp::period;
using zbpp::period_report;
using zbpp::placement;
using zbpp::problem;
using zbpp::schedule;
using zbpp::stage_costs;
using zbpp::ticks;
using zbpp::detail::path_end;
using zbpp::test::passes;
using zbpp::test::refusal;

namespace {

constexpr ticks never = std::numeric_limits<ticks>::min() / 4;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The problem of so many steps as one.
problem repeated(problem const& step, int steps) {
  std::vector<double> factors;
  for (int n = 0; n < steps; ++n)
    factors.insert(
        factors.end(), step.microbatch_factors().begin(), step.microbatch_factors().end());
  return with_microbatch_factors(
      with_microbatches(with_microbatch_factors(step, {}), steps * step.microbatches()),
      std::move(factors));
}

// When each rank has done each of `steps` steps, by simulating all of them as one long step: every
// rank runs its passes again with other microbatches.
std::vector<std::vector<ticks>> ends_of_steps(
    schedule const& order, problem const& problem, int steps) {
  auto rows = order.passes().nested();
  for (auto& row : rows) {
    auto const once = row;
    for (int step = 1; step < steps; ++step)
      for (auto p : once) {
        p.microbatch += step * problem.microbatches();
        row.push_back(p);
      }
  }
  auto const longer = repeated(problem, steps);
  auto const line = simulate(schedule(problem.placement(), longer.microbatches(), rows), longer);
  std::vector<std::vector<ticks>> ends(1, std::vector<ticks>(index(problem.ranks()), 0));
  for (int step = 1; step <= steps; ++step) {
    ends.emplace_back();
    for (int rank = 0; rank < problem.ranks(); ++rank)
      ends.back().push_back(line[rank][index(step) * order.passes(rank).size() - 1].end);
  }
  return ends;
}

struct span_of_rank {
  ticks start;
  ticks end;
};

// What each rank's first start and last end are when ranks are free at `clocks`: everything that a
// pass waits for is looked at again and again until nothing moves. `never` reaches nobody.
std::vector<span_of_rank> run_from(
    schedule const& order, problem const& problem, std::vector<ticks> const& clocks) {
  auto const line = order.passes().nested();
  std::vector<std::vector<ticks>> starts;
  for (auto const& row : line) starts.emplace_back(row.size(), never);
  auto const end_of = [&](pass_kind a, pass_kind b, int stage, int microbatch) {
    auto const rank = index(problem.placement().rank_of(stage));
    for (std::size_t i = 0; i < line[rank].size(); ++i) {
      auto const& p = line[rank][i];
      if ((p.kind == a || p.kind == b) && p.stage == stage && p.microbatch == microbatch)
        return starts[rank][i] + problem.time(p);
    }
    return never;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < line.size(); ++rank)
      for (std::size_t i = 0; i < line[rank].size(); ++i) {
        auto const& p = line[rank][i];
        auto start = i == 0 ? clocks[rank] : starts[rank][i - 1] + problem.time(line[rank][i - 1]);
        if (p.kind == pass_kind::forward && p.stage > 0)
          start = std::max(
              start,
              end_of(pass_kind::forward, pass_kind::forward, p.stage - 1, p.microbatch) +
                  problem.transfer_time(p.stage - 1, p.stage, p.microbatch));
        if (p.makes_input_gradient() && p.stage + 1 < problem.stages())
          start = std::max(
              start,
              end_of(pass_kind::backward_input, pass_kind::backward, p.stage + 1, p.microbatch) +
                  problem.transfer_time(p.stage + 1, p.stage, p.microbatch));
        if (start < 0) start = never;
        moved = moved || start > starts[rank][i];
        starts[rank][i] = std::max(starts[rank][i], start);
      }
  }
  std::vector<span_of_rank> spans;
  for (std::size_t rank = 0; rank < line.size(); ++rank)
    spans.push_back({starts[rank].front(), starts[rank].back() + problem.time(line[rank].back())});
  return spans;
}

// The critical ranks attain the period, so it is no less; the offsets attain it up to its fraction,
// so it is no more than that.
void check_proofs(period_report const& report, schedule const& order, problem const& problem) {
  auto const ranks = index(problem.ranks());
  ticks around = 0;
  auto const& cycle = report.critical_ranks;
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    std::vector<ticks> clocks(ranks, never);
    clocks[index(cycle[i])] = 0;
    around += run_from(order, problem, clocks)[index(cycle[(i + 1) % cycle.size()])].end;
  }
  auto const length = static_cast<ticks>(cycle.size());
  CHECK(around / length == report.period.whole);
  CHECK(around % length * report.period.of == report.period.part * length);

  auto const spans = run_from(order, problem, report.offsets);
  CHECK(report.offsets[index(problem.placement().rank_of(0))] == 0);
  ticks longest = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    CHECK(spans[rank].start == report.offsets[rank]);
    longest = std::max(longest, spans[rank].end - spans[rank].start);
  }
  CHECK(longest == report.period.rounded_up());
}

// After the transient the steps repeat exactly, and no earlier; then they take the period each.
void check_steps(period_report const& report, schedule const& order, problem const& problem) {
  REQUIRE(report.transient);
  constexpr int most_repeats = 12;
  auto const begun = *report.transient;
  auto const ends = ends_of_steps(order, problem, begun + most_repeats);
  auto const repeats_after = [&](int step, int count) {
    auto const by = ends[index(step + count)][0] - ends[index(step)][0];
    for (std::size_t rank = 0; rank < ends[0].size(); ++rank)
      if (ends[index(step + count)][rank] - ends[index(step)][rank] != by) return ticks{-1};
    return by;
  };
  int count = 1;
  while (count < most_repeats && repeats_after(begun, count) < 0) ++count;
  auto const by = repeats_after(begun, count);
  REQUIRE(by >= 0);
  CHECK(by / count == report.period.whole);
  CHECK(by % count * report.period.of == report.period.part * count);
  if (begun > 0) CHECK(repeats_after(begun - 1, count) < 0);
}

void check(schedule const& order, problem const& problem) {
  auto const report = period(order, problem);
  auto const line = simulate(order, problem);
  CHECK(report.first_step == cost(line));
  CHECK(report.synchronous == makespan(line));
  CHECK(report.period <= mean_ticks{report.first_step});
  auto const first = line[problem.placement().rank_of(0)];
  if (first.back().end - first.front().start == report.first_step)
    CHECK(report.period == mean_ticks{report.first_step});
  check_proofs(report, order, problem);
  check_steps(report, order, problem);
}

// An order that nobody planned: of what can run next, now and then anything, else the kind that is
// liked best. Some B and W are fused, some B have an R in front.
schedule random_order(
    zbpp::test::seeded_random& random, placement const& placement, int microbatches) {
  auto const last = placement.stages() - 1;
  std::vector<std::vector<pass>> rows(index(placement.ranks()));
  std::vector<int> liking{0, 1, 2};  // of F, B and W
  random.shuffle(std::span(liking));
  std::vector<pass> ready;
  for (int m = 0; m < microbatches; ++m) ready.push_back({pass_kind::forward, 0, m});
  while (!ready.empty()) {
    auto* next = &random.pick(std::span(ready));
    if (random.chance(0.8))
      next = &*std::min_element(ready.begin(), ready.end(), [&](pass const& a, pass const& b) {
        return liking[index(static_cast<int>(a.kind))] < liking[index(static_cast<int>(b.kind))];
      });
    std::swap(*next, ready.back());
    auto p = ready.back();
    ready.pop_back();
    auto& row = rows[index(placement.rank_of(p.stage))];
    auto const [kind, s, m, is_paired] = p;
    if (kind == pass_kind::backward_input) {
      if (random.chance(0.1)) row.push_back({pass_kind::recompute, s, m});
      if (random.chance(0.1)) p.kind = pass_kind::backward;
    }
    row.push_back(p);
    if (p.kind == pass_kind::forward)
      ready.push_back(
          s < last ? pass{pass_kind::forward, s + 1, m} : pass{pass_kind::backward_input, s, m});
    if (p.kind == pass_kind::backward_input) ready.push_back({pass_kind::backward_weight, s, m});
    if (p.makes_input_gradient() && s > 0) ready.push_back({pass_kind::backward_input, s - 1, m});
  }
  return {placement, microbatches, rows};
}

// With slow transfers, for ranks hold each other up by them.
problem random_problem(
    zbpp::test::seeded_random& random, placement const& placement, int microbatches) {
  std::vector<stage_costs> stages;
  for (int s = 0; s < placement.stages(); ++s)
    stages.push_back(
        {.forward = random.integer(0, 20),
         .backward_input = random.integer(0, 5),
         .backward_weight = random.integer(0, 40),
         .recompute = random.integer(0, 5)});
  std::vector<ticks> latency;
  for (int pair = 0; pair < placement.ranks() * placement.ranks(); ++pair)
    latency.push_back(random.integer(0, 15));
  problem const alike(
      placement, microbatches, stages, zbpp::transfer_costs(placement.ranks(), latency));
  return random.chance(0.3) ? zbpp::test::with_random_factors(alike, random) : alike;
}

problem one_pass_each(std::vector<stage_costs> const& costs, int microbatches) {
  return {placement::linear(static_cast<int>(costs.size())), microbatches, costs};
}

}  // namespace

TEST_CASE("means compare by their values", "[period]") {
  CHECK(mean_ticks{3} < mean_ticks{3, 1, 1000});
  CHECK(mean_ticks{3, 1, 3} < mean_ticks{3, 1, 2});
  CHECK(mean_ticks{3, 2, 3} > mean_ticks{3, 1, 2});
  CHECK(mean_ticks{3, 999, 1000} < mean_ticks{4});
  CHECK(mean_ticks{3}.rounded_up() == 3);
  CHECK(mean_ticks{3, 1, 1000}.rounded_up() == 4);
}

TEST_CASE("a rank that may begin late need not wait for the others", "[period]") {
  auto const problem = one_pass_each(
      {{.forward = 10, .backward_input = 1, .backward_weight = 1},
       {.forward = 1, .backward_input = 1, .backward_weight = 8}},
      3);
  auto const h2 = period(zbpp::zb_h2{}(problem), problem);
  CHECK(h2.first_step == 46);
  CHECK(h2.period == mean_ticks{36});
  CHECK(h2.critical_ranks == std::vector<int>{0});
  CHECK(h2.offsets == std::vector<ticks>{0, 20});
  CHECK(h2.transient == 1);
  CHECK(h2.synchronous == 56);
  auto const h1 = period(zbpp::zb_h1{}(problem), problem);
  CHECK(h1.first_step == 40);
  CHECK(h1.period == mean_ticks{36});
  CHECK(h1.offsets == std::vector<ticks>{0, 14});
  auto const plain = period(zbpp::one_f_one_b{}(problem), problem);
  CHECK(plain.first_step == 44);
  CHECK(plain.period == mean_ticks{44});
}

TEST_CASE("one rank has one step after another", "[period]") {
  problem const problem(placement::linear(1), 2, stage_costs{.forward = 5, .backward_input = 2});
  auto const report = period(zbpp::gpipe{}(problem), problem);
  CHECK(report.period == mean_ticks{14});
  CHECK(report.offsets == std::vector<ticks>{0});
  CHECK(report.transient == 0);
  CHECK(report.synchronous == 14);
}

TEST_CASE("the period is what many steps in a row take", "[period]") {
  int faster = 0;
  std::vector<placement> const wheres{
      placement::linear(1),
      placement::linear(2),
      placement::linear(3),
      placement::linear(4),
      placement::v_shape(2),
      placement::v_shape(3),
      placement::looped(2, 2),
      placement::custom({0, 0, 1}),
      placement::custom({1, 0, 2, 1})};
  for (int trial = 0; trial < 800; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const& placement = wheres[index(trial) % wheres.size()];
    auto const m = static_cast<int>(random.integer(1, 4));
    auto const problem = random_problem(random, placement, m);
    auto const order = random_order(random, placement, m);
    check(order, problem);
    auto const report = period(order, problem);
    faster += report.period < mean_ticks{report.first_step} ? 1 : 0;
  }
  CHECK(faster > 3);
}

TEST_CASE("the period of every policy is what many of its steps in a row take", "[period]") {
  auto const policies = zbpp::test::grid_policies();
  int compared = 0;
  for (int p : {1, 2, 3, 4})
    for (auto const& placement : zbpp::test::placements(p))
      for (int m : {p, 2 * p}) {
        ZBPP_SEEDED(random, 10000 + compared);
        std::vector<stage_costs> stages(index(placement.stages()), zbpp::test::uneven_costs());
        for (auto& stage : stages) stage.forward += random.integer(-300, 300);
        problem const problem(placement, m, stages, 87);
        for (auto const& decide : policies) {
          if (!zbpp::test::is_supported(decide, problem)) continue;
          INFO(zbpp::test::name_of(decide, problem));
          auto const order = decide(problem);
          for (auto const& variant :
               {order, fuse_backward(order), zbpp::test::with_recompute(order)})
            check(variant, problem);
          ++compared;
        }
      }
  CHECK(compared > 40);
}

// The second rank is 3 ticks slower than the first. It holds the first one up when that has used up
// its lead, which is 3 times `by`.
TEST_CASE("the transient may be long", "[period]") {
  auto const order = schedule(
      placement::linear(2),
      3,
      passes({"0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2", "1F0 1B0 1F1 1B1 1F2 1B2 1W0 1W1 1W2"}));
  auto const lead = [](ticks by) {
    return problem(
        placement::linear(2),
        3,
        std::vector<stage_costs>{
            {.forward = 3 * by, .backward_weight = 3 * by},
            {.forward = 3 * by, .backward_weight = 3 * by + 1}});
  };
  check(order, lead(100));
  auto const report = period(order, lead(100));
  CHECK(report.period == mean_ticks{1803});
  CHECK(report.critical_ranks == std::vector<int>{1});
  CHECK(report.transient.value_or(-1) == 101);
  CHECK(period(order, lead(500)).transient.value_or(-1) == 501);
  CHECK_FALSE(period(order, lead(zbpp::period_steps + 10)).transient);
}

// Both ranks run W last, so each is late for the other: neither alone takes more than 300.
TEST_CASE("two ranks may hold each other up", "[period]") {
  problem const problem(
      placement::linear(2),
      2,
      std::vector<stage_costs>{{.forward = 50, .backward_weight = 100}, {.backward_weight = 151}},
      25);
  auto const report = period(
      schedule(
          problem.placement(), 2, passes({"0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"})),
      problem);
  CHECK(report.period == mean_ticks{326});
  CHECK(report.critical_ranks == std::vector<int>{0, 1});
  CHECK(report.offsets == std::vector<ticks>{0, 101});
  CHECK(report.first_step == 352);
}

TEST_CASE("ranks that hold each other up take what many steps in a row take", "[period]") {
  int fractions = 0;
  int cycles = 0;
  auto const order = schedule(
      placement::linear(2), 2, passes({"0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"}));
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(random, 5000 + trial);
    problem const problem(
        placement::linear(2),
        2,
        std::vector<stage_costs>{
            {.forward = random.integer(40, 60),
             .backward_input = random.integer(0, 3),
             .backward_weight = random.integer(90, 110)},
            {.forward = random.integer(0, 3), .backward_weight = random.integer(140, 160)}},
        zbpp::transfer_costs(2, {0, random.integer(15, 30), random.integer(15, 30), 0}));
    check(order, problem);
    auto const report = period(order, problem);
    fractions += report.period.part != 0 ? 1 : 0;
    cycles += report.critical_ranks.size() > 1 ? 1 : 0;
  }
  CHECK(fractions > 20);
  CHECK(cycles > fractions);
  CHECK(cycles < 100);
}

// Steps of ranks are rarely that entangled, so what finds the cycle is tried on any numbers.
TEST_CASE("the critical cycle has the greatest mean of all cycles", "[period]") {
  std::vector<int> lengths(7, 0);
  for (int trial = 0; trial < 400; ++trial) {
    ZBPP_SEEDED(random, 6000 + trial);
    auto const ranks = static_cast<int>(random.integer(1, 6));
    auto const most = random.chance(0.2) ? (ticks{1} << 62) - 1 : random.integer(1, 100);
    std::vector<std::vector<ticks>> steps(index(ranks), std::vector<ticks>(index(ranks)));
    for (std::size_t from = 0; from < steps.size(); ++from)
      for (std::size_t to = 0; to < steps.size(); ++to)
        steps[from][to] = random.integer(0, from == to ? most / 2 : most);
    auto const mean_of = [&](std::vector<int> const& cycle) {
      auto const length = static_cast<ticks>(cycle.size());
      ticks whole = 0;
      ticks rest = 0;
      for (std::size_t i = 0; i < cycle.size(); ++i) {
        auto const step = steps[index(cycle[i])][index(cycle[(i + 1) % cycle.size()])];
        whole += step / length;
        rest += step % length;
      }
      return mean_ticks{
          whole + rest / length, static_cast<int>(rest % length), static_cast<int>(length)};
    };
    mean_ticks greatest{};
    std::vector<int> path;
    auto const look = [&](auto const& self) -> void {
      if (!path.empty()) greatest = std::max(greatest, mean_of(path));
      for (int next = 0; next < ranks; ++next)
        if (std::find(path.begin(), path.end(), next) == path.end()) {
          path.push_back(next);
          self(self);
          path.pop_back();
        }
    };
    look(look);
    auto const walk = [&](std::vector<path_end>& clocks, std::vector<int> const& fractions) {
      auto const begun = clocks;
      for (std::size_t to = 0; to < steps.size(); ++to) {
        clocks[to] = {};
        for (auto const& [time, source] : begun) {
          if (source == path_end::nowhere) continue;
          path_end const reached{time + steps[index(source)][to], source};
          if (clocks[to].source == path_end::nowhere ||
              std::pair(reached.time, fractions[index(source)]) >
                  std::pair(clocks[to].time, fractions[index(clocks[to].source)]))
            clocks[to] = reached;
        }
      }
    };
    auto const origin = static_cast<int>(random.integer(0, ranks - 1));
    zbpp::detail::critical_cycle const found(ranks, origin, walk);
    CHECK((found.mean <=> greatest) == std::strong_ordering::equal);
    CHECK((mean_of(found.ranks) <=> greatest) == std::strong_ordering::equal);
    CHECK(found.ranks.front() == *std::min_element(found.ranks.begin(), found.ranks.end()));
    ++lengths[found.ranks.size()];
  }
  for (std::size_t length = 1; length <= 4; ++length) CHECK(lengths[length] > 10);
}

// @source arXiv 2401.10241v1 table 9
TEST_CASE("on even ranks the policies' steps take what one of them costs", "[period][paper]") {
  for (auto const& row : zbpp::test::paper_rows) {
    auto const problem = row.linear();
    for (auto const& order :
         {zbpp::zb_h1{}(problem), zbpp::zb_h2{}(problem), zbpp::one_f_one_b{}(problem)}) {
      auto const report = period(order, problem);
      CHECK(report.period == mean_ticks{report.first_step});
      CHECK(report.synchronous >= report.first_step);
    }
  }
}

// The rank of stage 0 attains the cost, so that is the period; nothing takes ranks times ranks.
TEST_CASE("two thousand ranks have a period", "[period]") {
  problem const problem(
      placement::linear(2000),
      8,
      stage_costs{.forward = 10, .backward_input = 11, .backward_weight = 9},
      3);
  auto const order = zbpp::zb_h1{}(problem);
  auto const report = period(order, problem);
  auto const line = simulate(order, problem);
  auto const first = line[0];
  REQUIRE(first.back().end - first.front().start == report.first_step);
  CHECK(report.period == mean_ticks{report.first_step});
  CHECK(report.critical_ranks == std::vector<int>{0});
  CHECK(report.offsets.size() == 2000);
}

TEST_CASE("a schedule that lacks passes has no period", "[period]") {
  auto const placement = placement::linear(2);
  problem const problem(placement, 1, stage_costs{.forward = 1});
  CHECK(refusal([&] {
          (void)period(schedule(placement, 1, passes({"0F0", "1F0 1B0"})), problem);
        }) == "rank 0: 0B0 is missing; a step has F and B of every stage and microbatch");
  CHECK(refusal([&] {
          (void)period(schedule(placement, 1, passes({"", ""})), problem);
        }) == "rank 0: 0F0 is missing; a step has F and B of every stage and microbatch");
}

TEST_CASE("what simulate refuses has no period", "[period]") {
  auto const placement = placement::linear(2);
  problem const problem(placement, 1, stage_costs{.forward = 1});
  CHECK(refusal(zbpp::errc::refused_program, [&] {
          (void)period(schedule(placement, 1, passes({"0B0 0F0 0W0", "1F0 1B0 1W0"})), problem);
        }) == "rank 0, position 0: 0B0 waits for something that never happens");
  CHECK(refusal([&] {
          (void)period(schedule(placement, 2, passes({"0F0", "1F0"})), problem);
        }) == "made for another placement or another number of microbatches than the problem's");
}

TEST_CASE("the greatest times that a problem takes do not overflow in a period", "[period]") {
  auto const placement = placement::linear(3);
  auto const most = (ticks{1} << 62) - 1000;
  auto const report = [&](std::vector<stage_costs> const& costs, ticks hop = 0) {
    problem const problem(placement, 1, costs, hop);
    return period(
        schedule(placement, 1, passes({"0F0 0B0 0W0", "1F0 1B0 1W0", "2F0 2B0 2W0"})), problem);
  };
  CHECK(report({{.forward = most}, {}, {.backward_weight = 7}}).period == mean_ticks{most});
  CHECK(report({{}, {.backward_weight = most}, {}}).period == mean_ticks{most});
  CHECK(report({{}, {}, {}}, most / 4).period == mean_ticks{most / 4 * 4});
}

}  // namespace test_period
