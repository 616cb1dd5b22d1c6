// SPDX-License-Identifier: Apache-2.0
//
// The claim of steps that are validated afterwards: whatever the policy, the backend and the
// gradients, they give the bits of synchronous steps and of one process.
#include <zbpp/analysis/steps.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/checked_training.hpp>
#include <support/same_bits.hpp>

#include <barrier>
#include <cstdio>
#include <thread>

namespace test_optimizer_steps {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::test::checked::costs;
using zbpp::test::checked::fault_at;
using zbpp::test::checked::happenings;
using zbpp::test::checked::model_settings;
using zbpp::test::checked::train;

namespace {

constexpr int steps = 32;
constexpr auto infinite = std::numeric_limits<float>::infinity();
constexpr auto nothing = std::numeric_limits<float>::quiet_NaN();
std::vector<int> const lengths{5, 1, steps - 6};  // of the runs of a training

// Checks the plans of a row in both kinds of steps on both backends.
// @return what happened when validated afterwards, under virtual time
happenings check(variation row, model_settings const& settings, training_options const& options) {
  happenings all;
  row.problem = [&](placement const& placement, int microbatches) {
    return checked::make_problem(placement, microbatches, 87, settings.tied);
  };
  row.plans.fused = false;
  row.plans.steps = {step_kind::post_validated, step_kind::synchronous};
  auto const of = [&](plan const& planned) {
    auto own = settings;
    own.stages = planned.problem().stages();
    return own;
  };
  auto const on = [&](auto backend, happenings& seen) {
    return [&, backend](plan const& planned, std::uint64_t) {
      auto const found = train(planned, backend, of(planned), options, lengths);
      if (validates_step_before(planned.program())) {
        seen += found.seen;
        ++seen.schedules;
      } else {
        CHECK(found.seen.early == 0);
        CHECK(found.seen.amended == 0);
      }
      return found.given;
    };
  };
  happenings on_threads;
  same_bits(
      [&](plan const& planned) {
        return checked::train_alone(of(planned), planned.problem().microbatches(), steps, options);
      },
      {{"virtual time", on(virtual_time{}, all)}, {"threads", on(threads{}, on_threads)}},
      {row});
  return all;
}

// Checks every policy and placement for some ranks.
happenings check(
    int ranks, int microbatches, model_settings const& settings, training_options const& options) {
  return check({"every policy", {ranks}, only(microbatches)}, settings, options);
}

// Checks every policy on one placement.
happenings check(
    placement const& placement,
    int microbatches,
    model_settings const& settings,
    training_options const& options) {
  variation row{"one placement", {placement.ranks()}, only(microbatches)};
  row.plans.placements = [=](int) { return std::vector{placement}; };
  return check(row, settings, options);
}

}  // namespace

TEST_CASE(
    "without clipping all ranks step early and no step is amended", "[optimizer-steps][long]") {
  auto const p = GENERATE(1, 2, 3, 4, 5, 8);
  if (p > thinned(8, 3)) return;
  auto const seen = check(p, p + 1, {}, {});
  CHECK(seen.amended == 0);
  // All steps but the last of each of the three runs, on all ranks.
  CHECK(seen.early == seen.schedules * p * (steps - 3));
}

TEST_CASE("clipping in every step, in some and in none changes no bit", "[optimizer-steps][long]") {
  auto const p = GENERATE(from_range(thinned<std::vector<int>>({1, 2, 4}, {1, 3})));
  auto const clip = GENERATE(1e-3, 1.2, 1e9);
  CAPTURE(p, clip);
  auto const seen = check(p, 2 * p, {.dropout = true}, {.clip = clip});
  if (clip < 1) CHECK(seen.clipped == seen.schedules * steps);
  if (clip < 1) CHECK(seen.amended > 0);
  if (clip > 1e3) CHECK(seen.amended == 0);
}

TEST_CASE("a norm exactly at the limit is treated alike everywhere", "[optimizer-steps]") {
  model_settings const settings{.stages = 3};
  problem const problem(placement::linear(3), 4, costs(), 87);
  auto const free = checked::train_alone(settings, 4, steps, {});
  for (double clip : {free.norms[0], free.norms[3] + 1e-6, free.norms[7]})
    check(placement::linear(3), 4, settings, {.clip = clip});
}

TEST_CASE(
    "gradients that are not finite skip a step, wherever they are", "[optimizer-steps][long]") {
  auto const p = GENERATE(1, 2, 3, 5);
  // On the last rank alone, on the first alone, in consecutive steps, in the last step of a run.
  std::vector<fault_at> const faults{
      {3, p - 1, 0, infinite},
      {7, 0, p - 1, nothing},
      {8, p / 2, 0, -infinite},
      {9, p / 2, 0, infinite},
      {4, 0, 0, infinite},
      {31, p - 1, p - 1, nothing}};
  auto const seen = check(p, p, {.faults = faults}, {.clip = 1.5});
  CHECK(seen.skipped == seen.schedules * 6);
  CHECK(seen.amended > 0);
}

TEST_CASE(
    "the loss scale grows and backs off, also where gradients are clipped",
    "[optimizer-steps][long]") {
  auto const p = GENERATE(1, 2, 4);
  training_options options;
  options.scaling = {.initial = 0x1p13, .growth_interval = 2, .largest = 0x1p20};
  auto const clip = GENERATE(0.0, 0.5);
  options.clip = clip;
  auto const seen = check(p, p + 2, {.loss_weight = 3}, options);
  CHECK(seen.skipped > 0);
  if (clip > 0) CHECK(seen.clipped > 0);
}

TEST_CASE("gradients of several steps add up to one optimizer step", "[optimizer-steps][long]") {
  auto const p = GENERATE(1, 3);
  auto const seen = check(p, p, {.faults = {{4, 0, 0}}}, {.clip = 3, .accumulate = GENERATE(2, 3)});
  CHECK(seen.skipped > 0);
}

TEST_CASE("a state says how many steps wait for an optimizer step", "[optimizer-steps]") {
  // In the second problem the first rank has no optimizer, and knows as well as the others.
  for (bool const is_first : {false, true})
    for (auto const kind : kinds_of_steps) {
      auto const placement = is_first ? placement::custom({1, 0, 2}) : placement::linear(3);
      problem const problem(placement, 4, costs(), 87);
      checked::model all({.stages = 3, .has_frozen_stage = true});
      auto const planned = make_plan(greedy_auto{}, problem, {.step = kind});
      pipeline pipe(planned, threads{}, all.stages(), {.accumulate = 3});
      for (int step = 1; step <= 7; ++step) {
        pipe.step();
        CHECK(pipe.state().accumulated == step % 3);
        CHECK(pipe.state().updates == step / 3);
      }
      // Another number begins anew behind the last optimizer step.
      auto state = pipe.state();
      pipeline other(planned, threads{}, all.stages(), {.accumulate = 2});
      other.resume(state);
      other.step();
      CHECK(other.state().accumulated == 0);
      other.step();
      CHECK(other.state().accumulated == 1);
    }
}

TEST_CASE("a frozen stage, SGD and full copies change nothing of this", "[optimizer-steps][long]") {
  for (auto undo : {optim::undo_method::weights, optim::undo_method::copies})
    for (bool uses_adamw : {false, true}) {
      auto const seen = check(
          thinned(4, 3),
          thinned(5, 3),
          {.has_frozen_stage = true, .uses_adamw = uses_adamw, .undo = undo, .faults = {{2, 0, 0}}},
          {.clip = 1.3});
      CHECK(seen.amended > 0);
    }
}

TEST_CASE(
    "weights that several stages have stay the same weights", "[optimizer-steps][tied][long]") {
  auto const p = GENERATE(2, 3, 5);
  if (p > thinned(8, 3)) return;
  for (auto const& placement : placements_to_run(p)) {
    auto const last = placement.stages() - 1;
    std::vector<std::vector<int>> all{{0, last}, {0, 1}};
    if (last > 1) all.push_back({0, 1, last});
    for (auto const& tied : all) {
      CAPTURE(tied);
      auto const seen = check(
          placement,
          p + 1,
          {.faults = {{4, last, 0}}, .tied = tied},
          {.clip = 1.5, .accumulate = last > 2 ? 1 : 2});
      CHECK(seen.amended > 0);
      CHECK(seen.skipped > 0);
    }
  }
}

TEST_CASE("every stage may have the same weights, once or twice", "[optimizer-steps][tied][long]") {
  auto const placement =
      GENERATE(placement::linear(3), placement::v_shape(1), placement::v_shape(2));
  std::vector<int> tied;
  for (int s = 0; s < placement.stages(); ++s) tied.push_back(s);
  for (bool const only_first : {true, false}) {
    auto const seen = check(
        placement, 4, {.uses_adamw = false, .tied = tied, .ties_first_layers = only_first}, {});
    CHECK(seen.early == seen.schedules * placement.ranks() * (steps - 3));
  }
}

TEST_CASE("tied weights of one rank alone cost no wait", "[optimizer-steps][tied]") {
  auto const steady =
      [](auto const& policy, placement const& placement, std::vector<int> const& tied) {
        std::vector<stage_costs> costs(
            static_cast<std::size_t>(placement.stages()),
            {.forward = 1000, .backward_input = 1000, .backward_weight = 1000});
        for (int s : tied) costs[static_cast<std::size_t>(s)].tied = 64;
        auto const times = times_of_steps(make_plan(
            policy, problem(placement, 12, costs, 10), {.step = step_kind::post_validated}));
        return times.steady.whole;
      };
  auto const v = placement::v_shape(4);
  CHECK(steady(zb_v{}, v, {0, 7}) == steady(zb_v{}, v, {}));
  // The first rank waits for the last W of the last one, which begins three F later.
  auto const line = placement::linear(4);
  CHECK(steady(zb_h2{}, line, {0, 3}) > steady(zb_h2{}, line, {}) + 2900);
}

TEST_CASE(
    "without agreement stages step by themselves, tied ones behind their sum",
    "[optimizer-steps][tied]") {
  for (auto const& tied : {std::vector<int>{}, {0, 2}}) {
    model_settings const settings{.stages = 3, .tied = tied};
    checked::model all(settings);
    pipeline pipe(checked::line_plan(3, 4, {}, tied), threads{}, all.stages());
    pipe.run(7);
    CHECK(all.bits() == checked::train_alone(settings, 4, 7, {}).bits);
  }
}

TEST_CASE(
    "a failure where ranks agree leaves tied weights of whole steps", "[optimizer-steps][tied]") {
  auto const kind =
      GENERATE(step_kind::post_validated, step_kind::synchronous, step_kind::unchecked);
  auto const in_w = GENERATE(false, true);
  auto const failing = GENERATE(0, 1, 2);
  bool const is_agreed = kind != step_kind::unchecked;
  CAPTURE(is_agreed, in_w, failing);
  auto const taken = checked::train_through_failure(
      checked::line_plan(3, 4, {.step = kind}, {0, 2}),
      threads{},
      {.tied = {0, 2}},
      [&](checked::model& all) {
        in_w ? all.maths(failing).throw_in_w(3, 3) : all.maths(failing).throw_in(3, 3);
      },
      10,
      is_agreed || !in_w);
  CHECK((is_agreed ? taken >= 2 : taken == 3));
}

TEST_CASE("without agreement no rank steps with half its gradients", "[optimizer-steps]") {
  auto const planned = checked::line_plan(3, 4);
  for (int failing = 0; failing < 3; ++failing) {
    checked::model all({.stages = 3});
    auto const before = all.maths(failing).weights();
    all.maths(failing).throw_in_w(0, 3);
    pipeline pipe(planned, threads{}, all.stages());
    CHECK_THROWS_WITH(pipe.step(), Catch::Matchers::EndsWith(": thrown by the test"));
    CHECK(pipe.steps() == 0);
    CHECK(all.maths(failing).weights() == before);
  }
}

TEST_CASE("a step that failed counts as not run on every rank", "[optimizer-steps]") {
  // The middle rank has no optimizer, and fails when others may be done.
  problem const problem(placement::linear(3), 4, costs(), 87);
  model_settings const settings{.stages = 3, .has_frozen_stage = true};
  auto const planned = make_plan(zb_h1{}, problem);
  for (int failing = 0; failing < 3; ++failing) {
    checked::model all(settings);
    all.maths(failing).throw_in_w(2, 3);
    pipeline pipe(planned, threads{}, all.stages(), {.accumulate = 4});
    CHECK_THROWS_WITH(pipe.run(4), Catch::Matchers::EndsWith(": thrown by the test"));
    CHECK(pipe.steps() == 2);
    pipe.run(1);
    CHECK(pipe.steps() == 3);
    pipe.evaluate();
    CHECK(pipe.steps() == 3);
  }
}

TEST_CASE("gradients of no layers end a step with an error", "[optimizer-steps][tied]") {
  model_settings const settings{.stages = 2, .tied = {0, 1}};
  auto const problem = checked::make_problem(placement::linear(2), 1, 87, settings.tied);
  auto const planned = make_plan(zb_h1{}, problem);
  checked::model all(settings);
  traffic const messages(planned.program());
  rank_memory memory;
  rank_grid grid;
  pass_context const ctx(memory.buffers);
  for (std::size_t size : {0U, 7U, 65U}) {
    state_map const map(planned.program());
    in_process_states link(map);
    detail::tied_gradients tied(
        {.rank = 1,
         .program = planned.program(),
         .messages = messages,
         .problem = problem,
         .stages = std::span(all.stages()).last(1),
         .memory = memory,
         .ctx = ctx,
         .grid = grid});
    virtual_time::pass_observer clock;
    CHECK(tied.send(0, link, clock, ctx));
    CHECK_FALSE(tied.finish(0, link, clock, ctx));
    link.send(map.between(0, 1), std::vector<std::byte>(size), 0);
    CHECK(
        refusal(errc::no_agreement, [&] { (void)tied.finish(0, link, clock, ctx); }) ==
        "another rank sent " + std::to_string(size) +
            " bytes of tied gradients, which are not those of layers of 64; give the tied layers "
            "of all ranks the same size");
  }
}

TEST_CASE("a step after one that failed waits for what it needs itself", "[optimizer-steps]") {
  auto const kind =
      GENERATE(step_kind::post_validated, step_kind::synchronous, step_kind::unchecked);
  auto const slow = checked::make_problem(placement::linear(2), 1, 2'000'000, {0, 1});
  CHECK(
      checked::train_through_failure(
          make_plan(zb_h1{}, slow, {.step = kind}),
          threads{.emulates_transfers = true},
          {.tied = {0, 1}},
          [](checked::model& all) { all.maths(0).throw_in_w(0, 0); },
          2) == 0);
}

TEST_CASE("ranks step before they know the verdict, as the trace shows", "[optimizer-steps]") {
  problem const problem(placement::linear(4), 8, costs(), 87);
  auto const planned = make_plan(zb_h2{}, problem, {.step = step_kind::post_validated});
  checked::model all({.stages = 4});
  pipeline pipe(planned, virtual_time{}, all.stages());
  int compared = 0;
  pipe.run(6, [&](step_result const& step) {
    if (!step.update.is_post_validated) return;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      auto const& own = step.ranks[rank];
      CHECK(own.is_early);
      CHECK(own.measured <= own.stepped);
      if (rank + 1 < 4) CHECK(own.stepped < own.validated);
      // The parallelogram: a rank is not held up by those behind it.
      if (rank > 0) CHECK(step.ranks[rank - 1].stepped < own.stepped);
      ++compared;
    }
  });
  CHECK(compared == 20);
}

