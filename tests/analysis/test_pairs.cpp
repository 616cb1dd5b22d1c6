// SPDX-License-Identifier: Apache-2.0
//
// Pairs of F and B: what they take, which may run, and that whatever looks at an order sees them.
#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/costs_from.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/steps.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/stp.hpp>

#include <support/catch.hpp>
#include <support/every_order.hpp>
#include <support/independent_simulator.hpp>
#include <support/instructions.hpp>
#include <support/policy_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/random_problem.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/tiny_problem.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace test_pairs {

using namespace zbpp;
using test::pairs_in;

namespace {

// Calls `check(problem, order)` for orders of all policies, with pairs.
template <class Check>
void for_each_paired(std::vector<int> const& ranks, Check check) {
  int seed = 0;
  test::for_each_schedule(ranks, [&](any_policy const& policy, problem const& plain, auto order) {
    if (plain.microbatches() > 3 * plain.ranks() || plain.microbatches() < 2) return;
    INFO(test::name_of(policy, plain));
    ZBPP_SEEDED(random, ++seed);
    auto const problem = test::with_overlapped(plain, random);
    if (random.chance(0.3)) order = test::with_recompute(order);
    check(problem, test::pair_at_random(order, problem, random));
  });
}

// One order with pairs: 1F1B on two ranks whose first rank runs one F more ahead.
problem small_problem(std::optional<ticks> overlapped = 15) {
  stage_costs const stage{
      .forward = 10,
      .backward_input = 10,
      .backward_weight = 10,
      .overlapped = overlapped,
      .activation = 100,
      .weight_gradient_input = 30,
      .edge = 7};
  return {placement::linear(2), 4, stage};
}
std::vector<std::vector<pass>> small_rows() {
  return test::passes({"0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3",
                       "1F0 1B0 1W0 1F1 1B1 1W1 1F2 1B2 1W2 1F3 1B3 1W3"})
      .nested();
}
schedule small_order(std::vector<std::size_t> const& paired_on_rank_0) {
  auto rows = small_rows();
  for (auto at : paired_on_rank_0) rows[0][at].is_paired = true;
  return {placement::linear(2), 4, rows};
}

}  // namespace

TEST_CASE("a pair takes from the longer pass to the sum of both", "[pairs]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const problem = test::with_overlapped(test::random_problem(random), random);
    for (int s = 0; s < problem.stages(); ++s)
      for (int t = 0; t < problem.stages(); ++t)
        for (auto kind : {pass_kind::backward_input, pass_kind::backward}) {
          auto const f = problem.costs(s).forward;
          auto const b = problem.costs(t).of(kind);
          auto const both = problem.pair_time({pass_kind::forward, s, 0}, {kind, t, 1});
          CHECK(both >= std::max(f, b));
          CHECK(both <= f + b);
          auto const& own = problem.costs(s);
          bool const fused = kind == pass_kind::backward;
          auto const stated = [&](stage_costs const& c) {
            return fused && c.overlapped_fused ? c.overlapped_fused : c.overlapped;
          };
          if (s == t && !fused && own.overlapped) CHECK(both == own.overlapped);
          if (s == t && fused && own.overlapped_fused) CHECK(both == own.overlapped_fused);
          if (!stated(own) || !stated(problem.costs(t))) CHECK(both == f + b);
        }
    std::vector<stage_costs> const all(problem.all_costs().begin(), problem.all_costs().end());
    auto const merged = merge_layers(all);
    for (auto kind : {pass_kind::backward_input, pass_kind::backward}) {
      ticks saved = 0;
      for (auto const& c : all) saved += c.saved_by_pairing(kind);
      CHECK(merged.saved_by_pairing(kind) == saved);
    }
    merged.check(0);
  }
  stage_costs wrong{.forward = 3, .backward_input = 4, .overlapped = 8};
  auto const text = "overlapped must lie between max(F, B) and F + B";
  CHECK(test::refusal([&] { wrong.check(2); }) == std::string("stage 2: ") + text);
  wrong.overlapped = 3;
  CHECK(test::refusal([&] { wrong.check(2); }) == std::string("stage 2: ") + text);
  wrong.overlapped.reset();
  wrong.backward_weight = 2;
  for (ticks const fused : {5, 10}) {
    wrong.overlapped_fused = fused;
    CHECK(test::refusal([&] {
            wrong.check(2);
          }) == "stage 2: overlapped_fused must lie between max(F, BW) and F + BW");
  }
  for (ticks const fused : {6, 9}) {
    wrong.overlapped_fused = fused;
    CHECK_NOTHROW(wrong.check(2));
  }
  constexpr auto most = std::numeric_limits<ticks>::max();
  stage_costs const large{
      .forward = most, .backward_input = most, .backward_weight = most, .overlapped_fused = most};
  CHECK(test::refusal([&] { large.check(0); }).find("overlapped_fused") != std::string::npos);
}

