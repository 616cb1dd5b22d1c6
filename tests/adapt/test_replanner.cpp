// SPDX-License-Identifier: Apache-2.0
#include <zbpp/adapt/detail/plans_by_count.hpp>
#include <zbpp/adapt/replanner.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/adaptive_loop.hpp>
#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/plain_flow.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_reference.hpp>

#include <cmath>

namespace test_replanner {

using namespace zbpp;
using namespace zbpp::test;

namespace {

plan zb_h1_plan(int ranks, int microbatches) {
  return make_plan(zb_h1{}, roomy_problem(ranks, microbatches, toy::edge));
}

// Rank 0 takes half as long again as the first plan has it, from a step on.
virtual_noise slow_from(plan const& first, std::int64_t const& step, std::int64_t begin) {
  return {.pass_time = [&first, &step, begin](int rank, pass const& p, ticks) {
    auto const planned = first.problem().costs(p.stage).of(p.kind);
    return rank == 0 && step >= begin ? planned * 3 / 2 : planned;
  }};
}

}  // namespace

TEST_CASE("a slow rank leads to another order, which takes what was foreseen", "[adaptive]") {
  auto const first = zb_h1_plan(4, 12);
  std::int64_t step = 0;
  std::vector<std::string> lines;
  std::vector<plain_flow> stages(4);
  adaptive_loop pipe{
      first, virtual_time{slow_from(first, step, 8)}, stages, at_once(), keep_in(lines)};
  std::vector<ticks> took;
  for (; step < 40; ++step) {
    auto const& result = pipe.step();
    took.push_back(cost(result.measured));
    CHECK(plain_flow::are_expected(result.losses, 4));
  }
  REQUIRE(pipe.switches().size() == 1);
  auto const& change = pipe.switches().front();
  CHECK(change.step > 8);
  CHECK(change.step < 20);
  CHECK(change.foreseen < change.foreseen_old);
  CHECK(change.before == change.foreseen_old);  // under virtual time without noise
  CHECK(change.after == change.foreseen);
  CHECK_FALSE(change.is_taken_back);
  CHECK(took.back() == change.foreseen);
  CHECK(took[8] == change.before);
  CHECK(took.front() == cost(first.timeline()));
  CHECK(pipe.current().steps() == 40);
  CHECK(pipe.planner().costs().costs(0).forward == 1500);
  CHECK(verify(pipe.current().planned().program(), pipe.current().planned().problem()).empty());
  CHECK(says(lines, "have left those of the plan"));
  CHECK(says(lines, "another plan runs from here"));
  CHECK(says(lines, "the new plan saved"));
}

TEST_CASE("noise on what is stated is added once, whatever plan runs", "[adaptive]") {
  // As docs/explaining.md has it, of what the problem states.
  virtual_noise const noise{
      .pass_time =
          [](int rank, pass const&, ticks stated) { return rank == 0 ? stated * 3 / 2 : stated; },
      .message_time = [](int, ticks stated) { return stated * 2; }};
  for (bool const moves : {false, true}) {
    auto const first = zb_h1_plan(4, 12);
    std::vector<std::string> lines;
    auto settings = at_once();
    settings.moves_stages = moves;
    std::vector<plain_flow> stages(4);
    adaptive_loop pipe{first, virtual_time{noise}, stages, settings, keep_in(lines)};
    std::vector<ticks> took;
    auto const of_five = make_plan(zb_h1{}, with_microbatches(first.problem(), 5));
    for (int step = 0; step < 60; ++step) {
      if (step % 20 == 19) pipe.current().take(of_five);
      auto const& measured = (step % 20 == 19 ? pipe.current().step() : pipe.step()).measured;
      if (step % 20 != 19) took.push_back(cost(measured));
      for (int rank = 0; rank < 4; ++rank)
        for (auto const& timed : measured[rank]) {
          auto const stated = first.problem().costs(timed.pass.stage).of(timed.pass.kind);
          CHECK(timed.end - timed.start == (rank == 0 ? stated * 3 / 2 : stated));
        }
    }
    if (moves) continue;  // a stage of one rank has nowhere to go
    REQUIRE(pipe.switches().size() == 1);
    CHECK_FALSE(pipe.switches().front().is_taken_back);
    CHECK(took.back() < took.front());
    CHECK(took.back() == pipe.switches().front().after);
  }
}

namespace {

// Two replicas, of which the second has a slow rank.
plan plan_of_replicas() {
  return make_plan(
      zb_h1{},
      with_replicas(roomy_problem(3, 9, checked::edge), {.count = 2}),
      {.step = step_kind::unchecked});
}

}  // namespace

TEST_CASE("replicas in one process change their plan together", "[adaptive]") {
  on_backends([](auto backend) {
    auto const first = plan_of_replicas();
    std::vector<std::vector<plan_switch>> switches(2);
    std::vector<std::vector<schedule>> ran(2);
    std::vector<std::vector<std::uint32_t>> bits(2);
    in_process_grid whole({.pipeline = 3, .data = 2});
    whole.run([&](grid_place const& place) {
      auto const here = detail::index(place.data());
      std::vector<std::string> lines;
      auto settings = at_once();
      settings.gather = [&](plan const& running, timeline const&) {
        auto const stated = first.problem();
        return simulate(running.schedule(), place.data() == 1 ? with_slow_first(stated) : stated);
      };
      auto own_backend = backend;
      own_backend.place = place;
      checked::model own({.stages = 3, .first_batch = 100 * place.data()});
      adaptive_loop pipe{first, own_backend, own.stages(), settings, keep_in(lines)};
      for (int i = 0; i < 16; ++i) {
        static_cast<void>(pipe.step());
        ran[here].push_back(pipe.current().planned().schedule());
      }
      switches[here] = pipe.switches();
      bits[here] = own.bits();
    });
    REQUIRE(switches[0].size() == 1);
    CHECK_FALSE(switches[0].front().is_taken_back);
    CHECK(switches[0] == switches[1]);
    CHECK(ran[0] == ran[1]);
    std::vector<std::vector<std::uint32_t>> kept(2);
    in_process_grid same({.pipeline = 3, .data = 2});
    same.run([&](grid_place const& place) {
      checked::model own({.stages = 3, .first_batch = 100 * place.data()});
      auto own_backend = backend;
      own_backend.place = place;
      pipeline pipe{first, own_backend, own.stages()};
      pipe.run(16);
      kept[detail::index(place.data())] = own.bits();
    });
    CHECK(bits == kept);
    CHECK(bits[0] == bits[1]);
  });
}

TEST_CASE("replicas that would not change their plan together are refused", "[adaptive]") {
  auto const first = plan_of_replicas();
  auto const refused = [&](errc code, auto const& change) {
    in_process_grid whole({.pipeline = 3, .data = 2});
    return refusal(code, [&] {
      whole.run([&](grid_place const& place) {
        std::vector<std::string> lines;
        auto settings = at_once();
        change(place.data(), settings);
        std::vector<plain_flow> stages(3);
        adaptive_loop pipe{first, threads{.place = place}, stages, settings, keep_in(lines)};
      });
    });
  };
  auto const cure =
      "replan_settings: pipelines of a grid that run one plan change it together, after the same "
      "step, and stages stay on their ranks; set in_background and moves_stages to false";
  CHECK(refused(errc::bad_argument, [](int, auto& s) { s.in_background = true; }) == cure);
  CHECK(refused(errc::bad_argument, [](int, auto& s) { s.moves_stages = true; }) == cure);
  auto const text = refused(errc::no_agreement, [](int replica, auto& s) { s.window += replica; });
  CHECK(
      text == "replan_settings::window (3 on rank 0 (pipeline 0, replica 0), 4 on rank 1 (pipeline "
              "0, replica "
              "1)); pipelines of a grid change plans together; give all the same");
}

TEST_CASE("without a change of costs the plan stays", "[adaptive]") {
  std::vector<std::string> lines;
  std::vector<plain_flow> stages(3);
  adaptive_loop pipe{zb_h1_plan(3, 9), virtual_time{}, stages, at_once(), keep_in(lines)};
  for (int i = 0; i < 30; ++i) static_cast<void>(pipe.step());
  CHECK(pipe.switches().empty());
  CHECK(lines.empty());
}

TEST_CASE("where all is slower alike the plan stays, and no second search begins", "[adaptive]") {
  std::vector<std::string> lines;
  std::vector<plain_flow> stages(1);
  stage_costs const even{.forward = 1000, .backward_input = 1000, .backward_weight = 1000};
  auto const first = make_plan(zb_h1{}, problem(placement::linear(1), 4, even));
  adaptive_loop pipe{
      first,
      virtual_time{{.pass_time = [](int, pass const&, ticks stated) { return 2 * stated; }}},
      stages,
      at_once(),
      keep_in(lines)};
  for (int i = 0; i < 60; ++i) static_cast<void>(pipe.step());
  CHECK(pipe.switches().empty());
  CHECK(lines.size() == 2);
  CHECK(says(lines, "no plan is foreseen to save 1.0 %"));
}

TEST_CASE("a switch that did not pay is taken back", "[adaptive]") {
  auto const first = zb_h1_plan(4, 12);
  std::int64_t step = 0;
  std::vector<std::string> lines;
  std::vector<plain_flow> stages(4);
  bool has_switched = false;
  virtual_noise const noise{.pass_time = [&](int rank, pass const& p, ticks) {
    auto const planned = first.problem().costs(p.stage).of(p.kind);
    if (has_switched) return 3 * planned;  // whatever the order
    return rank == 0 && step >= 4 ? planned * 3 / 2 : planned;
  }};
  adaptive_loop pipe{first, virtual_time{noise}, stages, at_once(), keep_in(lines)};
  for (; step < 40; ++step) {
    static_cast<void>(pipe.step());
    has_switched = !pipe.switches().empty() && !pipe.switches().front().is_taken_back;
  }
  REQUIRE(!pipe.switches().empty());
  auto const& change = pipe.switches().front();
  CHECK(change.is_taken_back);
  CHECK(change.after >= change.before);
  CHECK(says(lines, "so the old one runs again"));
  if (pipe.switches().size() == 1) CHECK(pipe.current().planned().schedule() == first.schedule());
}

TEST_CASE("a search that fails leaves the plan, and says so", "[adaptive]") {
  stage_costs costs{.forward = 1000, .backward_input = 1000, .backward_weight = 900};
  costs.activation = 10;
  problem const tight(placement::linear(2), 6, costs, 20, {5});  // less than any order needs
  auto const first = make_plan(zb_h1{}, tight);
  auto slow = costs;
  slow.forward = 3000;
  auto const line = simulate(first.schedule(), problem(placement::linear(2), 6, slow, 20));
  std::vector<std::string> lines;
  replanner decides(first, at_once(), keep_in(lines));
  for (int i = 0; i < 10; ++i) CHECK_FALSE(decides.after(line).has_value());
  CHECK(says(lines, "the search failed, so the plan stays: "));
  CHECK(decides.current().schedule() == first.schedule());
}

TEST_CASE("a plan that cannot run is refused, and the old one goes on", "[adaptive]") {
  auto const first = zb_h1_plan(4, 12);
  auto const line = simulate(first.schedule(), with_slow_first(first.problem()));
  std::vector<std::string> lines;
  replanner decides(first, at_once(), keep_in(lines));
  int given = 0;
  for (int i = 0; i < 12 && given == 0; ++i) {
    if (!decides.after(line)) continue;
    ++given;
    CHECK(decides.refuse_plan("no memory"));
  }
  CHECK(given == 1);
  CHECK(decides.current().schedule() == first.schedule());
  CHECK(decides.switches().front().is_taken_back);
  CHECK(says(lines, "so the old one goes on: no memory"));
}

TEST_CASE("weights and losses are to the bit those of the plan that stays", "[adaptive]") {
  auto const first = zb_h1_plan(4, 12);
  std::int64_t step = 0;
  std::vector<std::string> lines;
  auto all = toy::make_model(4);
  std::vector<toy::hand_written> stages(all.begin(), all.end());
  adaptive_loop pipe{
      first, virtual_time{slow_from(first, step, 0)}, stages, at_once(), keep_in(lines)};
  auto plain = toy::make_model(4);
  std::vector<toy::hand_written> same(plain.begin(), plain.end());
  pipeline kept{first, threads{}, same};
  for (; step < 30; ++step) {
    CHECK(toy::is_same(pipe.step().losses, kept.step().losses));
    CHECK(toy::is_same(all, plain));
    toy::update(all);
    toy::update(plain);
  }
  CHECK(pipe.switches().size() == 1);
}

TEST_CASE("steps of other numbers of microbatches give the bits of a plain loop", "[adaptive]") {
  auto const first = zb_h1_plan(4, 12);
  std::int64_t step = 0;
  std::vector<std::string> lines;
  auto all = toy::make_model(4);
  std::vector<toy::hand_written> stages(all.begin(), all.end());
  adaptive_loop pipe{
      first, virtual_time{slow_from(first, step, 10)}, stages, at_once(), keep_in(lines)};
  detail::plans_by_count counts({.seconds = 0.01});
  auto plain = toy::make_model(4);
  std::vector<toy::hand_written> same(plain.begin(), plain.end());
  // Every number in turn, before and after a switch.
  std::int64_t taken = 0;
  for (; step < 60; ++step) {
    int const count = step % 3 == 1 ? static_cast<int>(1 + step % 7) : 12;
    std::vector<double> losses;
    {
      pipeline kept{
          make_plan(zb_h1{}, with_microbatches(first.problem(), count)), virtual_time{}, same};
      kept.resume({.steps = step});
      losses = kept.step().losses;
    }
    if (count != 12) pipe.current().take(counts.plan_for(pipe.planner().current(), count));
    auto const& result = count == 12 ? pipe.step() : pipe.current().step();
    CHECK(result.losses.size() == detail::index(count));
    CHECK(toy::is_same(result.losses, losses));
    CHECK(toy::is_same(all, plain));
    toy::update(all);
    toy::update(plain);
    CHECK(pipe.current().steps() == ++taken);
    if (count != 12) CHECK(pipe.current().planned().problem().microbatches() == count);
  }
  CHECK(pipe.switches().size() == 1);
  CHECK_FALSE(pipe.switches().front().is_taken_back);
}

TEST_CASE("plans by count are kept while the placement stays", "[adaptive]") {
  auto const usual = zb_h1_plan(3, 9);
  detail::plans_by_count plans({.seconds = 0.01});
  auto const* const of_four = &plans.plan_for(usual, 4);
  CHECK(of_four->problem() == with_microbatches(usual.problem(), 4));
  CHECK(verify(of_four->program(), of_four->problem()).empty());
  static_cast<void>(plans.plan_for(usual, 7));
  CHECK(&plans.plan_for(usual, 4) == of_four);
  auto const elsewhere = zb_h1_plan(2, 9);
  CHECK(plans.plan_for(elsewhere, 4).problem() == with_microbatches(elsewhere.problem(), 4));
  auto const tight = make_plan(zb_h1{}, with_memory_limit(usual.problem(), 1));
  CHECK(refusal(errc::unsupported_problem, [&] {
          static_cast<void>(plans.plan_for(tight, 4));
        }).empty() == false);
  for (int const wrong : {0, -1}) CHECK_THROWS_AS(plans.plan_for(elsewhere, wrong), error);
  CHECK_THROWS_AS(detail::plans_by_count({.seconds = -1}), error);
}

TEST_CASE("on threads searches run beside the steps", "[adaptive]") {
  std::vector<plain_flow> stages(3);
  auto const first = zb_h1_plan(3, 9);  // with times that are not those of these flows
  std::vector<std::string> lines;
  auto settings = at_once();
  settings.in_background = true;
  settings.least_gain = 0;
  {
    adaptive_loop pipe{first, threads{}, stages, settings, keep_in(lines)};
    for (int i = 0; i < thinned(300, 60); ++i) {
      auto const& result = pipe.step();
      CHECK(plain_flow::are_expected(result.losses, 3));
    }
    CHECK(says(lines, "looking for another one"));
  }
  // A search that is under way ends with the pipeline.
  settings.seconds = 1e6;
  adaptive_loop brief{first, threads{}, stages, settings};
  for (int i = 0; i < 10; ++i) static_cast<void>(brief.step());
}

TEST_CASE("settings of replanning that are out of range are refused", "[adaptive]") {
  auto const first = zb_h1_plan(2, 4);
  auto const refused = [&](auto const& change) {
    replan_settings settings;
    change(settings);
    return refusal(errc::bad_argument, [&] { replanner(first, settings); });
  };
  struct row {
    std::string said;
    void (*change)(replan_settings&);
  };
  constexpr auto nan = std::numeric_limits<double>::quiet_NaN();
  for (row const& wrong : std::initializer_list<row>{
           {"first_steps", [](auto& s) { s.first_steps = -1; }},
           {"window", [](auto& s) { s.window = 0; }},
           {"band is not above 0", [](auto& s) { s.band = 0; }},
           {"band", [](auto& s) { s.band = nan; }},
           {"least_gain", [](auto& s) { s.least_gain = -0.1; }},
           {"least_gain", [](auto& s) { s.least_gain = nan; }},
           {"least_steps", [](auto& s) { s.least_steps = -1; }},
           {"quantile", [](auto& s) { s.message_quantile = 2; }},
           {"seconds", [](auto& s) { s.seconds = nan; }}})
    CHECK(has(refused(wrong.change), wrong.said));
}

}  // namespace test_replanner
