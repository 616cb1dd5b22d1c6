// SPDX-License-Identifier: Apache-2.0
//
// Pipelines whose ranks are processes to each other: here threads that share nothing but sockets.
#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/plain_flow.hpp>
#include <support/plan_grid.hpp>
#include <support/rank_outcome.hpp>
#include <support/same_bits.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_objects.hpp>
#include <support/toy_run.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace test_asio_pipeline {

using namespace zbpp::test;

namespace {

// Each rank has a model of its own, of which it trains its stages.
template <class Stage = toy::hand_written>
outcome on_sockets(zbpp::plan const& planned) {
  outcome result;
  std::mutex mutex;
  auto const thrown = run_ranks(
      planned.problem().ranks(), patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
        auto all = toy::make_model(planned.problem().stages());
        std::vector<Stage> stages;
        for (int s : planned.problem().placement().stages_of(meeting.rank()))
          stages.emplace_back(all[static_cast<std::size_t>(s)]);
        zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
        add_run(pipe, all, std::array{meeting.rank()}, result, mutex);
      });
  for (auto const& text : thrown) CHECK(text == "");
  return result;
}

}  // namespace

TEST_CASE(
    "ranks that are processes give the bits and the memory of threads", "[asio][pipeline][long]") {
  for (int ranks : {1, 2, 3})
    same_bits(
        on_threads,
        {{"sockets", [](auto const& planned, auto) { return on_sockets(planned); }},
         {"sockets, objects",
          [](auto const& planned, auto) {
            auto found = on_sockets<packing_stage>(planned);
            found.peaks = on_threads(planned).peaks;  // packing takes memory of its own
            return found;
          }}},
        {{"every policy, recomputation and early receives",
          {ranks},
          times(1, 2),
          [](zbpp::placement const& placement, int microbatches) {
            zbpp::stage_costs const costs{
                .forward = 10,
                .backward_input = 10,
                .backward_weight = 10,
                .activation = 2,
                .weight_gradient_input = 1,
                .edge = toy::parcel_edge};
            return zbpp::problem(placement, microbatches, costs);
          },
          {.recomputed = true, .receive_ahead = ranks - 1}}});
  CHECK(toy::parcel::alive == 0);
}

TEST_CASE("the thread of a rank is told of it before its stages warm up", "[asio][pipeline]") {
  struct warmed {
    bool const* is_told;
    bool* is_warm_after;

    zbpp::flow operator()(zbpp::microbatch) const { co_return; }
    void warm_up(zbpp::pass_context) const { *is_warm_after = *is_told; }
  };
  zbpp::problem const problem(zbpp::placement::linear(2), 2, zbpp::stage_costs{.forward = 1});
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem);
  std::array<bool, 2> is_right{};
  auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    bool is_told = false;
    bool is_warm_after = false;
    auto const thread = std::this_thread::get_id();
    zbpp::asio::tcp_settings settings;
    settings.on_thread_start = [&](std::span<int const> ranks) {
      is_told = ranks.size() == 1 && ranks.front() == meeting.rank() &&
                std::this_thread::get_id() == thread;
    };
    std::array stages{warmed{&is_told, &is_warm_after}};
    zbpp::pipeline const pipe(planned, zbpp::asio::tcp(meeting, settings), stages);
    is_right[static_cast<std::size_t>(meeting.rank())] = is_warm_after;
  });
  for (auto const& text : thrown) CHECK(text == "");
  CHECK(is_right == std::array{true, true});
}

TEST_CASE("what a rank throws when its thread starts, all ranks are told", "[asio][pipeline]") {
  zbpp::problem const problem(zbpp::placement::linear(2), 2, zbpp::stage_costs{.forward = 1});
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem);
  auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(2);
    std::array stages{toy::hand_written(all[static_cast<std::size_t>(meeting.rank())])};
    zbpp::asio::tcp_settings settings;
    settings.on_thread_start = [&](std::span<int const> ranks) {
      if (ranks.front() == 1) throw std::runtime_error("no such core");
    };
    zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting, settings), stages);
    pipe.step();
  });
  for (auto const& text : thrown) CHECK(text.find("no such core") != std::string::npos);
}