TEST_CASE("ranks wait while steps are amended often, and no longer", "[optimizer-steps]") {
  std::vector<fault_at> faults;
  for (int step : {2, 3, 5, 6}) faults.push_back({step, 1, 0});
  auto const planned = checked::line_plan(2, 3, {.step = step_kind::post_validated});
  checked::model all({.stages = 2, .faults = faults});
  pipeline pipe(planned, virtual_time{}, all.stages(), {.window = {.steps = 6, .most_amended = 2}});
  std::vector<bool> early;
  pipe.run(20, [&](step_result const& step) { early.push_back(step.update.is_post_validated); });
  // Three of the last six were amended from step 6 on; the first of them leaves the window when
  // step 8 has been judged, but step 6 has joined, so it takes until step 9.
  std::vector<bool> expected(20, true);
  for (std::size_t step : {6U, 7U, 8U, 9U}) expected[step] = false;
  expected.back() = false;
  CHECK(early == expected);
}

TEST_CASE(
    "what fails while a step is pending leaves all ranks before it or behind it",
    "[optimizer-steps][long]") {
  auto const p = GENERATE(2, 3, 4);
  auto const is_v = GENERATE(false, true);
  auto const kind = GENERATE(step_kind::post_validated, step_kind::synchronous);
  auto const throwing_stage = GENERATE(0, 1);
  auto const throwing_microbatch = GENERATE(0, 1, 2, 3);
  CAPTURE(p, is_v, kind == step_kind::synchronous, throwing_stage, throwing_microbatch);
  auto const problem =
      checked::make_problem(is_v ? placement::v_shape(p) : placement::linear(p), 4, 87, {});
  auto const planned = is_v ? make_plan(zb_v{}, problem, {.step = kind})
                            : make_plan(zb_h1{}, problem, {.step = kind});
  on_backends([&](auto backend) {
    auto const taken = checked::train_through_failure(
        planned,
        backend,
        {},
        [&](checked::model& all) { all.maths(throwing_stage).throw_in(3, throwing_microbatch); },
        10);
    CHECK((taken == 3 || (taken == 2 && kind == step_kind::post_validated)));
  });
}