TEST_CASE("orders with pairs take what a second simulator says", "[pairs]") {
  std::ptrdiff_t pairs = 0;
  for_each_paired({1, 2, test::thinned(4, 3)}, [&](problem const& problem, schedule const& order) {
    pairs += pairs_in(order);
    auto const line = simulate(order, problem);
    CHECK(line == test::simulate_by_events(order, problem));
    CHECK(simulate_steps(lower(order), problem, 1).line == line);
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      ticks sum = 0;
      for (auto const& timed : line[rank]) {
        if (timed.pass.kind == pass_kind::recompute) continue;
        auto const both = timed.pass.is_paired;
        sum += both ? 0 : timed.end - timed.start;
      }
      CHECK(busy(line, rank) == sum);
    }
  });
  CHECK(pairs > test::thinned(1000, 500));
}

TEST_CASE("overlapped changes nothing where there is no pair", "[pairs]") {
  ZBPP_SEEDED(random, 1);
  test::for_each_schedule({2, 3}, [&](any_policy const& policy, problem const& plain, auto order) {
    INFO(test::name_of(policy, plain));
    auto const problem = test::with_overlapped(plain, random);
    CHECK(simulate(order, problem) == simulate(order, plain));
  });
}

TEST_CASE("programs of orders with pairs are right, on all layouts", "[pairs]") {
  for_each_paired({1, 2, 3}, [&](problem const& problem, schedule const& order) {
    for (auto layout :
         {channel_layout::one_per_directed_pair,
          channel_layout::one_per_pair,
          channel_layout::one_per_rank}) {
      auto const code = lower(order, {.layout = layout});
      CHECK(verify(code, problem, layout).empty());
      CHECK(
          std::ranges::count_if(code.instructions().all(), &instruction::is_paired) ==
          pairs_in(order));
    }
    for (auto step : {step_kind::synchronous, step_kind::post_validated})
      CHECK(verify(lower(order, {.receive_ahead = 2, .step = step}), problem).empty());
  });
}

TEST_CASE("both passes of a pair wait for both inputs, and what they make leaves last", "[pairs]") {
  auto const order = small_order({6});
  auto const line = simulate(order, small_problem());
  CHECK(line[0][5] == timed_pass{{pass_kind::forward, 0, 3}, 60, 75});
  CHECK(line[0][6] == timed_pass{{pass_kind::backward_input, 0, 1, true}, 60, 75});
  auto const code = lower(order);
  CHECK(
      test::text_of(code.instructions(0)).find("0RECV_B1 0F3 0B1 0SEND_F3 0W1") !=
      std::string::npos);
  CHECK(busy(line, 0) == 4 * 30 - 5);
}

TEST_CASE("pairs that cannot be are refused", "[pairs]") {
  auto const rule =
      "it is paired; pair a B or BW with an F of another microbatch, right in front of it in its "
      "row";
  auto const refused = [&](std::size_t at) {
    return test::refusal([&] { return small_order({at}); });
  };
  CHECK(refused(0) == std::string("rank 0, position 0: 0F0: ") + rule);  // nothing before it
  CHECK(refused(1) == std::string("rank 0, position 1: 0F1: ") + rule);  // F with F
  CHECK(refused(4) == std::string("rank 0, position 4: 0W0: ") + rule);  // B with W
  CHECK(refused(8) == std::string("rank 0, position 8: 0B2: ") + rule);  // W with B

  // Of a program, verify says so: F with F, and the F and B of one microbatch.
  auto const text_at = [&](int rank, std::size_t position) {
    auto const code = lower(small_order({}));
    auto rows = code.instructions().nested();
    rows[static_cast<std::size_t>(rank)][position].is_paired = true;
    program const wrong(
        code.placement(), code.microbatches(), zbpp::rows<instruction>(rows), code.channels());
    auto const found = verify(wrong);
    REQUIRE(found.size() == 1);
    CHECK(found.front().fault == fault::pair);
    CHECK(found.front().location.rank == rank);
    CHECK(found.front().location.position == static_cast<std::int64_t>(position));
    return found.front().text;
  };
  CHECK(text_at(0, 2) == std::string("0F1: ") + rule);
  CHECK(text_at(1, 2) == std::string("1B0: ") + rule);
  CHECK(text_at(0, 1) == std::string("0SEND_F0: ") + rule);
}

