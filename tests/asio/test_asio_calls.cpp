// SPDX-License-Identifier: Apache-2.0
//
// Ranks over sockets that do not call the same, do not step by the same options, or leave early:
// every rank is told which call of the user, or which option, differs. All limits are longer than a
// test may take, so a rank that waited for one would not end.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/detail/membership.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/plan_grid.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace test_asio_calls {

using namespace zbpp::test;
using zbpp::step_kind;
using zbpp::training_options;
using zbpp::asio::rank_call;

namespace {

zbpp::asio::rendezvous_settings endless_settings() {
  zbpp::asio::rendezvous_settings settings;
  settings.collective_deadline = std::chrono::hours(1);
  settings.deadline = std::chrono::hours(1);
  settings.stall_deadline = std::chrono::hours(1);
  return settings;
}

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

using pipeline_type = zbpp::pipeline<zbpp::asio::tcp>;

// What a rank has.
struct rank_of_run {
  rank_of_run(
      zbpp::plan const& plan,
      zbpp::asio::rendezvous& joined,
      training_options const& options = {},
      checked::model_settings settings = {})
      : planned(plan),
        meeting(joined),
        all([&] {
          settings.stages = plan.problem().stages();
          return settings;
        }()),
        own{all.stages()[static_cast<std::size_t>(joined.rank())]} {
    pipe.emplace(plan, zbpp::asio::tcp(joined), own, options);
  }

  zbpp::plan const& planned;
  zbpp::asio::rendezvous& meeting;
  checked::model all;
  std::vector<zbpp::stage_ref> own;
  std::optional<pipeline_type> pipe;
};

zbpp::plan plan_of(int ranks, step_kind kind) {
  zbpp::problem const problem(zbpp::placement::linear(ranks), 3, checked::costs(), 87);
  return zbpp::make_plan(zbpp::zb_h1{}, problem, {.step = kind});
}

std::vector<step_kind> const all_kinds{
    step_kind::none, step_kind::unchecked, step_kind::synchronous, step_kind::post_validated};

// Yields some times, so that ranks come in another order.
void dawdle(std::int64_t times) {
  for (std::int64_t i = 0; i < times; ++i) std::this_thread::yield();
}

}  // namespace

TEST_CASE("ranks in different calls are told at once, in the words of their users", "[asio]") {
  struct call {
    std::string name;
    std::function<void(rank_of_run&)> make;
  };
  std::vector<call> const calls{
      {"step() for step 1", [](rank_of_run& rank) { rank.pipe->step(); }},
      {"run(3) for step 1", [](rank_of_run& rank) { rank.pipe->run(3); }},
      {"evaluate()", [](rank_of_run& rank) { rank.pipe->evaluate(); }},
      {"barrier", [](rank_of_run& rank) { rank.meeting.barrier(); }},
      {"all_gather", [](rank_of_run& rank) { rank.meeting.all_gather({}); }},
      {"broadcast from rank 1", [](rank_of_run& rank) { rank.meeting.broadcast({}, 1); }},
      {"agree", [](rank_of_run& rank) { rank.meeting.agree({}); }},
      {"the constructor of a pipeline", [](rank_of_run& rank) {
         pipeline_type const other(rank.planned, zbpp::asio::tcp(rank.meeting), rank.own);
       }}};
  auto const planned = plan_of(2, step_kind::synchronous);
  for (bool const has_evaluated : {false, true})
    for (auto const& one : calls)
      for (auto const& other : calls) {
        if (&one == &other) continue;
        if (has_evaluated && one.name != "evaluate()" && other.name != "evaluate()") continue;
        auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
          rank_of_run rank(planned, meeting);
          rank.pipe->step();
          if (has_evaluated) rank.pipe->evaluate();
          (meeting.rank() == 0 ? one : other).make(rank);
          rank.pipe->step();
        });
        for (auto const& text : thrown) {
          INFO(text);
          CHECK(
              text == "ranks disagree: rank 0 called " + one.name + ", rank 1 called " +
                          other.name + "; all ranks have to make the same calls in the same order");
        }
      }
}

TEST_CASE("ranks that use different pipelines are told so", "[asio]") {
  auto const planned = plan_of(2, step_kind::unchecked);
  auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
    rank_of_run rank(planned, meeting);
    pipeline_type other(planned, zbpp::asio::tcp(meeting), rank.own);
    meeting.rank() == 0 ? rank.pipe->step() : other.step();
    meeting.barrier();
  });
  for (auto const& text : thrown)
    CHECK(
        text ==
        "ranks disagree: rank 0 called step() for step 0 of pipeline 1, rank 1 called step() for "
        "step 0 of pipeline 2; all ranks have to make the same calls in the same order");
}