TEST_CASE("edges whose sizes are not declared arrive as well", "[asio][pipeline]") {
  auto const sized = toy_plan("zb_v", 3, 4);
  zbpp::problem const open(
      sized.problem().placement(), 4, zbpp::stage_costs{.forward = 1, .backward_input = 1});
  auto const planned = zbpp::make_plan(zbpp::zb_v{}, open);
  CHECK(difference(on_sockets(planned), on_threads(planned)) == "");
}

namespace {

// Fails in one pass of one step.
class fragile : public toy::passes {
 public:
  fragile(toy::stage_model& stage, bool fails) : toy::passes(stage), fails_(fails) {}

  zbpp::message forward(
      saved& kept, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx) {
    if (fails_ && mb.step() == 1 && mb.index() == 2) throw std::out_of_range("the toy broke");
    return toy::passes::forward(kept, in, mb, ctx);
  }

 private:
  bool fails_;
};

}  // namespace

TEST_CASE("every rank gets the failures of all, and the run is over", "[asio][pipeline]") {
  constexpr int ranks = 3;
  for (int culprit = 0; culprit < ranks; ++culprit) {
    auto const planned = toy_plan("zb_h1", ranks, 5);
    auto const thrown = run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
      auto all = toy::make_model(ranks);
      auto const rank = meeting.rank();
      fragile stage(all[static_cast<std::size_t>(rank)], rank == culprit);
      std::array stages{zbpp::as_flow(stage)};
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
      pipe.step();
      meeting.barrier();  // or a rank may hear of the second step while it is in its first
      std::string first;
      std::string second;
      std::string collective;
      try {
        pipe.step();
      } catch (std::exception const& failed) {
        first = failed.what();
      }
      if (pipe.failures().empty()) throw std::logic_error("no failures");
      auto const& f = pipe.failures().front();
      if (f.location.rank != culprit || f.location.stage != culprit || f.location.microbatch != 2 ||
          f.instruction.kind != zbpp::instruction_kind::forward)
        throw std::logic_error("another place: " + to_string(f.location));
      try {
        pipe.step();
      } catch (std::exception const& failed) {
        second = failed.what();
      }
      try {
        meeting.barrier();
      } catch (std::exception const& failed) {
        collective = failed.what();
      }
      for (auto const& text : {first, second, collective})
        if (text.find("the toy broke") == std::string::npos)
          throw std::logic_error("another text: '" + text + "'");
      if (pipe.steps() != 1) throw std::logic_error("another number of steps");
    });
    INFO("culprit " << culprit);
    for (auto const& text : thrown) CHECK(text == "");
  }
}

namespace {

using stage_type = std::array<zbpp::as_flow<fragile>, 1>;
using pipeline_type = zbpp::pipeline<zbpp::asio::tcp>;

// Makes a pipeline of one stage a rank, whose rank 1 may fail in its second step.
std::unique_ptr<pipeline_type> make_pipeline(
    zbpp::plan const& planned, zbpp::asio::rendezvous& meeting, stage_type& stages) {
  return std::make_unique<pipeline_type>(planned, zbpp::asio::tcp(meeting), stages);
}

}  // namespace

