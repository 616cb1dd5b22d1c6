// SPDX-License-Identifier: Apache-2.0
#include <zbpp/policy/interleaved.hpp>
// What the checks need besides.
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/paper.hpp>
#include <support/refusal.hpp>

#include <algorithm>

namespace test_interleaved {

using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::test::text_of;

TEST_CASE(
    "interleaved 1F1B takes groups of p microbatches through the chunks in turn", "[interleaved]") {
  auto const order = zbpp::interleaved{}(problem(placement::looped(2, 2), 4, stage_costs{}));
  CHECK(
      text_of(order.passes(0)) ==
      "0F0 0F1 2F0 2F1 0F2 2BW0 0F3 2BW1 2F2 0BW0 2F3 0BW1 2BW2 2BW3 0BW2 0BW3");
  CHECK(
      text_of(order.passes(1)) ==
      "1F0 1F1 3F0 3BW0 3F1 3BW1 1F2 1BW0 1F3 1BW1 3F2 3BW2 3F3 3BW3 1BW2 1BW3");
}

TEST_CASE("with one chunk interleaved 1F1B is 1F1B", "[interleaved]") {
  for (int p : {1, 2, 5})
    for (int m : {p, 4 * p}) {
      problem const problem(placement::linear(p), m, stage_costs{});
      CHECK(zbpp::interleaved{}(problem) == zbpp::one_f_one_b{}(problem));
    }
}

// The paper's rates follow from cost = m S + (p - 1) S / v + (2 p v - p - 2) T_comm. Running the
// order itself, transfers and all, costs p T_comm more, to the tick.
// @source arXiv 2401.10241v1 table 5
TEST_CASE(
    "the closed form of interleaved 1F1B has the paper's bubble rates, and simulation costs p "
    "transfers more",
    "[interleaved][paper]") {
  for (auto const& row : zbpp::test::paper_rows) {
    auto const p = row.ranks;
    auto const v = row.chunks;
    auto const costs = row.costs(v);
    auto const chunk = costs.forward + costs.backward_input + costs.backward_weight;
    auto const hop = zbpp::from_milliseconds(row.transfer);
    auto const work = row.microbatches * v * chunk;
    auto const closed_form = work + (p - 1) * chunk + (2 * p * v - p - 2) * hop;
    auto const rate = 1 - static_cast<double>(work) / static_cast<double>(closed_form);
    INFO(row.model << ", m = " << row.microbatches << ": " << rate);
    CHECK(zbpp::test::is_printed_as(rate, row.bubble_1f1b_i));

    problem const problem(placement::looped(p, v), row.microbatches, costs, hop);
    CHECK(cost(zbpp::simulate(zbpp::interleaved{}(problem), problem)) == closed_form + p * hop);
  }
}

TEST_CASE("interleaved 1F1B keeps its warm-up and one chunk more", "[interleaved]") {
  for (int p : {1, 2, 4, 8})
    for (int v : {2, 3, 4})
      for (int groups : {1, 2, 4}) {
        problem const problem(placement::looped(p, v), groups * p, stage_costs{.activation = 10});
        auto const peaks = zbpp::peak_activations(zbpp::interleaved{}(problem), problem);
        for (int i = 0; i < p; ++i) {
          INFO("p = " << p << ", v = " << v << ", m = " << groups * p << ", rank " << i);
          auto const chunks = std::min((v - 1) * p + 2 * (p - 1 - i) + 1, v * groups * p);
          CHECK(peaks[static_cast<std::size_t>(i)] == 10 * chunks);
        }
      }
}

TEST_CASE("interleaved 1F1B needs a looped placement and whole groups", "[interleaved]") {
  auto const refused = [](placement const& placement, int m) {
    return zbpp::test::refusal(zbpp::errc::unsupported_problem, [&] {
      (void)zbpp::interleaved{}(problem(placement, m, stage_costs{}));
    });
  };
  CHECK(refused(placement::v_shape(2), 2) == "1F1B-I needs a looped placement; this one is v");
  CHECK(
      refused(placement::looped(4, 2), 6) ==
      "1F1B-I needs a multiple of 4 microbatches, one for each rank; there are 6");
}

}  // namespace test_interleaved
