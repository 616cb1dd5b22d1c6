// SPDX-License-Identifier: Apache-2.0
//
// The claim of replicas: whatever the policy, the backend and the gradients, all replicas have the
// bits of one process that adds the gradients of each up in their order.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_replicas {

using namespace zbpp::test;
using zbpp::errc;
using zbpp::grid_place;
using zbpp::in_process_grid;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;
using zbpp::step_kind;
using zbpp::step_result;
using zbpp::threads;
using zbpp::training_options;
using zbpp::virtual_time;
using zbpp::test::checked::history;
using zbpp::test::checked::model_settings;

namespace {

constexpr int steps = 8;
constexpr std::size_t size_of_layer = sizeof(checked::matrix);

// Each replica has data of its own, and the first one the faults.
std::vector<model_settings> settings_of(
    int replicas, model_settings const& first, int microbatches) {
  std::vector<model_settings> all;
  for (int n = 0; n < replicas; ++n) {
    all.push_back(first);
    all.back().first_batch = n * microbatches;
    if (n > 0) all.back().faults.clear();
  }
  return all;
}

problem with_gradients(problem const& alone, int replicas, bool has_frozen_stage = false) {
  std::vector<zbpp::stage_costs> costs(alone.all_costs().begin(), alone.all_costs().end());
  for (std::size_t s = 0; s < costs.size(); ++s)
    costs[s].gradients = static_cast<zbpp::bytes>((1 + s % 2) * size_of_layer);
  if (has_frozen_stage) costs[1].gradients = 0;
  return with_replicas(with_stages(alone, costs), {.count = replicas, .latency = 20});
}

// Trains all replicas, each in two runs.
template <class Backend>
std::vector<history> train(
    plan const& planned,
    Backend backend,
    std::vector<model_settings> const& settings,
    training_options const& options) {
  in_process_grid whole(
      {.pipeline = planned.problem().ranks(), .data = static_cast<int>(settings.size())});
  std::vector<history> all(settings.size());
  whole.run([&](grid_place const& at) {
    auto& result = all[static_cast<std::size_t>(at.data())];
    checked::model own(settings[static_cast<std::size_t>(at.data())]);
    auto place = backend;
    place.place = at;
    pipeline replica(planned, place, own.stages(), options);
    for (int const count : {3, steps - 3})
      replica.run(count, [&](step_result const& step) { result.add(step); });
    result.bits = own.bits();
  });
  return all;
}

template <class Visit>
void for_each_plan(int ranks, int replicas, model_settings const& settings, Visit visit) {
  for (auto const& placement : placements_to_run(ranks))
    for (auto const& policy : grid_policies()) {
      auto const m = ranks + 1;
      auto own_tied = settings.tied;
      if (!own_tied.empty()) own_tied = {0, placement.stages() - 1};
      if (!own_tied.empty() && placement.stages() < 2) continue;
      auto const alone = checked::make_problem(placement, m, 87, own_tied);
      if (!is_supported(policy, alone)) continue;
      auto const problem = with_gradients(alone, replicas, settings.has_frozen_stage);
      for (auto const kind :
           {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated})
        visit(zbpp::make_plan(policy, problem, {.step = kind}), kind, own_tied);
    }
}

// Checks every policy and placement on both backends.
void check(
    int ranks, int replicas, model_settings const& settings, training_options const& options) {
  for_each_plan(
      ranks,
      replicas,
      settings,
      [&](plan const& planned, step_kind kind, std::vector<int> const& tied) {
        bool const is_agreed = kind != step_kind::unchecked;
        // A stage that steps by itself skips what is not finite only where ranks agree.
        if (!is_agreed && (options.clip > 0 || !settings.faults.empty())) return;
        auto own = settings;
        own.stages = planned.problem().stages();
        own.tied = tied;
        auto const m = planned.problem().microbatches();
        auto const all = settings_of(replicas, own, m);
        auto expected = checked::train_replicas(all, std::vector<int>(steps, m), options);
        auto on_threads = train(planned, threads{}, all, options);
        auto in_turn = train(planned, virtual_time{}, all, options);
        if (!is_agreed) {
          for (auto* const outcome : {&expected, &on_threads, &in_turn})
            std::ranges::for_each(*outcome, &history::forget_updates);
        }
        INFO(planned.policy() << " on " << planned.problem().placement().name());
        CAPTURE(static_cast<int>(kind));
        for (std::size_t n = 0; n < all.size(); ++n) {
          CAPTURE(n);
          CHECK(difference(on_threads[n], expected[n]).empty());
          CHECK(difference(in_turn[n], expected[n]).empty());
          CHECK(on_threads[n].bits == expected.front().bits);
        }
      });
}

}  // namespace