TEST_CASE("a run may replace its pipeline by another one", "[asio][pipeline]") {
  constexpr int ranks = 3;
  auto const planned = toy_plan("zb_h1", ranks, 5);
  bool const fails = GENERATE(false, true);
  auto const thrown = run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(ranks);
    auto const rank = static_cast<std::size_t>(meeting.rank());
    fragile sound(all[rank], false);
    fragile broken(all[rank], fails && rank == 1);
    stage_type first{zbpp::as_flow(sound)};
    stage_type second{zbpp::as_flow(broken)};
    auto pipe = make_pipeline(planned, meeting, first);
    pipe->step();
    pipe = make_pipeline(planned, meeting, second);  // the old one goes after the new one has come
    auto other = make_pipeline(planned, meeting, first);
    other->step();
    pipe->step();
    pipe->evaluate();
    other->evaluate();
    other.reset();
    pipe->step();
  });
  for (auto const& text : thrown) {
    INFO(text);
    CHECK((text.find("the toy broke") != std::string::npos) == fails);
    CHECK(text.empty() == !fails);
  }
}

namespace {

// Reports its loss in B, which an evaluation does not run.
struct reports_late {
  zbpp::flow operator()(zbpp::microbatch mb) {
    co_await mb.recv_activation();
    co_await zbpp::F([] {});
    co_await mb.send_activation();
    co_await mb.recv_gradient();
    co_await zbpp::B([&] {
      if (mb.is_last_stage()) mb.report_loss(1);
    });
    co_await mb.send_gradient();
    co_await zbpp::W([] {});
  }
};

}  // namespace

TEST_CASE("every rank is told of a loss that an evaluation misses", "[asio][pipeline]") {
  zbpp::problem const problem(zbpp::placement::linear(3), 2, zbpp::stage_costs{.forward = 1});
  auto const planned = make_plan(zbpp::zb_h1{}, problem);
  auto const thrown = run_ranks(3, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    std::vector<reports_late> stages(1);
    zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
    auto const& losses = pipe.step().losses;
    if (meeting.rank() == 2 && losses != std::vector<double>(2, 1))
      throw std::logic_error("the step has no losses");
    // Where the process of the last stage takes outputs, no loss is missed.
    if (meeting.rank() == 2)
      pipe.evaluate([](zbpp::evaluation_output const&) {});
    else
      pipe.evaluate();
    pipe.evaluate();
    pipe.step();  // at the latest here, for ranks that had done with their part
  });
  for (auto const& text : thrown) {
    INFO(text);
    CHECK(
        text.find(
            "there the flow of stage 2 microbatch 0 reports no loss; call mb.report_loss()") !=
        std::string::npos);
  }
}

TEST_CASE("pipelines of several sizes take turns over the same stages", "[asio][pipeline]") {
  constexpr int ranks = 3;
  auto const train = [](auto& whole, auto& last, auto& validation) {
    std::vector<std::vector<double>> losses;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (int i = 0; i < 2; ++i) losses.push_back(whole.step().losses);
      last.resume(whole.state());
      losses.push_back(last.step().losses);
      whole.resume(last.state());
      validation.resume(whole.state());
      losses.push_back(validation.evaluate().losses);
    }
    return losses;
  };
  std::array const planned{
      toy_plan("zb_h1", ranks, 5), toy_plan("zb_h1", ranks, 2), toy_plan("zb_h1", ranks, 9)};
  auto there = toy::make_model(ranks);
  std::vector<toy::hand_written> local(there.begin(), there.end());
  zbpp::pipeline whole(planned[0], zbpp::threads{}, local);
  zbpp::pipeline last(planned[1], zbpp::threads{}, local);
  zbpp::pipeline validation(planned[2], zbpp::threads{}, local);
  auto const expected = train(whole, last, validation);
  auto const thrown = run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(ranks);
    auto const rank = static_cast<std::size_t>(meeting.rank());
    std::vector<toy::hand_written> own;
    own.emplace_back(all[rank]);
    zbpp::pipeline first(planned[0], zbpp::asio::tcp(meeting), own);
    zbpp::pipeline second(planned[1], zbpp::asio::tcp(meeting), own);
    zbpp::pipeline third(planned[2], zbpp::asio::tcp(meeting), own);
    auto const losses = train(first, second, third);
    if (rank + 1 == ranks && losses != expected) throw std::logic_error("other losses");
    for (std::size_t k = 0; k < all[rank].layers.size(); ++k)
      if (!toy::is_same(all[rank].layers[k].gradient, there[rank].layers[k].gradient))
        throw std::logic_error("other gradients");
  });
  for (auto const& text : thrown) CHECK(text == "");
}