TEST_CASE("runs of different lengths are told at once", "[asio]") {
  for (auto const kind : all_kinds) {
    auto const planned = plan_of(2, kind);
    auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
      rank_of_run rank(planned, meeting);
      rank.pipe->step();
      rank.pipe->run(meeting.rank() == 0 ? 5 : 3);
      meeting.barrier();
    });
    for (auto const& text : thrown)
      CHECK(
          text ==
          "ranks disagree: rank 0 called run(5) for step 1, rank 1 called run(3) for step 1; all "
          "ranks have to make the same calls in the same order");
  }
}

TEST_CASE("runs that pause, or decide what comes next, in other ways are told at once", "[asio]") {
  auto const decides = [](zbpp::step_result const&) { return zbpp::after_step::go_on; };
  std::vector<std::function<void(pipeline_type&)>> const runs{
      [](pipeline_type& pipe) { pipe.run(6, [](zbpp::step_result const&) {}); },
      [&](pipeline_type& pipe) { pipe.run(6, decides); },
      [](pipeline_type& pipe) {
        pipe.run(6, [](zbpp::step_result const&) {}, {.pause_every = 2, .on_pause = [] {
                                                        return zbpp::after_step::go_on;
                                                      }});
      }};
  for (auto const kind : {step_kind::unchecked, step_kind::synchronous})
    for (std::size_t one = 0; one < runs.size(); ++one)
      for (std::size_t other = 0; other < runs.size(); ++other) {
        auto const planned = plan_of(2, kind);
        auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
          rank_of_run rank(planned, meeting);
          runs[meeting.rank() == 0 ? one : other](*rank.pipe);
        });
        // Where ranks agree on steps, one of them may decide alone.
        bool const is_same = one == other || (kind == step_kind::synchronous && one + other == 1);
        for (auto const& text : thrown) {
          INFO(text);
          CHECK(text.empty() == is_same);
          CHECK((is_same || has(text, "called run(6) for step 0 (")));
        }
      }
}

TEST_CASE("one rank may write run where another writes steps, if they agree on none", "[asio]") {
  for (auto const kind : {step_kind::none, step_kind::unchecked}) {
    auto const planned = plan_of(2, kind);
    auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
      rank_of_run rank(planned, meeting);
      if (meeting.rank() == 0) {
        rank.pipe->run(4);
      } else {
        for (int i = 0; i < 2; ++i) rank.pipe->step();
        rank.pipe->run(2);
      }
      meeting.barrier();
    });
    for (auto const& text : thrown) CHECK(text == "");
  }
}

TEST_CASE("who leaves early is named, and nothing that comes of it, whoever it is", "[asio]") {
  enum class way { returns, keeps_meeting, throws };
  int tries = 0;
  for (auto const kind : {step_kind::unchecked, step_kind::post_validated})
    for (auto const way_out : {way::returns, way::keeps_meeting, way::throws})
      for (int leaver : {0, 1, 2})
        for (int trial = 0; trial < thinned(6, 2); ++trial) {
          ZBPP_SEEDED(random, ++tries);
          std::array<std::int64_t, 3> pauses{};
          for (auto& each : pauses) each = random.integer(0, 400);
          auto const planned = plan_of(3, kind);
          auto const thrown =
              run_ranks(3, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
                rank_of_run rank(planned, meeting);
                bool const leaves = meeting.rank() == leaver;
                for (int i = 0; i < (leaves ? 2 : 4); ++i) {
                  rank.pipe->step();
                  dawdle(pauses[static_cast<std::size_t>(meeting.rank())]);
                }
                if (!leaves) return;
                if (way_out == way::throws) throw std::runtime_error("of the user");
                if (way_out == way::returns) return;
                rank.pipe.reset();
                // Until the others have given up.
                for (;;) meeting.check(), dawdle(10);
              });
          for (int r = 0; r < 3; ++r) {
            auto const& text = thrown[static_cast<std::size_t>(r)];
            INFO(text);
            if (r == leaver && way_out == way::returns) CHECK(text == "");
            if (r == leaver && way_out == way::throws) CHECK(text == "of the user");
            if (r == leaver && way_out != way::keeps_meeting) continue;
            CHECK(has(text, "rank " + std::to_string(leaver) + ": left the run; rank"));
            CHECK(has(text, " called step() for step 2"));
          }
        }
}

