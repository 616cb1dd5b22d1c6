// SPDX-License-Identifier: Apache-2.0
//
// Plans that follow the costs with one process per rank: all switch between the same steps to the
// same plan, with the bits of a plan that stays.
#include <zbpp/adapt/auto_pipeline.hpp>
#include <zbpp/asio/measure.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/tcp.hpp>
// What the checks need besides.
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/adaptive_loop.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/plain_flow.hpp>
#include <support/refusal.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace test_asio_adaptive {

using namespace zbpp;
namespace toy = zbpp::test::toy;

namespace {

constexpr int ranks = 3;

problem stated_problem() { return test::roomy_problem(ranks, 9, toy::edge); }

// What a step takes where rank 0 is half as fast again as the plan has it.
timeline slow_step(plan const& running) {
  return simulate(running.schedule(), test::with_slow_first(stated_problem()));
}

}  // namespace

TEST_CASE("processes switch together, and keep their bits", "[asio][adaptive]") {
  auto const first = make_plan(zb_h1{}, stated_problem());
  constexpr int steps = 20;
  std::vector<std::vector<plan_switch>> switches(ranks);
  std::vector<std::optional<schedule>> ends(ranks);
  auto all = toy::make_model(ranks);
  auto const thrown =
      test::run_ranks(ranks, test::patient_settings(), [&](asio::rendezvous& meeting) {
        auto const rank = detail::index(meeting.rank());
        auto settings = test::at_once();
        settings.gather = [&](plan const& running, timeline const& own) {
          auto const gathered = asio::gather_timeline(meeting, running.schedule(), own);
          if (gathered.ranks() != ranks) throw error(errc::bad_argument, "ranks are missing");
          return slow_step(running);  // in place of times of which nothing is known
        };
        toy::model own{all[rank]};
        std::array<toy::hand_written, 1> stages{toy::hand_written(own[0])};
        test::adaptive_loop pipe{
            first,
            asio::tcp(meeting),
            stages,
            settings,
            report_call(),
            training_options{.on_stall = {.runs_w = true, .overrun = 1}}};
        for (int i = 0; i < steps; ++i) static_cast<void>(pipe.step());
        switches[rank] = pipe.switches();
        ends[rank] = pipe.current().planned().schedule();
        all[rank] = own[0];
      });
  for (auto const& text : thrown) CHECK(text.empty());
  REQUIRE(switches[0].size() == 1);
  for (int rank = 1; rank < ranks; ++rank) {
    CHECK(switches[detail::index(rank)] == switches[0]);
    CHECK(ends[detail::index(rank)] == ends[0]);
  }
  CHECK(ends[0] != first.schedule());
  CHECK_FALSE(switches[0].front().is_taken_back);

  auto plain = toy::make_model(ranks);
  std::vector<toy::hand_written> same(plain.begin(), plain.end());
  pipeline kept{first, virtual_time{}, same};
  for (int i = 0; i < steps; ++i) static_cast<void>(kept.step());  // gradients add up
  CHECK(toy::is_same(all, plain));
}

TEST_CASE("an auto_pipeline of processes follows what they measure", "[asio][adaptive]") {
  constexpr int steps = 12;
  std::vector<std::size_t> gathered(ranks, 0);
  std::vector<std::vector<plan_switch>> switches(ranks);
  auto const thrown =
      test::run_ranks(ranks, test::patient_settings(), [&](asio::rendezvous& meeting) {
        auto const stated = stated_problem();
        problem const model(
            {stated.all_costs().begin(), stated.all_costs().end()},
            {.ranks = stated.ranks(),
             .microbatches = stated.microbatches(),
             .transfer = stated.transfer()});
        auto_settings settings{
            .plan = {.placement = stated.placement(), .seconds = 0.16}, .replan = test::at_once()};
        settings.rank = meeting.rank();
        settings.replan->gather = [&](plan const& running, timeline const& own) {
          ++gathered[detail::index(meeting.rank())];
          return asio::gather_timeline(meeting, running.schedule(), own);
        };
        auto const make_stage = [](int, int) { return test::plain_flow(); };
        auto_pipeline pipe{model, asio::tcp(meeting), make_stage, settings};
        for (int i = 0; i < steps; ++i) {
          auto const& result = pipe.step();
          if (meeting.rank() == ranks - 1 &&
              result.losses[0] != test::plain_flow::expected_loss(ranks, 0))
            throw error(errc::bad_argument, "another loss");
        }
        switches[detail::index(meeting.rank())] = pipe.switches();
      });
  for (auto const& text : thrown) CHECK(text.empty());
  CHECK(gathered[0] >= 3);
  for (int rank = 1; rank < ranks; ++rank) {
    CHECK(gathered[detail::index(rank)] == gathered[0]);
    CHECK(switches[detail::index(rank)] == switches[0]);
  }
}

TEST_CASE("replicas of processes switch together, whatever each gathers", "[asio][adaptive]") {
  auto const stated = with_replicas(stated_problem(), {.count = 2});
  auto const first = make_plan(zb_h1{}, stated, {.step = step_kind::unchecked});
  constexpr int all = 2 * ranks;
  std::vector<std::vector<plan_switch>> switches(all);
  std::vector<std::optional<schedule>> ends(all);
  auto const thrown =
      test::run_ranks(all, test::patient_settings(), [&](asio::rendezvous& meeting) {
        auto const here = detail::index(meeting.rank());
        grid_layout const layout({.pipeline = ranks, .data = 2}, all);
        // Each names the pipeline of its own; the first one is as fast as planned.
        asio::pipeline_ranks const own(layout, meeting.rank(), all);
        auto settings = test::at_once();
        settings.gather = [&](plan const& running, timeline const& line) {
          static_cast<void>(asio::gather_timeline(meeting, running.schedule(), line, own));
          bool const is_slow = layout.coordinates(meeting.rank()).data == 1;
          return is_slow ? slow_step(running) : simulate(running.schedule(), stated);
        };
        std::array<test::plain_flow, 1> stages;
        test::adaptive_loop pipe{first, asio::tcp(meeting, layout), stages, settings};
        for (int i = 0; i < 16; ++i) static_cast<void>(pipe.step());
        switches[here] = pipe.switches();
        ends[here] = pipe.current().planned().schedule();
      });
  for (auto const& text : thrown) CHECK(text.empty());
  REQUIRE(switches[0].size() == 1);
  CHECK(ends[0] != first.schedule());
  for (std::size_t rank = 1; rank < all; ++rank) {
    CHECK(switches[rank] == switches[0]);
    CHECK(ends[rank] == ends[0]);
  }
}

TEST_CASE("settings that processes cannot follow are refused", "[asio][adaptive]") {
  auto const first = make_plan(zb_h1{}, stated_problem());
  auto settings = test::at_once();
  settings.gather = [](plan const&, timeline const& own) { return own; };
  settings.in_background = true;
  auto const refused = [&] {
    return test::refusal(errc::bad_argument, [&] { replanner(first, settings); });
  };
  CHECK(refused().find("in_background") != std::string::npos);
  settings.in_background = false;
  settings.moves_stages = true;
  CHECK(refused().find("moves_stages") != std::string::npos);
}

}  // namespace test_asio_adaptive
