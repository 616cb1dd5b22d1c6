// SPDX-License-Identifier: Apache-2.0
//
// What happens between the steps of a run: what may be asked and called there, pauses in which a
// trainer evaluates, and runs that end early; with the bits of steps that are called one by one.
#include <support/backends.hpp>
#include <support/checked_training.hpp>

#include <thread>

namespace test_run {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::test::checked::history;
using zbpp::test::checked::model;
using zbpp::test::checked::model_settings;

namespace {

constexpr int ranks = 3;
constexpr int microbatches = 4;
constexpr std::int64_t steps = 12;

constexpr step_kind kinds[] = {
    step_kind::none, step_kind::unchecked, step_kind::synchronous, step_kind::post_validated};

plan planned_for(step_kind kind) { return checked::line_plan(ranks, microbatches, {.step = kind}); }

// Where ranks agree, some steps are clipped and one is skipped, so that some of those that are
// validated afterwards are amended.
bool agrees(step_kind kind) {
  return kind == step_kind::synchronous || kind == step_kind::post_validated;
}
model_settings settings(step_kind kind) {
  model_settings result{.stages = ranks, .dropout = true};
  if (agrees(kind)) result.faults = {{4, 1, 2}};
  return result;
}
training_options options(step_kind kind) { return {.clip = agrees(kind) ? 1.3 : 0.0}; }

// What calls one by one give: after each step its state, its losses and those of an evaluation.
struct moment {
  training_state state;
  std::vector<double> losses;
  std::vector<double> evaluated;
  std::vector<std::uint32_t> bits;
};

std::vector<moment> one_by_one(step_kind kind) {
  model all(settings(kind));
  pipeline pipe(planned_for(kind), virtual_time{}, all.stages(), options(kind));
  std::vector<moment> moments;
  for (std::int64_t k = 0; k < steps; ++k) {
    auto losses = pipe.step().losses;
    auto evaluated = pipe.evaluate().losses;
    moments.push_back({pipe.state(), std::move(losses), std::move(evaluated), all.bits()});
  }
  return moments;
}

// Of both kinds of steps where ranks agree, what is amended is told apart; nothing else is.
bool are_same(training_state a, training_state b) {
  a.amended = b.amended = 0;
  return a == b;
}

// A stage without arithmetic, whose F does what a test says.
struct acting_stage {
  std::function<void(microbatch)> act = {};