TEST_CASE("what fails is told, and not the connections that break of it", "[asio]") {
  int tries = 0;
  for (auto const kind : all_kinds)
    for (int culprit : {0, 1, 2})
      for (bool const in_callback : {false, true})
        for (int trial = 0; trial < thinned(3, 1); ++trial) {
          ZBPP_SEEDED(random, ++tries);
          std::array<std::int64_t, 3> pauses{};
          for (auto& each : pauses) each = random.integer(0, 400);
          auto const planned = plan_of(3, kind);
          auto const thrown =
              run_ranks(3, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
                rank_of_run rank(planned, meeting);
                bool const fails = meeting.rank() == culprit;
                if (fails && !in_callback) rank.all.maths(culprit).throw_in(1, 1);
                rank.pipe->run(4, [&](zbpp::step_result const&) {
                  dawdle(pauses[static_cast<std::size_t>(meeting.rank())]);
                  if (fails && in_callback) throw std::runtime_error("thrown by the test");
                });
              });
          for (auto const& text : thrown) {
            INFO(text);
            CHECK(has(text, "thrown by the test"));
            CHECK(has(text, "rank " + std::to_string(culprit)));
          }
        }
}

TEST_CASE("ranks that resume from different steps are told both", "[asio]") {
  for (auto const kind : all_kinds)
    for (bool const evaluates : {false, true}) {
      auto const planned = plan_of(2, kind);
      auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
        rank_of_run rank(planned, meeting);
        rank.pipe->resume({.steps = meeting.rank() == 0 ? 7 : 2});
        evaluates ? rank.pipe->evaluate() : rank.pipe->step();
        meeting.barrier();
      });
      for (auto const& text : thrown) {
        INFO(text);
        CHECK(
            text == std::string("ranks disagree: rank 0 called ") +
                        (evaluates ? "evaluate() at step 7, rank 1 called evaluate() at step 2"
                                   : "step() for step 7, rank 1 called step() for step 2") +
                        "; give all ranks the same training_state to resume from");
      }
    }
}

TEST_CASE("an option or state that differs between ranks is named with both values", "[asio]") {
  struct other_value {
    std::string name;
    std::string values;
    std::function<void(training_options&, zbpp::training_state&)> set;
    bool needs_agreement = false;
  };
  std::vector<other_value> const all{
      {"training_options::learning_rate",
       "0.001 on rank 0 and 0.1 on rank 1",
       [](auto& options, auto&) { options.learning_rate = [](std::int64_t) { return 0.1; }; }},
      {"training_options::learning_rate",  // of a later step
       "0.001 on rank 0 and 0.25 on rank 1",
       [](auto& options, auto&) {
         options.learning_rate = [](std::int64_t n) { return n == 2 ? 0.25 : 1e-3; };
       }},
      {"training_options::accumulate",
       "1 on rank 0 and 2 on rank 1",
       [](auto& options, auto&) { options.accumulate = 2; }},
      {"training_options::clip",
       "0 on rank 0 and 0.5 on rank 1",
       [](auto& options, auto&) { options.clip = 0.5; },
       true},
      {"training_options::scaling.initial",
       "1 on rank 0 and 4 on rank 1",
       [](auto& options, auto&) { options.scaling.initial = 4; }},
      {"training_options::scaling.largest",
       "16777216 on rank 0 and 8 on rank 1",
       [](auto& options, auto&) { options.scaling.largest = 8; },
       true},
      {"training_options::scaling.smallest",
       "1 on rank 0 and 0.5 on rank 1",
       [](auto& options, auto&) { options.scaling.smallest = 0.5; },
       true},
      {"training_options::scaling.growth_interval",
       "0 on rank 0 and 7 on rank 1",
       [](auto& options, auto&) { options.scaling.growth_interval = 7; },
       true},
      {"training_options::window.steps",
       "16 on rank 0 and 9 on rank 1",
       [](auto& options, auto&) { options.window.steps = 9; },
       true},
      {"training_options::window.most_amended",
       "3 on rank 0 and 1 on rank 1",
       [](auto& options, auto&) { options.window.most_amended = 1; },
       true},
      {"training_options::agreement.every",
       "2 on rank 0 and 5 on rank 1",
       [](auto& options, auto&) { options.agreement.every = 5; },
       true},
      {"training_options::agreement.share",
       "0.5 on rank 0 and 0.25 on rank 1",
       [](auto& options, auto&) { options.agreement.share = 0.25; },
       true},
      {"training_state::unagreed",
       "0 on rank 0 and 2 on rank 1",
       [](auto&, auto& state) { state.unagreed = 2; }},
      {"training_state::updates",
       "0 on rank 0 and 3 on rank 1",
       [](auto&, auto& state) { state.updates = 3; }},
      {"training_state::loss_scale",
       "1 on rank 0 and 2 on rank 1",
       [](auto&, auto& state) { state.loss_scale = 2; }},
      {"training_state::finite_steps",
       "0 on rank 0 and 5 on rank 1",
       [](auto&, auto& state) { state.finite_steps = 5; }},
      {"training_state::amended", "0 on rank 0 and 1 on rank 1", [](auto&, auto& state) {
         state.amended = 1;
       }}};
  for (auto const kind : {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated})
    for (auto const& each : all) {
      if (each.needs_agreement && kind == step_kind::unchecked) continue;
      INFO(each.name << ", kind of steps " << static_cast<int>(kind));
      auto const planned = plan_of(2, kind);
      auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
        training_options options;
        if (each.name.find("::agreement") != std::string::npos)
          options = {.clip = 4, .agreement = {.every = 2}};
        zbpp::training_state state;
        if (meeting.rank() == 1) each.set(options, state);
        rank_of_run rank(planned, meeting, options);
        rank.pipe->resume(state);
        rank.pipe->run(6);
        meeting.barrier();
      });
      for (auto const& text : thrown) {
        INFO(text);
        CHECK(has(text, "ranks disagree: "));
        CHECK(has(text, each.name + " is " + each.values + "; give all ranks the same"));
      }
    }
}