TEST_CASE("a pair that waits for what it has to send first is a deadlock", "[pairs]") {
  auto rows = small_rows();
  // Rank 1 runs F of microbatch 3 before B of microbatch 1, which rank 0 pairs with that F.
  rows[1] = test::passes({"1F0 1B0 1W0 1F1 1F2 1F3 1B1 1W1 1B2 1W2 1B3 1W3"}).nested()[0];
  rows[0][6].is_paired = true;
  schedule const order(placement::linear(2), 4, rows);
  CHECK(test::refusal(errc::refused_program, [&] {
          return simulate(order, small_problem());
        }) == "rank 0, position 6: 0B1 waits for something that never happens");
  auto const found = verify(lower(order));
  REQUIRE(found.size() == 1);
  CHECK(found.front().fault == fault::deadlock);
  rows[0][6].is_paired = false;
  CHECK(verify(lower(schedule(placement::linear(2), 4, rows))).empty());
}

TEST_CASE("both passes of a pair hold their memory until both end", "[pairs]") {
  auto const problem = small_problem();
  auto const profile = activation_profile(small_order({6}), problem);
  auto const apart = activation_profile(small_order({}), problem);
  CHECK(profile[0][5] == 300);
  CHECK(profile[0][6] == 300);
  CHECK(apart[0][5] == 300);
  auto rows = small_rows();  // B first: what it frees is not there for F any more
  std::swap(rows[0][5], rows[0][4]);
  std::swap(rows[0][4], rows[0][3]);
  rows[0][4].is_paired = true;  // 0F3 0B0
  schedule const early(placement::linear(2), 4, rows);
  CHECK(activation_profile(early, problem)[0][3] == 400);
  CHECK(peak_memory(lower(early), problem)[0].activations == 400);
}

TEST_CASE("the period of an order with pairs is that of many steps in a row", "[pairs]") {
  constexpr int steps = 40;
  constexpr int cycle = 12;  // a multiple of the length of any cycle of up to 4 ranks
  int seen = 0;
  for_each_paired({2, 3}, [&](problem const& model, schedule const& order) {
    auto const report = period(order, model);
    CHECK(report.period.whole <= cost(simulate(order, model)));
    if (!report.transient || *report.transient > steps - cycle) return;
    std::vector<std::vector<pass>> rows(static_cast<std::size_t>(model.ranks()));
    for (int step = 0; step < steps; ++step)
      for (int rank = 0; rank < model.ranks(); ++rank)
        for (auto p : order.passes(rank)) {
          p.microbatch += step * model.microbatches();
          rows[static_cast<std::size_t>(rank)].push_back(p);
        }
    auto const m = steps * model.microbatches();
    problem const long_one(
        model.placement(),
        m,
        {model.all_costs().begin(), model.all_costs().end()},
        model.transfer());
    auto const line = simulate(schedule(model.placement(), m, rows), long_one);
    auto const size = order.passes(0).size();
    auto const end_of = [&](int step) {
      return line[0][static_cast<std::size_t>(step) * size - 1].end;
    };
    auto const expected =
        report.period.whole * cycle + report.period.part * (cycle / report.period.of);
    CHECK(end_of(steps) - end_of(steps - cycle) == expected);
    ++seen;
  });
  CHECK(seen > 50);
}