TEST_CASE("a failure after a resume follows no verdict of before", "[optimizer-steps]") {
  for (auto const kind : {step_kind::post_validated, step_kind::synchronous}) {
    auto const planned = checked::line_plan(3, 4, {.step = kind});
    checked::model all({.stages = 3});
    pipeline pipe(planned, virtual_time{}, all.stages());
    pipe.run(3);
    auto const before = pipe.state();
    pipe.run(1);
    auto const bits = all.bits();
    pipe.resume(before);
    all.maths(1).throw_in(3, 2);
    CHECK_THROWS_WITH(pipe.run(1), Catch::Matchers::EndsWith(": thrown by the test"));
    CHECK(pipe.steps() == 3);
    CHECK(all.bits() == bits);
  }
}

// Two replicas, pipelines of their own, each with every other microbatch. Gradients are added in
// one order on both, so both keep the same weights.
TEST_CASE(
    "replicas add up their gradients when those of a stage are complete", "[optimizer-steps]") {
  constexpr int ranks = 3;
  problem const problem(placement::linear(ranks), 4, costs(), 87);
  auto const train_replicas = [&](step_kind kind) {
    auto const planned = make_plan(zb_h1{}, problem, {.step = kind});
    std::array<checked::model, 2> replicas{
        checked::model({.stages = ranks}), checked::model({.stages = ranks, .first_batch = 100})};
    std::array<std::barrier<>, ranks> both_complete{
        std::barrier<>(2), std::barrier<>(2), std::barrier<>(2)};
    std::array<std::barrier<>, ranks> both_read{
        std::barrier<>(2), std::barrier<>(2), std::barrier<>(2)};
    auto const train_one = [&](std::size_t own) {
      training_options options{.clip = 1.8};
      options.on_gradients_ready = [&, own](int stage, pass_context) {
        auto const s = static_cast<std::size_t>(stage);
        both_complete[s].arrive_and_wait();
        auto sum = replicas[0].maths(stage).gradients();
        auto const& other = replicas[1].maths(stage).gradients();
        for (std::size_t k = 0; k < sum.size(); ++k)
          std::ranges::transform(sum[k], other[k], sum[k].begin(), std::plus());
        both_read[s].arrive_and_wait();
        replicas[own].maths(stage).set_gradients(sum);
      };
      pipeline pipe(planned, threads{}, replicas[own].stages(), options);
      pipe.run(12);
    };
    std::thread other([&] { train_one(1); });
    train_one(0);
    other.join();
    CHECK(replicas[0].bits() == replicas[1].bits());
    return replicas[0].bits();
  };
  auto const late = train_replicas(step_kind::post_validated);
  CHECK(late == train_replicas(step_kind::synchronous));
  CHECK(late != checked::train_alone({.stages = ranks}, 4, 12, {.clip = 1.8}).bits);
}

