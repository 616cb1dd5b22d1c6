// SPDX-License-Identifier: Apache-2.0
//
// Runs of many processes that pause and stop: after the same step on all ranks, whichever of them
// asks, in every kind of step, and with the bits of one process.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/checked_ranks.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace test_asio_run {

using namespace zbpp;
using zbpp::test::check_thrown;
using zbpp::test::patient_settings;
using zbpp::test::run_checked_ranks;
using zbpp::test::run_ranks;
using zbpp::test::checked::model;

namespace {

constexpr int ranks = 3;
constexpr int microbatches = 4;

constexpr step_kind kinds[] = {
    step_kind::none, step_kind::unchecked, step_kind::synchronous, step_kind::post_validated};

plan planned_for(step_kind kind) {
  problem const small(placement::linear(ranks), microbatches, test::checked::costs(), 87);
  return make_plan(zb_h1{}, small, {.step = kind});
}
training_options options(step_kind kind) {
  bool const agrees = kind == step_kind::synchronous || kind == step_kind::post_validated;
  return {.clip = agrees ? 1.3 : 0.0};
}

// What one process has after some steps.
std::vector<std::uint32_t> alone(step_kind kind, std::int64_t steps) {
  model all({.stages = ranks});
  pipeline pipe(planned_for(kind), virtual_time{}, all.stages(), options(kind));
  pipe.run(steps);
  return all.bits();
}

// Runs `body(pipe, rank)` on every rank. @return the bits of all
template <class Body>
std::vector<std::uint32_t> on_all_ranks(step_kind kind, Body body) {
  auto const found =
      run_checked_ranks(planned_for(kind), {}, options(kind), [&](auto& pipe, int rank, model&) {
        body(pipe, rank);
      });
  check_thrown(found.thrown, "");
  return found.bits;
}

}  // namespace

TEST_CASE("a run stops after the same step on all ranks, whoever asks", "[asio][run][long]") {
  for (auto kind : kinds)
    for (int asking = 0; asking < ranks; ++asking)
      for (std::int64_t asked : {1, 4, 7}) {
        INFO("kind " << static_cast<int>(kind) << ", rank " << asking << ", step " << asked);
        constexpr std::int64_t steps = 8;
        std::vector<std::int64_t> ends(ranks);
        auto const found = on_all_ranks(kind, [&](auto& pipe, int rank) {
          pipe.run(steps, [&](step_result const&) {
            bool const asks = rank == asking && pipe.steps() == asked;
            return asks ? after_step::stop : after_step::go_on;
          });
          ends[detail::index(rank)] = pipe.steps();
          pipe.evaluate();
          pipe.run(1);
        });
        CHECK(ends == std::vector<std::int64_t>(ranks, ends[0]));
        CHECK(ends[0] >= asked);
        CHECK(ends[0] <= std::min(asked + 2, steps));
        CHECK(found == alone(kind, ends[0] + 1));
      }
}

TEST_CASE("a run pauses on all ranks to evaluate, by number and when asked", "[asio][run]") {
  for (auto kind : kinds) {
    INFO("kind " << static_cast<int>(kind));
    std::vector<std::vector<std::int64_t>> pauses(ranks);
    std::vector<double> losses;
    auto const found = on_all_ranks(kind, [&](auto& pipe, int rank) {
      auto const on_step = [&](step_result const&) {
        return rank == 1 && pipe.steps() == 6 ? after_step::pause : after_step::go_on;
      };
      pipe.run(9, on_step, {.pause_every = 4, .on_pause = [&] {
                              auto const loss = pipe.evaluate().loss();
                              if (rank + 1 == ranks) losses.push_back(loss);
                              pauses[detail::index(rank)].push_back(pipe.steps());
                            }});
    });
    CHECK(found == alone(kind, 9));
    for (auto const& each : pauses) CHECK(each == pauses[0]);
    REQUIRE(pauses[0].size() >= 2);
    CHECK(pauses[0].front() == 4);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      model all({.stages = ranks});
      pipeline pipe(planned_for(kind), virtual_time{}, all.stages(), options(kind));
      pipe.run(pauses[0][i]);
      CHECK(losses[i] == pipe.evaluate().loss());
    }
  }
}

TEST_CASE("what is asked for where a run pauses anyway happens there", "[asio][run]") {
  for (auto kind : kinds)
    for (std::int64_t every : {1, 2}) {
      INFO("kind " << static_cast<int>(kind) << ", every " << every);
      std::vector<std::int64_t> ends(ranks);
      on_all_ranks(kind, [&](auto& pipe, int rank) {
        auto const on_step = [&](step_result const&) {
          return rank == 2 && pipe.steps() == 4 ? after_step::stop : after_step::go_on;
        };
        pipe.run(100, on_step, {.pause_every = every, .on_pause = [&] { pipe.evaluate(); }});
        ends[detail::index(rank)] = pipe.steps();
      });
      CHECK(ends == std::vector<std::int64_t>(ranks, ends[0]));
      CHECK(ends[0] >= 4);
      CHECK(ends[0] <= 6);
    }
}

TEST_CASE("one rank's validation ends the run of all", "[asio][run]") {
  for (auto kind : kinds) {
    INFO("kind " << static_cast<int>(kind));
    std::vector<std::int64_t> ends(ranks);
    on_all_ranks(kind, [&](auto& pipe, int rank) {
      pipe.run(100, {.pause_every = 3, .on_pause = [&] {
                       bool const is_worse = rank + 1 == ranks && pipe.steps() == 6;
                       return is_worse ? after_step::stop : after_step::go_on;
                     }});
      ends[detail::index(rank)] = pipe.steps();
    });
    CHECK(ends == std::vector<std::int64_t>(ranks, 6));
  }
}

