// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps of stages that do not wait for the norm, always or while it is far below the
// limit: they give the bits of a plain loop that follows the same rule, whatever the policy and the
// backend.
#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/checked_training.hpp>

namespace test_steps_without_agreement {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::test::checked::costs;
using zbpp::test::checked::happenings;
using zbpp::test::checked::model_settings;

namespace {

constexpr int steps = 24;
constexpr auto infinite = std::numeric_limits<float>::infinity();
constexpr auto nothing = std::numeric_limits<float>::quiet_NaN();
// The second run begins between two steps on which ranks agree, for most intervals.
std::vector<int> const lengths{6, 1, steps - 7};

plan with_stages_at_once(plan const& origin, std::vector<int> const& at_once) {
  return make_plan(
      origin.policy(),
      origin.schedule(),
      origin.problem(),
      {.step = step_kind::synchronous, .at_once = at_once});
}

// Compares a plan with the plain loop on both backends.
happenings check(plan const& planned, model_settings settings, training_options const& options) {
  settings.stages = planned.problem().stages();
  auto const expected =
      checked::train_alone(settings, planned.problem().microbatches(), steps, options);
  auto const timed = checked::train(planned, virtual_time{}, settings, options, lengths);
  CHECK(difference(timed.given, expected) == "");
  for (auto const& backend : {threads{}, threads{.count = 2}}) {
    auto const found = checked::train(planned, backend, settings, options, lengths);
    CHECK(difference(found.given, expected) == "");
  }
  return timed.seen;
}

// Calls `visit(plan)` for every policy and placement of some ranks.
template <class Visit>
void for_each_plan(std::vector<int> const& all_ranks, step_kind kind, Visit visit) {
  for (int ranks : all_ranks)
    for (auto const& placement : placements_to_run(ranks)) {
      problem const problem(placement, ranks + 1, costs(), 87);
      for_each_plan_of(
          problem, {.fused = false, .step = kind}, [&](std::string const& name, plan const& each) {
            INFO(name << ", step_kind " << static_cast<int>(kind));
            visit(each);
          });
    }
}

// What is worth a look: the first stages, all, the last, and some.
std::vector<std::vector<int>> stages_at_once(int stages) {
  std::vector<int> first;
  std::vector<int> some;
  for (int s = 0; s + 1 < stages; ++s) first.push_back(s);
  for (int s = 0; s < stages; s += 2) some.push_back(s);
  auto all = first;
  all.push_back(stages - 1);
  return {{0}, first, all, {stages - 1}, some};
}

}  // namespace

TEST_CASE(
    "stages that step at once have the bits of a plain loop", "[steps-without-agreement][long]") {
  happenings all;
  for_each_plan(
      thinned<std::vector<int>>({1, 2, 3, 4}, {1, 3}),
      step_kind::synchronous,
      [&](plan const& origin) {
        auto const stages = origin.problem().stages();
        for (auto const& at_once : stages_at_once(stages)) {
          CAPTURE(at_once);
          all += check(
              with_stages_at_once(origin, at_once),
              {.dropout = true,
               .faults = {{3, 0, 0, infinite}, {4, stages - 1, 0, nothing}, {9, stages / 2, 0}},
               .at_once = at_once},
              {.clip = 1.2});
        }
      });
  CHECK(all.clipped > 0);
  CHECK(all.skipped > 0);
  CHECK(all.early > 0);
  CHECK(all.amended == 0);
}

TEST_CASE(
    "stages at once keep a loss scale that grows and gradients that add up",
    "[steps-without-agreement][long]") {
  training_options options{.clip = 0.5, .accumulate = GENERATE(1, 2)};
  options.scaling = {.initial = 0x1p13, .growth_interval = 2, .largest = 0x1p20};
  happenings all;
  for_each_plan({3}, step_kind::synchronous, [&](plan const& origin) {
    for (auto const& at_once : stages_at_once(origin.problem().stages()))
      all += check(
          with_stages_at_once(origin, at_once),
          {.has_frozen_stage = true, .loss_weight = 3, .at_once = at_once},
          options);
  });
  CHECK(all.skipped > 0);
}

TEST_CASE("only the first ranks go on before the norm is known", "[steps-without-agreement]") {
  problem const problem(placement::linear(4), 8, costs(), 87);
  auto const early = [&](std::vector<int> const& at_once) {
    auto const planned =
        make_plan(zb_h2{}, problem, {.step = step_kind::synchronous, .at_once = at_once});
    checked::model all({.stages = 4});
    pipeline pipe(planned, virtual_time{}, all.stages(), {.clip = 1e-3});
    std::vector<int> count(4, 0);
    pipe.run(6, [&](step_result const& step) {
      for (std::size_t r = 0; r < 4; ++r) count[r] += step.ranks[r].is_early ? 1 : 0;
    });
    return count;
  };
  CHECK(early({}) == std::vector{0, 0, 0, 0});
  CHECK(early({0}) == std::vector{5, 0, 0, 0});  // the last step of a run waits
  CHECK(early({0, 1, 3}) == std::vector{5, 5, 0, 0});
  CHECK(early({1, 2, 3}) == std::vector{0, 0, 0, 0});
  CHECK(early({0, 1, 2, 3}) == std::vector{5, 5, 5, 0});
}

TEST_CASE(
    "a run with stages at once stops after the same step on all ranks",
    "[steps-without-agreement]") {
  problem const problem(placement::linear(3), 4, costs(), 87);
  for (auto const& at_once : stages_at_once(3))
    for (std::int64_t asked : {1, 4, 7})
      for (int every : {1, 3}) {
        CAPTURE(at_once, asked, every);
        auto const planned =
            make_plan(zb_h1{}, problem, {.step = step_kind::synchronous, .at_once = at_once});
        model_settings const settings{.stages = 3, .at_once = at_once};
        training_options const options{.clip = 50, .agreement = {.every = every}};
        checked::model all(settings);
        pipeline pipe(planned, threads{}, all.stages(), options);
        std::vector<std::int64_t> pauses;
        auto const ask = [&](step_result const&) {
          return pipe.steps() == asked       ? after_step::pause
                 : pipe.steps() == asked + 9 ? after_step::stop
                                             : after_step::go_on;
        };
        pipe.run(100, ask, {.on_pause = [&] { pauses.push_back(pipe.steps()); }});
        REQUIRE(pauses.size() == 1);
        CHECK(pauses[0] >= asked);
        CHECK(pauses[0] <= asked + every + 1);
        CHECK(pipe.steps() >= asked + 9);
        CHECK(pipe.steps() <= asked + 9 + every + 1);
        auto const expected =
            checked::train_alone(settings, 4, static_cast<int>(pipe.steps()), options).bits;
        CHECK(all.bits() == expected);
      }
}

TEST_CASE(
    "steps without agreement have the bits of a plain loop, however runs are cut",
    "[steps-without-agreement][long]") {
  auto const kind = GENERATE(step_kind::synchronous, step_kind::post_validated);
  // All norms are far below, some are, none is.
  auto const clip = GENERATE(1e3, 3.0, 1e-3);
  auto const every = GENERATE(2, 5);
  CAPTURE(clip, every);
  happenings all;
  int schedules = 0;
  for_each_plan(thinned<std::vector<int>>({1, 2, 3, 4}, {1, 3}), kind, [&](plan const& planned) {
    ++schedules;
    all += check(
        planned, {.dropout = true}, {.clip = clip, .agreement = {.every = every, .share = 0.55}});
  });
  auto const agreed = (steps + every - 1) / every;
  if (clip > 100) CHECK(all.unagreed == schedules * (steps - agreed));
  if (clip == 3.0) CHECK(all.unagreed > 0);
  if (clip == 3.0) CHECK(all.unagreed < schedules * (steps - agreed));
  if (clip < 1) CHECK(all.unagreed == 0);
}

TEST_CASE(
    "without agreement a stage skips gradients that are not finite by itself",
    "[steps-without-agreement][long]") {
  auto const kind = GENERATE(step_kind::synchronous, step_kind::post_validated);
  auto const initial = GENERATE(1.0, 0x1p13);
  happenings all;
  for_each_plan({2, 3}, kind, [&](plan const& planned) {
    auto const last = planned.problem().stages() - 1;
    training_options options{.clip = 50, .agreement = {.every = 4, .share = 0.9}};
    options.scaling = {.initial = initial, .growth_interval = 3, .largest = 0x1p20};
    all += check(
        planned,
        {.loss_weight = initial == 1 ? 1.0F : 3.0F,
         // Ranks agree on the first of these steps, and not on the others.
         .faults = {{0, 0, 0, infinite}, {3, last, 0, nothing}, {4, 0, 0, infinite}}},
        options);
  });
  CHECK(all.unagreed > 0);
  CHECK(all.skipped > 0);
}

TEST_CASE(
    "results of steps without agreement are whole when they are called back for",
    "[steps-without-agreement]") {
  auto const kind = GENERATE(step_kind::synchronous, step_kind::post_validated);
  for_each_plan({3}, kind, [&](plan const& planned) {
    checked::model all({.stages = planned.problem().stages()});
    training_options const options{.clip = 50, .agreement = {.every = 8}};
    pipeline pipe(planned, threads{}, all.stages(), options);
    std::int64_t next = 0;
    bool is_whole = true;
    pipe.run(steps, [&](step_result const& step) {
      CHECK(step.update.step == next++);
      CHECK(step.update.is_update);
      CHECK(step.update.is_agreed == (step.update.step % 8 == 0));
      CHECK((step.update.norm > 0) == step.update.is_agreed);
      is_whole = is_whole && step.has_finite_losses();
      for (int r = 0; r < planned.problem().ranks(); ++r) {
        auto const row = step.measured[r];
        auto const end = step.ranks[static_cast<std::size_t>(r)].measured;
        is_whole = is_whole && row.back().end <= end && row.front().start < row.back().end;
        for (std::size_t i = 1; i < row.size(); ++i)
          is_whole = is_whole && row[i - 1].end <= row[i].start;
      }
    });
    CHECK(next == steps);
    CHECK(is_whole);
  });
}

TEST_CASE(
    "what is asked for in a step without agreement happens behind the next with one",
    "[steps-without-agreement]") {
  auto const kind = GENERATE(step_kind::synchronous, step_kind::post_validated);
  auto const planned = checked::line_plan(3, 4, {.step = kind});
  auto const backend = GENERATE(threads{}, threads{.count = 2});
  checked::model all({.stages = 3});
  training_options const options{.clip = 50, .agreement = {.every = 5}};
  pipeline pipe(planned, backend, all.stages(), options);
  pipe.run(100, [&](step_result const& step) {
    return step.update.step == 2 ? after_step::stop : after_step::go_on;
  });
  // Ranks agree on step 5; where they go on before its norm is known, one more follows.
  CHECK(pipe.steps() == (kind == step_kind::synchronous ? 6 : 7));
  CHECK(
      all.bits() ==
      checked::train_alone({.stages = 3}, 4, static_cast<int>(pipe.steps()), options).bits);
}

TEST_CASE(
    "a failure in a step without agreement leaves it not run on all ranks",
    "[steps-without-agreement]") {
  auto const lowering = GENERATE(
      lower_options{.step = step_kind::synchronous},
      lower_options{.step = step_kind::post_validated},
      lower_options{.step = step_kind::synchronous, .at_once = {0}},
      lower_options{.step = step_kind::synchronous, .at_once = {0, 1, 2}});
  auto const failing = GENERATE(0, 1, 2);
  auto const in_w = GENERATE(false, true);
  auto const step = GENERATE(0, 1, 2, 3, 4, 5);
  CAPTURE(lowering.step == step_kind::synchronous, lowering.at_once, failing, in_w, step);
  auto const planned = checked::line_plan(3, 4, lowering);
  training_options const options{.clip = 50, .agreement = {.every = 4}};
  on_backends([&](auto backend) {
    checked::model all({.stages = 3});
    in_w ? all.maths(failing).throw_in_w(step, 3) : all.maths(failing).throw_in(step, 0);
    pipeline pipe(planned, backend, all.stages(), options);
    CHECK_THROWS_WITH(pipe.run(9), Catch::Matchers::EndsWith(": thrown by the test"));
    auto const left = pipe.state();
    CHECK(left.steps <= step);
    CHECK(left.steps + 1 >= step);
    CHECK(left.unagreed == (left.steps == 0 ? 0 : (8 - left.steps) % 4));
    all.skip();
    pipe.run(9 - left.steps);
    CHECK(pipe.state().steps == 9);
    CHECK(pipe.state().updates == 9);
  });
}

TEST_CASE("what cannot go without agreement is refused by name", "[steps-without-agreement]") {
  problem const problem(placement::linear(2), 2, costs(), 87);
  auto const refuses = [&](step_kind kind, training_options const& options) {
    checked::model all({.stages = 2});
    auto const planned = make_plan(zb_h1{}, problem, {.step = kind});
    return refusal([&] { pipeline(planned, virtual_time{}, all.stages(), options); });
  };
  auto const kind = step_kind::synchronous;
  CHECK(
      refuses(kind, {.clip = 1, .agreement = {.every = 0}}) ==
      "every of the interval of agreement counts optimizer steps; it is at least 1");
  for (double share : {0.0, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()})
    CHECK(
        refuses(kind, {.clip = 1, .agreement = {.every = 2, .share = share}}) ==
        "share of the interval of agreement is a part of clip, above 0 and at most 1");
  CHECK(
      refuses(kind, {.agreement = {.every = 2}}) ==
      "every of the interval of agreement is above 1 and clip is 0, so no norm is far below; set "
      "clip, or leave every at 1");
  CHECK(
      refuses(kind, {.clip = 1, .agreement = {.share = 0.25}}) ==
      "share of the interval of agreement is given and every is 1, so ranks agree on every step; "
      "set every, or leave share alone");
  for (auto alone : {step_kind::none, step_kind::unchecked})
    CHECK(
        refuses(alone, {.clip = 1, .agreement = {.every = 2}}) ==
        "clipping and dynamic loss scaling need ranks that agree; lower the plan with "
        "step_kind::synchronous or post_validated");
  checked::model with_ties({.stages = 2, .tied = {0, 1}});
  auto const tied = make_plan(
      zb_h1{}, checked::make_problem(placement::linear(2), 2, 87, {0, 1}), {.step = kind});
  CHECK(
      refusal([&] {
        pipeline(tied, virtual_time{}, with_ties.stages(), {.clip = 1, .agreement = {.every = 2}});
      }) ==
      "every of the interval of agreement is above 1 and weights are tied, which step alike on all "
      "ranks; leave every at 1");
  checked::model all({.stages = 2});
  pipeline pipe(make_plan(zb_h1{}, problem, {.step = kind}), virtual_time{}, all.stages());
  CHECK(refusal([&] { pipe.resume({.unagreed = -1}); }).find("counts") != std::string::npos);
}

}  // namespace test_steps_without_agreement
