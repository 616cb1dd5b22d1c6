// SPDX-License-Identifier: Apache-2.0
//
// The claim of replicas: whatever the policy, the backend and the gradients, all replicas have the
// bits of one process that adds the gradients of each up in their order.
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/grid_training.hpp>

namespace test_replicas {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::test::checked::model_settings;

namespace {

constexpr int steps = 8;
constexpr auto infinite = std::numeric_limits<float>::infinity();
constexpr auto nothing = std::numeric_limits<float>::quiet_NaN();

problem with_gradients(
    problem const& alone, replica_costs replicas, bool has_frozen_stage = false) {
  std::vector<stage_costs> costs(alone.all_costs().begin(), alone.all_costs().end());
  for (std::size_t s = 0; s < costs.size(); ++s)
    costs[s].gradients = static_cast<bytes>((1 + s % 2) * sizeof(checked::matrix));
  if (has_frozen_stage) costs[1].gradients = 0;
  replicas.latency = 20;
  return with_replicas(with_stages(alone, costs), replicas);
}

struct network {
  using settings = model_settings;
  static settings fit(settings own, placement const& placement) {
    own.stages = placement.stages();
    if (!own.tied.empty()) own.tied = {0, own.stages - 1};
    return own;
  }
  static problem make_problem(
      placement const& placement, int microbatches, settings const& own, int replicas) {
    return with_gradients(
        checked::make_problem(placement, microbatches, 87, own.tied),
        {.count = replicas},
        own.has_frozen_stage);
  }
  static checked::model make_model(settings const& own, int) { return checked::model(own); }
  static std::vector<std::vector<checked::history>> train(
      std::vector<settings> const& all,
      int microbatches,
      int count,
      training_options const& options) {
    std::vector<std::vector<checked::history>> found;
    for (auto& each :
         checked::train_replicas(all, std::vector(detail::index(count), microbatches), options))
      found.push_back({std::move(each)});
    return found;
  }
};

void check(
    int ranks, int replicas, model_settings const& settings, training_options const& options) {
  check_grid<network>(ranks, replicas, settings, options);
}

// Trains members of a group of replicas on threads. Calls `work(place, model, pipeline)`.
template <class Work>
void run_replicas(plan const& planned, int replicas, Work work) {
  auto const ranks = planned.problem().ranks();
  in_process_grid whole({.pipeline = ranks, .data = replicas});
  whole.run([&](grid_place const& at) {
    checked::model own({.stages = ranks, .first_batch = 100 * at.data()});
    pipeline replica(planned, threads{.place = at}, own.stages());
    work(at, own, replica);
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

// Checks replicas that share the steps of each stage: weights, norms, and that moments are kept
// once.
void check_sharded(
    int ranks,
    int replicas,
    model_settings const& settings,
    training_options const& options,
    std::vector<step_kind> const& kinds) {
  for (auto const& placement : placements_to_run(ranks))
    for (auto const kind : kinds) {
      auto const m = ranks + 1;
      auto const planned = make_plan(
          greedy_auto{.search = {.seconds = 0.001}},
          with_gradients(
              checked::make_problem(placement, m, 87, {}),
              {.count = replicas, .shards_optimizer = true},
              settings.has_frozen_stage),
          {.step = kind,
           .at_once = kind == step_kind::synchronous ? settings.at_once : std::vector<int>{}});
      auto const all = settings_of_replicas(replicas, network::fit(settings, placement), m);
      auto const expected = network::train(all, m, steps, options);
      auto const count = static_cast<std::ptrdiff_t>(checked::model(all.front()).weights());
      auto const& bits = expected.front().front().bits;  // moments follow the weights
      std::vector const weights(bits.begin(), bits.begin() + count);
      INFO(placement.name() << ", " << replicas << " replicas, kind " << static_cast<int>(kind));
      on_backends([&](auto backend) {
        auto const found = train_grid(
            planned,
            backend,
            {.pipeline = ranks, .data = replicas},
            steps,
            [&](grid_place const& at) { return checked::model(all[detail::index(at.data())]); },
            [&](auto const&...) { return options; });
        std::ptrdiff_t moments = 0;
        for (std::size_t n = 0; n < all.size(); ++n) {
          auto const& own = found[n].front();
          CHECK(std::ranges::equal(std::span(own.bits).first(weights.size()), weights));
          if (kind == step_kind::synchronous) CHECK(own.norms == expected[n].front().norms);
          moments += std::ssize(own.bits) - count;
          // A stage with one layer has it in one replica.
          if (placement.stages() > 1 && !settings.has_frozen_stage)
            CHECK(own.bits.size() < bits.size());
        }
        CHECK(moments == std::ssize(bits) - count);
      });
    }
}

}  // namespace

TEST_CASE("replicas that share the steps have the bits of those that take all", "[replicas]") {
  auto const p = GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3}, {2})));
  for (int const replicas : {2, 3, 4})
    check_sharded(p, replicas, {}, {}, {step_kind::unchecked, step_kind::synchronous});
}

TEST_CASE("shared steps are clipped, scaled, skipped and accumulated alike", "[replicas]") {
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
    auto const alone = checked::make_problem(placement::linear(2), 3, 87, tied);
    return refusal([&] {
      static_cast<void>(make_plan(
          zb_h1{}, with_replicas(alone, {.count = 2, .shards_optimizer = true}), {.step = kind}));
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
              checked::make_problem(placement::linear(2), 3, 87, {}), {.shards_optimizer = true}));
        }) == "replicas: shards_optimizer is set and there is one replica; give a count above 1");
}