  message forward(message const&, microbatch mb, pass_context) const {
    if (act) act(mb);
    return {};
  }
  static message backward(message const&, microbatch, pass_context) { return {}; }
  static void weight(microbatch) {}
  flow operator()(microbatch mb) { return in_order(*this, mb); }
};

template <class Check>
void on_each_backend(Check check) {
  for (auto kind : kinds) {
    INFO("kind of step " << static_cast<int>(kind));
    on_all_backends([&](auto backend) { check(kind, backend); });
  }
}

}  // namespace

TEST_CASE("in the callback of a run the state is that of its step", "[run]") {
  int amended = 0;
  on_each_backend([&](step_kind kind, auto backend) {
    auto const expected = one_by_one(kind);
    model all(settings(kind));
    pipeline pipe(planned_for(kind), backend, all.stages(), options(kind));
    std::int64_t calls = 0;
    pipe.run(steps, [&](step_result const& result) {
      auto const& then = expected[detail::index(calls)];
      CHECK(pipe.steps() == ++calls);
      CHECK(are_same(pipe.state(), then.state));
      CHECK(result.losses == then.losses);
      amended += result.update.is_amended ? 1 : 0;
    });
    CHECK(calls == steps);
    CHECK(all.bits() == expected.back().bits);
  });
  CHECK(amended > 0);
}

TEST_CASE("calls back into a pipeline that runs are refused at once", "[run]") {
  on_each_backend([](step_kind kind, auto backend) {
    auto const expected = one_by_one(kind);
    model all(settings(kind));
    pipeline pipe(planned_for(kind), backend, all.stages(), options(kind));
    auto const refuse_all = [&](std::string const& running) {
      auto const start = [&](char const* name) {
        return std::string(name) + " is called while " + running + " of the same pipeline runs; ";
      };
      auto const cure =
          "call it when that has returned; what is to be done between two steps of a run, such as "
          "evaluating or saving, belongs in run_options::on_pause, and on_step returns "
          "after_step::stop to end the run";
      auto const calls_of = std::vector<std::pair<char const*, std::function<void()>>>{
          {"step()", [&] { pipe.step(); }},
          {"run()", [&] { pipe.run(2); }},
          {"evaluate()", [&] { pipe.evaluate(); }},
          {"evaluate()", [&] { pipe.evaluate([](evaluation_output const&) {}); }},
          {"resume()", [&] { pipe.resume({}); }}};
      for (auto const& [name, call] : calls_of) CHECK(refusal(call) == start(name) + cure);
      auto const looks = std::vector<std::pair<char const*, std::function<void()>>>{
          {"memory()", [&] { static_cast<void>(pipe.memory(0)); }},
          {"failures()", [&] { static_cast<void>(pipe.failures()); }},
          {"grid()", [&] { static_cast<void>(pipe.grid()); }}};
      for (auto const& [name, look] : looks) CHECK(refusal(look).starts_with(start(name)));
    };
    auto const elsewhere = [&] {
      std::thread([&] {
        CHECK(refusal([&] { pipe.step(); }).starts_with("step() is called while "));
        CHECK(refusal([&] {
                static_cast<void>(pipe.steps());
              }).starts_with("steps() is called while "));
        CHECK(refusal([&] {
                static_cast<void>(pipe.state());
              }).starts_with("state() is called while "));
      }).join();
    };
    int calls = 0;
    pipe.run(steps, [&](step_result const&) {
      if (++calls % 5 != 1) return;
      refuse_all("run()");
      elsewhere();
    });
    CHECK(all.bits() == expected.back().bits);
    // An evaluation's callback is called only where the last stage sends something.
    pipe.run(1, {.pause_every = 1, .on_pause = [&] {
                   auto const refused = refusal([&] { pipe.step(); });
                   CHECK(
                       refused ==
                       "step() is called while run() of the same pipeline runs; a run that pauses "
                       "may evaluate and save, and goes on when on_pause returns");
                   CHECK(refusal([&] { pipe.resume({}); }).starts_with("resume() is called while"));
                   CHECK(pipe.failures().empty());
                   static_cast<void>(pipe.memory(0));
                   CHECK(pipe.grid().data().size() == 1);
                   elsewhere();
                 }});
    int outputs = 0;
    pipe.evaluate([&](evaluation_output const&) {
      if (++outputs > 1) return;
      refuse_all("evaluate()");
      CHECK(pipe.steps() == steps + 1);
    });
    CHECK(outputs == microbatches);
  });
}

TEST_CASE("a flow that calls its pipeline fails as any pass does", "[run]") {
  on_backends([](auto backend) {
    std::vector<acting_stage> stages(ranks);
    pipeline pipe(planned_for(step_kind::unchecked), backend, stages);
    auto const fails = [&](auto act, char const* start) {
      stages[1].act = [act](microbatch) { act(); };
      auto const text = refusal([&] { pipe.step(); });
      CHECK(has(text, start));
      stages[1].act = nullptr;
      pipe.step();
    };
    fails([&] { pipe.evaluate(); }, "evaluate() is called while step()");
    fails([&] { static_cast<void>(pipe.steps()); }, "a flow asks its microbatch for step()");
    CHECK(pipe.steps() == 2);
  });
}

TEST_CASE("a run that pauses evaluates as calls one by one do", "[run]") {
  on_each_backend([](step_kind kind, auto backend) {
    auto const expected = one_by_one(kind);
    model all(settings(kind));
    pipeline pipe(planned_for(kind), backend, all.stages(), options(kind));
    std::vector<std::int64_t> pauses;
    std::int64_t calls = 0;
    auto const caller = std::this_thread::get_id();
    pipe.resume({.steps = 0});
    pipe.run(
        steps,
        [&](step_result const& result) {
          CHECK(result.losses == expected[detail::index(calls)].losses);
          ++calls;
        },
        {.pause_every = 5, .on_pause = [&] {
           auto const& then = expected[detail::index(pipe.steps() - 1)];
           CHECK(calls == pipe.steps());
           CHECK(are_same(pipe.state(), then.state));
           CHECK(all.bits() == then.bits);
           CHECK(pipe.evaluate().losses == then.evaluated);
           CHECK(pipe.evaluate().losses == then.evaluated);
           CHECK(are_same(pipe.state(), then.state));
           CHECK(std::this_thread::get_id() == caller);
           pauses.push_back(pipe.steps());
         }});
    CHECK(pauses == std::vector<std::int64_t>{5, 10});
    CHECK(calls == steps);
    CHECK(all.bits() == expected.back().bits);
    CHECK(are_same(pipe.state(), expected.back().state));
  });
}

TEST_CASE("pauses go by the number of the step, after resuming too", "[run]") {
  model all(settings(step_kind::post_validated));
  pipeline pipe(planned_for(step_kind::post_validated), threads{}, all.stages());
  pipe.resume({.steps = 7});
  std::vector<std::int64_t> pauses;
  pipe.run(8, {.pause_every = 5, .on_pause = [&] { pauses.push_back(pipe.steps()); }});
  CHECK(pauses == std::vector<std::int64_t>{10, 15});  // the last step's, too
}

TEST_CASE("what on_step asks for happens within two steps, and changes no bit", "[run][long]") {
  on_each_backend([](step_kind kind, auto backend) {
    auto const expected = one_by_one(kind);
    for (std::int64_t asked = 1; asked <= steps; ++asked) {
      model all(settings(kind));
      pipeline pipe(planned_for(kind), backend, all.stages(), options(kind));
      std::int64_t last = 0;
      auto const& result = pipe.run(steps, [&](step_result const& step) {
        last = pipe.steps();
        CHECK(step.losses == expected[detail::index(last - 1)].losses);
        return last == asked ? after_step::stop : after_step::go_on;
      });
      CHECK(pipe.steps() == last);
      CHECK(last >= asked);
      CHECK(last <= std::min(asked + 2, steps));
      CHECK(result.losses == expected[detail::index(last - 1)].losses);
      CHECK(all.bits() == expected[detail::index(last - 1)].bits);
      if (last < steps) pipe.run(steps - last);
      CHECK(all.bits() == expected.back().bits);
      std::vector<std::int64_t> pauses;
      model others(settings(kind));
      pipeline pausing(planned_for(kind), backend, others.stages(), options(kind));
      pausing.run(
          steps,
          [&](step_result const&) {
            return pausing.steps() == asked ? after_step::pause : after_step::go_on;
          },
          {.on_pause = [&] { pauses.push_back(pausing.steps()); }});
      CHECK(others.bits() == expected.back().bits);
      CHECK(pauses.size() == (asked + 2 <= steps ? 1 : pauses.size()));
      for (auto at : pauses) CHECK((at >= asked && at <= asked + 2));
    }
  });
}

TEST_CASE("a request near the end of one run is none in the next", "[run]") {
  model all(settings(step_kind::post_validated));
  pipeline pipe(planned_for(step_kind::post_validated), threads{}, all.stages());
  pipe.run(3, [](step_result const&) { return after_step::stop; });
  auto const before = pipe.steps();
  pipe.run(4);
  CHECK(pipe.steps() == before + 4);
}

TEST_CASE("on_pause ends a run, or fails it", "[run]") {
  on_each_backend([](step_kind kind, auto backend) {
    model all(settings(kind));
    pipeline pipe(planned_for(kind), backend, all.stages(), options(kind));
    pipe.run(100, {.pause_every = 3, .on_pause = [&] {
                     return pipe.steps() == 6 ? after_step::stop : after_step::go_on;
                   }});
    CHECK(pipe.steps() == 6);
    auto const fail = [&] { throw std::runtime_error("the disk is full"); };
    try {
      pipe.run(100, {.pause_every = 4, .on_pause = fail});
      CHECK(false);
    } catch (error const& thrown) {
      CHECK(thrown.code() == errc::pass_failed);
      CHECK(std::string(thrown.what()) == "rank 0: on_pause threw: the disk is full");
    }
    CHECK(pipe.steps() == 8);
    REQUIRE(pipe.failures().size() == 1);
    pipe.run(4);
    CHECK(pipe.steps() == 12);
  });
}

TEST_CASE("an evaluation that fails in a pause is told as it was", "[run]") {
  on_backends([](auto backend) {
    bool fails = true;
    std::vector<acting_stage> stages(ranks, acting_stage{[&](microbatch mb) {
                                       if (mb.is_last_stage()) mb.report_loss(0);
                                       if (!mb.is_training() && mb.stage() == 1 &&
                                           mb.index() == 2 && fails)
                                         throw std::runtime_error("no such batch");
                                     }});
    pipeline pipe(planned_for(step_kind::unchecked), backend, stages);
    auto const text = refusal(errc::pass_failed, [&] {
      pipe.run(4, {.pause_every = 2, .on_pause = [&] { pipe.evaluate(); }});
    });
    CHECK(has(text, "stage 1, microbatch 2: in 1F2: no such batch"));
    REQUIRE(pipe.failures().size() == 1);
    CHECK(pipe.failures().front().location.stage == 1);
    CHECK(pipe.steps() == 2);
    fails = false;
    pipe.run(2, {.pause_every = 2, .on_pause = [&] { pipe.evaluate(); }});
    CHECK(pipe.steps() == 4);
  });
}

TEST_CASE("options of a run that contradict each other are refused", "[run]") {
  model all(settings(step_kind::unchecked));
  pipeline pipe(planned_for(step_kind::unchecked), virtual_time{}, all.stages());
  CHECK(refusal([&] {
          pipe.run(3, {.pause_every = -1});
        }) == "run_options::pause_every counts steps; it is at least 0");
  CHECK(
      refusal([&] { pipe.run(3, {.pause_every = 2}); }) ==
      "run_options::pause_every is set and on_pause is not; say what the run does when it pauses");
  CHECK(
      refusal([&] { pipe.run(3, [](step_result const&) { return after_step::pause; }); }) ==
      "rank 0: on_step asks the run to pause, and run_options::on_pause is not set; say what the "
      "run does when it pauses");
  CHECK(
      refusal([&] { pipe.run(3, {.on_pause = [] {}}); }) ==
      "run_options::on_pause is set and nothing asks for a pause; set pause_every, or let on_step "
      "give an after_step");
  CHECK(refusal([&] { pipe.run(0); }) == "run() takes a number of steps from 1");
}

TEST_CASE("evaluations are numbered since the last step", "[run]") {
  on_backends([](auto backend) {
    std::vector<std::int64_t> numbers;
    std::vector<acting_stage> stages(ranks, acting_stage{[&](microbatch mb) {
                                       if (mb.is_last_stage()) mb.report_loss(0);
                                       if (mb.is_last_stage() && mb.index() == 0)
                                         numbers.push_back(mb.evaluation());
                                     }});
    pipeline pipe(planned_for(step_kind::unchecked), backend, stages);
    auto const three = [&] {
      for (int i = 0; i < 3; ++i) pipe.evaluate();
    };
    three();
    pipe.run(2, {.pause_every = 1, .on_pause = three});
    pipe.resume({.steps = 9});
    pipe.evaluate();
    CHECK(numbers == std::vector<std::int64_t>{0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0});
  });
}

}  // namespace test_run
