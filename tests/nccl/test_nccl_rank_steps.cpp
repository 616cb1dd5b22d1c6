// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps of ranks that are processes to each other: NCCL moves their messages, and sockets
// what they tell each other of gradients.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_steps.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/padded_toy.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <array>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace test_nccl_rank_steps {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::plan;
using zbpp::problem;
using zbpp::step_kind;

namespace {

using stage = gpu_steps::optimized_stage<toy::padded_passes<toy::launched_passes_with_scratch>>;

// Trains with one rank per thread; each has a model of its own, of which it trains its stages.
gpu_steps::outcome train_on_ranks(plan const& planned, gpu_steps::trouble const& with) {
  gpu_steps::outcome result;
  auto const& placement = planned.problem().placement();
  result.given = toy::make_model(placement.stages());
  std::mutex mutex;
  auto const thrown =
      run_ranks(placement.ranks(), patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
        auto all = toy::make_model(placement.stages());
        std::vector<stage> stages;
        for (int s : placement.stages_of(meeting.rank()))
          stages.emplace_back(
              all[zbpp::detail::index(s)],
              with.infinite_of(s, placement.stages()),
              planned.problem().costs(s).tied > 0);
        auto settings = settings_of(planned, meeting.rank());
        zbpp::pipeline pipe(
            planned, nccl::ranks(meeting, settings), stages, gpu_steps::options(with));
        gpu_steps::outcome outcome;
        outcome.train(pipe);
        pipe.evaluate();
        std::lock_guard const lock(mutex);
        for (int s : placement.stages_of(meeting.rank()))
          result.given[zbpp::detail::index(s)] = all[zbpp::detail::index(s)];
        result.early += outcome.early;
        if (meeting.rank() == 0) {
          result.amended = outcome.amended;
          result.norms = outcome.norms;
        }
        if (placement.rank_of(placement.stages() - 1) == meeting.rank())
          result.losses = outcome.losses;
      });
  for (auto const& text : thrown) CHECK(text == "");
  return result;
}

}  // namespace

TEST_CASE("the next step of a run begins when the passes before are done, and counted", "[nccl]") {
  for (auto const order : {model::mode::lazy, model::mode::random}) {
    checked_gpus const gpus({.seed = run_seed(), .order = order});
    zbpp::cuda::device_context const context({}, 1, {}, {});
    nccl::detail::device_progress progress(3);
    zbpp::asio::progress_board board;
    for (int mb = 0; mb < 3; ++mb) {
      progress.begin(context.compute(), {zbpp::pass_kind::forward, 0, mb});
      zbpp::cuda::check(model::launch(context.compute(), "pass", {}, {}));
      progress.end(context.compute());
    }
    progress.begin_step(context, board);
    CHECK(model::pending() == 0);
    CHECK(board.read().at == zbpp::instruction{zbpp::instruction_kind::forward, 0, 2});
  }
}

TEST_CASE("ranks with sockets and NCCL between them agree on steps", "[nccl][long]") {
  auto seed = run_seed() + 1000;
  for (int ranks : thinned<std::vector<int>>({1, 2, 4}, {3}))
    for (auto const kind : {step_kind::post_validated, step_kind::synchronous}) {
      // On ranks of their own, or all on one.
      auto costs = gpu_steps::tied_costs(2 * ranks);
      if (kind == step_kind::synchronous) {
        costs = std::vector(costs.size(), launched_costs());
        costs.front().tied = costs.back().tied = gpu_steps::tied_size;
      }
      problem const problem(zbpp::placement::v_shape(ranks), 2 * ranks, costs, 87);
      auto layout = zbpp::channel_layout::one_per_directed_pair;
      for (auto const& with :
           gpu_steps::troubles_of(make_plan(zbpp::zb_v{}, problem, {.step = kind}))) {
        auto const planned = make_plan(zbpp::zb_v{}, problem, {.step = kind, .layout = layout});
        layout = zbpp::channel_layout::one_per_rank;  // of all but the first, for few queues
        auto const machine = machine_of(planned, ++seed);
        reset_gpus(machine);
        INFO(ranks << " ranks, interleaving " << seed << ", clips at " << with.clip);
        INFO(machine.connections << " queues, mapping " << static_cast<int>(machine.mapping));
        gpu_steps::check(
            train_on_ranks(planned, with), gpu_steps::train_alone(planned, with), planned, with);
      }
    }
}