TEST_CASE("replicas have the bits of one process that adds them up in order", "[replicas][long]") {
  auto const p = GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3}, {2})));
  auto const replicas = GENERATE(2, 3, 4);
  if (replicas > thinned(4, 3)) return;
  check(p, replicas, {}, {});
}

TEST_CASE("the norm is that of the sums, and clips all replicas alike", "[replicas]") {
  for (double const clip : {1e-3, 1.2}) check(2, 2, {.dropout = true}, {.clip = clip});
}

TEST_CASE("a gradient of one replica that is not finite skips the step on all", "[replicas]") {
  constexpr auto infinite = std::numeric_limits<float>::infinity();
  constexpr auto nothing = std::numeric_limits<float>::quiet_NaN();
  training_options options;
  options.clip = 1.5;
  options.scaling = {.initial = 256, .growth_interval = 2, .largest = 1024};
  check(2, 3, {.faults = {{2, 0, 1, infinite}, {5, 1, 0, nothing}}}, options);
}

TEST_CASE("gradients are added up over steps first, and over replicas then", "[replicas]") {
  check(2, 3, {}, {.clip = 2, .accumulate = 2});
}

TEST_CASE("tied weights and a frozen stage stay what they are in replicas", "[replicas]") {
  check(3, 2, {.uses_adamw = false, .tied = {0}}, {.clip = 1.5});
  check(3, 2, {.has_frozen_stage = true}, {.clip = 1.5});
}

namespace {

// Trains replicas that share the steps of each stage.
// @return the weights of each, and how many moments all keep together
struct sharded_outcome {
  std::vector<std::vector<std::uint32_t>> weights;
  std::vector<std::vector<double>> norms;
  std::size_t moments = 0;
  std::size_t most_moments = 0;
};

template <class Backend>
sharded_outcome train_sharded(
    plan const& planned,
    Backend backend,
    std::vector<model_settings> const& settings,
    training_options const& options) {
  in_process_grid whole(
      {.pipeline = planned.problem().ranks(), .data = static_cast<int>(settings.size())});
  sharded_outcome all;
  all.weights.resize(settings.size());
  all.norms.resize(settings.size());
  std::vector<std::size_t> moments(settings.size());
  whole.run([&](grid_place const& at) {
    auto const n = static_cast<std::size_t>(at.data());
    checked::model own(settings[n]);
    auto place = backend;
    place.place = at;
    pipeline replica(planned, place, own.stages(), options);
    for (int const count : {3, steps - 3})
      replica.run(
          count, [&](step_result const& step) { all.norms[n].push_back(step.update.norm); });
    all.weights[n] = own.weight_bits();
    moments[n] = own.moments();
  });
  for (auto const count : moments) {
    all.moments += count;
    all.most_moments = std::max(all.most_moments, count);
  }
  return all;
}

void check_sharded(
    int ranks,
    int replicas,
    model_settings settings,
    training_options const& options,
    std::vector<step_kind> const& kinds) {
  for (auto const& placement : placements_to_run(ranks))
    for (auto const kind : kinds) {
      settings.stages = placement.stages();
      auto const m = ranks + 1;
      auto const alone = with_gradients(
          checked::make_problem(placement, m, 87, {}), replicas, settings.has_frozen_stage);
      auto costs = alone.replicas();
      costs.shards_optimizer = true;
      auto const planned = zbpp::make_plan(
          zbpp::greedy_auto{.search = {.seconds = 0.001}},
          with_replicas(alone, costs),
          {.step = kind,
           .at_once = kind == step_kind::synchronous ? settings.at_once : std::vector<int>{}});
      auto const all = settings_of(replicas, settings, m);
      auto const expected = checked::train_replicas(all, std::vector<int>(steps, m), options);
      std::vector<model_settings> const single{all.front()};
      checked::model whole(all.front());
      INFO(placement.name() << ", " << replicas << " replicas, kind " << static_cast<int>(kind));
      for (auto const& found :
           {train_sharded(planned, threads{}, all, options),
            train_sharded(planned, virtual_time{}, all, options)}) {
        for (std::size_t n = 0; n < all.size(); ++n) {
          CHECK((found.weights[n] == found.weights.front()));
          if (kind == step_kind::synchronous) CHECK(found.norms[n] == expected[n].norms);
        }
        // Moments follow the weights in the bits of the plain loop.
        std::vector<std::uint32_t> const weights(
            expected.front().bits.begin(),
            expected.front().bits.begin() +
                static_cast<std::ptrdiff_t>(found.weights.front().size()));
        CHECK((found.weights.front() == weights));
        CHECK(found.moments == whole.moments());
        // A stage with one layer has it in one replica.
        if (placement.stages() > 1 && !settings.has_frozen_stage)
          CHECK(found.most_moments < whole.moments());
      }
    }
}

}  // namespace

