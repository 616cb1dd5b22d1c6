// SPDX-License-Identifier: Apache-2.0
#include <zbpp/policy/interleaved.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/paper.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

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
    for (int m : {1, p, 3 * p - 1, 4 * p}) {
      problem const problem(placement::linear(p), m, stage_costs{});
      CHECK(zbpp::interleaved{}(problem) == zbpp::one_f_one_b{}(problem));
    }
}

TEST_CASE(
    "interleaved 1F1B makes groups of nearly equal sizes where p does not divide m",
    "[interleaved]") {
  auto const order = zbpp::interleaved{}(problem(placement::looped(2, 2), 5, stage_costs{}));
  CHECK(
      text_of(order.passes(0)) ==
      "0F0 0F1 0F2 2F0 2F1 2F2 2BW0 0F3 2BW1 0F4 2BW2 2F3 0BW0 2F4 0BW1 0BW2 2BW3 2BW4 0BW3 0BW4");
  CHECK(
      text_of(order.passes(1)) ==
      "1F0 1F1 1F2 3F0 3BW0 3F1 3BW1 3F2 3BW2 1F3 1BW0 1F4 1BW1 3F3 1BW2 3F4 3BW3 3BW4 1BW3 1BW4");
}

TEST_CASE(
    "interleaved 1F1B takes any number of microbatches, and more never cost less",
    "[interleaved]") {
  for (int trial = 0; trial < zbpp::test::thinned(400, 60); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 6));
    auto const v = static_cast<int>(random.integer(1, 4));
    auto const m = static_cast<int>(random.integer(1, 4 * p));
    auto const placement = placement::looped(p, v);
    bool const is_even = trial % 2 == 0;
    std::vector<stage_costs> costs;
    for (int s = 0; s < placement.stages(); ++s) {
      if (s > 0 && is_even) {
        costs.push_back(costs.front());
        continue;
      }
      stage_costs c;
      c.forward = random.integer(50, 150);
      c.backward_input = random.integer(50, 150);
      c.backward_weight = random.integer(50, 150);
      c.activation = 10;
      costs.push_back(c);
    }
    auto const hop = trial % 4 < 2 ? 0 : random.integer(0, 60);
    problem const model(placement, m, costs, hop);
    problem const rounded_up(placement, (m + p - 1) / p * p, costs, hop);
    INFO("p = " << p << ", v = " << v << ", m = " << m);
    auto const order = zbpp::interleaved{}(model);
    CHECK(zbpp::verify(zbpp::lower(order), model).empty());
    auto const taken = cost(zbpp::simulate(order, model));
    CHECK(taken <= cost(zbpp::simulate(zbpp::interleaved{}(rounded_up), rounded_up)));
    auto const work = costs.front().forward + costs.front().of(zbpp::pass_kind::backward);
    if (is_even && hop == 0 && m >= p) CHECK(taken == (m * v + p - 1) * work);
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
      for (int m : {1, p, p + 1, 2 * p - 1, 2 * p, 3 * p - 1, 4 * p}) {
        problem const problem(placement::looped(p, v), m, stage_costs{.activation = 10});
        auto const peaks = zbpp::peak_activations(zbpp::interleaved{}(problem), problem);
        auto const groups = std::max(m / p, 1);
        auto const largest = (m + groups - 1) / groups;
        for (int i = 0; i < p; ++i) {
          INFO("p = " << p << ", v = " << v << ", m = " << m << ", rank " << i);
          auto const chunks = std::min((v - 1) * largest + 2 * (p - 1 - i) + 1, v * m);
          CHECK(peaks[static_cast<std::size_t>(i)] == 10 * chunks);
        }
      }
}

TEST_CASE(
    "grouped 1F1B-I takes smaller groups through the chunks, with W behind B", "[interleaved]") {
  problem const small(placement::looped(2, 2), 3, stage_costs{});
  auto const order = zbpp::grouped_interleaved{.group = 1}(small);
  CHECK(
      text_of(order.passes(0)) ==
      "0F0 2F0 0F1 2B0 2W0 2F1 0B0 0W0 0F2 2B1 2W1 2F2 0B1 0W1 2B2 2W2 0B2 0W2");
  CHECK(
      text_of(order.passes(1)) ==
      "1F0 3F0 3B0 3W0 1F1 1B0 1W0 3F1 3B1 3W1 1F2 1B1 1W1 3F2 3B2 3W2 1B2 1W2");
  CHECK(
      text_of(zbpp::grouped_interleaved{.group = 2, .fused = true}(small).passes(1)) ==
      "1F0 1F1 3F0 3BW0 3F1 3BW1 1F2 1BW0 3F2 1BW1 3BW2 1BW2");
}

