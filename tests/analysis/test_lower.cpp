// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>

#include <support/catch.hpp>
#include <support/independent_check.hpp>
#include <support/instructions.hpp>
#include <support/policy_grid.hpp>
#include <support/random_timeline.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace test_lower {

using namespace zbpp;
using namespace zbpp::test;

namespace {

std::vector<pass> passes_of(program const& code, int rank) {
  std::vector<pass> result;
  for (auto const& i : code.instructions(rank))
    if (i.is_pass()) result.push_back(i.as_pass());
  return result;
}

// Whether every receive stands in front of the pass that needs it, at least `ahead` passes before
// or else in front of all passes.
bool receives_in_time(program const& code, int ahead) {
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    int before = 0;
    for (auto receive = row.begin(); receive != row.end(); ++receive) {
      if (receive->is_pass()) ++before;
      if (!receive->is_receive()) continue;
      int between = 0;
      auto const consumer = std::find_if(receive + 1, row.end(), [&](instruction const& later) {
        bool const needs_it =
            later.is_pass() && later.stage == receive->stage &&
            later.microbatch == receive->microbatch &&
            (receive->moves_activation() ? later.kind == instruction_kind::forward
                                         : later.as_pass().makes_input_gradient());
        if (later.is_pass() && !needs_it) ++between;
        return needs_it;
      });
      if (consumer == row.end() || between < std::min(ahead, before + between)) return false;
    }
  }
  return true;
}

// Whether every send stands right behind the pass that makes what it ships.
bool sends_at_once(program const& code) {
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].is_send()) continue;
      if (i == 0 || !row[i - 1].is_pass()) return false;
      auto const made = row[i - 1].as_pass();
      bool const right_kind = row[i].moves_activation() ? made.kind == zbpp::pass_kind::forward
                                                        : made.makes_input_gradient();
      if (!right_kind || made.stage != row[i].stage || made.microbatch != row[i].microbatch)
        return false;
    }
  }
  return true;
}

// Whether the optimizer step of each stage stands right behind its last W or BW, or the send of it.
bool steps_after_last_w(program const& code) {
  int steps = 0;
  for (int rank = 0; rank < code.ranks(); ++rank) {
    std::map<int, bool> has_stepped;
    for (auto const& i : code.instructions(rank)) {
      if (i.kind == instruction_kind::optimizer_step) {
        if (has_stepped[i.stage] || i.microbatch != 0) return false;
        has_stepped[i.stage] = true;
        ++steps;
      } else if (i.is_pass() && i.as_pass().makes_weight_gradient() && has_stepped[i.stage]) {
        return false;
      }
    }
  }
  return steps == code.stages();
}

}  // namespace

TEST_CASE("lowering puts transfers and steps in place", "[lower]") {
  schedule const order(
      placement::linear(2), 2, passes({"0F0 0F1 0B0 0W0 0BW1", "1F0 1B0 1F1 1W0 1BW1"}));
  auto const code = lower(order);
  CHECK(
      text_of(code.instructions(0)) ==
      "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0W0 0RECV_B1 0BW1 0STEP");
  CHECK(
      text_of(code.instructions(1)) ==
      "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1W0 1BW1 1SEND_B1 1STEP");
  CHECK(
      code.channels() == std::vector<zbpp::channel>{
                             {.from = 0, .to = 1, .slots = 1, .in_flight = 2},
                             {.from = 1, .to = 0, .slots = 1, .in_flight = 2}});
}

TEST_CASE("chunks of one rank hand over without a message", "[lower]") {
  schedule const order(placement::custom({0, 0}), 1, passes({"0F0 1F0 1BW0 0BW0"}));
  CHECK(text_of(lower(order).instructions(0)) == "0F0 1F0 1BW0 1STEP 0BW0 0STEP");
  CHECK(lower(order).channels().empty());
}

TEST_CASE("a receive stands no later than one that is sent after it", "[lower]") {
  // Rank 1 needs the messages in the other order than the one in which rank 0 sends them.
  schedule const order(placement::linear(2), 2, passes({"0F0 0F1 0BW0 0BW1", "1F1 1F0 1BW0 1BW1"}));
  CHECK(
      text_of(lower(order).instructions(1)) ==
      "1RECV_F0 1RECV_F1 1F1 1F0 1BW0 1SEND_B0 1BW1 1SEND_B1 1STEP");
}

