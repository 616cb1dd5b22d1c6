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

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace test_asio_run {

using namespace zbpp;
using zbpp::test::patient_settings;
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

// What the processes of a run have: each changes its own stages alone.
std::vector<std::uint32_t> joined(std::vector<std::vector<std::uint32_t>> const& parts) {
  auto const start = model({.stages = ranks}).bits();
  auto result = start;
  for (auto const& part : parts)
    for (std::size_t i = 0; i < part.size(); ++i)
      if (part[i] != start[i]) result[i] = part[i];
  return result;
}

// Runs `body(pipe, rank)` on every rank. @return the bits of all
template <class Body>
std::vector<std::uint32_t> on_all_ranks(step_kind kind, Body body) {
  std::vector<std::vector<std::uint32_t>> parts(ranks);
  auto const planned = planned_for(kind);
  auto const thrown = run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
    model all({.stages = ranks});
    std::vector<stage_ref> const own{all.stages()[detail::index(meeting.rank())]};
    pipeline pipe(planned, asio::tcp(meeting), own, options(kind));
    body(pipe, meeting.rank());
    parts[detail::index(meeting.rank())] = all.bits();
  });
  for (auto const& text : thrown) CHECK(text == "");
  return joined(parts);
}

}  // namespace

TEST_CASE("a run stops after the same step on all ranks, whoever asks", "[asio][run]") {
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
      auto const planned = planned_for(kind);
      auto const thrown = run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
        model all({.stages = ranks});
        std::vector<stage_ref> const own{all.stages()[detail::index(meeting.rank())]};
        pipeline pipe(planned, asio::tcp(meeting), own, options(kind));
        auto const fail = [&] {
          if (meeting.rank() == 1 && pipe.steps() == 4)
            throw std::runtime_error("the disk is full");
        };
        auto const on_step = [&](step_result const&) {
          if (!pauses) fail();
        };
        if (pauses)
          pipe.run(100, on_step, {.pause_every = 2, .on_pause = fail});
        else
          pipe.run(100, on_step);
      });
      for (auto const& text : thrown) {
        CHECK(text.find("rank 1") != std::string::npos);
        CHECK(text.find("the disk is full") != std::string::npos);
      }
    }
}

TEST_CASE("losses are on all ranks where all ask for them", "[asio][run]") {
  for (auto const& where : {placement::linear(ranks), placement::v_shape(ranks)})
    for (auto kind : kinds) {
      INFO("kind " << static_cast<int>(kind) << ", " << where.stages() << " stages");
      problem const small(where, microbatches, test::checked::costs(), 87);
      auto const planned = where.is_linear() ? make_plan(zb_h1{}, small, {.step = kind})
                                             : make_plan(zb_v{}, small, {.step = kind});
      constexpr int steps = 5;
      model alone({.stages = where.stages()});
      pipeline reference(planned, virtual_time{}, alone.stages(), options(kind));
      std::vector<std::vector<double>> expected;
      for (int i = 0; i < steps + 2; ++i) {
        expected.push_back(reference.step().losses);
        expected.push_back(reference.evaluate().losses);
      }
      auto const thrown = run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
        model all({.stages = where.stages()});
        std::vector<stage_ref> own;
        for (int s : where.stages_of(meeting.rank())) own.push_back(all.stages()[detail::index(s)]);
        pipeline pipe(planned, asio::tcp(meeting, {.share_losses = true}), own, options(kind));
        std::vector<std::vector<double>> found;
        pipe.run(
            100,
            [&](step_result const& step) {
              found.push_back(step.losses);
              bool const asks = meeting.rank() == 1 && pipe.steps() == steps;
              return asks ? after_step::stop : after_step::go_on;
            },
            {.pause_every = 1, .on_pause = [&] { found.push_back(pipe.evaluate().losses); }});
        auto const count = found.size();
        if (pipe.steps() < steps || count != 2 * detail::index(pipe.steps()))
          throw std::runtime_error("another number of steps");
        if (!std::equal(found.begin(), found.end(), expected.begin()))
          throw std::runtime_error("other losses");
      });
      for (auto const& text : thrown) CHECK(text == "");
    }
}

TEST_CASE("ranks that wait for each other between other steps are told so", "[asio][run]") {
  auto const planned = planned_for(step_kind::unchecked);
  auto const told = [&](auto act) {
    auto const thrown = run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
      model all({.stages = ranks});
      std::vector<stage_ref> const own{all.stages()[detail::index(meeting.rank())]};
      pipeline pipe(planned, asio::tcp(meeting), own);
      act(pipe, meeting.rank());
    });
    for (auto const& text : thrown)
      CHECK(
          text.find("all ranks have to make the same calls in the same order") !=
          std::string::npos);
  };
  auto const go_on = [](step_result const&) { return after_step::go_on; };
  told([&](auto& pipe, int rank) {
    pipe.run(12, {.pause_every = rank == 0 ? 2 : 4, .on_pause = [] { return after_step::go_on; }});
  });
  told([&](auto& pipe, int rank) {
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
        training_options how;
        if (meeting.rank() == other && scales) how.scaling.initial = 2;
        if (meeting.rank() == other && !scales) how.accumulate = 2;
        pipeline pipe(planned, asio::tcp(meeting), stages, how);
        pipe.run(6);
      });
      auto const name =
          scales ? "training_options::scaling.initial is " : "training_options::accumulate is ";
      for (auto const& text : thrown) CHECK(text.find(name) != std::string::npos);
    }
}

TEST_CASE("ranks that differ in whether they share losses are told so", "[asio][run]") {
  auto const planned = planned_for(step_kind::unchecked);
  auto const thrown = run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
    model all({.stages = ranks});
    std::vector<stage_ref> const own{all.stages()[detail::index(meeting.rank())]};
    pipeline pipe(planned, asio::tcp(meeting, {.share_losses = meeting.rank() == 2}), own);
  });
  for (auto const& text : thrown)
    CHECK(text.find("share_losses (true at rank 2, false at rank 0)") != std::string::npos);
}

TEST_CASE("a call from a callback ends the run on all ranks, and says why", "[asio][run]") {
  for (auto kind : kinds) {
    auto const planned = planned_for(kind);
    auto const thrown = run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
      model all({.stages = ranks});
      std::vector<stage_ref> const own{all.stages()[detail::index(meeting.rank())]};
      pipeline pipe(planned, asio::tcp(meeting), own, options(kind));
      pipe.run(10, [&](step_result const&) {
        if (pipe.steps() == 3) pipe.evaluate();
      });
    });
    for (auto const& text : thrown)
      CHECK(
          text.find("evaluate() is called while run() of the same pipeline runs") !=
          std::string::npos);
  }
}

}  // namespace test_asio_run
