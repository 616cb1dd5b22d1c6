// SPDX-License-Identifier: Apache-2.0
//
// The claim of tensor parallel stages: whatever the policy, the backend and the gradients, each
// member of a tensor group has the bits of one process that computes the part of each member and
// adds partial sums in their order; and all members take the step of the whole model.
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/grid_training.hpp>
#include <support/tensor_model.hpp>

namespace test_tensor_parallel {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::test::tensor::history;
using zbpp::test::tensor::model_settings;

namespace {

struct network {
  using settings = model_settings;
  static settings fit(settings own, placement const& placement) {
    own.stages = placement.stages();
    return own;
  }
  static problem make_problem(
      placement const& placement, int microbatches, settings const& own, int replicas) {
    auto const alone = tensor::make_problem(placement, microbatches, own);
    return replicas == 1 ? alone : with_replicas(alone, {.count = replicas, .latency = 20});
  }
  static tensor::model make_model(settings const& own, int member) {
    return tensor::model(own, member);
  }
  static std::vector<std::vector<history>> train(
      std::vector<settings> const& all,
      int microbatches,
      int steps,
      training_options const& options) {
    return tensor::train_alone(all, microbatches, steps, options);
  }
};

void check(
    int ranks, int replicas, model_settings const& settings, training_options const& options) {
  check_grid<network>(ranks, replicas, settings, options);
}

plan plan_of(int ranks, int microbatches, step_kind kind) {
  return make_plan(
      zb_h1{}, tensor::make_problem(placement::linear(ranks), microbatches, {}), {.step = kind});
}

// Trains two members of a tensor group. Returns what they threw.
template <class Run>
std::string error_of(errc code, plan const& planned, Run run, model_settings settings = {}) {
  settings.stages = planned.problem().stages();
  in_process_grid whole({.pipeline = settings.stages, .data = 1, .tensor = 2});
  return refusal(code, [&] {
    whole.run([&](grid_place const& at) {
      tensor::model own(settings, at.tensor());
      pipeline shared(planned, threads{.place = at}, own.stages());
      run(at, shared);
    });
  });
}

}  // namespace

TEST_CASE("members have the bits of one process that adds parts in order", "[tensor][long]") {
  auto const p = GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3}, {2})));
  auto const members = GENERATE(2, 3);
  check(p, 1, {.members = members}, {});
}

TEST_CASE("so they have in replicas", "[tensor][long]") {
  check(2, 2, {.members = GENERATE(2, 3)}, {});
}

TEST_CASE("each member clips by the norm of the whole model", "[tensor][long]") {
  for (double const clip : {1e-3, 0.7, 3.0})
    check(2, 1, {.members = 2, .undo = optim::undo_method::copies}, {.clip = clip});
  check(2, 2, {.members = 3}, {.clip = 2});
}

TEST_CASE("a gradient of one member that is not finite skips the step on all", "[tensor][long]") {
  constexpr auto nothing = std::numeric_limits<float>::quiet_NaN();
  training_options options;
  options.clip = 3;
  options.scaling = {.initial = 256, .growth_interval = 2, .largest = 1024};
  model_settings settings{.members = GENERATE(2, 3)};
  settings.faults = {
      {.step = 1, .stage = 0, .microbatch = 1, .member = 1},
      {.step = 4, .stage = 1, .microbatch = 0, .member = 0, .value = nothing},
      {.step = 5, .stage = 0, .microbatch = 0, .member = 1, .is_replicated = true},
      {.step = 6, .stage = 1, .microbatch = 2, .member = 0, .is_replicated = true}};
  check(2, GENERATE(1, 2), settings, options);
}

TEST_CASE(
    "gradients are added up over steps first, and judged over members then", "[tensor][long]") {
  check(2, 2, {.members = 2}, {.clip = 2, .accumulate = 2});
}

TEST_CASE("members step alike where ranks agree on some steps alone", "[tensor]") {
  training_options options;
  options.clip = 1e3;
  options.agreement = {.every = 3, .share = 1};
  model_settings settings{.members = 2};
  settings.faults = {
      {.step = 1, .stage = 0, .microbatch = 1, .member = 1},
      {.step = 4, .stage = 1, .microbatch = 0, .member = 0}};
  check(2, 1, settings, options);
}

TEST_CASE("what one member asks for after a step happens on all", "[tensor]") {
  auto const planned = plan_of(2, 3, GENERATE(step_kind::synchronous, step_kind::post_validated));
  std::vector<std::int64_t> ended(2);
  in_process_grid whole({.pipeline = 2, .data = 1, .tensor = 2});
  whole.run([&](grid_place const& at) {
    tensor::model own({.stages = 2}, at.tensor());
    pipeline shared(planned, threads{.place = at}, own.stages(), {.clip = 1});
    shared.run(20, [&](step_result const&) {
      bool const stops = at.tensor() == 1 && shared.steps() == 4;
      return stops ? after_step::stop : after_step::go_on;
    });
    ended[static_cast<std::size_t>(at.tensor())] = shared.steps();
  });
  CHECK(ended[0] == ended[1]);
  CHECK(ended[0] >= 4);
  CHECK(ended[0] <= 6);
}

TEST_CASE("the failure of one member ends the steps of all", "[tensor]") {
  auto const planned = plan_of(3, 4, GENERATE(step_kind::unchecked, step_kind::post_validated));
  model_settings settings;
  settings.faults = {{.step = 2, .stage = 1, .microbatch = 3, .member = 1, .is_thrown = true}};
  std::atomic<int> told{0};
  auto const text = error_of(
      errc::pass_failed,
      planned,
      [&](grid_place const& at, auto& shared) {
        auto const code = at.tensor() == 1 ? errc::pass_failed : errc::peer_failed;
        note_failure(told, code, "thrown by the test", [&] { shared.run(5); });
      },
      settings);
  CHECK(has(text, "thrown by the test"));
  CHECK(told == 2);
}