TEST_CASE("receives can be opened some passes ahead", "[lower]") {
  schedule const order(placement::linear(2), 2, passes({"0F0 0F1 0BW0 0BW1", "1F0 1F1 1BW0 1BW1"}));
  CHECK(
      text_of(lower(order, {.receive_ahead = 1}).instructions(0)) ==
      "0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0BW0 0BW1 0STEP");
  CHECK(
      text_of(lower(order, {.receive_ahead = 9}).instructions(1)) ==
      "1RECV_F0 1RECV_F1 1F0 1F1 1BW0 1SEND_B0 1BW1 1SEND_B1 1STEP");
  CHECK(zbpp::test::refusal([&] {
          (void)lower(order, {.receive_ahead = -1});
        }) == "receive_ahead counts passes; it is at least 0");
}

TEST_CASE("ranks agree between the last W and the steps, or early in the next step", "[lower]") {
  schedule const order(
      placement::linear(2),
      3,
      passes({"0F0 0F1 0B0 0W0 0F2 0B1 0W1 0BW2", "1F0 1BW0 1F1 1BW1 1F2 1BW2"}));
  CHECK(
      text_of(lower(order, {.step = zbpp::step_kind::synchronous}).instructions(0)) ==
      "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0W0 0F2 0SEND_F2 0RECV_B1 0B1 0W1 0RECV_B2 0BW2 "
      "0NORM "
      "0VALIDATE 0STEP");
  auto const late = lower(order, {.step = zbpp::step_kind::post_validated});
  CHECK(
      text_of(late.instructions(0)) ==
      "0F0 0SEND_F0 0F1 0SEND_F1 0VALIDATE 0RECV_B0 0B0 0W0 0F2 0SEND_F2 0RECV_B1 0B1 0W1 0RECV_B2 "
      "0BW2 0NORM 0STEP");
  // What rank 0 sends before it validates is received before rank 1 does, though F1 comes later.
  CHECK(
      text_of(late.instructions(1)) ==
      "1RECV_F0 1F0 1RECV_F1 1VALIDATE 1BW0 1SEND_B0 1F1 1BW1 1SEND_B1 1RECV_F2 1F2 1BW2 1SEND_B2 "
      "1NORM 1STEP");
}

TEST_CASE("stages that step at once do so behind the norm, and the first ranks go on", "[lower]") {
  schedule const order(
      placement::linear(3),
      2,
      passes({"0F0 0F1 0B0 0W0 0BW1", "1F0 1BW0 1F1 1BW1", "2F0 2BW0 2F1 2BW1"}));
  auto const rows = [&](std::vector<int> const& at_once) {
    auto const code = lower(order, {.step = zbpp::step_kind::synchronous, .at_once = at_once});
    std::vector<std::string> all;
    for (int rank = 0; rank < 3; ++rank) all.push_back(text_of(code.instructions(rank)));
    return all;
  };
  auto const first =
      "0F0 0SEND_F0 0F1 0SEND_F1 0VALIDATE 0RECV_B0 0B0 0W0 0RECV_B1 0BW1 0NORM 0STEP_NOW";
  CHECK(
      rows({0}) ==
      std::vector<std::string>{
          first,
          "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1BW0 1SEND_B0 1RECV_F1 1F1 1SEND_F1 1RECV_B1 1BW1 "
          "1SEND_B1 1NORM 1VALIDATE 1STEP",
          "2RECV_F0 2F0 2BW0 2SEND_B0 2RECV_F1 2F1 2BW1 2SEND_B1 2NORM 2VALIDATE 2STEP"});
  CHECK(
      rows({0, 1, 2}) ==
      std::vector<std::string>{
          first,
          "1RECV_F0 1F0 1SEND_F0 1VALIDATE 1RECV_B0 1BW0 1SEND_B0 1RECV_F1 1F1 1SEND_F1 1RECV_B1 "
          "1BW1 1SEND_B1 1NORM 1STEP_NOW",
          "2RECV_F0 2F0 2BW0 2SEND_B0 2RECV_F1 2F1 2BW1 2SEND_B1 2NORM 2STEP_NOW 2VALIDATE"});
  // Rank 0 waits, so nobody behind it goes on.
  CHECK(rows({1})[1].ends_with(" 1NORM 1STEP_NOW 1VALIDATE"));
  schedule const v(
      placement::v_shape(2), 1, passes({"0F0 3F0 3BW0 0BW0", "1F0 2F0 2B0 1B0 2W0 1W0"}));
  auto const of_v = [&](std::vector<int> const& at_once) {
    return text_of(
        lower(v, {.step = zbpp::step_kind::synchronous, .at_once = at_once}).instructions(0));
  };
  CHECK(of_v({0}).ends_with(" 0NORM 0STEP_NOW 0VALIDATE 3STEP"));
  CHECK(of_v({0, 3}).ends_with(" 0NORM 0STEP_NOW 3STEP_NOW"));

  auto const refused = [&](zbpp::lower_options const& options) {
    return refusal([&] { (void)lower(order, options); });
  };
  for (auto const& wrong : std::vector<std::vector<int>>{{-1}, {3}, {1, 0}, {1, 1}})
    CHECK(
        refused({.step = zbpp::step_kind::synchronous, .at_once = wrong}) ==
        "at_once names stages of the schedule in ascending order");
  for (auto kind :
       {zbpp::step_kind::none, zbpp::step_kind::unchecked, zbpp::step_kind::post_validated})
    CHECK(
        refused({.step = kind, .at_once = {0}}) ==
        "at_once names stages that do not wait for the norm, and only synchronous steps wait; "
        "lower "
        "with step_kind::synchronous, or leave at_once empty");
  CHECK(
      refused({.step = zbpp::step_kind::synchronous, .tied = {0, 2}, .at_once = {0, 1}}) ==
      "stage 0: at_once names it and its weights are tied, which step alike; leave it out of "
      "at_once");
}

