// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/message_times.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_message_times {

using namespace zbpp;

namespace {

// Calls `check(name, right, problem, random)` with the timelines of several policies.
template <class Check>
void for_each_step(Check check) {
  for (int trial = 0; trial < 40; ++trial) {
    ZBPP_SEEDED(random, trial);
    int const ranks = static_cast<int>(random.integer(2, 5));
    int const microbatches = 2 * ranks + static_cast<int>(random.integer(0, 2));
    // Handcrafted orders: ranks wait for messages in them, which a search avoids.
    auto const visit = [&](auto const& policy, placement const& placement) {
      stage_costs const costs{.forward = 500, .backward_input = 600, .backward_weight = 400};
      problem const stated(placement, microbatches, costs, transfer_costs(random.integer(20, 120)));
      INFO(policy.name << " on " << ranks << " ranks");
      check(simulate(split_backward(policy(stated)), stated), stated, random);
    };
    visit(one_f_one_b{}, placement::linear(ranks));
    visit(zb_h1{}, placement::linear(ranks));
    visit(zb_v{}, placement::v_shape(ranks));
  }
}

timeline with_other_clocks(timeline step, test::seeded_random& random) {
  for (int rank = 0; rank < step.ranks(); ++rank) {
    auto const ahead = random.integer(0, 1'000'000'000);
    for (auto& timed : step[rank]) {
      timed.start += ahead;
      timed.end += ahead;
    }
  }
  return step;
}

timeline moved(timeline step, ticks by) {
  for (int rank = 0; rank < step.ranks(); ++rank)
    for (auto& timed : step[rank]) {
      timed.start += by;
      timed.end += by;
    }
  return step;
}

}  // namespace

TEST_CASE("clocks that have nothing to do with each other are set by messages", "[analysis]") {
  for_each_step([](timeline const& right, problem const& stated, test::seeded_random& random) {
    auto measured = with_other_clocks(right, random);
    auto const ahead = measured[0].front().start - right[0].front().start;
    align_clocks(measured, stated.placement());
    CHECK(measured == moved(right, ahead));
  });
}

TEST_CASE("a message takes what it takes, and so does a pass", "[analysis]") {
  for_each_step([](timeline const& right, problem const& stated, test::seeded_random&) {
    auto const time = stated.transfer()(0, 1, 0);
    auto const awaited = awaited_messages(right, stated.placement());
    CHECK(!awaited.empty());
    CHECK(std::ranges::all_of(awaited, [&](awaited_message const& m) { return m.took == time; }));
    problem const unknown(stated.placement(), stated.microbatches(), stage_costs{});
    for (double const quantile : {0.0, 0.5, 1.0}) {
      auto const found = costs_and_messages_from(std::vector{right, right}, unknown, quantile);
      CHECK(found.transfer()(0, 1, 0) == time);
      CHECK(found.costs(0).forward == 500);
      CHECK(found.costs(1).backward_input == 600);
      CHECK(found.costs(0).backward_weight == 400);
    }
  });
}

TEST_CASE("a quantile of message times is one that was measured", "[analysis]") {
  problem const stated(placement::linear(2), 3, stage_costs{.forward = 10}, transfer_costs(7));
  timeline step;
  for (int m = 0; m < 3; ++m) step.push({{pass_kind::forward, 0, m}, 10 * m, 10 * m + 10});
  step.end_row();
  // The first pass of a rank says nothing: the rank may have begun late.
  step.push({{pass_kind::forward, 1, 0}, 12, 13});
  step.push({{pass_kind::forward, 1, 1}, 24, 25});
  step.push({{pass_kind::forward, 1, 2}, 36, 37});
  step.end_row();
  auto const time = [&](double quantile) {
    return costs_and_messages_from(std::vector{step}, stated, quantile).transfer()(0, 1, 0);
  };
  CHECK(time(0) == 4);
  CHECK(time(1) == 6);
}

TEST_CASE("where no message was waited for transfers stay as stated", "[analysis]") {
  problem const stated(placement::linear(2), 1, stage_costs{.forward = 10}, transfer_costs(7));
  timeline step;
  step.push({{pass_kind::forward, 0, 0}, 0, 10});
  step.end_row();
  step.push({{pass_kind::forward, 1, 0}, 12, 22});
  step.end_row();
  CHECK(awaited_messages(step, stated.placement()).empty());
  CHECK(costs_and_messages_from(std::vector{step}, stated).transfer()(0, 1, 0) == 7);
}

TEST_CASE("steps of other placements are refused", "[analysis]") {
  timeline step;
  step.push({{pass_kind::forward, 2, 0}, 0, 10});
  step.end_row();
  step.end_row();
  auto const messages = [&](placement const& placement) {
    return test::refusal([&] { static_cast<void>(awaited_messages(step, placement)); });
  };
  CHECK(messages(placement::linear(3)).find("a row for each rank") != std::string::npos);
  CHECK(messages(placement::linear(2)).find("a placement of 2 stages") != std::string::npos);
  CHECK(test::refusal([&] {
          problem const stated(placement::v_shape(2), 1, stage_costs{});
          static_cast<void>(costs_and_messages_from(std::vector{step}, stated, 1.5));
        }).find("quantile") != std::string::npos);
}

TEST_CASE("splitting undoes fusing", "[analysis]") {
  problem const stated(
      placement::linear(4), 8, {.forward = 2, .backward_input = 2, .backward_weight = 1});
  int checked = 0;
  for (auto const& policy : builtin_policies()) {
    INFO(policy.name());
    std::optional<schedule> order;
    try {
      order = policy(stated);
    } catch (error const&) {
      continue;  // it takes another placement
    }
    ++checked;
    auto const split = split_backward(*order);
    CHECK(std::ranges::none_of(
        split.passes().all(), [](pass const& p) { return p.kind == pass_kind::backward; }));
    CHECK(split_backward(split) == split);
    CHECK(split_backward(fuse_backward(split)) == split);
  }
  CHECK(checked >= 4);
}

}  // namespace test_message_times
