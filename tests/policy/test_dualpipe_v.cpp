// SPDX-License-Identifier: Apache-2.0
#include <zbpp/policy/dualpipe_v.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <string>

namespace test_dualpipe_v {

using zbpp::dualpipe_v;
using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::ticks;

namespace {

problem even(int ranks, int microbatches, stage_costs const& costs) {
  return {placement::v_shape(ranks), microbatches, costs};
}

ticks bubble(problem const& problem) {
  auto const& c = problem.costs(0);
  auto const work = c.forward + c.backward_input + c.backward_weight;
  return cost(simulate(dualpipe_v{}(problem), problem)) - 2 * problem.microbatches() * work;
}

}  // namespace

TEST_CASE("DualPipeV for 2 ranks and 5 microbatches is written out by hand", "[dualpipe_v]") {
  auto const order = dualpipe_v{}(even(2, 5, {}));
  auto const row = [&](int rank) {
    std::string text;
    for (auto const& p : order.passes(rank))
      text.append(text.empty() ? "" : " ").append(to_string(p));
    return text;
  };
  CHECK(
      row(0) ==
      "0F0 0F1 0F2 3F0 3B0 3W0 3F1 0F3 3BW1 3F2 0BW0 0F4 3BW2 3F3 0BW1 3BW3 3F4 0BW2 3BW4 0B3 0W3 "
      "0B4 0W4");
  CHECK(
      row(1) ==
      "1F0 2F0 1F1 2F1 1F2 2BW0 2F2 1BW0 1F3 2BW1 2F3 1BW1 1F4 2BW2 2F4 1BW2 2BW3 1BW3 2B4 1B4 2W4 "
      "1W4");
}

TEST_CASE("DualPipeV runs every pass once, and verify finds no fault in it", "[dualpipe_v]") {
  for (int p : {1, 2, 3, 4, 5, 8, 16})
    for (int m : {2 * p, 2 * p + 1, 3 * p, 5 * p}) {
      INFO("p = " << p << ", m = " << m);
      auto const problem = even(p, m, {});
      auto const order = dualpipe_v{}(problem);
      // Split are p - 1 - r BW early, r + 1 late, and p - 1 - r at the end.
      for (int rank = 0; rank < p; ++rank) {
        int split = 0;
        for (auto const& pass : order.passes(rank))
          split += pass.kind == zbpp::pass_kind::backward_weight ? 1 : 0;
        CHECK(split == (p - 1 - rank) + (rank + 1) + (p - 1 - rank));
      }
      CHECK(verify(lower(order), problem).empty());
    }
}

TEST_CASE(
    "DualPipeV has the bubble (p - 1)(F + B - W) where W <= B <= F <= B + W", "[dualpipe_v]") {
  int checked = 0;
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const f = random.integer(0, 1000);
    auto const b = random.integer(0, f);
    auto const w = random.integer(0, b);
    if (f > b + w) continue;
    auto const p = static_cast<int>(random.integer(1, 6));
    auto const m = 2 * p + static_cast<int>(random.integer(0, 7));
    INFO("p " << p << ", m " << m << ", F " << f << ", B " << b << ", W " << w);
    auto const problem =
        even(p, m, {.forward = f, .backward_input = b, .backward_weight = w, .activation = 1});
    CHECK(bubble(problem) == (p - 1) * (f + b - w));
    ++checked;
  }
  CHECK(checked > 50);
}

TEST_CASE("with pairs DualPipeV has the bubble that is printed, where F = B", "[dualpipe_v]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const f = random.integer(1, 1000);
    auto const w = random.integer(0, f);
    auto const saved = random.integer(1, f);
    auto const p = static_cast<int>(random.integer(1, 6));
    auto const m = 2 * p + static_cast<int>(random.integer(0, 7));
    INFO("p " << p << ", m " << m << ", F " << f << ", W " << w << ", saved " << saved);
    auto const problem = even(
        p,
        m,
        {.forward = f, .backward_input = f, .backward_weight = w, .overlapped = 2 * f - saved});
    auto const line = simulate(dualpipe_v{}(problem), problem);
    // (PP/2 - 1) (F&B + B - 3W), where its B is our B + W: so long the last rank idles.
    auto const together = 2 * f + w - saved;
    CHECK(cost(line) - busy(line, p - 1) == (p - 1) * (together + (f + w) - 3 * w));
    for (int rank = 0; rank < p; ++rank) {
      auto const row = line[rank];
      auto const pairs = std::ranges::count_if(
          row, [](zbpp::timed_pass const& timed) { return timed.pass.is_paired; });
      bool const is_last = rank == p - 1;  // whose first F and BW of the steady state stay apart
      CHECK(pairs == 2 * (m - 2 * p + rank + 1) + (p - 1 - rank) - (is_last ? 1 : 0));
    }
    CHECK(verify(lower(dualpipe_v{}(problem)), problem).empty());
  }
}

TEST_CASE("pairs change nothing else in DualPipeV", "[dualpipe_v]") {
  stage_costs hides{.forward = 10, .backward_input = 10, .backward_weight = 10, .overlapped = 15};
  for (int p : {1, 2, 4}) {
    auto const paired = dualpipe_v{}(even(p, 3 * p, hides));
    auto rows = paired.passes().nested();
    for (auto& row : rows)
      for (auto& pass : row) pass.is_paired = false;
    auto costs = hides;
    costs.overlapped = 20;  // which is F + B
    auto const plain = dualpipe_v{}(even(p, 3 * p, costs));
    CHECK(plain == zbpp::schedule(paired.placement(), paired.microbatches(), rows));
    costs.overlapped.reset();
    CHECK(plain == dualpipe_v{}(even(p, 3 * p, costs)));
    CHECK(plain != paired);
  }
}

TEST_CASE("every rank of DualPipeV keeps 2p + 1 chunks", "[dualpipe_v]") {
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {2 * p + 1, 4 * p}) {
      auto const problem = even(p, m, {.activation = 1, .weight_gradient_input = 1});
      for (auto const peak : zbpp::peak_activations(dualpipe_v{}(problem), problem))
        CHECK(peak == 2 * p + 1);
    }
}

TEST_CASE("DualPipeV needs a v and two microbatches per rank", "[dualpipe_v]") {
  auto const refused = [](placement const& placement, int microbatches) {
    return zbpp::test::refusal(zbpp::errc::unsupported_problem, [&] {
      (void)dualpipe_v{}(problem(placement, microbatches, stage_costs{}));
    });
  };
  CHECK(
      refused(placement::linear(2), 4) ==
      "DualPipeV needs a v placement, two stages per rank; this one is linear");
  for (auto const& any : {placement::v_shape(3), placement::linear(3), placement::looped(3, 2)})
    CHECK(
        refused(any, 5) ==
        "DualPipeV needs a step of at least 6 microbatches, two for each rank; there are 5");
}

}  // namespace test_dualpipe_v