TEST_CASE("gradients of tied weights are exchanged behind all passes", "[lower]") {
  schedule const order(
      placement::v_shape(2), 1, passes({"0F0 3F0 3BW0 0BW0", "1F0 2F0 2B0 1B0 2W0 1W0"}));
  auto const first_rank = [&](zbpp::step_kind step) {
    auto const code = lower(order, {.step = step, .tied = {0, 1, 3}});
    CHECK(
        zbpp::tied_stages(code) ==
        (step == zbpp::step_kind::none ? std::vector<int>{} : std::vector<int>{0, 1, 3}));
    CHECK(zbpp::verify(code).empty());
    return text_of(code.instructions(0));
  };
  CHECK(
      first_rank(zbpp::step_kind::unchecked) ==
      "0F0 0SEND_F0 3RECV_F0 3F0 3BW0 3SEND_B0 0RECV_B0 0BW0 0SEND_T 3SEND_T 0ADD_T 3ADD_T 0STEP "
      "3STEP");
  CHECK(
      first_rank(zbpp::step_kind::synchronous) ==
      "0F0 0SEND_F0 3RECV_F0 3F0 3BW0 3SEND_B0 0RECV_B0 0BW0 0SEND_T 3SEND_T 0ADD_T 3ADD_T 0NORM "
      "0VALIDATE 0STEP 3STEP");
  CHECK(
      first_rank(zbpp::step_kind::none) == "0F0 0SEND_F0 3RECV_F0 3F0 3BW0 3SEND_B0 0RECV_B0 0BW0");
  for (auto const& tied : {std::vector<int>{1, 0}, {2, 2}, {-1, 2}, {0, 4}})
    CHECK(zbpp::test::refusal([&] {
            (void)lower(order, {.tied = tied});
          }) == "tied names stages of the schedule in ascending order");
}

TEST_CASE("the passes before a validation need no message of later ones", "[lower][long]") {
  zbpp::test::for_each_schedule(
      {1, 2, 3, 4, 5, 8},
      [](zbpp::any_policy const& decide, zbpp::problem const& problem, schedule const& order) {
        INFO(zbpp::test::name_of(decide, problem));
        auto const count = zbpp::passes_before_validation(order);
        for (int rank = 0; rank < order.ranks(); ++rank) {
          auto const row = order.passes(rank);
          auto const own = static_cast<std::size_t>(count[static_cast<std::size_t>(rank)]);
          for (auto const& p : row.first(own)) {
            REQUIRE(p.kind == zbpp::pass_kind::forward);
            if (p.stage == 0) continue;
            auto const from = problem.placement().rank_of(p.stage - 1);
            auto const sender = order.passes(from).first(
                static_cast<std::size_t>(count[static_cast<std::size_t>(from)]));
            zbpp::pass const input{zbpp::pass_kind::forward, p.stage - 1, p.microbatch};
            REQUIRE(std::find(sender.begin(), sender.end(), input) != sender.end());
          }
          // And they are as many as can be: the next one is no F, or lacks its input.
          auto const& next = row[own];
          if (next.kind != zbpp::pass_kind::forward || next.stage == 0) {
            CHECK(next.kind != zbpp::pass_kind::forward);
            continue;
          }
          auto const from = problem.placement().rank_of(next.stage - 1);
          auto const sender = order.passes(from).first(
              static_cast<std::size_t>(count[static_cast<std::size_t>(from)]));
          zbpp::pass const input{zbpp::pass_kind::forward, next.stage - 1, next.microbatch};
          CHECK(std::find(sender.begin(), sender.end(), input) == sender.end());
        }
      });
}