TEST_CASE("replicas that share the steps have the bits of those that take all", "[replicas]") {
  auto const p = GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3}, {2})));
  for (int const replicas : {2, 3, 4})
    check_sharded(p, replicas, {}, {}, {step_kind::unchecked, step_kind::synchronous});
}

TEST_CASE("shared steps are clipped, scaled, skipped and accumulated alike", "[replicas]") {
  constexpr auto infinite = std::numeric_limits<float>::infinity();
  training_options options;
  options.clip = 1.2;
  options.scaling = {.initial = 256, .growth_interval = 2, .largest = 1024};
  check_sharded(
      2,
      3,
      {.faults = {{2, 0, 1, infinite}, {5, 1, 0, infinite}}},
      options,
      {step_kind::synchronous});
  check_sharded(2, 2, {.uses_adamw = false}, {.accumulate = 2}, {step_kind::unchecked});
  check_sharded(3, 3, {.has_frozen_stage = true}, {.clip = 1e-3}, {step_kind::synchronous});
  check_sharded(2, 2, {.at_once = {0}}, {.clip = 1.2}, {step_kind::synchronous});
}

TEST_CASE("steps that replicas cannot share are refused", "[replicas]") {
  auto const refused = [&](std::vector<int> const& tied, step_kind kind) {
    auto const alone = checked::make_problem(zbpp::placement::linear(2), 3, 87, tied);
    return refusal([&] {
      static_cast<void>(zbpp::make_plan(
          zbpp::zb_h1{},
          with_replicas(alone, {.count = 2, .shards_optimizer = true}),
          {.step = kind}));
    });
  };
  CHECK(
      refused({}, step_kind::post_validated) ==
      "a sharded optimizer gives weights to the other replicas, which cannot be taken back; lower "
      "with step_kind::synchronous");
  CHECK(
      refused({0, 1}, step_kind::synchronous) ==
      "shards_optimizer divides the layers of a stage, and tied weights need the sums of all "
      "replicas; leave one of the two out");
  CHECK(refusal([&] {
          static_cast<void>(with_replicas(
              checked::make_problem(zbpp::placement::linear(2), 3, 87, {}),
              {.shards_optimizer = true}));
        }) == "replicas: shards_optimizer is set and there is one replica; give a count above 1");
}

namespace {

// Has one weight more than gradients.
struct uneven_steps final : zbpp::optimizer {
  [[nodiscard]] int layers() const override { return 1; }
  void measure(std::span<zbpp::gradient_state>, zbpp::pass_context) override {}
  void step(zbpp::step_settings const&, zbpp::pass_context) override {}
  void commit(zbpp::pass_context) override {}
  void undo(zbpp::pass_context) override {}
  void skip(zbpp::pass_context) override {}
  [[nodiscard]] std::optional<std::int64_t> gradient_count() const override { return 6; }
  void read_gradients(std::span<float>, zbpp::pass_context) override {}
  void write_gradients(std::span<float const>, zbpp::pass_context) override {}
  [[nodiscard]] std::optional<std::int64_t> layer_size(int) const override { return 7; }
  [[nodiscard]] bool can_share() const override { return true; }
  void share(int, int) override {}
  void read_weights(int, std::span<float>, zbpp::pass_context) override {}
  void write_weights(int, std::span<float const>, zbpp::pass_context) override {}
};

struct uneven_stage {
  uneven_steps& steps;
  zbpp::flow operator()(zbpp::microbatch) { co_return; }
  uneven_steps& optimizer() const { return steps; }
};

}  // namespace

TEST_CASE("layers that are not as large as the gradients are refused", "[replicas]") {
  auto const alone = checked::make_problem(zbpp::placement::linear(1), 1, 87, {});
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{},
      with_replicas(alone, {.count = 2, .shards_optimizer = true}),
      {.step = step_kind::synchronous});
  uneven_steps optimizer;
  std::vector<uneven_stage> stages{{optimizer}};
  in_process_grid whole({.pipeline = 1, .data = 2});
  CHECK(
      refusal([&] { pipeline(planned, threads{.place = whole.place(0)}, stages); }) ==
      "stage 0: the layers of its optimizer have 7 weights, and it has 6 gradients; give both the "
      "same");
}