TEST_CASE("a rank that would not agree on a step that another agrees on is told so", "[asio]") {
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated})
    for (int skipping : {0, 1}) {
      auto const planned = plan_of(2, kind);
      auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
        rank_of_run rank(planned, meeting, {.clip = 4, .agreement = {.every = 3}});
        rank.pipe->resume({.unagreed = meeting.rank() == skipping ? 2 : 0});
        rank.pipe->run(6);
        meeting.barrier();
      });
      for (auto const& text : thrown) {
        INFO(text);
        CHECK(has(text, "training_state::unagreed is " + std::string(skipping == 0 ? "2" : "0")));
      }
    }
}

TEST_CASE("a learning rate is asked for once in a step, and not beyond the last one", "[asio]") {
  for (auto const kind :
       {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
    auto const planned = plan_of(2, kind);
    std::array<std::vector<std::int64_t>, 2> asked;
    auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
      auto& row = asked[static_cast<std::size_t>(meeting.rank())];
      training_options options;
      options.learning_rate = [&](std::int64_t n) {
        row.push_back(n);
        return 1e-3;
      };
      rank_of_run rank(planned, meeting, options);
      rank.pipe->run(4);
      rank.pipe->step();
    });
    for (auto const& text : thrown) CHECK(text == "");
    for (auto const& answers : asked) CHECK(answers == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  }
}

TEST_CASE("a learning rate that throws fails the step on all ranks", "[asio]") {
  for (auto const kind : {step_kind::unchecked, step_kind::synchronous}) {
    auto const planned = plan_of(2, kind);
    auto const thrown = run_ranks(2, endless_settings(), [&](zbpp::asio::rendezvous& meeting) {
      training_options options;
      if (meeting.rank() == 1)
        options.learning_rate = [](std::int64_t n) -> double {
          if (n == 2) throw std::out_of_range("no rate");
          return 1e-3;
        };
      rank_of_run rank(planned, meeting, options);
      rank.pipe->run(4);
    });
    for (auto const& text : thrown) CHECK(has(text, "no rate"));
  }
}

TEST_CASE("a log of calls finds the first that differs, however far ranks are apart", "[asio]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const ranks = static_cast<int>(random.integer(2, 5));
    auto const length = static_cast<std::size_t>(random.integer(1, 12));
    auto const at = static_cast<std::size_t>(random.integer(0, 11));
    auto const culprit = static_cast<int>(random.integer(0, ranks - 1));
    auto const call_of = [&](int rank, std::size_t n) {
      rank_call call{.kind = zbpp::asio::call_kind::run, .pipeline = 1};
      call.steps.step = static_cast<std::int64_t>(n);
      if (rank == culprit && n == at) call.steps.is_training = false;
      return call;
    };
    zbpp::asio::detail::call_log log(ranks);
    std::vector<std::size_t> next(static_cast<std::size_t>(ranks), 0);
    std::string text;
    for (int turn = 0; turn < 1000 && text.empty(); ++turn) {
      auto const rank = static_cast<int>(random.integer(0, ranks - 1));
      auto& n = next[static_cast<std::size_t>(rank)];
      if (n == length) continue;
      text = log.note(rank, call_of(rank, n));
      CHECK(log.calls_of(rank) == ++n);
    }
    CHECK(text.empty() == (at >= length));
    if (text.empty()) continue;
    CHECK(has(text, "rank " + std::to_string(culprit) + " called evaluate()"));
    CHECK(has(text, " called step() for step " + std::to_string(at)));
  }
}

}  // namespace test_asio_calls