TEST_CASE("a program without optimizer steps differs in nothing else", "[lower]") {
  schedule const order(placement::linear(2), 1, passes({"0F0 0BW0", "1F0 1BW0"}));
  CHECK(
      text_of(lower(order, {.step = zbpp::step_kind::none}).instructions(0)) ==
      "0F0 0SEND_F0 0RECV_B0 0BW0");
}

TEST_CASE("lowering keeps its promises on every policy and shape", "[lower]") {
  zbpp::test::for_each_schedule(
      zbpp::test::thinned<std::vector<int>>({1, 2, 3, 4, 8}, {1, 2, 3, 5}),
      [](zbpp::any_policy const& decide, problem const& problem, schedule const& order) {
        INFO(zbpp::test::name_of(decide, problem));
        for (int ahead : {0, 2}) {
          auto const code = lower(order, {.receive_ahead = ahead});
          for (int rank = 0; rank < code.ranks(); ++rank) {
            auto const row = order.passes(rank);
            CHECK(passes_of(code, rank) == std::vector<pass>(row.begin(), row.end()));
          }
          CHECK(receives_in_time(code, ahead));
          CHECK(sends_at_once(code));
          CHECK(steps_after_last_w(code));
          independent_check const check(
              code.placement(), code.microbatches(), code.instructions().nested());
          CHECK(check.has_each_once());
          CHECK(check.keeps_channel_order());
        }
      });
}

TEST_CASE("a microbatch takes two messages for each pair of stages on two ranks", "[lower]") {
  auto const messages = [](zbpp::any_policy const& decide, zbpp::placement const& placement) {
    auto const m = 2 * placement.ranks();
    auto const code = lower(decide(problem(placement, m, zbpp::stage_costs{})));
    auto const all = code.instructions().all();
    auto const sends =
        std::count_if(all.begin(), all.end(), [](auto const& i) { return i.is_send(); });
    CHECK(sends % m == 0);
    return sends / m;
  };
  for (int p : {2, 3, 4, 8}) {
    for (zbpp::any_policy const& decide :
         {zbpp::any_policy(zbpp::gpipe{}),
          zbpp::any_policy(zbpp::one_f_one_b{}),
          zbpp::any_policy(zbpp::zb_h1{}),
          zbpp::any_policy(zbpp::zb_h2{})})
      CHECK(messages(decide, zbpp::placement::linear(p)) == 2 * (p - 1));
    CHECK(messages(zbpp::zb_v{}, zbpp::placement::v_shape(p)) == 4 * (p - 1));
    CHECK(messages(zbpp::interleaved{}, zbpp::placement::looped(p, 3)) == 2 * (3 * p - 1));
  }
}

TEST_CASE("lowering leaves what is wrong in an order where it is", "[lower]") {
  auto const placement = placement::linear(2);
  auto const row = [&](std::vector<std::string> const& rows, int rank) {
    return text_of(lower(schedule(placement, 1, passes(rows))).instructions(rank));
  };
  CHECK(row({"0F0 0BW0", ""}, 0) == "0F0 0SEND_F0 0BW0 0STEP");
  CHECK(row({"0F0 0BW0", ""}, 1) == "1RECV_F0");
  CHECK(row({"0F0 0BW0", "1BW0 1F0"}, 1) == "1BW0 1SEND_B0 1STEP 1RECV_F0 1F0");
  CHECK(row({"0F0 0F0 0BW0", "1F0 1BW0"}, 1) == "1RECV_F0 1RECV_F0 1F0 1BW0 1SEND_B0 1STEP");
}