TEST_CASE("no order with pairs costs less than the lower bound", "[pairs]") {
  // Calls `visit(order)` for an order with each choice of its pairs.
  auto const for_each_choice = [](schedule const& order, auto visit) {
    auto rows = order.passes().nested();
    std::vector<pass*> may;
    for (auto& row : rows)
      for (std::size_t i = 1; i < row.size(); ++i)
        if (detail::may_pair(row[i - 1], row[i])) may.push_back(&row[i]);
    for (std::size_t choice = 0; choice < std::size_t{1} << may.size(); ++choice) {
      for (std::size_t i = 0; i < may.size(); ++i) may[i]->is_paired = (choice >> i & 1U) != 0;
      visit(schedule(order.placement(), order.microbatches(), rows));
    }
  };
  int better = 0;
  for (int trial = 0; trial < test::thinned(60, 30); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const shape = trial % 4;
    auto const placement = shape == 0   ? placement::linear(3)
                           : shape == 1 ? placement::v_shape(1)
                                        : placement::linear(2);
    auto const plain = test::tiny_problem(random, placement, shape < 2 ? 2 : 3);
    auto const problem = test::with_overlapped(plain, random);
    std::optional<ticks> least;
    std::optional<ticks> least_plain;
    test::every_order(problem, true).for_each([&](schedule const& order) {
      for_each_choice(order, [&](schedule const& paired) {
        try {
          auto const found = cost(simulate(paired, problem));
          if (!least || found < *least) least = found;
          if (pairs_in(paired) == 0 && (!least_plain || found < *least_plain)) least_plain = found;
        } catch (error const& stuck) {
          if (stuck.code() != errc::refused_program) throw;
        }
      });
    });
    auto const bound = lower_bound(problem);
    CHECK(holds(bound, problem));
    if (!least) continue;
    CHECK(bound.cost <= *least);
    CHECK(bound.cost <= lower_bound(plain).cost);
    better += *least < *least_plain ? 1 : 0;
  }
  CHECK(better > 0);
}

TEST_CASE("pairs are written as PyTorch writes them, and read as what is asked for", "[pairs]") {
  for_each_paired({1, 2, 3}, [&](problem const& problem, schedule const& order) {
    auto const text = to_csv(order);
    CHECK(overlapped_pairs_in_csv(text) == pairs_in(order));
    CHECK(
        schedule_from_csv(text, problem.placement(), problem.microbatches(), csv_pairs::together) ==
        order);
    CHECK(pairs_in(schedule_from_csv(text)) == 0);
    auto const code = lower(order);
    CHECK(
        program_from_csv(
            to_csv(code), problem.placement(), problem.microbatches(), csv_pairs::together) ==
        code);
  });
  auto const text = "0F0,0F1,(0F2;1B0)OVERLAP_F_B, (1I1;0F3)OVERLAP_F_B ,1F0\n";
  auto const read = schedule_from_csv(text, placement::custom({0, 0}), 4, csv_pairs::together);
  CHECK(to_csv(read) == "0F0,0F1,(0F2;1B0)OVERLAP_F_B,(0F3;1I1)OVERLAP_F_B,1F0\n");
  instruction const wrong{instruction_kind::send_activation, 0, 1, true};
  program const rubbish(placement::linear(2), 2, rows<instruction>({{wrong}, {}}), {});
  CHECK(
      test::refusal([&] { return to_csv(rubbish); }) ==
      "0SEND_F1: it is paired; pair a B or BW with an F of another microbatch, right in front of "
      "it in its row");
}

TEST_CASE("measured pairs tell what they saved", "[pairs]") {
  auto const stated = small_problem();
  auto const line = simulate(small_order({6}), stated);
  auto const all = std::vector<timeline>{line};
  auto const found = costs_from(all, small_problem({}));
  CHECK(found.costs(0) == stated.costs(0));
  CHECK(found.costs(1) == small_problem({}).costs(1));
  CHECK(costs_from(all, stated) == stated);
}

TEST_CASE("pairs with B and pairs with BW are measured apart where both are stated", "[pairs]") {
  stage_costs truth{
      .forward = 13,
      .backward_input = 13,
      .backward_weight = 10,
      .backward_fused = 20,
      .overlapped = 21,
      .overlapped_fused = 30,
      .activation = 1};
  auto stated = truth;
  stated.overlapped = 26;
  stated.overlapped_fused = 33;
  for (int p : {2, 3}) {
    problem const ran(placement::v_shape(p), 4 * p, truth);
    problem const asked(placement::v_shape(p), 4 * p, stated);
    auto const order = stp{}(ran);
    auto const line = simulate(order, ran);
    auto const found = costs_from(std::vector{line}, asked);
    CHECK(simulate(order, found) == line);
    // The second chunk of the first rank runs in pairs with B and with BW.
    CHECK(found.costs(2 * p - 1).overlapped == truth.overlapped);
    CHECK(found.costs(2 * p - 1).overlapped_fused == truth.overlapped_fused);
  }
}

}  // namespace test_pairs