TEST_CASE(
    "grouped 1F1B-I is valid for groups of any size and keeps its warm-up", "[interleaved][long]") {
  int cases = 0;
  for (int p : {1, 2, 3, 5, 8})
    for (int v : {1, 2, 4})
      for (int m = 1; m <= 3 * p + 1; ++m)
        for (int group = (p + 1) / 2; group <= p; ++group)
          for (bool const fused : {false, true}) {
            INFO("p = " << p << ", v = " << v << ", m = " << m << ", groups of " << group);
            problem const problem(
                placement::looped(p, v),
                m,
                stage_costs{.activation = 10, .weight_gradient_input = 10});
            auto const order = zbpp::grouped_interleaved{.group = group, .fused = fused}(problem);
            CHECK(zbpp::verify(zbpp::lower(order), problem).empty());
            auto const peaks = zbpp::peak_activations(order, problem);
            auto const groups = (m + group - 1) / group;
            auto const largest = (m + groups - 1) / groups;
            for (int i = 0; i < p; ++i) {
              auto const most = std::min(largest * (v - 1) + p - i, v * m);
              CHECK(peaks[static_cast<std::size_t>(i)] <= 10 * most);
              if (m % group == 0) CHECK(peaks[static_cast<std::size_t>(i)] == 10 * most);
            }
            ++cases;
          }
  CHECK(cases > 1000);
}

// @source arXiv 2503.01328 sec. 3
TEST_CASE("the bubble of grouped 1F1B-I has its closed form", "[interleaved]") {
  for (int trial = 0; trial < zbpp::test::thinned(600, 100); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 8));
    auto const v = static_cast<int>(random.integer(1, 4));
    bool const is_even = trial % 3 == 0;
    auto const group = is_even ? static_cast<int>(random.integer((p + 1) / 2, p)) : p;
    auto const m = group * static_cast<int>(random.integer(1, 4));
    auto const forward = random.integer(1, 60);
    auto const backward = is_even ? forward : random.integer(1, 60);
    auto const weight = is_even ? forward : random.integer(1, 60);
    stage_costs const c{.forward = forward, .backward_input = backward, .backward_weight = weight};
    problem const problem(placement::looped(p, v), m, c);
    INFO("p = " << p << ", v = " << v << ", m = " << m << ", groups of " << group);
    auto const bubble = [&](bool fused) {
      return cost(simulate(
                 zbpp::grouped_interleaved{.group = group, .fused = fused}(problem), problem)) -
             m * v * (forward + backward + weight);
    };
    CHECK(
        bubble(false) ==
        (p - 1) * (forward + backward) + (p - group) * (v - 1) * (forward + backward - weight));
    if (group == p) CHECK(bubble(true) == (p - 1) * (forward + backward + weight));
  }
}

TEST_CASE("grouped 1F1B-I takes groups from half of the ranks to all", "[interleaved]") {
  problem const looped(placement::looped(5, 2), 10, stage_costs{});
  CHECK(zbpp::grouped_interleaved{}(looped) == zbpp::grouped_interleaved{.group = 3}(looped));
  for (int const group : {-1, 2, 6})
    CHECK(
        zbpp::test::refusal([&] { (void)zbpp::grouped_interleaved{.group = group}(looped); }) ==
        "grouped_interleaved::group is " + std::to_string(group) +
            "; on 5 ranks it lies between 3 and 5");
  CHECK(zbpp::test::refusal(zbpp::errc::unsupported_problem, [] {
          (void)zbpp::grouped_interleaved{}(problem(placement::v_shape(2), 2, stage_costs{}));
        }) == "grouped 1F1B-I needs a looped placement; this one is v");
}

TEST_CASE("interleaved 1F1B needs a looped placement", "[interleaved]") {
  CHECK(zbpp::test::refusal(zbpp::errc::unsupported_problem, [] {
          (void)zbpp::interleaved{}(problem(placement::v_shape(2), 2, stage_costs{}));
        }) == "1F1B-I needs a looped placement; this one is v");
}

}  // namespace test_interleaved
