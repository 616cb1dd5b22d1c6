// SPDX-License-Identifier: Apache-2.0
#include <zbpp/policy/stp.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/policy/dualpipe_v.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

namespace test_stp {

using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::ticks;

namespace {

problem even(int ranks, int microbatches, stage_costs const& costs) {
  return {placement::v_shape(ranks), microbatches, costs};
}

ticks cost_of(zbpp::schedule const& order, problem const& problem) {
  return cost(simulate(order, problem));
}

// How much longer a step takes than a rank that runs without a pause and pairs all it can.
ticks bubble(problem const& problem) {
  auto const& c = problem.costs(0);
  auto const work =
      c.forward + c.of(zbpp::pass_kind::backward) - c.saved_by_pairing(zbpp::pass_kind::backward);
  return cost_of(zbpp::stp{}(problem), problem) - 2 * problem.microbatches() * work;
}

}  // namespace

TEST_CASE("STP for 2 ranks and 5 microbatches is written out by hand", "[stp]") {
  auto const order = zbpp::stp{}(
      even(2, 5, {.forward = 2, .backward_input = 2, .backward_weight = 2, .overlapped = 3}));
  auto const row = [&](int rank) {
    std::string text;
    for (auto const& p : order.passes(rank))
      text.append(text.empty() ? "" : p.is_paired ? "&" : " ").append(to_string(p));
    return text;
  };
  CHECK(
      row(0) ==
      "0F0 0F1 0F2 3F0 0F3 3F1&3B0 0F4 3W0 3F2&3BW1 0BW0 3F3&3B2 0BW1 3F4&3B3 0BW2 3B4 0BW3 3W2 "
      "3W3 0BW4 3W4");
  CHECK(
      row(1) ==
      "1F0 2F0 1F1 2F1 1F2 1F3 2F2&2BW0 1F4&1BW0 2F3&2B1 1BW1 2F4&2B2 1BW2 2B3 1BW3 2B4 1BW4 2W1 "
      "2W2 2W3 2W4");
}

TEST_CASE(
    "STP runs every pass once, W of a stage in turn, and pairs what its source does", "[stp]") {
  for (int p : {1, 2, 3, 4, 5, 8, 16})
    for (int m : {3 * p - 1, 3 * p, 3 * p + 1, 5 * p})
      for (bool pairs : {false, true}) {
        INFO("p = " << p << ", m = " << m << ", pairs " << pairs);
        stage_costs costs{.forward = 3, .backward_input = 3, .backward_weight = 3};
        if (pairs) costs.overlapped = 4;
        auto const problem = even(p, m, costs);
        auto const order = zbpp::stp{}(problem);
        CHECK(verify(lower(order), problem).empty());
        for (int rank = 0; rank < p; ++rank) {
          auto const count = std::ranges::count_if(order.passes(rank), &zbpp::pass::is_paired);
          auto const turns = 2 * (m - 3 * p + 1 + rank) + 1;
          CHECK(count == (pairs ? (p - 1 - rank) + turns + (2 * p - 2 - rank) : 0));
        }
      }
}

TEST_CASE("rank i of STP keeps 3p + 1 chunks, and W of i - 1 more", "[stp]") {
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {3 * p - 1, 3 * p, 5 * p}) {
      ZBPP_SEEDED(random, 100 * p + m);
      auto const kept = random.integer(1, 100);
      auto const for_weight = random.integer(0, kept);
      INFO("p = " << p << ", m = " << m << ", F keeps " << kept << ", W needs " << for_weight);
      auto const problem = even(
          p,
          m,
          {.forward = 3,
           .backward_input = 3,
           .backward_weight = 3,
           .activation = kept,
           .weight_gradient_input = for_weight});
      auto const peaks = zbpp::peak_activations(zbpp::stp{}(problem), problem);
      for (int rank = 0; rank < p; ++rank)
        CHECK(
            peaks[static_cast<std::size_t>(rank)] ==
            (3 * p + 1) * kept + std::max(rank - 1, 0) * for_weight);
    }
}

TEST_CASE("without pairs STP has the bubble 2F + (p - 3)(2F - B - W)", "[stp]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const f = random.integer(2, 1000);
    auto const b = random.integer((f + 1) / 2, f);
    auto const w = random.integer((f + 1) / 2, f);
    auto const p = static_cast<int>(random.integer(3, 7));
    auto const m = 3 * p - 1 + static_cast<int>(random.integer(0, 7));
    INFO("p " << p << ", m " << m << ", F " << f << ", B " << b << ", W " << w);
    auto const problem = even(p, m, {.forward = f, .backward_input = b, .backward_weight = w});
    CHECK(bubble(problem) == 2 * f + (p - 3) * (2 * f - b - w));
  }
}

TEST_CASE("with pairs that save s STP has the bubble (p - 1)F + 3ps where F = B = W", "[stp]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const f = random.integer(1, 1000);
    auto const saved = random.integer(1, f);
    auto const p = static_cast<int>(random.integer(1, 7));
    auto const m = 3 * p - 1 + static_cast<int>(random.integer(0, 7));
    INFO("p " << p << ", m " << m << ", F " << f << ", saved " << saved);
    auto const problem = even(
        p,
        m,
        {.forward = f, .backward_input = f, .backward_weight = f, .overlapped = 2 * f - saved});
    CHECK(bubble(problem) == (p - 1) * f + 3 * p * saved);
  }
}

// An all-reduce at the end of F and of B. A W hides that of its B, and so does a BW.
TEST_CASE("with the times of tensor parallelism STP costs no more than DualPipeV", "[stp]") {
  for (int p : {1, 2, 4, 8})
    for (ticks const all_reduce : {1, 3, 5}) {
      ticks const part = 10;
      auto const pass = part + all_reduce;
      auto const problem = even(
          p,
          4 * p,
          {.forward = pass,
           .backward_input = pass,
           .backward_weight = part,
           .backward_fused = 2 * part,
           .overlapped = 2 * part,
           .overlapped_fused = 3 * part});
      INFO("p " << p << ", all-reduce " << all_reduce);
      CHECK(
          cost_of(zbpp::stp{}(problem), problem) <= cost_of(zbpp::dualpipe_v{}(problem), problem));
    }
}

TEST_CASE("an example of tensor parallelism takes what is documented", "[stp]") {
  auto const problem = even(
      8,
      32,
      {.forward = 13,
       .backward_input = 13,
       .backward_weight = 10,
       .backward_fused = 20,
       .overlapped = 20,
       .overlapped_fused = 30});
  CHECK(cost_of(zbpp::stp{}(problem), problem) == 2129);
  CHECK(cost_of(zbpp::dualpipe_v{}(problem), problem) == 2177);
}

TEST_CASE("STP needs a v and 3p - 1 microbatches", "[stp]") {
  auto const refused = [](placement const& placement, int microbatches) {
    return zbpp::test::refusal(zbpp::errc::unsupported_problem, [&] {
      (void)zbpp::stp{}(problem(placement, microbatches, stage_costs{}));
    });
  };
  CHECK(
      refused(placement::linear(2), 5) ==
      "STP needs a v placement, two stages per rank; this one is linear");
  for (auto const& any : {placement::v_shape(3), placement::linear(3), placement::looped(3, 2)})
    CHECK(
        refused(any, 7) ==
        "STP needs a step of at least 8 microbatches, 3p - 1 for p ranks; there are 7");
}

}  // namespace test_stp