namespace {

// Has one weight more than gradients.
struct uneven_steps final : optimizer {
  [[nodiscard]] int layers() const override { return 1; }
  void measure(std::span<gradient_state>, pass_context) override {}
  void step(step_settings const&, pass_context) override {}
  void commit(pass_context) override {}
  void undo(pass_context) override {}
  void skip(pass_context) override {}
  [[nodiscard]] std::optional<std::int64_t> gradient_count() const override { return 6; }
  void read_gradients(std::span<float>, pass_context) override {}
  void write_gradients(std::span<float const>, pass_context) override {}
  [[nodiscard]] std::optional<std::int64_t> layer_size(int) const override { return 7; }
  [[nodiscard]] bool can_share() const override { return true; }
  void share(int, int) override {}
  void read_weights(int, std::span<float>, pass_context) override {}
  void write_weights(int, std::span<float const>, pass_context) override {}
};

struct uneven_stage {
  uneven_steps& steps;
  flow operator()(microbatch) { co_return; }
  uneven_steps& optimizer() const { return steps; }
};

}  // namespace

TEST_CASE("layers that are not as large as the gradients are refused", "[replicas]") {
  auto const alone = checked::make_problem(placement::linear(1), 1, 87, {});
  auto const planned = make_plan(
      zb_h1{},
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
  auto const planned = make_plan(
      zb_h1{},
      with_replicas(
          checked::make_problem(placement::linear(1), 2, 87, {}),
          {.count = 2, .shards_optimizer = is_sharded}),
      {.step = kind});
  std::array<std::vector<checked::matrix>, 2> weights;
  std::array<std::size_t, 2> moments{};
  in_process_grid whole({.pipeline = 1, .data = 2});
  whole.run([&](grid_place const& at) {
    auto const n = static_cast<std::size_t>(at.data());
    checked::stage_maths maths({.stages = 1, .first_batch = 2 * at.data()}, 0);
    optim::adamw steps_of(in_parts(maths.optimized().front(), parts));
    std::vector<checked::optimized_stage> stages{{maths, steps_of}};
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
  for (auto const kind : kinds_of_steps)
    for (int const who : {0, 1, 2}) {
      CAPTURE(static_cast<int>(kind), who);
      auto const planned = make_plan(
          zb_h2{},
          with_gradients(checked::make_problem(placement::linear(3), 4, 87, {}), {.count = 3}),
          {.step = kind});
      std::vector<std::int64_t> paused(3);
      std::vector<std::int64_t> ended(3);
      run_replicas(planned, 3, [&](grid_place const& at, auto&, auto& replica) {
        auto const n = static_cast<std::size_t>(at.data());
        replica.run(
            40,
            [&](step_result const&) {
              if (at.data() != who) return after_step::go_on;
              if (replica.steps() == 5) return after_step::pause;
              return replica.steps() == 11 ? after_step::stop : after_step::go_on;
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
  auto const planned = make_plan(
      zb_h1{},
      with_gradients(checked::make_problem(placement::linear(3), 4, 87, {}), {.count = 3}),
      {.step = GENERATE(step_kind::unchecked, step_kind::post_validated)});
  std::atomic<int> told{0};
  auto const text = refusal(errc::pass_failed, [&] {
    run_replicas(planned, 3, [&](grid_place const& at, checked::model& own, auto& replica) {
      if (at.data() == 1) own.maths(2).throw_in_w(2, 3);
      auto const code = at.data() == 1 ? errc::pass_failed : errc::peer_failed;
      note_failure(told, code, "thrown by the test", [&] { replica.run(5); });
    });
  });
  CHECK(has(text, "thrown by the test"));
  CHECK(told == 3);
}

TEST_CASE("replicas that do not fit the plan are refused", "[replicas]") {
  auto const alone = checked::make_problem(placement::linear(2), 3, 87, {});
  auto const make = [&](problem const& stated, grid const& grid, model_settings settings) {
    in_process_grid whole(grid);
    settings.stages = 2;
    checked::model own(settings);
    auto const planned = make_plan(zb_h1{}, stated);
    return refusal([&] { pipeline(planned, threads{.place = whole.place(0)}, own.stages()); });
  };
  CHECK(
      make(alone, {.pipeline = 2, .data = 2}, {}) ==
      "rank 0: the plan adds gradients up over 1 replica, and the grid of the backend has 2; plan "
      "with_replicas(problem, {.count = 2}), or give the backend such a grid");
  CHECK(
      make(with_gradients(alone, {.count = 3}), {.pipeline = 2, .data = 2}, {}) ==
      "rank 0: the plan adds gradients up over 3 replicas, and the grid of the backend has 2; plan "
      "with_replicas(problem, {.count = 2}), or give the backend such a grid");
  CHECK(
      make(with_gradients(alone, {.count = 2}), {.pipeline = 3, .data = 2}, {}) ==
      "the plan has 2 ranks and the pipelines of the grid 3; give both the same number");
  auto other = with_gradients(alone, {.count = 2});
  std::vector<stage_costs> costs(other.all_costs().begin(), other.all_costs().end());
  costs[1].gradients = 8;
  CHECK(
      make(with_stages(other, costs), {.pipeline = 2, .data = 2}, {}) ==
      "stage 1: its optimizer has 128 bytes of gradients, and its problem states 8; give both the "
      "same");
  {
    checked::model own({.stages = 2});
    auto const planned = make_plan(zb_h1{}, with_gradients(alone, {.count = 2}));
    CHECK(refusal([&] {
            pipeline(planned, threads{}, own.stages());
          }).find("has 1; plan") != std::string::npos);
  }
  in_process_grid shared({.pipeline = 2, .data = 1, .tensor = 2});
  checked::model own({.stages = 2});
  auto const planned = make_plan(zb_h1{}, alone);
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
