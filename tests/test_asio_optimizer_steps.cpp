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

TEST_CASE("over sockets optimizer steps have the bits of one process", "[asio][optimizer-steps]") {
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