TEST_CASE("random trainings give the bits of one process", "[optimizer-steps][fuzz]") {
  constexpr int rounds = thinned(800, 30);
  happenings all;
  for (int round = 0; round < rounds; ++round) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(round));
    auto const [planned, settings, options, name] = checked::make_random_training(random, steps);
    INFO("round " << round << ": " << name);
    auto const cut = static_cast<int>(random.integer(1, steps - 2));
    auto const cuts = round % 2 == 0 ? lengths : std::vector{cut, 1, steps - 1 - cut};
    threads const some{.count = static_cast<int>(random.integer(0, 2))};
    auto const found = round % 5 == 0 ? train(planned, some, settings, options, cuts)
                                      : train(planned, virtual_time{}, settings, options, cuts);
    auto const m = planned.problem().microbatches();
    REQUIRE(difference(found.given, checked::train_alone(settings, m, steps, options)) == "");
    all += found.seen;
  }
  std::printf(
      "%d random trainings: %d steps amended, %d skipped, %d clipped, %d without agreement\n",
      rounds,
      all.amended,
      all.skipped,
      all.clipped,
      all.unagreed);
  CHECK(all.amended > rounds / 2);
  CHECK(all.skipped > rounds / 2);
  CHECK(all.clipped > rounds);
  CHECK(all.unagreed > rounds / 4);
}