TEST_CASE("pipelines with different plans are told what differs before a step", "[tensor]") {
  auto const runs = [](plan const& first, plan const& other) {
    std::atomic<int> steps_run{0};
    in_process_grid whole({.pipeline = 2, .data = 1, .tensor = 2});
    auto const text = refusal(errc::no_agreement, [&] {
      whole.run([&](grid_place const& at) {
        tensor::model own({.stages = 2}, at.tensor());
        pipeline shared(at.tensor() == 0 ? first : other, threads{.place = at}, own.stages());
        shared.run(3, [&](step_result const&) { ++steps_run; });
      });
    });
    CHECK(steps_run == 0);
    return text;
  };
  auto const of = [](auto policy, int microbatches) {
    return make_plan(
        policy,
        tensor::make_problem(placement::linear(2), microbatches, {}),
        {.step = step_kind::synchronous});
  };
  auto const differs = [&](plan const& first, plan const& other, std::string const& found) {
    auto const text = runs(first, other);
    INFO(text);
    CHECK(text.starts_with(found));
    CHECK(text.ends_with("; give pipelines that wait for each other the same plan"));
    auto const row = text.find("instructions of rank 0 (");
    REQUIRE(row != std::string::npos);
    CHECK(text.find(" on rank 0 (pipeline 0, tensor 0), ", row) != std::string::npos);
    CHECK(text.find(" on rank 1 (pipeline 0, tensor 1))", row) != std::string::npos);
  };
  differs(
      of(zb_h1{}, 4),
      of(gpipe{}, 4),
      "policy (ZB-H1 on rank 0 (pipeline 0, tensor 0), GPipe on rank 1 (pipeline 0, tensor 1)), "
      "passes of rank 0");
  differs(
      of(zb_h1{}, 4),
      of(zb_h1{}, 5),
      "number of microbatches (4 on rank 0 (pipeline 0, tensor 0), 5 on rank 1 (pipeline 0, tensor "
      "1)), ");
  differs(
      plan_of(2, 4, step_kind::synchronous),
      plan_of(2, 4, step_kind::unchecked),
      "program, instructions of rank 0 (");
}

TEST_CASE("members with different layers are told which", "[tensor]") {
  auto const planned = plan_of(1, 2, step_kind::synchronous);
  auto const with = [&](bool compares_weights,
                        std::function<void(std::vector<optim::layer>&)> const& change) {
    in_process_grid whole({.pipeline = 1, .data = 1, .tensor = 2});
    return refusal(errc::no_agreement, [&] {
      whole.run([&](grid_place const& at) {
        tensor::block own({.stages = 1}, 0, at.tensor());
        auto layers = own.layers();
        if (at.tensor() == 1) change(layers);
        optim::adamw optimizer(layers);
        std::vector<tensor::stage> stages{{own, optimizer, false}};
        pipeline(planned, threads{.place = at}, stages, {.compares_weights = compares_weights})
            .step();
      });
    });
  };
  auto const fewer = [](auto& layers) { layers.pop_back(); };
  auto const in_parts = [](auto& layers) { layers[3].is_replicated = false; };
  CHECK(
      has(with(true, fewer),
          "weights of layer 4 of stage 0 (only on rank 0 (tensor 0)); begin with the same layers "
          "and weights on all of them"));
  CHECK(has(with(true, in_parts), "weights of layer 3 of stage 0 (only on rank 0 (tensor 0)); "));
  CHECK(
      has(with(false, fewer),
          "of a tensor group, member 0 has 5 layers on a rank and member 1 has 4; give all members "
          "the same layers"));
  CHECK(
      has(with(false, in_parts),
          "of a tensor group, layer 3 of stage 0 is replicated on member 0 and not on member 1; "
          "say the same of it on all members"));
}

TEST_CASE("gradients of a replicated layer that differ are found", "[tensor]") {
  auto const text = error_of(
      errc::no_agreement,
      plan_of(2, 3, step_kind::synchronous),
      [](auto const&, auto& shared) { shared.run(3); },
      {.leaves_tokens_out = true});
  CHECK(has(text, "layer 3 of stage "));
  CHECK(
      has(text,
          "is replicated, and its gradients on member 0 and on member 1 "
          "differ; compute them from the same values on all members, or add them up by "
          "all_reduce"));
}

TEST_CASE(
    "each member sends its share of an edge, with the bits of whole edges", "[tensor][long]") {
  auto const members = GENERATE(2, 3);
  check(3, 1, {.members = members, .sends_shares = true}, {.clip = 2});
  check(2, 2, {.members = members, .sends_shares = true}, {.clip = 2});
}

TEST_CASE("the share of an edge is as many times smaller as there are members", "[tensor]") {
  // Costs state what an edge carries at most: here that of shares, which whole edges exceed.
  auto const planned = make_plan(
      zb_h1{}, tensor::make_problem(placement::linear(2), 3, {.members = 2, .sends_shares = true}));
  CHECK(planned.problem().costs(0).edge == tensor::edge / 2);
  auto const text =
      error_of(errc::wrong_size, planned, [](auto const&, auto& shared) { shared.step(); });
  CHECK(has(text, "edge 0->1 carries 96 bytes of activation; the costs declare at most 48"));
}

}  // namespace test_tensor_parallel
