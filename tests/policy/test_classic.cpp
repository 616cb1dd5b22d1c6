// SPDX-License-Identifier: Apache-2.0
#include <zbpp/policy/one_chunk.hpp>
// What the checks need besides.
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/paper.hpp>
#include <support/refusal.hpp>

#include <algorithm>

namespace test_classic {

using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::test::text_of;

TEST_CASE("GPipe runs all forwards, then all backwards", "[classic]") {
  auto const order = zbpp::gpipe{}(problem(placement::linear(2), 3, stage_costs{}));
  CHECK(text_of(order.passes(0)) == "0F0 0F1 0F2 0BW0 0BW1 0BW2");
  CHECK(text_of(order.passes(1)) == "1F0 1F1 1F2 1BW0 1BW1 1BW2");
}

TEST_CASE("1F1B alternates after a warm-up that is longer the earlier the rank", "[classic]") {
  auto const order = zbpp::one_f_one_b{}(problem(placement::linear(3), 4, stage_costs{}));
  CHECK(text_of(order.passes(0)) == "0F0 0F1 0F2 0BW0 0F3 0BW1 0BW2 0BW3");
  CHECK(text_of(order.passes(1)) == "1F0 1F1 1BW0 1F2 1BW1 1F3 1BW2 1BW3");
  CHECK(text_of(order.passes(2)) == "2F0 2BW0 2F1 2BW1 2F2 2BW2 2F3 2BW3");
}

TEST_CASE("fewer microbatches than ranks only shorten the warm-up of 1F1B", "[classic]") {
  auto const order = zbpp::one_f_one_b{}(problem(placement::linear(3), 1, stage_costs{}));
  for (int rank = 0; rank < 3; ++rank) CHECK(order.passes(rank).size() == 2);
}

// @source arXiv 2401.10241v1 table 5
TEST_CASE("1F1B has the bubble rates of the paper", "[classic][paper]") {
  for (auto const& row : zbpp::test::paper_rows) {
    auto const problem = row.linear();
    auto const line = zbpp::simulate(zbpp::one_f_one_b{}(problem), problem);
    INFO(row.model << ", m = " << row.microbatches << ": " << bubble_rate(line));
    CHECK(zbpp::test::is_printed_as(bubble_rate(line), row.bubble_1f1b));
  }
}

// cost = (m + p - 1) S + [2 (p - 1) (m / p + 1) - 2] T_comm where p divides m
TEST_CASE("1F1B costs what its closed form says, to the tick", "[classic]") {
  for (auto const& row : zbpp::test::paper_rows) {
    auto const problem = row.linear();
    auto const& c = problem.costs(0);
    auto const p = row.ranks;
    auto const m = row.microbatches;
    auto const all = c.forward + c.backward_input + c.backward_weight;
    auto const hop = zbpp::from_milliseconds(row.transfer);
    auto const line = zbpp::simulate(zbpp::one_f_one_b{}(problem), problem);
    CHECK(cost(line) == (m + p - 1) * all + (2 * (p - 1) * (m / p + 1) - 2) * hop);
  }
}

TEST_CASE("without transfers GPipe costs what 1F1B costs", "[classic]") {
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {p, 2 * p, 3 * p + 1}) {
      problem const problem(
          placement::linear(p),
          m,
          stage_costs{.forward = 5, .backward_input = 7, .backward_weight = 3});
      CHECK(cost(zbpp::simulate(zbpp::gpipe{}(problem), problem)) == (m + p - 1) * 15);
      CHECK(cost(zbpp::simulate(zbpp::one_f_one_b{}(problem), problem)) == (m + p - 1) * 15);
    }
}

TEST_CASE("1F1B keeps p - i microbatches on rank i, GPipe all", "[classic]") {
  for (int p : {1, 2, 3, 4, 8, 16})
    for (int m : {1, p, 2 * p, 3 * p + 1}) {
      problem const problem(placement::linear(p), m, stage_costs{.activation = 100});
      auto const peaks = zbpp::peak_activations(zbpp::one_f_one_b{}(problem), problem);
      auto const all = zbpp::peak_activations(zbpp::gpipe{}(problem), problem);
      for (int i = 0; i < p; ++i) {
        INFO("p = " << p << ", m = " << m << ", rank " << i);
        CHECK(peaks[static_cast<std::size_t>(i)] == 100 * std::min(p - i, m));
        CHECK(all[static_cast<std::size_t>(i)] == 100 * m);
      }
    }
}

TEST_CASE("GPipe and 1F1B need a linear placement", "[classic]") {
  problem const problem(placement::looped(2, 2), 2, stage_costs{});
  auto const unsupported = zbpp::errc::unsupported_problem;
  CHECK(zbpp::test::refusal(unsupported, [&] {
          (void)zbpp::gpipe{}(problem);
        }) == "GPipe needs a linear placement, one stage per rank; this one is looped");
  CHECK(zbpp::test::refusal(unsupported, [&] {
          (void)zbpp::one_f_one_b{}(problem);
        }) == "1F1B needs a linear placement, one stage per rank; this one is looped");
}

}  // namespace test_classic
