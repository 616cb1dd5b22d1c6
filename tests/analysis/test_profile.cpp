// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/profile.hpp>
#include <zbpp/io/profile_text.hpp>
// What the checks need besides.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/stp.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace test_profile {

using namespace zbpp;

namespace {

problem uneven(placement const& on, int microbatches) {
  std::vector<stage_costs> costs;
  for (int s = 0; s < on.stages(); ++s)
    costs.push_back(
        {.forward = 1000 + 100 * s,
         .backward_input = 1500 - 50 * s,
         .backward_weight = 700 + 10 * s,
         .activation = 64,
         .edge = 16});
  return {on, microbatches, std::move(costs), transfer_costs(13), {9000}};
}

std::vector<timeline> steps_of(schedule const& order, problem const& of, int count) {
  return std::vector<timeline>(static_cast<std::size_t>(count), simulate(order, of));
}

}  // namespace

TEST_CASE("a profile of steps without noise has the costs and no spread", "[profile]") {
  for (auto const& truth : {uneven(placement::linear(4), 9), uneven(placement::v_shape(2), 5)}) {
    auto const order = truth.placement().is_linear() ? zb_h1{}(truth) : zb_v{}(truth);
    auto const found = profile(steps_of(order, truth, 5), truth);
    CHECK(found.costs == truth);
    CHECK(found.passes.size() == static_cast<std::size_t>(3 * truth.stages()));
    for (auto const& one : found.passes) {
      auto const took = truth.costs(one.stage).of(one.kind);
      CHECK(one.took == time_spread{2 * truth.microbatches(), took, took, took, 0});
    }
    CHECK(!found.messages.empty());
    for (auto const& one : found.messages) {
      CHECK(one.took.median == 13);
      CHECK(one.took.least == 13);
      CHECK(one.took.most == 13);
      CHECK(one.from != one.to);
    }
    CHECK(found.step.median == cost(simulate(order, truth)));
    CHECK(found.step.count == 2);
  }
}

TEST_CASE("passes that stand out change no median", "[profile]") {
  auto const truth = uneven(placement::linear(3), 8);
  auto const order = zb_h1{}(truth);
  for (int trial = 0; trial < 30; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto steps = steps_of(order, truth, 6);
    // The last pass of a rank, so that no other moves.
    auto const rank = static_cast<int>(random.integer(0, 2));
    auto const step = static_cast<int>(random.integer(0, 2));
    auto& slow = steps[static_cast<std::size_t>(3 + step)][rank].back();
    slow.end += 5000;
    auto const took = slow.end - slow.start;
    auto const found = profile(steps, truth);
    CHECK(found.costs == truth);
    for (auto const& one : found.passes) {
      bool const is_slow = one.stage == slow.pass.stage && one.kind == slow.pass.kind;
      auto const usual = truth.costs(one.stage).of(one.kind);
      CHECK(
          one.took ==
          time_spread{3 * truth.microbatches(), usual, usual, is_slow ? took : usual, 0});
    }
  }
}

TEST_CASE("first steps are left out, and pairs count for themselves", "[profile]") {
  auto const truth = uneven(placement::linear(3), 8);
  auto const order = zb_h1{}(truth);
  auto steps = steps_of(order, truth, 3);
  for (auto& timed : steps.front()[0]) timed.end = timed.start + 1;
  CHECK(profile(steps, truth, {.first_steps = 1}).costs == truth);

  stage_costs costs{.forward = 10, .backward_input = 10, .backward_weight = 10, .activation = 1};
  costs.overlapped = 15;
  problem const paired(placement::v_shape(2), 8, costs);
  auto const order_with_pairs = stp{}(paired);
  auto const steps_with_pairs = steps_of(order_with_pairs, paired, 1);
  auto const found = profile(steps_with_pairs, paired, {.first_steps = 0});
  for (auto const& one : found.passes) CHECK(one.took.most == costs.of(one.kind));
  CHECK(simulate(order_with_pairs, found.costs) == steps_with_pairs.front());
}

TEST_CASE("the deviation is the median distance from the median", "[profile]") {
  problem const one(placement::linear(1), 5, stage_costs{.forward = 10});
  std::vector<timed_pass> passes;
  ticks now = 0;
  int m = 0;
  for (ticks const took : {10, 11, 12, 14, 100}) {
    passes.push_back({{pass_kind::forward, 0, m++}, now, now + took});
    now += took;
  }
  timeline line;
  for (auto const& timed : passes) line.push(timed);
  line.end_row();
  auto const found = profile(std::vector{line}, one, {.first_steps = 0});
  REQUIRE(found.passes.size() == 1);
  CHECK(found.passes.front().took == time_spread{5, 10, 12, 100, 2});
  CHECK(
      to_text(found, time_unit::nanoseconds) ==
      "times in ns\n"
      "\n"
      "stage, pass  count   median    least     most  deviation\n"
      "0 F              5   12.000   10.000  100.000      2.000\n"
      "step             1  147.000  147.000  147.000      0.000\n");
}

TEST_CASE("profiles of nothing, and options out of range, are refused", "[profile]") {
  auto const truth = uneven(placement::linear(2), 4);
  auto const steps = steps_of(zb_h1{}(truth), truth, 3);
  auto const refused = [&](profile_options const& options) {
    return test::refusal(
        errc::bad_argument, [&] { static_cast<void>(profile(steps, truth, options)); });
  };
  CHECK(
      refused({}) ==
      "profile got no step behind the first ones, which it leaves out; give more steps");
  CHECK(refused({.first_steps = -1}) == "profile_options::first_steps is below 0");
  CHECK(refused({.first_steps = 0, .message_quantile = 2}).find("quantile") != std::string::npos);
}

}  // namespace test_profile
