// SPDX-License-Identifier: Apache-2.0
#include <zbpp/policy/one_chunk.hpp>
// What the checks need besides.
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/paper.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

namespace test_zb_h {

using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::test::text_of;

TEST_CASE("ZB-H1 answers the B of rank i with a W once more than i of them ran", "[zb_h]") {
  auto const order = zbpp::zb_h1{}(problem(placement::linear(3), 4, stage_costs{}));
  CHECK(text_of(order.passes(0)) == "0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3");
  CHECK(text_of(order.passes(1)) == "1F0 1F1 1B0 1F2 1B1 1W0 1F3 1B2 1W1 1B3 1W2 1W3");
  CHECK(text_of(order.passes(2)) == "2F0 2B0 2F1 2B1 2F2 2B2 2W0 2F3 2B3 2W1 2W2 2W3");
}

TEST_CASE("ZB-H2 doubles the warm-up and the delay of W", "[zb_h]") {
  auto const order = zbpp::zb_h2{}(problem(placement::linear(2), 4, stage_costs{}));
  CHECK(text_of(order.passes(0)) == "0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3");
  CHECK(text_of(order.passes(1)) == "1F0 1B0 1F1 1B1 1F2 1B2 1W0 1F3 1B3 1W1 1W2 1W3");
}

// @source arXiv 2401.10241v1 table 5
TEST_CASE("ZB-H1 and ZB-H2 have the bubble rates of the paper", "[zb_h][paper]") {
  for (auto const& row : zbpp::test::paper_rows) {
    auto const problem = row.linear();
    auto const h1 = bubble_rate(zbpp::simulate(zbpp::zb_h1{}(problem), problem));
    auto const h2 = bubble_rate(zbpp::simulate(zbpp::zb_h2{}(problem), problem));
    INFO(row.model << ", m = " << row.microbatches << ": " << h1 << " and " << h2);
    CHECK(zbpp::test::is_printed_as(h1, row.bubble_h1));
    CHECK(zbpp::test::is_printed_as(h2, row.bubble_h2));
  }
}

// cost = m S + (p - 1)(T_F + T_B - T_W) + 4 (p - 1) T_comm
TEST_CASE("ZB-H1 costs what its closed form says, to the tick", "[zb_h]") {
  for (auto const& row : zbpp::test::paper_rows) {
    auto const problem = row.linear();
    auto const& c = problem.costs(0);
    auto const all = c.forward + c.backward_input + c.backward_weight;
    auto const hop = zbpp::from_milliseconds(row.transfer);
    auto const line = zbpp::simulate(zbpp::zb_h1{}(problem), problem);
    CHECK(
        cost(line) == row.microbatches * all + (row.ranks - 1) * (all - 2 * c.backward_weight) +
                          4 * (row.ranks - 1) * hop);
  }
}

TEST_CASE("with equal times ZB-H2 has no bubble and ZB-H1 a third of that of 1F1B", "[zb_h]") {
  for (int p : {2, 4, 8}) {
    problem const problem(
        placement::linear(p),
        3 * p,
        stage_costs{.forward = 1, .backward_input = 1, .backward_weight = 1});
    CHECK(cost(zbpp::simulate(zbpp::zb_h2{}(problem), problem)) == 9 * p);
    CHECK(cost(zbpp::simulate(zbpp::zb_h1{}(problem), problem)) == 9 * p + p - 1);
  }
}

TEST_CASE("without transfers and with W <= F the bubbles are those of the paper", "[zb_h]") {
  ZBPP_SEEDED(rng, 11);
  for (int round = 0; round < 300; ++round) {
    auto const p = static_cast<int>(rng.integer(1, 8));
    auto const m = static_cast<int>(rng.integer(2 * p - 1, 6 * p));
    auto const f = rng.integer(1, 100);
    auto const b = rng.integer(1, 100);
    auto const w = rng.integer(1, std::min(f, b));
    INFO("p = " << p << ", m = " << m << ", F = " << f << ", B = " << b << ", W = " << w);
    problem const problem(
        placement::linear(p),
        m,
        stage_costs{.forward = f, .backward_input = b, .backward_weight = w});
    auto const work = m * (f + b + w);
    CHECK(cost(zbpp::simulate(zbpp::zb_h1{}(problem), problem)) == work + (p - 1) * (f + b - w));
    CHECK(
        cost(zbpp::simulate(zbpp::zb_h2{}(problem), problem)) == work + (p - 1) * (f + b - 2 * w));
  }
}

// Worker i, from 1: ZB-H1 (p-i+1) M_B + (i-1) M_W, ZB-H2 (2p-2i+1) M_B + (2i-2) M_W.
// @source arXiv 2401.10241v1 sec. 2.3
TEST_CASE("ZB-H1 and ZB-H2 keep what the paper says on every rank", "[zb_h][paper]") {
  for (int p : {1, 2, 3, 4, 8, 16})
    for (int m : {2 * p - 1, 2 * p, 5 * p}) {
      problem const problem(
          placement::linear(p), m, stage_costs{.activation = 1000, .weight_gradient_input = 370});
      auto const h1 = zbpp::peak_activations(zbpp::zb_h1{}(problem), problem);
      auto const h2 = zbpp::peak_activations(zbpp::zb_h2{}(problem), problem);
      for (int i = 1; i <= p; ++i) {
        INFO("p = " << p << ", m = " << m << ", worker " << i);
        CHECK(h1[static_cast<std::size_t>(i - 1)] == (p - i + 1) * 1000 + (i - 1) * 370);
        CHECK(
            h2[static_cast<std::size_t>(i - 1)] == (2 * p - 2 * i + 1) * 1000 + (2 * i - 2) * 370);
      }
    }
}

TEST_CASE("ZB-H1 and ZB-H2 need a linear placement", "[zb_h]") {
  problem const problem(placement::v_shape(2), 2, stage_costs{});
  auto const unsupported = zbpp::errc::unsupported_problem;
  CHECK(zbpp::test::refusal(unsupported, [&] {
          (void)zbpp::zb_h1{}(problem);
        }) == "ZB-H1 needs a linear placement, one stage per rank; this one is v");
  CHECK(zbpp::test::refusal(unsupported, [&] {
          (void)zbpp::zb_h2{}(problem);
        }) == "ZB-H2 needs a linear placement, one stage per rank; this one is v");
}

}  // namespace test_zb_h