TEST_CASE("ranks with sockets and NCCL between them step without agreement", "[nccl][long]") {
  auto seed = run_seed() + 2000;
  problem const problem(zbpp::placement::v_shape(3), 6, launched_costs(), 87);
  auto const norm = gpu_steps::train_alone(make_plan(zbpp::zb_v{}, problem), {}).norms.front();
  for (auto const& lowering :
       {zbpp::lower_options{.step = step_kind::synchronous, .at_once = {0, 1, 5}},
        zbpp::lower_options{
            .step = step_kind::synchronous,
           .at_once = {0, 5},
           .layout = zbpp::channel_layout::one_per_rank},
        zbpp::lower_options{.step = step_kind::post_validated}})
    for (int const every : {1, 3}) {
      auto const planned = make_plan(zbpp::zb_v{}, problem, lowering);
      gpu_steps::trouble const with{
          .clip = (every == 1 ? 0.7 : 4) * norm,
          .infinite_in = 2,
          .agreement = {.every = every, .share = every == 1 ? 0.5 : 0.9}};
      reset_gpus(machine_of(planned, ++seed));
      INFO("interleaving " << seed << ", clips at " << with.clip);
      gpu_steps::check(
          train_on_ranks(planned, with), gpu_steps::train_alone(planned, with), planned, with);
    }
}

TEST_CASE("a run over NCCL stops after the same step on all ranks, whoever asks", "[nccl]") {
  constexpr int ranks = 3;
  problem const problem(zbpp::placement::linear(ranks), 4, launched_costs(), 87);
  auto seed = run_seed() + 3000;
  for (auto const kind :
       {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
    auto const planned = make_plan(zbpp::zb_h1{}, problem, {.step = kind});
    for (int asking = 0; asking < ranks; ++asking) {
      reset_gpus(machine_of(planned, ++seed));
      INFO("rank " << asking << " asks, interleaving " << seed);
      std::array<std::int64_t, ranks> ends{};
      auto const thrown =
          run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
            auto const rank = zbpp::detail::index(meeting.rank());
            auto all = toy::make_model(ranks);
            std::array stages{stage(all[rank], -1)};
            zbpp::pipeline pipe(
                planned,
                nccl::ranks(meeting, settings_of(planned, meeting.rank())),
                stages,
                gpu_steps::options(0, kind != step_kind::unchecked));
            pipe.run(100, [&](zbpp::step_result const&) {
              bool const asks = meeting.rank() == asking && pipe.steps() == 2;
              return asks ? zbpp::after_step::stop : zbpp::after_step::go_on;
            });
            ends[rank] = pipe.steps();
            auto const expected =
                gpu_steps::train_alone(planned, {}, static_cast<int>(pipe.steps()));
            if (!gpu_steps::has_same_weights(all[rank], expected.given[rank]))
              throw std::runtime_error("other weights than after whole steps");
          });
      for (auto const& text : thrown) CHECK(text == "");
      for (auto end : ends) CHECK(end == ends[0]);
      CHECK(ends[0] >= 2);
      CHECK(ends[0] <= 4);
    }
  }
}

TEST_CASE(
    "a failure at any flow over NCCL leaves every rank the weights of whole steps", "[nccl]") {
  constexpr int ranks = 3;
  problem const problem(zbpp::placement::linear(ranks), 4, launched_costs(), 87);
  auto const planned = make_plan(zbpp::zb_h1{}, problem, {.step = step_kind::post_validated});
  auto seed = run_seed() + 2000;
  for (int failing = 1; failing < 12; failing += thinned(2, 5))
    for (int culprit = 0; culprit < ranks; ++culprit) {
      reset_gpus(machine_of(planned, ++seed));
      INFO("flow " << failing << " of rank " << culprit << ", interleaving " << seed);
      auto const thrown =
          run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
            auto const rank = zbpp::detail::index(meeting.rank());
            auto all = toy::make_model(ranks);
            stage own(all[rank], -1);
            std::atomic<int> flows = 0;
            std::array stages{gpu_steps::doomed_stage<stage>{
                &own, &flows, meeting.rank() == culprit ? failing : -1}};
            zbpp::pipeline pipe(
                planned,
                nccl::ranks(meeting, settings_of(planned, meeting.rank())),
                stages,
                gpu_steps::options(0));
            meeting.barrier();  // or a rank may learn of the failure while it makes its pipeline
            std::string reports;
            try {
              pipe.run(gpu_steps::count);
            } catch (std::exception const& failed) {
              reports = failed.what();
            }
            auto const expected =
                gpu_steps::train_alone(planned, {}, static_cast<int>(pipe.steps()));
            bool const is_same = gpu_steps::has_same_weights(all[rank], expected.given[rank]);
            if (reports.find("this flow fails") == std::string::npos)
              throw std::runtime_error("was told: " + reports);
            if (!is_same) throw std::runtime_error("other weights than after whole steps");
          });
      for (auto const& text : thrown) CHECK(text == "");
      CHECK(first_of(model::leaks()) == "");
    }
}

}  // namespace test_nccl_rank_steps
