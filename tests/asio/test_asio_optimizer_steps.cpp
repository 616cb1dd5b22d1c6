// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps that ranks agree on over sockets: the bits of one process, and the news of what
// goes wrong.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/checked_ranks.hpp>
#include <support/same_bits.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace test_asio_optimizer_steps {

using namespace zbpp::test;
using zbpp::plan;
using zbpp::step_kind;
using zbpp::test::checked::costs;
using zbpp::test::checked::model_settings;

TEST_CASE(
    "over sockets optimizer steps have the bits of one process", "[asio][optimizer-steps][long]") {
  constexpr int steps = 12;
  zbpp::training_options const options{.clip = 1.35};
  // Neighbours among them, whose channels carry verdicts, too.
  auto const tied_stages = [](int stages) {
    std::vector<int> tied;
    for (int s = 0; s < stages; s += s == 0 ? 1 : 2) tied.push_back(s);
    return tied;
  };
  auto const settings_of = [&](plan const& planned) -> model_settings {
    auto const& problem = planned.problem();
    return {
        .stages = problem.stages(),
        .faults = {{5, problem.ranks() - 1, 0}},
        .tied = tied_stages(problem.stages())};
  };
  std::atomic<int> amended = 0;
  auto const over_sockets = [&](plan const& planned, std::uint64_t) {
    auto const found = run_checked_ranks(
        planned,
        settings_of(planned),
        options,
        [&](auto& pipe, int, checked::model&) {
          pipe.run(steps - 4, [&](zbpp::step_result const& step) {
            amended += step.update.is_amended ? 1 : 0;
          });
          pipe.evaluate();
          pipe.run(4);
        },
        {.largest_undeclared_message = 32});  // less than tied gradients have
    check_thrown(found.thrown, "");
    return found.bits;
  };
  same_bits(
      [&](plan const& planned) {
        auto const microbatches = planned.problem().microbatches();
        return checked::train_alone(settings_of(planned), microbatches, steps, options).bits;
      },
      {{"sockets", over_sockets}},
      {{"every policy and tied weights",
        {1, 2, 3},
        times(1, 2),
        [&](zbpp::placement const& placement, int microbatches) {
          return checked::make_problem(
              placement, microbatches, 87, tied_stages(placement.stages()));
        },
        {.fused = false, .steps = {step_kind::synchronous, step_kind::post_validated}}}});
  CHECK(amended > 0);
}

TEST_CASE(
    "over sockets steps without agreement have the bits of a plain loop",
    "[asio][optimizer-steps][long]") {
  constexpr int steps = 13;
  zbpp::training_options const options{.clip = 6, .agreement = {.every = 4, .share = 0.7}};
  auto const settings_of = [&](plan const& planned) -> model_settings {
    auto const stages = planned.problem().stages();
    model_settings settings{.stages = stages, .faults = {{5, stages - 1, 0}, {8, 0, 0}}};
    // Some with ranks that go on at once, some with those that wait.
    if (!validates_step_before(planned.program()))
      for (int s = planned.problem().microbatches() % 2; s < stages; s += 2)
        settings.at_once.push_back(s);
    return settings;
  };
  std::atomic<int> unagreed = 0;
  auto const over_sockets = [&](plan const& planned, std::uint64_t) {
    auto const settings = settings_of(planned);
    auto const own = zbpp::make_plan(
        planned.policy(),
        planned.schedule(),
        planned.problem(),
        {.step = validates_step_before(planned.program()) ? step_kind::post_validated
                                                          : step_kind::synchronous,
         .at_once = settings.at_once});
    auto const found =
        run_checked_ranks(own, settings, options, [&](auto& pipe, int, checked::model&) {
          std::int64_t next = 0;
          auto const note = [&](zbpp::step_result const& step) {
            CHECK(step.update.step == next++);
            unagreed += step.update.is_agreed ? 0 : 1;
          };
          pipe.run(6, note);
          pipe.evaluate();
          pipe.run(1, note);
          pipe.run(steps - 7, note);
        });
    check_thrown(found.thrown, "");
    return found.bits;
  };
  same_bits(
      [&](plan const& planned) {
        auto const microbatches = planned.problem().microbatches();
        return checked::train_alone(settings_of(planned), microbatches, steps, options).bits;
      },
      {{"sockets", over_sockets}},
      {{"every policy, some stages at once",
        {1, 2, 3},
        times(1, 1),
        [](zbpp::placement const& placement, int microbatches) {
          return checked::make_problem(placement, microbatches, 87, {});
        },
        {.fused = false, .steps = {step_kind::synchronous, step_kind::post_validated}}}});
  CHECK(unagreed > 0);
}

