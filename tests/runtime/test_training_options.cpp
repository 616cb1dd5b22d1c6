// SPDX-License-Identifier: Apache-2.0
//
// Options of optimizer steps with every kind of stage: each has the effect that it has with an
// `optimizer()`, to the bit, or the pipeline refuses it by name.
#include <support/backends.hpp>
#include <support/checked_training.hpp>

#include <mutex>

namespace test_training_options {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::test::checked::frozen_stage;
using zbpp::test::checked::model;
using zbpp::test::checked::model_settings;
using zbpp::test::checked::stage_maths;

namespace {

constexpr int ranks = 3;
constexpr int microbatches = 4;
constexpr int steps = 7;

double falling(std::int64_t updates) { return 0.05 / static_cast<double>(1 + updates); }

// Steps in update(), as an optimizer of another library does, by a rule that the model has.
struct taking_stage : frozen_stage {
  optimizer& rule;

  taking_stage(stage_maths& maths, optimizer& by) : frozen_stage(maths), rule(by) {}
  void update(step_settings const& settings, pass_context ctx) { rule.step(settings, ctx); }
};

// The same where update() is told nothing.
struct plain_stage : frozen_stage {
  optimizer& rule;
  double scale = 1;
  std::int64_t updates = 0;

  plain_stage(stage_maths& maths, optimizer& by, double scaled)
      : frozen_stage(maths), rule(by), scale(scaled) {}
  void update(pass_context ctx) {
    rule.step({.updates = updates++, .learning_rate = 1e-3, .gradient_scale = scale}, ctx);
  }
};

plan planned_for(step_kind kind) { return checked::line_plan(ranks, microbatches, {.step = kind}); }

// Trains in two runs, the second of which continues in a new pipeline.
template <class Backend>
std::vector<std::uint32_t> train(
    Backend backend,
    model& all,
    std::vector<stage_ref> const& stages,
    training_options const& options) {
  training_state state;
  for (int length : {3, steps - 3}) {
    pipeline pipe(planned_for(step_kind::unchecked), backend, stages, options);
    pipe.resume(state);
    pipe.run(length);
    state = pipe.state();
  }
  CHECK(state.steps == steps);
  CHECK(state.updates == steps / options.accumulate);
  return all.bits();
}

// All stages of a model, each made with the optimizer that steps it and `more`.
template <class Stage, class... More>
std::vector<Stage> stages_of(model& all, More... more) {
  std::vector<Stage> own;
  for (int s = 0; s < ranks; ++s) own.emplace_back(all.maths(s), *all.optimizer(s), more...);
  return own;
}

template <class Stage, class Backend, class... More>
std::vector<std::uint32_t> train_own(
    Backend backend, training_options const& options, More... more) {
  model all({.stages = ranks});
  auto own = stages_of<Stage>(all, more...);
  return train(backend, all, std::vector<stage_ref>(own.begin(), own.end()), options);
}

template <class Backend>
std::vector<std::uint32_t> train_plain(Backend backend, training_options const& options) {
  return train_own<plain_stage>(backend, options, options.scaling.initial);
}

}  // namespace

TEST_CASE("stages that step in update() follow options as others do", "[training-options]") {
  on_all_backends([](auto backend) {
    for (int accumulate : {1, 2, 3})
      for (double scale : {1.0, 16.0}) {
        INFO("accumulate " << accumulate << ", scale " << scale);
        training_options const options{.scaling = {.initial = scale}, .accumulate = accumulate};
        auto const expected =
            checked::train_alone({.stages = ranks}, microbatches, steps, options).bits;
        CHECK(train_plain(backend, options) == expected);
        CHECK(train_own<taking_stage>(backend, options) == expected);
        auto with_rate = options;
        with_rate.learning_rate = falling;
        auto const falls =
            checked::train_alone({.stages = ranks}, microbatches, steps, with_rate).bits;
        CHECK(falls != expected);
        CHECK(train_own<taking_stage>(backend, with_rate) == falls);
      }
  });
}

TEST_CASE(
    "on_gradients_ready comes once per update behind the last W, whatever steps the stage",
    "[training-options]") {
  on_all_backends([](auto backend) {
    for (int accumulate : {1, 2}) {
      std::vector<std::vector<std::uint32_t>> given;
      for (int kind = 0; kind < 3; ++kind) {
        INFO("kind of stage " << kind << ", accumulate " << accumulate);
        model all({.stages = ranks});
        std::mutex mutex;
        std::vector<int> calls(ranks);
        training_options const options{
            .on_gradients_ready =
                [&](int stage, pass_context) {
                  auto gradients = all.maths(stage).gradients();
                  for (auto& layer : gradients)
                    for (auto& value : layer) value *= 2;  // a replica with the same gradients
                  all.maths(stage).set_gradients(gradients);
                  std::lock_guard const lock(mutex);
                  ++calls[detail::index(stage)];
                },
            .accumulate = accumulate};
        auto taking = stages_of<taking_stage>(all);
        auto plain = stages_of<plain_stage>(all, 1.0);
        auto const stages = kind == 0   ? all.stages()
                            : kind == 1 ? std::vector<stage_ref>(taking.begin(), taking.end())
                                        : std::vector<stage_ref>(plain.begin(), plain.end());
        given.push_back(train(backend, all, stages, options));
        CHECK(calls == std::vector<int>(ranks, steps / accumulate));
      }
      CHECK(given[1] == given[0]);
      CHECK(given[2] == given[0]);
      auto const without =
          train_plain(backend, {.accumulate = accumulate});  // the doubled ones are others
      CHECK(given[0] != without);
    }
  });
}

TEST_CASE("gradients that a trainer steps by itself are announced, too", "[training-options]") {
  on_all_backends([](auto backend) {
    model all({.stages = ranks});
    std::vector<frozen_stage> stages;
    for (int s = 0; s < ranks; ++s) stages.emplace_back(all.maths(s));
    std::mutex mutex;
    std::vector<int> calls(ranks);
    pipeline pipe(
        planned_for(step_kind::none),
        backend,
        stages,
        {.on_gradients_ready =
             [&](int stage, pass_context) {
               std::lock_guard const lock(mutex);
               ++calls[detail::index(stage)];
             },
         .accumulate = 3});
    pipe.run(steps);
    CHECK(calls == std::vector<int>(ranks, 2));
  });
}

TEST_CASE(
    "an option that a plan or a stage cannot follow is refused by name", "[training-options]") {
  model all({.stages = ranks});
  auto plain = stages_of<plain_stage>(all, 1.0);
  std::vector<frozen_stage> frozen;
  for (int s = 0; s < ranks; ++s) frozen.emplace_back(all.maths(s));
  using enum step_kind;
  std::string const fine = "<nothing was refused>";
  std::string const unable =
      "clipping and dynamic loss scaling need ranks that agree; lower the plan with "
      "step_kind::synchronous or post_validated";
  std::string const bound =
      "a smallest or largest loss scale is given, and without ranks that agree the scale stays "
      "what it is at first; lower the plan with step_kind::synchronous or post_validated";
  std::string const no_window =
      "a window of validations is given, and no step of the plan is validated afterwards; lower "
      "it with step_kind::post_validated";
  std::string const knows_nothing =
      "stage 0: it has update(), which knows nothing of other ranks; give it optimizer() instead";
  struct row {
    step_kind kind;
    std::span<stage_ref const> stages;
    training_options options;
    std::string said;
  };
  std::vector<stage_ref> const updates(plain.begin(), plain.end());
  std::vector<stage_ref> const none_steps(frozen.begin(), frozen.end());
  std::vector<row> rows{
      {unchecked,
       updates,
       {.learning_rate = falling},
       "stage 0: learning_rate is given, and its update(ctx) takes none; let it take the settings, "
       "too: update(zbpp::step_settings const&, zbpp::pass_context)"},
      {none,
       none_steps,
       {.learning_rate = falling},
       "learning_rate is given, and the plan has no optimizer steps; lower it with a step_kind "
       "other than none, or leave the rate to what steps between step() and step()"},
      {none,
       none_steps,
       {.accumulate = 2},
       "accumulate is above 1, and the plan has no optimizer steps; lower it with a step_kind "
       "other than none, or step after as many calls of step()"},
      {unchecked, none_steps, {.scaling = {.initial = 0.5, .smallest = 0.25}}, fine},
      {unchecked, none_steps, {.window = {.steps = 4}}, no_window},
      {unchecked, none_steps, {.window = {.most_amended = 1}}, no_window},
      {post_validated,
       all.stages(),
       {.window = {.most_amended = -1}},
       "most_amended of the window of validations counts steps; it is at least 0"},
      {synchronous, updates, {}, knows_nothing},
      {post_validated, updates, {}, knows_nothing},
      // A frozen stage has no step that a rate could be for; other ranks may have one.
      {unchecked, none_steps, {.learning_rate = falling}, fine}};
  for (auto const kind : {none, unchecked}) {
    rows.push_back({kind, none_steps, {.clip = 1}, unable});
    rows.push_back({kind, updates, {.scaling = {.growth_interval = 4}}, unable});
    rows.push_back({kind, none_steps, {.scaling = {.smallest = 0.5}}, bound});
    rows.push_back({kind, none_steps, {.scaling = {.largest = 16}}, bound});
  }
  for (auto const& [kind, stages, options, said] : rows)
    CHECK(refusal([&] {
            std::vector own(stages.begin(), stages.end());
            pipeline(planned_for(kind), virtual_time{}, own, options);
          }) == said);
}

TEST_CASE("after a failure an accumulation begins anew, with the same bits", "[training-options]") {
  on_all_backends([](auto backend) {
    for (auto kind : kinds_of_steps)
      for (int failing = 0; failing < steps; ++failing) {
        // Where ranks do not agree, some stages have stepped when another one fails.
        if (kind == step_kind::unchecked && failing % 3 == 2) continue;
        INFO("kind " << static_cast<int>(kind) << ", step " << failing << " fails");
        training_options const options{.accumulate = 3};
        model all({.stages = ranks});
        all.maths(1).throw_in_w(failing, 2);
        pipeline pipe(planned_for(kind), backend, all.stages(), options);
        CHECK_THROWS(pipe.run(steps));
        all.skip();
        pipe.resume(pipe.state().at_last_update());
        CHECK(pipe.steps() % 3 == 0);
        pipe.run(steps - pipe.steps());
        auto const expected =
            checked::train_alone({.stages = ranks}, microbatches, steps, options).bits;
        CHECK(all.bits() == expected);
      }
  });
}

TEST_CASE("a state that no training can have is refused", "[training-options]") {
  model all({.stages = ranks});
  pipeline pipe(planned_for(step_kind::synchronous), virtual_time{}, all.stages());
  for (auto const& wrong :
       {training_state{.steps = -1},
        {.updates = -1},
        {.finite_steps = -1},
        {.accumulated = -1},
        {.steps = 1, .accumulated = 2}})
    CHECK(
        refusal([&] { pipe.resume(wrong); }) == "a training_state counts: none of its numbers is "
                                                "below 0, and no more steps are accumulated "
                                                "than were run");
  for (double scale : {3.0, -2.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK(refusal([&] {
            pipe.resume({.loss_scale = scale});
          }) == "the loss scale of a training_state is a power of two, or 0 for the initial one");
  CHECK(pipe.steps() == 0);
}

TEST_CASE("a learning rate that is no number ends the step", "[training-options]") {
  on_all_backends([](auto backend) {
    for (auto kind : kinds_of_steps) {
      model all({.stages = ranks});
      auto const rate = [](std::int64_t updates) {
        return updates < 2 ? 0.01 : std::numeric_limits<double>::quiet_NaN();
      };
      pipeline pipe(planned_for(kind), backend, all.stages(), {.learning_rate = rate});
      auto const text = refusal([&] { pipe.run(5); });
      CHECK(has(text, "learning_rate gave nan behind 2 updates; it gives a number for each"));
      CHECK(pipe.steps() == 2);
    }
  });
}

TEST_CASE("steps are counted as updates whatever takes them", "[training-options]") {
  struct counting_stage : frozen_stage {
    using frozen_stage::frozen_stage;
    void update(pass_context) { ++updates; }
    std::int64_t updates = 0;
  };
  on_all_backends([](auto backend) {
    model all({.stages = ranks});
    std::vector<counting_stage> stages;
    for (int s = 0; s < ranks; ++s) stages.emplace_back(all.maths(s));
    pipeline pipe(planned_for(step_kind::unchecked), backend, stages);
    pipe.run(steps);
    CHECK(pipe.state().updates == steps);
    CHECK(stages.back().updates == steps);
    pipeline idle(planned_for(step_kind::none), backend, stages);
    idle.run(steps);
    CHECK(idle.state().updates == 0);
    CHECK(stages.back().updates == steps);
  });
}

}  // namespace test_training_options
