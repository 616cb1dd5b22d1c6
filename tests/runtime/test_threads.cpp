// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/memory.hpp>

#include <support/backends.hpp>
#include <support/pass_order.hpp>
#include <support/plain_flow.hpp>
#include <support/settings_fields.hpp>

#include <set>
#include <thread>

namespace test_threads {

using namespace zbpp;
using namespace zbpp::test;

namespace {

problem small(placement placement, int microbatches, transfer_costs transfer = {}) {
  return {
      std::move(placement),
      microbatches,
      stage_costs{.forward = 1, .edge = 8},
      std::move(transfer)};
}

// Checks that every pass began after what it needs had ended, and `transfer` later on another rank.
void check_order(timeline const& line, problem const& problem, ticks transfer) {
  cells<ticks> forward(problem.stages(), problem.microbatches());
  cells<ticks> backward(problem.stages(), problem.microbatches());
  for (auto const& timed : line.all()) {
    auto const& p = timed.pass;
    if (p.kind == pass_kind::forward) forward(p.stage, p.microbatch) = timed.end;
    if (p.makes_input_gradient()) backward(p.stage, p.microbatch) = timed.end;
  }
  auto hop = [&](int a, int b) {
    return problem.placement().rank_of(a) == problem.placement().rank_of(b) ? 0 : transfer;
  };
  bool is_right = true;
  for (int rank = 0; rank < line.ranks(); ++rank) {
    ticks last = 0;
    for (auto const& timed : line[rank]) {
      auto const& p = timed.pass;
      is_right = is_right && timed.start >= last && timed.end >= timed.start;
      last = timed.end;
      if (p.kind == pass_kind::forward && p.stage > 0)
        is_right = is_right &&
                   timed.start >= forward(p.stage - 1, p.microbatch) + hop(p.stage - 1, p.stage);
      if (p.makes_input_gradient() && p.stage + 1 < problem.stages())
        is_right = is_right &&
                   timed.start >= backward(p.stage + 1, p.microbatch) + hop(p.stage + 1, p.stage);
    }
  }
  CHECK(is_right);
}

// Says on which threads the flows of a stage were.
struct where_am_i {
  std::set<std::thread::id> threads{};