namespace {

// [in_parts
// Divides a layer whose memory stays where it is into parts that replicas can share.
std::vector<zbpp::optim::layer> in_parts(zbpp::optim::layer const& whole, std::size_t count) {
  std::vector<zbpp::optim::layer> parts(count, whole);  // with its weight decay
  for (std::size_t i = 0; i < count; ++i) {
    auto const begin = whole.weights.size() * i / count;
    auto const size = whole.weights.size() * (i + 1) / count - begin;
    parts[i].weights = whole.weights.subspan(begin, size);
    parts[i].gradients = whole.gradients.subspan(begin, size);
  }
  return parts;
}
// in_parts]

// Trains two replicas of a stage of one layer, divided or not.
// @return the weights, and how many moments each replica keeps
std::pair<std::vector<checked::matrix>, std::array<std::size_t, 2>> train_one_layer(
    std::size_t parts, bool is_sharded, step_kind kind) {
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{},
      with_replicas(
          checked::make_problem(zbpp::placement::linear(1), 2, 87, {}),
          {.count = 2, .shards_optimizer = is_sharded}),
      {.step = kind});
  std::array<std::vector<checked::matrix>, 2> weights;
  std::array<std::size_t, 2> moments{};
  in_process_grid whole({.pipeline = 1, .data = 2});
  whole.run([&](grid_place const& at) {
    auto const n = static_cast<std::size_t>(at.data());
    checked::stage_maths maths({.stages = 1, .first_batch = 2 * at.data()}, 0);
    zbpp::optim::adamw steps_of(in_parts(maths.optimized().front(), parts));
    std::vector<checked::optimized_stage<zbpp::optim::adamw>> stages{{maths, steps_of}};
    pipeline replica(
        planned,
        threads{.place = at},
        stages,
        training_options{.clip = kind == step_kind::unchecked ? 0 : 1e-3});
    replica.run(steps);
    weights[n] = maths.weights();
    moments[n] = steps_of.mean().size();
  });
  CHECK((weights[0] == weights[1]));
  return {weights[0], moments};
}

}  // namespace

TEST_CASE("replicas share a layer that is divided", "[replicas]") {
  constexpr std::size_t size = checked::width * checked::width;
  using counts = std::array<std::size_t, 2>;
  auto const [whole, of_one] = train_one_layer(1, true, step_kind::unchecked);
  CHECK(of_one[0] + of_one[1] == size);
  CHECK(std::ranges::min(of_one) == 0);
  for (auto const parts : {std::size_t{2}, std::size_t{3}, std::size_t{5}}) {
    CAPTURE(parts);
    // Each weight is stepped by itself.
    auto const [divided, kept] = train_one_layer(parts, true, step_kind::unchecked);
    CHECK((divided == whole));
    CHECK(kept[0] + kept[1] == size);
    CHECK(std::ranges::min(kept) > 0);
    if (parts == 2) CHECK(kept == counts{size / 2, size / 2});
    // A norm adds up the parts, which rounds in another way, whoever steps them.
    auto const clipped = train_one_layer(parts, true, step_kind::synchronous).first;
    CHECK((clipped == train_one_layer(parts, false, step_kind::synchronous).first));
  }
}

TEST_CASE("one replica pauses and stops the run of all after the same step", "[replicas]") {
  for (auto const kind : {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated})
    for (int const who : {0, 1, 2}) {
      CAPTURE(static_cast<int>(kind), who);
      auto const planned = zbpp::make_plan(
          zbpp::zb_h2{},
          with_gradients(checked::make_problem(zbpp::placement::linear(3), 4, 87, {}), 3),
          {.step = kind});
      in_process_grid whole({.pipeline = 3, .data = 3});
      std::vector<std::int64_t> paused(3);
      std::vector<std::int64_t> ended(3);
      whole.run([&](grid_place const& at) {
        auto const n = static_cast<std::size_t>(at.data());
        checked::model own({.stages = 3, .first_batch = 100 * at.data()});
        pipeline replica(planned, threads{.place = at}, own.stages());
        replica.run(
            40,
            [&](step_result const&) {
              if (at.data() != who) return zbpp::after_step::go_on;
              if (replica.steps() == 5) return zbpp::after_step::pause;
              return replica.steps() == 11 ? zbpp::after_step::stop : zbpp::after_step::go_on;
            },
            {.on_pause = [&] { paused[n] = replica.steps(); }});
        ended[n] = replica.steps();
      });
      CHECK((paused[0] >= 5 && paused[0] <= 7));
      CHECK((ended[0] >= 11 && ended[0] <= 13));
      CHECK(paused == std::vector<std::int64_t>(3, paused[0]));
      CHECK(ended == std::vector<std::int64_t>(3, ended[0]));
    }
}

