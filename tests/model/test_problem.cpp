// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/problem.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace test_problem {

using namespace zbpp;
using zbpp::test::refusal;

namespace {

constexpr auto most = std::numeric_limits<std::int64_t>::max();
std::string const too_much =
    "times or sizes add up to more than 2^62 over a step; use a coarser unit";

}  // namespace

TEST_CASE("a problem keeps what it was made of", "[problem]") {
  problem const problem(placement::linear(2), 3, {{.forward = 1}, {.forward = 2}}, 5, {7, 8});
  CHECK(problem.placement() == placement::linear(2));
  CHECK(problem.ranks() == 2);
  CHECK(problem.stages() == 2);
  CHECK(problem.microbatches() == 3);
  CHECK(problem.costs(1).forward == 2);
  CHECK(problem.all_costs().size() == 2);
  CHECK(problem.transfer() == transfer_costs(5));
  CHECK(problem.memory_limit(1) == bytes{8});
}

TEST_CASE("one entry of costs stands for every stage", "[problem]") {
  problem const problem(placement::v_shape(2), 1, stage_costs{.forward = 3});
  REQUIRE(problem.all_costs().size() == 4);
  CHECK(problem.costs(0) == problem.costs(3));
  CHECK(
      problem ==
      zbpp::problem(placement::v_shape(2), 1, std::vector<stage_costs>(4, {.forward = 3})));
}

TEST_CASE("one memory limit stands for every rank, none for no limit", "[problem]") {
  CHECK(problem(placement::linear(3), 1, stage_costs{}, 0, {9}).memory_limit(2) == bytes{9});
  CHECK(problem(placement::linear(3), 1, stage_costs{}).memory_limit(0) == std::nullopt);
}

TEST_CASE("another memory limit for every rank changes nothing else", "[problem]") {
  problem const problem(placement::linear(2), 3, {{.forward = 1}, {.forward = 2}}, 5, {7, 8});
  CHECK(
      with_memory_limit(problem, 9) ==
      zbpp::problem(placement::linear(2), 3, {{.forward = 1}, {.forward = 2}}, 5, {9}));
  CHECK(refusal([&] {
          static_cast<void>(with_memory_limit(problem, -1));
        }) == "memory_limit is -1; a limit is at least 0 bytes");
}

TEST_CASE("a transfer carries the edge of the stage before it, both ways", "[problem]") {
  problem const problem(
      placement::custom({0, 1, 1}),
      1,
      {{.edge = 10}, {.edge = 1000}, {}},
      transfer_costs(2, {0, 1, 2, 0}, {0, 1, 1, 0}));
  CHECK(problem.transfer_time(0, 1, 0) == 11);
  CHECK(problem.transfer_time(1, 0, 0) == 12);
  CHECK(problem.transfer_time(1, 2, 0) == 0);
}

TEST_CASE("problems are equal when all of their parts are", "[problem]") {
  problem const origin(placement::linear(2), 3, stage_costs{.forward = 1}, 5, {7});
  CHECK(origin == problem(placement::linear(2), 3, stage_costs{.forward = 1}, 5, {7}));
  CHECK(origin != problem(placement::linear(2), 4, stage_costs{.forward = 1}, 5, {7}));
  CHECK(origin != problem(placement::linear(2), 3, stage_costs{.forward = 2}, 5, {7}));
  CHECK(origin != problem(placement::linear(2), 3, stage_costs{.forward = 1}, 6, {7}));
  CHECK(origin != problem(placement::linear(2), 3, stage_costs{.forward = 1}, 5, {8}));
  CHECK(origin != problem(placement::custom({1, 0}), 3, stage_costs{.forward = 1}, 5, {7}));
}

TEST_CASE("a problem that cannot be says what would be right", "[problem]") {
  auto const placement = placement::linear(2);
  CHECK(refusal([&] {
          problem(placement, 0, stage_costs{});
        }) == "microbatches is 0; a step has at least 1");
  CHECK(refusal([&] {
          problem(placement, 1 << 30, stage_costs{});
        }) == "microbatches is 1073741824; with 2 stages at most 67108864");
  CHECK(refusal([&] {
          problem(placement, 1, std::vector<stage_costs>(3));
        }) == "costs are given for 3 stages; the placement has 2");
  CHECK(refusal([&] {
          problem(placement, 1, {{}, {.backward_input = -4}});
        }) == "stage 1: backward_input is -4; at least 0");
  CHECK(refusal([&] {
          problem(placement, 1, stage_costs{}, transfer_costs(1, {0}));
        }) == "transfer: the table is for 1 ranks; the placement has 2");
  CHECK(refusal([&] {
          problem(placement, 1, stage_costs{}, 0, {1, 2, 3});
        }) == "memory_limit has 3 entries; give 1 or 2");
  CHECK(refusal([&] {
          problem(placement, 1, stage_costs{}, 0, {1, -2});
        }) == "memory_limit is -2; a limit is at least 0 bytes");
}

TEST_CASE("sums that no clock and no count could hold are refused", "[problem]") {
  auto const placement = placement::linear(2);
  auto const refused = [&](int m, stage_costs const& costs, transfer_costs const& transfer = 0) {
    return refusal([&] { problem(placement, m, costs, transfer); });
  };
  auto const limit = most / 2;
  CHECK(refused(1, {.forward = limit / 2}) == "<nothing was refused>");
  CHECK(refused(1, {.forward = limit / 2 + 2}) == too_much);
  CHECK(refused(3, {.forward = limit / 4}) == too_much);
  CHECK(refused(1, {.forward = most, .backward_input = most, .backward_weight = most}) == too_much);
  CHECK(refused(1, {.recompute = most}) == too_much);
  CHECK(refused(1, {.activation = limit / 2 + 2}) == too_much);
  CHECK(refused(1, {.edge = limit / 4}) == too_much);
  CHECK(refused(1, {.static_memory = most}) == too_much);
  CHECK(refused(1, {.workspace = most}) == too_much);
  CHECK(refused(1, {}, ticks{1} << 61) == too_much);
  CHECK(
      refused(1, {.edge = most / 32}, transfer_costs(2, {0, 0, 0, 0}, {0, 1e9, 1e9, 0})) ==
      too_much);
}

}  // namespace test_problem