TEST_CASE("what cannot be is refused with what to do", "[optimizer-steps]") {
  problem const problem(placement::linear(2), 2, costs(), 87);
  auto const late = make_plan(zb_h1{}, problem, {.step = step_kind::post_validated});
  checked::model all({.stages = 2});
  auto const refuses = [&](plan const& planned, training_options const& options) {
    return refusal([&] { pipeline(planned, virtual_time{}, all.stages(), options); });
  };
  CHECK(
      refuses(make_plan(zb_h1{}, problem), {.clip = 1}) ==
      "clipping and dynamic loss scaling need ranks that agree; lower the plan with "
      "step_kind::synchronous or post_validated");
  CHECK(refuses(late, {.clip = -1}) == "clip is a number from 0");
  CHECK(refuses(late, {.learning_rate = {}}) == "learning_rate is empty; give a function");
  CHECK(refuses(late, {.scaling = {.initial = 3}}) == "loss scales are powers of two");
  CHECK(
      refuses(late, {.scaling = {.initial = 0x1p30}}) ==
      "the initial loss scale lies between the smallest and the largest");
  CHECK(refuses(late, {.accumulate = 0}) == "accumulate counts steps; it is at least 1");
  CHECK(refuses(late, {.window = {.steps = 65}}) == "the window of validations has 0 to 64 steps");
  auto const tied = make_plan(zb_h1{}, checked::make_problem(placement::linear(2), 2, 87, {0, 1}));
  CHECK(
      refuses(tied, {}) ==
      "stage 0: its optimizer has 0 bytes of tied gradients, and its problem states 64; give both "
      "the same");
  checked::model with_ties({.stages = 2, .tied = {0, 1}});
  CHECK(
      refusal([&] { pipeline(late, virtual_time{}, with_ties.stages()); }) ==
      "stage 0: its optimizer has 64 bytes of tied gradients, and its problem states 0; give both "
      "the same");
  auto const& tied_problem = tied.problem();
  for (auto const& stages : {std::vector<int>{}, {0}}) {
    plan const other(
        "tested",
        tied_problem,
        tied.schedule(),
        lower(tied.schedule(), {.step = step_kind::synchronous, .tied = stages}));
    CHECK(
        refusal([&] { pipeline(other, virtual_time{}, with_ties.stages()); }) ==
        "the program has other tied stages than the problem; lower its schedule with "
        "lower_options::tied = problem.tied_stages()");
  }
  pipeline pipe(late, virtual_time{}, all.stages());
  CHECK(refusal([&] { pipe.run(0); }) == "run() takes a number of steps from 1");
}

}  // namespace test_optimizer_steps