TEST_CASE("the failure of one replica ends the steps of all", "[replicas]") {
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{},
      with_gradients(checked::make_problem(zbpp::placement::linear(3), 4, 87, {}), 3),
      {.step = GENERATE(step_kind::unchecked, step_kind::post_validated)});
  std::atomic<int> told{0};
  in_process_grid whole({.pipeline = 3, .data = 3});
  auto const run = [&] {
    whole.run([&](grid_place const& at) {
      checked::model own({.stages = 3});
      if (at.data() == 1) own.maths(2).throw_in_w(2, 3);
      pipeline replica(planned, threads{.place = at}, own.stages());
      try {
        replica.run(5);
      } catch (zbpp::error const& failed) {
        bool const is_cause = at.data() == 1;
        bool const names_cause =
            std::string(failed.what()).find("thrown by the test") != std::string::npos;
        bool const is_told = failed.code() == (is_cause ? errc::pass_failed : errc::peer_failed);
        if (names_cause && is_told) ++told;
        throw;
      }
    });
  };
  try {
    run();
    FAIL("the failure was not thrown");
  } catch (zbpp::error const& failed) {
    CHECK(failed.code() == errc::pass_failed);
  }
  CHECK(told == 3);
}

TEST_CASE("replicas that do not fit the plan are refused", "[replicas]") {
  auto const alone = checked::make_problem(zbpp::placement::linear(2), 3, 87, {});
  auto const make = [&](problem const& stated, zbpp::grid const& grid, model_settings settings) {
    in_process_grid whole(grid);
    settings.stages = 2;
    checked::model own(settings);
    auto const planned = zbpp::make_plan(zbpp::zb_h1{}, stated);
    return refusal([&] { pipeline(planned, threads{.place = whole.place(0)}, own.stages()); });
  };
  CHECK(
      make(alone, {.pipeline = 2, .data = 2}, {}) ==
      "rank 0: the plan adds gradients up over 1 replica, and the grid of the backend has 2; plan "
      "with_replicas(problem, {.count = 2}), or give the backend such a grid");
  CHECK(
      make(with_gradients(alone, 3), {.pipeline = 2, .data = 2}, {}) ==
      "rank 0: the plan adds gradients up over 3 replicas, and the grid of the backend has 2; plan "
      "with_replicas(problem, {.count = 2}), or give the backend such a grid");
  CHECK(
      make(with_gradients(alone, 2), {.pipeline = 3, .data = 2}, {}) ==
      "the plan has 2 ranks and the pipelines of the grid 3; give both the same number");
  auto other = with_gradients(alone, 2);
  std::vector<zbpp::stage_costs> costs(other.all_costs().begin(), other.all_costs().end());
  costs[1].gradients = 8;
  CHECK(
      make(with_stages(other, costs), {.pipeline = 2, .data = 2}, {}) ==
      "stage 1: its optimizer has 128 bytes of gradients, and its problem states 8; give both the "
      "same");
  {
    checked::model own({.stages = 2});
    auto const planned = zbpp::make_plan(zbpp::zb_h1{}, with_gradients(alone, 2));
    CHECK(refusal([&] {
            pipeline(planned, threads{}, own.stages());
          }).find("has 1; plan") != std::string::npos);
  }
  in_process_grid shared({.pipeline = 2, .data = 1, .tensor = 2});
  checked::model own({.stages = 2});
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, alone);
  CHECK(
      refusal([&] {
        pipeline(planned, threads{.count = 1, .place = shared.place(0)}, own.stages());
      }) ==
      "ranks that share stages or experts wait for each other in passes; leave threads.count at 0, "
      "for a thread of each rank");
  CHECK(
      refusal([&] {
        pipeline(
            planned,
            threads{.place = shared.place(0)},
            own.stages(),
            training_options{.on_stall = {.runs_w = true}});
      }) == "on_stall.runs_w moves W of each rank by itself, and ranks that share stages need one "
            "order of passes; leave it false");
}

}  // namespace test_replicas
