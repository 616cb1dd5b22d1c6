// SPDX-License-Identifier: Apache-2.0
#include <zbpp/policy/zb_v.hpp>
// What the checks need besides.
#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <algorithm>
#include <array>
#include <string>

namespace test_zb_v {

using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;

namespace {

problem even(int ranks, int microbatches) {
  return {
      placement::v_shape(ranks),
      microbatches,
      stage_costs{
          .forward = 1,
          .backward_input = 1,
          .backward_weight = 1,
          .activation = 1,
          .weight_gradient_input = 1}};
}

}  // namespace

// The picture shows the microbatch, from 1, of each pass in turn.
// @source arXiv 2401.10241v1 fig. 8
TEST_CASE("ZB-V for 4 ranks and 8 microbatches is the paper's picture", "[zb_v][paper]") {
  std::array<std::string, 4> const picture{
      "1 2 3 4 5 6 7 1 1 1 2 2 2 3 3 3 4 4 4 8 1 1 5 5 5 2 2 6 6 6 3 3 7 7 7 4 4 8 8 8 5 5 6 6 7 7 "
      "8 8",
      "1 2 3 4 5 1 6 2 1 1 3 2 2 4 3 3 7 1 1 5 4 4 8 2 2 6 5 5 3 3 7 6 6 4 4 8 7 7 5 8 6 5 7 8 8 6 "
      "7 8",
      "1 2 3 1 4 2 5 3 1 1 4 2 2 6 1 1 5 3 3 7 2 2 6 4 4 8 3 3 7 5 5 4 4 8 6 6 5 7 6 8 7 5 8 7 6 8 "
      "7 8",
      "1 1 2 2 3 3 4 4 1 1 5 1 1 5 2 2 6 2 2 6 3 3 7 3 3 7 4 4 8 4 4 8 5 5 5 6 6 7 7 8 8 5 6 6 7 7 "
      "8 8"};
  auto const order = zbpp::zb_v{}(even(4, 8));
  for (int rank = 0; rank < 4; ++rank) {
    std::string row;
    for (auto const& p : order.passes(rank))
      row.append(row.empty() ? "" : " ").append(std::to_string(p.microbatch + 1));
    CHECK(row == picture[static_cast<std::size_t>(rank)]);
  }
}

TEST_CASE("with equal times ZB-V ends after 6m + p - 1 units within the memory of 1F1B", "[zb_v]") {
  for (int p : {1, 2, 3, 4, 5, 8, 11})
    for (int m = 2 * p - 1; m <= 4 * p + 1; ++m) {
      INFO("p = " << p << ", m = " << m);
      auto const problem = even(p, m);
      auto const order = zbpp::zb_v{}(problem);
      CHECK(makespan(zbpp::simulate(order, problem)) == 6 * m + p - 1);
      for (auto peak : zbpp::peak_activations(order, problem))
        CHECK(peak == std::min(2 * p, 2 * m));
    }
}

TEST_CASE("with few microbatches ZB-V keeps no more than 1F1B", "[zb_v]") {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m < 2 * p - 1; ++m)
      for (auto peak : zbpp::peak_activations(zbpp::zb_v{}(even(p, m)), even(p, m)))
        CHECK(peak <= 2 * p);
}

TEST_CASE("with few microbatches and equal times no order within p M costs less", "[zb_v]") {
  for (int p : {2, 3, 4, 6})
    for (int m = 1; m < 2 * p - 1; ++m) {
      INFO("p = " << p << ", m = " << m);
      auto const problem = zbpp::with_memory_limit(even(p, m), 2 * p);
      auto const taken = cost(zbpp::simulate(zbpp::zb_v{}(problem), problem));
      auto const bound = zbpp::raise_bound(zbpp::lower_bound(problem), taken, problem, 1e7);
      CHECK(taken == bound.cost);
    }
}

TEST_CASE("ZB-V needs a v", "[zb_v]") {
  auto const refused = [](placement const& placement) {
    return zbpp::test::refusal(zbpp::errc::unsupported_problem, [&] {
      (void)zbpp::zb_v{}(problem(placement, 2, stage_costs{}));
    });
  };
  CHECK(
      refused(placement::linear(2)) ==
      "ZB-V needs a v placement, two stages per rank; this one is linear");
  CHECK(
      refused(placement::custom({1, 0, 0, 1})) ==
      "ZB-V needs a v placement, two stages per rank; this one is custom");
}

}  // namespace test_zb_v
