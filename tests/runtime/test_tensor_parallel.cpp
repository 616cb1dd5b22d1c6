// SPDX-License-Identifier: Apache-2.0
//
// The claim of tensor parallel stages: whatever the policy, the backend and the gradients, each
// member of a tensor group has the bits of one process that computes the part of each member and
// adds partial sums in their order; and all members take the step of the whole model.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/group_suite.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/tensor_model.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_tensor_parallel {

using namespace zbpp::test;
using zbpp::after_step;
using zbpp::errc;
using zbpp::grid_place;
using zbpp::in_process_grid;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::step_kind;
using zbpp::step_result;
using zbpp::threads;
using zbpp::training_options;
using zbpp::virtual_time;
using zbpp::test::tensor::history;
using zbpp::test::tensor::model_settings;

namespace {

constexpr int steps = 8;

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

// Trains all members of all replicas, each in two runs.
template <class Backend>
std::vector<std::vector<history>> train(
    plan const& planned,
    Backend backend,
    std::vector<model_settings> const& settings,
    training_options const& options) {
  auto const members = settings.front().members;
  in_process_grid whole(
      {.pipeline = planned.problem().ranks(),
       .data = static_cast<int>(settings.size()),
       .tensor = members});
  std::vector<std::vector<history>> all(
      settings.size(), std::vector<history>(static_cast<std::size_t>(members)));
  whole.run([&](grid_place const& at) {
    auto const n = static_cast<std::size_t>(at.data());
    auto& result = all[n][static_cast<std::size_t>(at.tensor())];
    tensor::model own(settings[n], at.tensor());
    auto place = backend;
    place.place = at;
    pipeline shared(planned, place, own.stages(), options);
    for (int const count : {3, steps - 3})
      shared.run(count, [&](step_result const& step) { result.add(step); });
    result.bits = own.bits();
  });
  return all;
}

template <class Visit>
void for_each_plan(int ranks, int replicas, model_settings const& settings, Visit visit) {
  for (auto const& placement : placements_to_run(ranks))
    for (auto const& policy : grid_policies()) {
      // Some policies take three microbatches for each rank, others as many as there are.
      for (int const m : {ranks + 1, 3 * ranks}) {
        auto const alone = tensor::make_problem(placement, m, settings);
        if (!is_supported(policy, alone)) continue;
        auto const stated =
            replicas == 1 ? alone : with_replicas(alone, {.count = replicas, .latency = 20});
        for (auto const kind :
             {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated})
          visit(zbpp::make_plan(policy, stated, {.step = kind}), kind);
        break;
      }
    }
}

// Checks every policy and placement on both backends.
void check(
    int ranks, int replicas, model_settings const& settings, training_options const& options) {
  for_each_plan(ranks, replicas, settings, [&](plan const& planned, step_kind kind) {
    bool const is_agreed = kind != step_kind::unchecked;
    // A stage that steps by itself skips what is not finite only where ranks agree.
    if (!is_agreed && (options.clip > 0 || !settings.faults.empty())) return;
    auto own = settings;
    own.stages = planned.problem().stages();
    auto const m = planned.problem().microbatches();
    auto const all = settings_of(replicas, own, m);
    auto expected = tensor::train_alone(all, m, steps, options);
    auto on_threads = train(planned, threads{}, all, options);
    auto in_turn = train(planned, virtual_time{}, all, options);
    if (!is_agreed)
      for (auto* const outcome : {&expected, &on_threads, &in_turn})
        for (auto& replica : *outcome) std::ranges::for_each(replica, &history::forget_updates);
    INFO(planned.policy() << " on " << planned.problem().placement().name());
    CAPTURE(static_cast<int>(kind), settings.members);
    for (std::size_t n = 0; n < all.size(); ++n)
      for (std::size_t t = 0; t < expected[n].size(); ++t) {
        CAPTURE(n, t);
        CHECK(checked::difference(on_threads[n][t], expected[n][t]).empty());
        CHECK(checked::difference(in_turn[n][t], expected[n][t]).empty());
      }
  });
}

plan plan_of(int ranks, int microbatches, step_kind kind) {
  return zbpp::make_plan(
      zbpp::zb_h1{},
      tensor::make_problem(zbpp::placement::linear(ranks), microbatches, {}),
      {.step = kind});
}

// Calls `work` with each member of a tensor group of two pipelines. Returns what it threw.
std::string error_of(
    int ranks,
    errc code,
    std::function<void(grid_place const&, std::vector<tensor::stage>&)> const& work,
    model_settings settings = {}) {
  in_process_grid whole({.pipeline = ranks, .data = 1, .tensor = 2});
  settings.stages = ranks;
  return refusal(code, [&] {
    whole.run([&](grid_place const& at) {
      tensor::model own(settings, at.tensor());
      work(at, own.stages());
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
    check(2, 1, {.members = 2, .undo = zbpp::optim::undo_method::copies}, {.clip = clip});
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
      3,
      errc::pass_failed,
      [&](grid_place const& at, std::vector<tensor::stage>& stages) {
        pipeline shared(planned, threads{.place = at}, stages);
        try {
          shared.run(5);
        } catch (zbpp::error const& failed) {
          bool const is_told =
              failed.code() == (at.tensor() == 1 ? errc::pass_failed : errc::peer_failed);
          if (is_told &&
              std::string_view(failed.what()).find("thrown by the test") != std::string_view::npos)
            ++told;
          throw;
        }
      },
      settings);
  CHECK(text.find("thrown by the test") != std::string::npos);
  CHECK(told == 2);
}

TEST_CASE("pipelines with different plans are told what differs before a step", "[tensor]") {
  auto const runs = [](plan const& first, plan const& other) {
    std::atomic<int> steps_run{0};
    auto const text = error_of(
        2, errc::no_agreement, [&](grid_place const& at, std::vector<tensor::stage>& stages) {
          pipeline shared(at.tensor() == 0 ? first : other, threads{.place = at}, stages);
          shared.run(3, [&](step_result const&) { ++steps_run; });
        });
    CHECK(steps_run == 0);
    return text;
  };
  auto const of = [](auto policy, int microbatches) {
    return zbpp::make_plan(
        policy,
        tensor::make_problem(zbpp::placement::linear(2), microbatches, {}),
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
      of(zbpp::zb_h1{}, 4),
      of(zbpp::gpipe{}, 4),
      "policy (ZB-H1 on rank 0 (pipeline 0, tensor 0), GPipe on rank 1 (pipeline 0, tensor 1)), "
      "passes of rank 0");
  differs(
      of(zbpp::zb_h1{}, 4),
      of(zbpp::zb_h1{}, 5),
      "number of microbatches (4 on rank 0 (pipeline 0, tensor 0), 5 on rank 1 (pipeline 0, tensor "
      "1)), ");
  differs(
      plan_of(2, 4, step_kind::synchronous),
      plan_of(2, 4, step_kind::unchecked),
      "program, instructions of rank 0 (");
}

TEST_CASE("members that run different numbers of steps are told", "[tensor]") {
  auto const planned = plan_of(2, 3, step_kind::synchronous);
  auto const text = error_of(
      2, errc::no_agreement, [&](grid_place const& at, std::vector<tensor::stage>& stages) {
        pipeline(planned, threads{.place = at}, stages).run(3 + at.tensor());
      });
  CHECK(
      text.find(
          "rank 0 (pipeline 0, tensor 0) called run(3) for step 0, rank 1 (pipeline 0, tensor "
          "1) called run(4) for step 0; ") != std::string::npos);
}

TEST_CASE("members that step by different options are told which", "[tensor]") {
  auto const planned = plan_of(2, 3, step_kind::post_validated);
  auto const text = error_of(
      2, errc::no_agreement, [&](grid_place const& at, std::vector<tensor::stage>& stages) {
        pipeline(planned, threads{.place = at}, stages, {.clip = 1.0 + at.tensor()}).run(3);
      });
  CHECK(
      text.find("training_options::clip is 1 on rank 0 (pipeline 0, tensor 0) and 2 on rank 1 "
                "(pipeline 0, tensor 1); give all ranks the same") != std::string::npos);
}

TEST_CASE("members with different layers are told which", "[tensor]") {
  auto const planned = plan_of(1, 2, step_kind::synchronous);
  auto const with = [&](bool compares_weights,
                        std::function<void(std::vector<zbpp::optim::layer>&)> const& change) {
    in_process_grid whole({.pipeline = 1, .data = 1, .tensor = 2});
    return refusal(errc::no_agreement, [&] {
      whole.run([&](grid_place const& at) {
        tensor::block own({.stages = 1}, 0, at.tensor());
        auto layers = own.layers();
        if (at.tensor() == 1) change(layers);
        zbpp::optim::adamw optimizer(layers);
        std::vector<tensor::stage> stages{{own, optimizer, false}};
        pipeline(planned, threads{.place = at}, stages, {.compares_weights = compares_weights})
            .step();
      });
    });
  };
  CHECK(
      with(true, [](auto& layers) { layers.pop_back(); })
          .find("weights of layer 4 of stage 0 (only on rank 0 (tensor 0)); begin with the same "
                "layers and weights on all of them") != std::string::npos);
  CHECK(
      with(true, [](auto& layers) {
        layers[3].is_replicated = false;
      }).find("weights of layer 3 of stage 0 (only on rank 0 (tensor 0)); ") != std::string::npos);
  CHECK(
      with(false, [](auto& layers) { layers.pop_back(); })
          .find("of a tensor group, member 0 has 5 layers on a rank and member 1 has 4; give all "
                "members the same layers") != std::string::npos);
  CHECK(
      with(false, [](auto& layers) { layers[3].is_replicated = false; })
          .find("of a tensor group, layer 3 of stage 0 is replicated on member 0 and not on member "
                "1; say the same of it on all members") != std::string::npos);
}

TEST_CASE("gradients of a replicated layer that differ are found", "[tensor]") {
  auto const planned = plan_of(2, 3, step_kind::synchronous);
  model_settings settings;
  settings.leaves_tokens_out = true;
  auto const text = error_of(
      2,
      errc::no_agreement,
      [&](grid_place const& at, std::vector<tensor::stage>& stages) {
        pipeline(planned, threads{.place = at}, stages).run(3);
      },
      settings);
  CHECK(text.find("layer 3 of stage ") != std::string::npos);
  CHECK(
      text.find("is replicated, and its gradients on member 0 and on member 1 "
                "differ; compute them from the same values on all members, or add them up by "
                "all_reduce") != std::string::npos);
}

TEST_CASE(
    "each member sends its share of an edge, with the bits of whole edges", "[tensor][long]") {
  auto const members = GENERATE(2, 3);
  check(3, 1, {.members = members, .sends_shares = true}, {.clip = 2});
  check(2, 2, {.members = members, .sends_shares = true}, {.clip = 2});
}

TEST_CASE("the share of an edge is as many times smaller as there are members", "[tensor]") {
  // Costs state what an edge carries at most: here that of shares, which whole edges exceed.
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{},
      tensor::make_problem(zbpp::placement::linear(2), 3, {.members = 2, .sends_shares = true}));
  CHECK(planned.problem().costs(0).edge == tensor::edge / 2);
  auto const text =
      error_of(2, errc::wrong_size, [&](grid_place const& at, std::vector<tensor::stage>& stages) {
        pipeline(planned, threads{.place = at}, stages).step();
      });
  CHECK(
      text.find("edge 0->1 carries 96 bytes of activation; the costs declare at most 48") !=
      std::string::npos);
}

}  // namespace test_tensor_parallel