TEST_CASE("after an evaluation that could not begin every call says why", "[asio][pipeline]") {
  auto const planned = toy_plan("zb_h1", 2, 5);
  auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(2);
    fragile sound(all[static_cast<std::size_t>(meeting.rank())], false);
    stage_type stages{zbpp::as_flow(sound)};
    auto pipe = make_pipeline(planned, meeting, stages);
    pipe->step();
    if (meeting.rank() == 1) return;  // and rank 0 wants to go on
    for (auto const call : {0, 1, 2}) {
      std::string text;
      try {
        call == 1 ? pipe->step() : pipe->evaluate();
      } catch (std::exception const& failed) {
        text = failed.what();
      }
      if (text.find("rank 1: left the run") == std::string::npos)
        throw std::logic_error("another text: '" + text + "'");
    }
  });
  for (auto const& text : thrown) CHECK(text == "");
}

namespace {

// Passes large messages on, which no socket buffer holds many of.
struct large_edges {
  static constexpr zbpp::bytes size = 1 << 20;

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::message const in = co_await mb.recv_activation();
    zbpp::buffer out;
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      out = ctx.allocate_edge(static_cast<std::size_t>(size));
      auto const x = mb.is_first_stage() ? mb.index() : in[0].as<int>().back();
      out.as<int>().back() = x + 1;
      if (mb.is_last_stage()) mb.report_loss(x);
    });
    if (mb.is_last_stage()) out.reset();
    co_await mb.send_activation(std::move(out));
  }
};

}  // namespace

TEST_CASE("an evaluation holds few messages over sockets, too", "[asio][pipeline]") {
  constexpr int microbatches = 40;
  zbpp::stage_costs const costs{.forward = 1, .edge = large_edges::size};
  for (bool const is_v : {false, true}) {
    auto const placement = is_v ? zbpp::placement::v_shape(3) : zbpp::placement::linear(3);
    zbpp::problem const problem(placement, microbatches, costs);
    auto const planned =
        is_v ? make_plan(zbpp::zb_v{}, problem) : make_plan(zbpp::zb_h1{}, problem);
    auto const peaks = peak_evaluation_memory(planned.program(), problem);
    auto const thrown = run_ranks(3, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
      std::vector<large_edges> stages(placement.stages_of(meeting.rank()).size());
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
      bool const is_last = placement.rank_of(placement.stages() - 1) == meeting.rank();
      for (int round = 0; round < 3; ++round) {
        auto const& losses = pipe.evaluate().losses;
        for (int m = 0; m < microbatches && is_last; ++m)
          if (losses[static_cast<std::size_t>(m)] != m + placement.stages() - 1)
            throw std::logic_error("another loss");
        auto const rank = static_cast<std::size_t>(meeting.rank());
        // The output of the last stage is no edge.
        auto const most = pipe.memory(meeting.rank()).most(zbpp::purpose::edge);
        if (most > peaks[rank].edges + (is_last ? large_edges::size : 0) ||
            most > 8 * large_edges::size)
          throw std::logic_error(std::to_string(most) + " bytes of edges");
      }
    });
    for (auto const& text : thrown) CHECK(text == "");
  }
}