TEST_CASE("what a callback throws on one rank ends the run on all", "[asio][run]") {
  for (auto kind : kinds)
    for (bool pauses : {false, true}) {
      INFO("kind " << static_cast<int>(kind) << (pauses ? ", in a pause" : ", in on_step"));
      auto const body = [&](auto& pipe, int rank, model&) {
        auto const fail = [&] {
          if (rank == 1 && pipe.steps() == 4) throw std::runtime_error("the disk is full");
        };
        auto const on_step = [&](step_result const&) {
          if (!pauses) fail();
        };
        if (pauses)
          pipe.run(100, on_step, {.pause_every = 2, .on_pause = fail});
        else
          pipe.run(100, on_step);
      };
      auto const found = run_checked_ranks(planned_for(kind), {}, options(kind), body);
      check_thrown(
          found.thrown,
          pauses ? "rank 1: on_pause threw: the disk is full"
                 : "rank 1: on_step threw: the disk is full");
    }
}

TEST_CASE("losses are on all ranks where all ask for them", "[asio][run]") {
  for (auto const& placement : {placement::linear(ranks), placement::v_shape(ranks)})
    for (auto kind : kinds) {
      INFO("kind " << static_cast<int>(kind) << ", " << placement.stages() << " stages");
      problem const small(placement, microbatches, test::checked::costs(), 87);
      auto const planned = placement.is_linear() ? make_plan(zb_h1{}, small, {.step = kind})
                                                 : make_plan(zb_v{}, small, {.step = kind});
      constexpr int steps = 5;
      model alone({.stages = placement.stages()});
      pipeline reference(planned, virtual_time{}, alone.stages(), options(kind));
      std::vector<std::vector<double>> expected;
      for (int i = 0; i < steps + 2; ++i) {
        expected.push_back(reference.step().losses);
        expected.push_back(reference.evaluate().losses);
      }
      auto const compare = [&](auto& pipe, int rank, model&) {
        std::vector<std::vector<double>> found;
        pipe.run(
            100,
            [&](step_result const& step) {
              found.push_back(step.losses);
              bool const asks = rank == 1 && pipe.steps() == steps;
              return asks ? after_step::stop : after_step::go_on;
            },
            {.pause_every = 1, .on_pause = [&] { found.push_back(pipe.evaluate().losses); }});
        auto const count = found.size();
        if (pipe.steps() < steps || count != 2 * detail::index(pipe.steps()))
          throw std::runtime_error("another number of steps");
        if (!std::equal(found.begin(), found.end(), expected.begin()))
          throw std::runtime_error("other losses");
      };
      auto const run =
          run_checked_ranks(planned, {}, options(kind), compare, {.share_losses = true});
      check_thrown(run.thrown, "");
    }
}

TEST_CASE("ranks that wait for each other between other steps are told so", "[asio][run]") {
  auto const planned = planned_for(step_kind::unchecked);
  auto const refuse = [&](auto act) {
    auto const found =
        run_checked_ranks(planned, {}, {}, [&](auto& pipe, int rank, model&) { act(pipe, rank); });
    check_thrown(found.thrown, "all ranks have to make the same calls in the same order");
  };
  auto const go_on = [](step_result const&) { return after_step::go_on; };
  refuse([&](auto& pipe, int rank) {
    pipe.run(12, {.pause_every = rank == 0 ? 2 : 4, .on_pause = [] { return after_step::go_on; }});
  });
  refuse([&](auto& pipe, int rank) {
    if (rank == 0)
      pipe.run(6, go_on);
    else
      for (int i = 0; i < 6; ++i) pipe.run(1, go_on);
  });
}

TEST_CASE("options that differ are named where stages step in update()", "[asio][run]") {
  struct stepping_stage : test::checked::frozen_stage {
    using frozen_stage::frozen_stage;
    void update(pass_context) {}
  };
  auto const planned = planned_for(step_kind::unchecked);
  for (int other = 0; other < ranks; ++other)
    for (bool scales : {false, true}) {
      INFO("rank " << other << (scales ? " scales" : " accumulates"));
      auto const thrown = run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
        model all({.stages = ranks});
        std::array stages{stepping_stage(all.maths(meeting.rank()))};
        training_options options;
        if (meeting.rank() == other && scales) options.scaling.initial = 2;
        if (meeting.rank() == other && !scales) options.accumulate = 2;
        pipeline pipe(planned, asio::tcp(meeting), stages, options);
        pipe.run(6);
      });
      auto const name =
          scales ? "training_options::scaling.initial is " : "training_options::accumulate is ";
      check_thrown(thrown, name);
    }
}

TEST_CASE("ranks that differ in whether they share losses are told so", "[asio][run]") {
  auto const planned = planned_for(step_kind::unchecked);
  auto const thrown = run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
    model all({.stages = ranks});
    std::vector<stage_ref> const own{all.stages()[detail::index(meeting.rank())]};
    pipeline pipe(planned, asio::tcp(meeting, {.share_losses = meeting.rank() == 2}), own);
  });
  check_thrown(thrown, "share_losses (true at rank 2, false at rank 0)");
}

TEST_CASE("a call from a callback ends the run on all ranks, and says why", "[asio][run]") {
  for (auto kind : kinds) {
    auto const found =
        run_checked_ranks(planned_for(kind), {}, options(kind), [](auto& pipe, int, model&) {
          pipe.run(10, [&](step_result const&) {
            if (pipe.steps() == 3) pipe.evaluate();
          });
        });
    check_thrown(found.thrown, "evaluate() is called while run() of the same pipeline runs");
  }
}

}  // namespace test_asio_run