  struct passes {
    where_am_i* own;
    message forward(message const&, microbatch mb, pass_context) const {
      own->note();
      if (mb.is_last_stage()) mb.report_loss(0);
      return {};
    }
    message backward(message const&, microbatch, pass_context) const {
      own->note();
      return {};
    }
    void weight(microbatch) const { own->note(); }
  };
  flow operator()(microbatch mb) {
    note();
    return in_order(passes{this}, mb);
  }
  void note() { threads.insert(std::this_thread::get_id()); }
  void update(pass_context) { note(); }
  void warm_up(pass_context) { note(); }
};

}  // namespace

TEST_CASE("settings of threads are not negative", "[threads]") {
  auto const planned = make_plan(zb_h1{}, small(placement::linear(2), 2));
  std::vector<plain_flow> stages(2);
  CHECK(refusal([&] {
          pipeline(planned, threads{.count = -1}, stages);
        }) == "threads.count is at least 0, which is one per rank");
  CHECK(refusal([&] {
          pipeline(planned, threads{.spins = -1}, stages);
        }) == "threads.spins is at least 0");
}

TEST_CASE("the flows of a rank stay on its thread", "[threads]") {
  auto const count = GENERATE(0, 1, 2, 3, 4, 9);
  auto const planned = make_plan(zb_h1{}, small(placement::linear(4), 6));
  std::vector<where_am_i> stages(4);
  pipeline pipe{planned, threads{.count = count}, stages};
  pipe.step();
  pipe.evaluate();
  pipe.step();
  std::set<std::thread::id> all;
  for (auto const& s : stages) {
    CHECK(s.threads.size() == 1);
    all.insert(s.threads.begin(), s.threads.end());
  }
  CHECK(all.size() == (count == 0 || count > 4 ? 4U : static_cast<std::size_t>(count)));
  CHECK(all.count(std::this_thread::get_id()) == 0);
  if (count == 2) {
    CHECK(stages[0].threads == stages[1].threads);  // neighbours share
    CHECK(stages[2].threads == stages[3].threads);
  }
}

TEST_CASE("a thread is told of its ranks before anything of them runs there", "[threads]") {
  auto const count = GENERATE(0, 1, 2, 3, 9);
  auto const planned = make_plan(zb_h1{}, small(placement::linear(4), 6));
  std::vector<where_am_i> stages(4);
  std::vector<std::thread::id> ids(4);
  std::atomic<int> calls = 0;
  std::atomic<bool> is_first = true;
  pipeline pipe{
      planned,
      threads{
          .count = count,
          .on_thread_start =
              [&](std::span<int const> ranks) {
                ++calls;
                for (int rank : ranks) {
                  auto const r = static_cast<std::size_t>(rank);
                  if (!stages[r].threads.empty() || ids[r] != std::thread::id()) is_first = false;
                  ids[r] = std::this_thread::get_id();
                }
              }},
      stages};
  CHECK(is_first);
  pipe.step();
  pipe.evaluate();
  CHECK(calls == (count == 0 || count > 4 ? 4 : count));
  for (std::size_t rank = 0; rank < 4; ++rank) CHECK(stages[rank].threads == std::set{ids[rank]});
}

TEST_CASE("what a thread throws when it starts, the pipeline's constructor throws", "[threads]") {
  auto const planned = make_plan(zb_h1{}, small(placement::linear(3), 3));
  std::vector<plain_flow> stages(3);
  for (int failing = 0; failing < 3; ++failing)
    CHECK_THROWS_WITH(
        pipeline(
            planned,
            threads{
                .on_thread_start =
                    [failing](std::span<int const> ranks) {
                      if (ranks.front() == failing) throw std::runtime_error("no such core");
                    }},
            stages),
        "on_thread_start threw: no such core");
}

TEST_CASE("a pass begins after what it needs has ended", "[threads]") {
  for (auto const& placement : placements_to_run(4))
    for (int count : {0, 1, 3})
      on_plans(small(placement, 8), {}, [&](plan const& planned) {
        INFO(" on " << count << " threads");
        std::vector<plain_flow> stages(detail::index(placement.stages()));
        pipeline pipe{planned, threads{.count = count}, stages};
        for (int i = 0; i < 3; ++i) {
          auto const& result = pipe.step();
          CHECK(plain_flow::are_expected(result.losses, placement.stages()));
          check_order(result.measured, planned.problem(), 0);
        }
      });
}

TEST_CASE("an emulated transfer takes its time", "[threads]") {
  constexpr ticks transfer = 200'000;
  for (auto const& placement : {placement::linear(3), placement::v_shape(2)})
    for (int count : {0, 1, 2})
      on_plans(small(placement, 2, transfer), {.fused = false}, [&](plan const& planned) {
        INFO(" on " << count << " threads");
        std::vector<plain_flow> stages(detail::index(placement.stages()));
        pipeline pipe{planned, threads{.count = count, .emulates_transfers = true}, stages};
        auto const& result = pipe.step();
        CHECK(plain_flow::are_expected(result.losses, placement.stages()));
        check_order(result.measured, planned.problem(), transfer);
      });
}

TEST_CASE("many steps in a row neither hang nor go wrong", "[threads]") {
  auto const settings = GENERATE(
      threads{}, threads{.count = 1}, threads{.count = 2}, threads{.count = 5, .spins = 100});
  auto const planned = make_plan(zb_v{}, small(placement::v_shape(6), 5));
  std::vector<plain_flow> stages(12);
  pipeline pipe{planned, settings, stages};
  for (int i = 0; i < 100; ++i) {
    auto const& losses = (i % 3 == 2 ? pipe.evaluate() : pipe.step()).losses;
    if (!plain_flow::are_expected(losses, 12)) FAIL("step " << i);
  }
  CHECK(pipe.steps() == 67);
}

TEST_CASE("a plan's memory is taken when the pipeline is made", "[threads]") {
  problem const problem(
      placement::linear(3), 4, stage_costs{.forward = 1, .activation = 1000, .edge = 100});
  auto const planned = make_plan(gpipe{}, problem);
  auto const peaks = peak_memory(planned.program(), problem);
  std::vector<plain_flow> stages(3);
  pipeline const pipe{planned, threads{}, stages};
  for (int rank = 0; rank < 3; ++rank) {
    auto const& peak = peaks[detail::index(rank)];
    CHECK(pipe.memory(rank).reserved >= peak.activations + peak.edges);
    CHECK(pipe.memory(rank).growths == 0);
  }
}

TEST_CASE("each setting of threads has an effect", "[threads][settings]") {
  static std::atomic<int> calls;
  changed_field<threads> const fields[]{
      ZBPP_FIELD(count, 2),
      ZBPP_FIELD(emulates_transfers, true),
      // How often a thread looks before it sleeps shows in speed alone, so what is wrong is
      // refused.
      ZBPP_FIELD(spins, -1),
      {"on_thread_start",
       [](auto& t) { t.on_thread_start = [](std::span<int const>) { ++calls; }; }},
      ZBPP_FIELD(records_messages, true),
      {"place", [](auto& t) {
         static in_process_grid other({.pipeline = 2, .data = 1});  // refused: of 2 ranks
         t.place = other.place(0);
       }}};
  auto const planned = make_plan(zb_h1{}, small(placement::linear(3), 4));
  check_fields(fields, {}, [&](threads const& settings) {
    calls = 0;
    std::vector<where_am_i> stages(3);
    pipeline pipe(planned, settings, stages);
    auto const messages = pipe.step().messages.size();
    std::set<std::thread::id> all;
    for (auto const& stage : stages) all.insert(stage.threads.begin(), stage.threads.end());
    // A message arrives at a time of the clock, or at once.
    threads::executor executor(settings, planned);
    executor.start_run();
    bool const takes_time = executor.observer_of(0).arrival_of_send(1000) > 0;
    return std::to_string(all.size()) + " threads, " + std::to_string(calls) + " calls, " +
           std::to_string(messages) + " messages, " +
           (takes_time ? "messages take time" : "messages arrive at once");
  });
}

}  // namespace test_threads