TEST_CASE("with one order of transfers every policy may share one queue per rank", "[lower]") {
  using zbpp::channel_layout;
  int cases = 0;
  int saved = 0;
  zbpp::test::for_each_schedule(
      zbpp::test::thinned<std::vector<int>>({1, 2, 3, 4, 5, 8}, {1, 2, 4}),
      [&](zbpp::any_policy const& decide, problem const& problem, schedule const& order) {
        std::vector<int> ends;
        if (problem.stages() > 1) ends = {0, problem.stages() - 1};
        for (auto step :
             {zbpp::step_kind::none,
              zbpp::step_kind::unchecked,
              zbpp::step_kind::synchronous,
              zbpp::step_kind::post_validated}) {
          auto const code =
              lower(order, {.step = step, .tied = ends, .layout = channel_layout::one_per_rank});
          for (auto layout :
               {channel_layout::one_per_rank, channel_layout::one_per_directed_pair}) {
            auto found = verify(code, layout);
            auto const forwards = zbpp::forward_only(code);  // what an evaluation runs
            if (found.empty())
              found = zbpp::detail::find_deadlock(forwards, zbpp::traffic(forwards), layout);
            if (!found.empty())
              FAIL_CHECK(zbpp::test::name_of(decide, problem) << ": " << to_string(found.front()));
          }
          auto const plain = lower(order, {.step = step, .tied = ends});
          saved += verify(plain, channel_layout::one_per_rank).empty() ? 0 : 1;
          for (int rank = 0; rank < code.ranks(); ++rank) {
            // Receives have moved, and nothing else has.
            auto const without = [&](program const& from) {
              std::vector<instruction> rest;
              for (auto const& i : from.instructions(rank))
                if (!i.is_receive()) rest.push_back(i);
              return rest;
            };
            if (without(code) != without(plain) ||
                code.instructions(rank).size() != plain.instructions(rank).size())
              FAIL_CHECK(zbpp::test::name_of(decide, problem) << ", rank " << rank);
          }
          ++cases;
        }
      });
  CHECK(cases > zbpp::test::thinned(1000, 200));
  CHECK(saved > cases / 4);  // most are refused otherwise
}

TEST_CASE("one order of transfers leaves what is wrong in an order where it is", "[lower]") {
  using zbpp::channel_layout;
  auto const row = [&](std::vector<std::string> const& rows, int rank) {
    schedule const order(placement::linear(2), 1, passes(rows));
    return text_of(lower(order, {.layout = channel_layout::one_per_pair}).instructions(rank));
  };
  CHECK(row({"0F0 0BW0", ""}, 0) == "0F0 0SEND_F0 0BW0 0STEP");
  CHECK(row({"0F0 0BW0", ""}, 1) == "1RECV_F0");
  CHECK(row({"0BW0 0F0", "1F0 1BW0"}, 0) == "0BW0 0STEP 0F0 0SEND_F0 0RECV_B0");
  CHECK(row({"0F0 0F0 0BW0", "1F0 1BW0"}, 1) == "1RECV_F0 1F0 1RECV_F0 1BW0 1SEND_B0 1STEP");
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const order = zbpp::test::random_schedule(values, 0.7);
    auto const code = lower(order, {.layout = channel_layout::one_per_rank});
    for (int rank = 0; rank < order.ranks(); ++rank) {
      auto const wanted = order.passes(rank);
      CHECK(passes_of(code, rank) == std::vector<pass>(wanted.begin(), wanted.end()));
    }
  }
  CHECK(zbpp::test::refusal(zbpp::errc::bad_argument, [&] {
          schedule const order(placement::linear(1), 1, passes({"0F0 0BW0"}));
          static_cast<void>(
              lower(order, {.receive_ahead = 1, .layout = channel_layout::one_per_rank}));
        }).find("leave receive_ahead at 0") != std::string::npos);
}

TEST_CASE("fusing joins each B with its own W right behind it, and nothing else", "[lower]") {
  schedule const order(
      placement::looped(1, 2), 2, passes({"0F0 0F1 1F0 1F1 1B0 1W0 0B0 1B1 0W0 0B1 1W1 0W1"}));
  CHECK(
      text_of(zbpp::fuse_backward(order).passes(0)) ==
      "0F0 0F1 1F0 1F1 1BW0 0B0 1B1 0W0 0B1 1W1 0W1");
  schedule const others(placement::linear(1), 2, passes({"0F0 0F1 0B0 0W1 0B1 0W0"}));
  CHECK(zbpp::fuse_backward(others) == others);
}

}  // namespace test_lower