TEST_CASE("the process of the last stage alone gets outputs", "[asio][pipeline]") {
  for (auto const* policy : {"one_f_one_b", "zb_v"})
    for (int ranks : {1, 2, 3}) {
      auto const planned = toy_plan(policy, ranks, 4);
      auto const& placement = planned.problem().placement();
      auto const thrown =
          run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
            std::vector<plain_flow> stages(placement.stages_of(meeting.rank()).size());
            zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
            bool const is_last = placement.rank_of(placement.stages() - 1) == meeting.rank();
            for (int round = 0; round < 2; ++round) {
              std::vector<int> heard;
              pipe.evaluate([&](auto const& out) { heard.push_back(out.microbatch); });
              if (heard != (is_last ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{}))
                throw std::logic_error("other outputs");
              pipe.step();
            }
            std::string text;
            // All ranks say the same. A rank that had done its part before does so in a later call:
            // what it sends may go ahead of the one that fails, but not for ever.
            for (int call = 0; call < 1000 && text.empty(); ++call) {
              try {
                pipe.evaluate([](auto const&) { throw std::out_of_range("no such token"); });
              } catch (zbpp::error const& failed) {
                text = failed.what();
              }
            }
            // Others are told which pass it was behind.
            if (text.find("microbatch 0: ") == std::string::npos ||
                !text.ends_with("on_output threw: no such token"))
              throw std::logic_error("another text: '" + text + "'");
          });
      for (auto const& text : thrown) CHECK(text == "");
    }
}

TEST_CASE("what one rank has of the others' results", "[asio][pipeline]") {
  constexpr int ranks = 3;
  auto const planned = toy_plan("one_f_one_b", ranks, 4);
  auto const thrown = run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(ranks);
    auto const rank = meeting.rank();
    std::array stages{toy::hand_written(all[static_cast<std::size_t>(rank)])};
    zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
    auto const& result = pipe.step();
    for (int r = 0; r < ranks; ++r) {
      auto const row = result.measured[r];
      if (row.empty() != (r != rank)) throw std::logic_error("a row too many or too few");
      for (std::size_t i = 1; i < row.size(); ++i)
        if (row[i].start < row[i - 1].end) throw std::logic_error("passes overlap");
    }
    if (std::isnan(result.loss()) != (rank != ranks - 1)) throw std::logic_error("the loss");
    bool refused = false;
    try {
      static_cast<void>(pipe.memory((rank + 1) % ranks));
    } catch (zbpp::error const& wrong) {
      refused = wrong.code() == zbpp::errc::bad_argument;
    }
    if (!refused) throw std::logic_error("it knows the memory of another process");
  });
  for (auto const& text : thrown) CHECK(text == "");
}

TEST_CASE("mistakes in making a pipeline are told on every rank", "[asio][pipeline]") {
  SECTION("another number of ranks") {
    auto const planned = toy_plan("zb_h1", 3, 4);
    auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
      std::vector<toy::hand_written> stages;
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
    });
    for (auto const& text : thrown)
      CHECK(
          text ==
          "bad argument: the run has 2 processes and the plan 3 ranks; there is one process for "
          "each rank");
  }
  SECTION("another plan on one rank") {
    auto const thrown = run_ranks(3, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
      auto const rank = meeting.rank();
      auto const planned = toy_plan(rank == 1 ? "zb_h2" : "zb_h1", 3, 4);
      auto all = toy::make_model(3);
      std::array stages{toy::hand_written(all[static_cast<std::size_t>(rank)])};
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
    });
    for (auto const& text : thrown) {
      INFO(text);
      CHECK(text.find("rank 1 differs from rank 0 in: ") != std::string::npos);
      CHECK(text.find("policy (ZB-H2 at rank 1, ZB-H1 at rank 0)") != std::string::npos);
      CHECK(text == thrown.front());
    }
  }
  SECTION("too few stages on one rank") {
    auto const planned = toy_plan("zb_h1", 2, 4);
    auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
      auto all = toy::make_model(2);
      std::vector<toy::hand_written> stages;
      if (meeting.rank() == 0) stages.emplace_back(all[0]);
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(meeting), stages);
    });
    CHECK(
        thrown[1] ==
        "bad argument: the pipeline got 0 stages; its placement has 1 in this process");
    CHECK(
        thrown[0] ==
        "bad argument: rank 1: the pipeline got 0 stages; its placement has 1 in this process");
  }
}

}  // namespace test_asio_pipeline
