// SPDX-License-Identifier: Apache-2.0
//
// Options of optimizer steps with every kind of stage: each has the effect that it has with an
// `optimizer()`, to the bit, or the pipeline refuses it by name.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/refusal.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace test_training_options {

using namespace zbpp;
using zbpp::test::refusal;
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

plan planned_for(step_kind kind) {
  problem const small(placement::linear(ranks), microbatches, test::checked::costs(), 87);
  return make_plan(zb_h1{}, small, {.step = kind});
}

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

template <class Backend>
std::vector<std::uint32_t> train_taking(Backend backend, training_options const& options) {
  model all({.stages = ranks});
  std::vector<taking_stage> own;
  for (int s = 0; s < ranks; ++s) own.emplace_back(all.maths(s), *all.optimizer(s));
  return train(backend, all, std::vector<stage_ref>(own.begin(), own.end()), options);
}

template <class Backend>
std::vector<std::uint32_t> train_plain(Backend backend, training_options const& options) {
  model all({.stages = ranks});
  std::vector<plain_stage> own;
  for (int s = 0; s < ranks; ++s)
    own.emplace_back(all.maths(s), *all.optimizer(s), options.scaling.initial);
  return train(backend, all, std::vector<stage_ref>(own.begin(), own.end()), options);
}

template <class Check>
void on_each_backend(Check check) {
  check(virtual_time{});
  check(threads{});
  check(threads{.count = 2});
}

}  // namespace

TEST_CASE("stages that step in update() follow options as others do", "[training-options]") {
  on_each_backend([](auto backend) {
    for (int accumulate : {1, 2, 3})
      for (double scale : {1.0, 16.0}) {
        INFO("accumulate " << accumulate << ", scale " << scale);
        training_options const options{.scaling = {.initial = scale}, .accumulate = accumulate};
        auto const expected =
            test::checked::train_alone({.stages = ranks}, microbatches, steps, options).bits;
        CHECK(train_plain(backend, options) == expected);
        CHECK(train_taking(backend, options) == expected);
        auto with_rate = options;
        with_rate.learning_rate = falling;
        auto const falls =
            test::checked::train_alone({.stages = ranks}, microbatches, steps, with_rate).bits;
        CHECK(falls != expected);
        CHECK(train_taking(backend, with_rate) == falls);
      }
  });
}

TEST_CASE(
    "on_gradients_ready comes once per update behind the last W, whatever steps the stage",
    "[training-options]") {
  on_each_backend([](auto backend) {
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
        std::vector<taking_stage> taking;
        std::vector<plain_stage> plain;
        for (int s = 0; s < ranks; ++s) {
          taking.emplace_back(all.maths(s), *all.optimizer(s));
          plain.emplace_back(all.maths(s), *all.optimizer(s), 1);
        }
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
  on_each_backend([](auto backend) {
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
  std::vector<plain_stage> plain;
  std::vector<frozen_stage> frozen;
  for (int s = 0; s < ranks; ++s) {
    plain.emplace_back(all.maths(s), *all.optimizer(s), 1);
    frozen.emplace_back(all.maths(s));
  }
  auto const refused = [](step_kind kind, auto& stages, training_options const& options) {
    return refusal([&] { pipeline(planned_for(kind), virtual_time{}, stages, options); });
  };
  CHECK(
      refused(step_kind::unchecked, plain, {.learning_rate = falling}) ==
      "stage 0: learning_rate is given, and its update(ctx) takes none; let it take the settings, "
      "too: update(zbpp::step_settings const&, zbpp::pass_context)");
  CHECK(
      refused(step_kind::none, frozen, {.learning_rate = falling}) ==
      "learning_rate is given, and the plan has no optimizer steps; lower it with a step_kind "
      "other "
      "than none, or leave the rate to what steps between step() and step()");
  CHECK(
      refused(step_kind::none, frozen, {.accumulate = 2}) ==
      "accumulate is above 1, and the plan has no optimizer steps; lower it with a step_kind other "
      "than none, or step after as many calls of step()");
  auto const unable =
      "clipping and dynamic loss scaling need ranks that agree; lower the plan with "
      "step_kind::synchronous or post_validated";
  for (auto kind : {step_kind::none, step_kind::unchecked}) {
    CHECK(refused(kind, frozen, {.clip = 1}) == unable);
    CHECK(refused(kind, plain, {.scaling = {.growth_interval = 4}}) == unable);
  }
  for (auto kind : {step_kind::none, step_kind::unchecked})
    for (auto const& scaling : {loss_scaling{.smallest = 0.5}, {.largest = 16}}) {
      auto const text = refused(kind, frozen, {.scaling = scaling});
      CHECK(
          text ==
          "a smallest or largest loss scale is given, and without ranks that agree the scale stays "
          "what it is at first; lower the plan with step_kind::synchronous or post_validated");
    }
  CHECK(
      refused(step_kind::unchecked, frozen, {.scaling = {.initial = 0.5, .smallest = 0.25}}) ==
      "<nothing was refused>");
  for (auto const& window : {validation_window{.steps = 4}, {.most_amended = 1}})
    CHECK(
        refused(step_kind::unchecked, frozen, {.window = window}) ==
        "a window of validations is given, and no step of the plan is validated afterwards; lower "
        "it with step_kind::post_validated");
  CHECK(
      refused(step_kind::post_validated, all.stages(), {.window = {.most_amended = -1}}) ==
      "most_amended of the window of validations counts steps; it is at least 0");
  for (auto kind : {step_kind::synchronous, step_kind::post_validated})
    CHECK(
        refused(kind, plain, {}) ==
        "stage 0: it has update(), which knows nothing of other ranks; give it optimizer() "
        "instead");
  // A frozen stage has no step that a rate could be for; other ranks may have one.
  CHECK(
      refused(step_kind::unchecked, frozen, {.learning_rate = falling}) == "<nothing was refused>");
}

TEST_CASE("after a failure an accumulation begins anew, with the same bits", "[training-options]") {
  on_each_backend([](auto backend) {
    for (auto kind : {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated})
      for (int failing = 0; failing < steps; ++failing) {
        // Where ranks do not agree, some stages have stepped when another one fails.
        if (kind == step_kind::unchecked && failing % 3 == 2) continue;
        INFO("kind " << static_cast<int>(kind) << ", step " << failing << " fails");
        training_options const options{.accumulate = 3};
        model all({.stages = ranks});
        all.maths(1).throw_in_w(failing, 2);
        pipeline pipe(planned_for(kind), backend, all.stages(), options);
        CHECK_THROWS(pipe.run(steps));
        arena memory;
        for (int s = 0; s < ranks; ++s) all.optimizer(s)->skip(pass_context(memory));
        pipe.resume(pipe.state().at_last_update());
        CHECK(pipe.steps() % 3 == 0);
        pipe.run(steps - pipe.steps());
        auto const expected =
            test::checked::train_alone({.stages = ranks}, microbatches, steps, options).bits;
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
  on_each_backend([](auto backend) {
    for (auto kind : {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
      model all({.stages = ranks});
      auto const rate = [](std::int64_t updates) {
        return updates < 2 ? 0.01 : std::numeric_limits<double>::quiet_NaN();
      };
      pipeline pipe(planned_for(kind), backend, all.stages(), {.learning_rate = rate});
      auto const text = refusal([&] { pipe.run(5); });
      CHECK(
          text.find("learning_rate gave nan behind 2 updates; it gives a number for each") !=
          std::string::npos);
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
  on_each_backend([](auto backend) {
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
