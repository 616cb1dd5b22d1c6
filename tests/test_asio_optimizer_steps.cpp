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
#include <support/plan_grid.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

namespace test_asio_optimizer_steps {

using namespace zbpp::test;
using zbpp::step_kind;
using zbpp::training_options;
using zbpp::test::checked::costs;
using zbpp::test::checked::history;
using zbpp::test::checked::model_settings;

namespace {

constexpr int steps = 12;

// What one process has of the weights and moments: its own stages, others as they began.
struct part {
  std::vector<std::uint32_t> bits;
  int amended = 0;
};

// Trains with one rank per thread, joined by sockets alone. @return by rank
std::vector<part> train(
    zbpp::plan const& planned, model_settings const& settings, training_options const& options) {
  std::vector<part> parts(static_cast<std::size_t>(planned.problem().ranks()));
  auto const thrown = run_ranks(
      planned.problem().ranks(), patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
        checked::model all(settings);
        std::vector<zbpp::stage_ref> own;
        for (int s : planned.problem().placement().stages_of(meeting.rank()))
          own.push_back(all.stages()[static_cast<std::size_t>(s)]);
        zbpp::asio::tcp_settings how;
        if (planned.problem().tied_size() > 0) how.most = 32;  // less than tied gradients have
        zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting, how), own, options);
        auto& mine = parts[static_cast<std::size_t>(meeting.rank())];
        pipe.run(steps - 4, [&](zbpp::step_result const& step) {
          mine.amended += step.update.is_amended ? 1 : 0;
        });
        pipe.evaluate();
        pipe.run(4);
        mine.bits = all.bits();
      });
  for (auto const& text : thrown) CHECK(text == "");
  return parts;
}

}  // namespace

TEST_CASE("over sockets optimizer steps have the bits of one process", "[asio][optimizer-steps]") {
  constexpr auto infinite = std::numeric_limits<float>::infinity();
  int amended = 0;
  for (int ranks : {1, 2, 3})
    for (auto const& where : placements_to_run(ranks)) {
      // Neighbours among them, whose channels carry verdicts, too.
      std::vector<int> tied;
      for (int s = 0; s < where.stages(); s += s == 0 ? 1 : 2) tied.push_back(s);
      auto const problem = checked::make_problem(where, ranks + 2, 87, tied);
      for (auto const& policy : grid_policies()) {
        if (!is_supported(policy, problem)) continue;
        INFO(name_of(policy, problem));
        model_settings settings{
            .stages = where.stages(), .faults = {{5, ranks - 1, 0, infinite}}, .tied = tied};
        training_options const options{.clip = 1.35};
        auto const start = checked::model(settings).bits();
        auto const expected = checked::train_alone(settings, ranks + 2, steps, options).bits;
        for (auto kind : {step_kind::synchronous, step_kind::post_validated}) {
          auto const planned = zbpp::make_plan("tested", policy(problem), problem, {.step = kind});
          // Each process changes its own stages alone, so what differs from the start is its part.
          auto joined = start;
          for (auto const& part : train(planned, settings, options)) {
            amended += part.amended;
            REQUIRE(part.bits.size() == joined.size());
            for (std::size_t i = 0; i < joined.size(); ++i)
              if (part.bits[i] != start[i]) joined[i] = part.bits[i];
          }
          CHECK(joined == expected);
        }
      }
    }
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
  for (auto const& text : thrown)
    CHECK(
        text.find("training_options::clip is 1 on rank 0 and 2 on rank 1; give all ranks the "
                  "same") != std::string::npos);
}

TEST_CASE(
    "a rank that fails while a step is pending ends the run on all ranks",
    "[asio][optimizer-steps]") {
  zbpp::problem const problem(zbpp::placement::linear(3), 4, costs(), 87);
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem, {.step = step_kind::post_validated});
  for (int failing : {0, 1, 2}) {
    auto const thrown = run_ranks(3, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
      checked::model all({.stages = 3});
      all.maths(failing).throw_in(3, 0);
      std::vector<zbpp::stage_ref> const own{
          all.stages()[static_cast<std::size_t>(meeting.rank())]};
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), own);
      pipe.run(8);
    });
    for (auto const& text : thrown) CHECK(text.find("thrown by the test") != std::string::npos);
  }
}

}  // namespace test_asio_optimizer_steps