TEST_CASE(
    "where first ranks go on a run stops after the same step on all ranks",
    "[asio][optimizer-steps]") {
  zbpp::problem const problem(zbpp::placement::linear(3), 4, costs(), 87);
  for (auto const& at_once : std::vector<std::vector<int>>{{0}, {0, 1}, {2}})
    for (int asking : {0, 1, 2})
      for (int every : {1, 3}) {
        INFO(at_once.size() << " at once, rank " << asking << " asks, every " << every);
        auto const planned = zbpp::make_plan(
            zbpp::zb_h1{}, problem, {.step = step_kind::synchronous, .at_once = at_once});
        model_settings const settings{.stages = 3, .at_once = at_once};
        zbpp::training_options const options{.clip = 50, .agreement = {.every = every}};
        std::vector<std::int64_t> ends(3);
        auto const found =
            run_checked_ranks(planned, settings, options, [&](auto& pipe, int rank, auto&) {
              auto const ask = [&](zbpp::step_result const&) {
                bool const asks = rank == asking && pipe.steps() == 4;
                return asks ? zbpp::after_step::stop : zbpp::after_step::go_on;
              };
              pipe.run(30, ask);
              ends[static_cast<std::size_t>(rank)] = pipe.steps();
              pipe.evaluate();
              pipe.run(2);
            });
        check_thrown(found.thrown, "");
        CHECK(ends == std::vector<std::int64_t>(3, ends[0]));
        CHECK(ends[0] >= 4);
        CHECK(ends[0] <= 4 + every + 2);
        auto const steps = static_cast<int>(ends[0]) + 2;
        CHECK(found.bits == checked::train_alone(settings, 4, steps, options).bits);
      }
}

TEST_CASE(
    "a rank that fails in a step without agreement ends the run on all ranks",
    "[asio][optimizer-steps]") {
  zbpp::problem const problem(zbpp::placement::linear(3), 4, costs(), 87);
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem, {.step = step_kind::synchronous});
  zbpp::training_options const options{.clip = 50, .agreement = {.every = 6}};
  for (int failing : {0, 1, 2})
    check_thrown(
        run_checked_ranks(
            planned,
            {},
            options,
            [&](auto& pipe, int, checked::model& all) {
              all.maths(failing).throw_in_w(3, 1);
              pipe.run(8);
            })
            .thrown,
        "thrown by the test");
}

TEST_CASE("ranks that step in different ways are told so", "[asio][optimizer-steps]") {
  zbpp::problem const problem(zbpp::placement::linear(2), 3, costs(), 87);
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem, {.step = step_kind::post_validated});
  auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    checked::model all({.stages = 2});
    std::vector<zbpp::stage_ref> const own{all.stages()[static_cast<std::size_t>(meeting.rank())]};
    zbpp::pipeline pipe(
        planned, zbpp::asio::tcp(meeting), own, {.clip = meeting.rank() == 0 ? 1.0 : 2.0});
    pipe.run(4);
  });
  check_thrown(
      thrown, "training_options::clip is 1 on rank 0 and 2 on rank 1; give all ranks the same");
}

TEST_CASE(
    "a rank that fails while a step is pending ends the run on all ranks",
    "[asio][optimizer-steps]") {
  zbpp::problem const problem(zbpp::placement::linear(3), 4, costs(), 87);
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem, {.step = step_kind::post_validated});
  for (int failing : {0, 1, 2})
    check_thrown(
        run_checked_ranks(
            planned,
            {},
            {},
            [&](auto& pipe, int, checked::model& all) {
              all.maths(failing).throw_in(3, 0);
              pipe.run(8);
            })
            .thrown,
        "thrown by the test");
}

}  // namespace test_asio_optimizer_steps
