// SPDX-License-Identifier: Apache-2.0
//
// Batches of several sizes: a pipeline for each number of microbatches, over the same stages, in
// turn. The bits are those of a plain loop.
#include <zbpp/planner/greedy_auto.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_reference.hpp>

namespace test_other_sizes {

using namespace zbpp;
using namespace zbpp::test;

namespace {

constexpr int epochs = 2;
constexpr int whole_batches = 3;  // of an epoch
constexpr int whole_size = 5;     // microbatches of a whole batch
constexpr int rest = 2;           // of the last batch: fewer than ranks
constexpr int checked_at_once = 11;

plan plan_of(placement const& placement, stage_costs const& costs, int microbatches) {
  return make_plan(
      greedy_auto{.search = {.seconds = 0.01}}, problem(placement, microbatches, costs, 87));
}

// What `evaluate` gives for the weights that there are now.
std::vector<double> reference_losses(toy::model all, std::int64_t step) {  // a copy
  return toy::reference_step(all, step, checked_at_once);
}

template <class Backend>
void check_sizes(placement const& placement, Backend backend) {
  auto const costs = [] {
    auto made = uneven_costs();
    made.edge = toy::edge;
    return made;
  }();
  auto all = toy::make_model(placement.stages());
  auto expected = all;
  std::vector<toy::hand_written> stages(all.begin(), all.end());
  pipeline whole{plan_of(placement, costs, whole_size), backend, stages};
  pipeline last{plan_of(placement, costs, rest), backend, stages};
  pipeline validation{plan_of(placement, costs, checked_at_once), backend, stages};
  std::int64_t step = 0;
  bool is_same = true;
  auto const compare = [&](auto& pipe, int microbatches) {
    toy::fused_passes const is_fused(pipe.planned());
    auto const right = toy::reference_step(expected, step, microbatches, is_fused);
    auto const& losses = pipe.step().losses;
    is_same = is_same && toy::is_same(losses, right) && toy::is_same(all, expected);
    ++step;
    toy::update(all);
    toy::update(expected);
  };
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (int i = 0; i < whole_batches; ++i) compare(whole, whole_size);
    last.resume(whole.state());
    compare(last, rest);
    whole.resume(last.state());
    validation.resume(whole.state());
    auto const& losses = validation.evaluate().losses;
    is_same = is_same && toy::is_same(losses, reference_losses(expected, step));
  }
  CHECK(is_same);
  CHECK(whole.steps() == epochs * (whole_batches + 1));
}

}  // namespace

TEST_CASE("batches of several sizes have the bits of a plain loop", "[other-sizes]") {
  for (int ranks : {1, 3})
    for (auto const& placement : placements_to_run(ranks)) {
      check_sizes(placement, virtual_time{});
      check_sizes(placement, threads{});
      check_sizes(placement, threads{.count = 2});
    }
}

TEST_CASE("so do those with optimizers, in every kind of step", "[other-sizes]") {
  using checked::model_settings;
  std::vector<int> sizes;  // by step
  for (int epoch = 0; epoch < epochs; ++epoch) {
    sizes.insert(sizes.end(), whole_batches, whole_size);
    sizes.push_back(rest);
  }
  training_options const options{
      .clip = 0.5,
      .learning_rate = [](std::int64_t updates) { return 1e-2 / static_cast<double>(updates + 1); },
      .scaling = {.initial = 8, .growth_interval = 2}};
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
    // An infinite gradient in the step before the last batch changes the loss scale there.
    model_settings const settings{
        .stages = 3, .dropout = true, .faults = {{.step = 2, .stage = 1, .microbatch = 1}}};
    auto const expected = checked::train_alone(settings, sizes, options);
    auto const train = [&](auto backend) {
      checked::model all(settings);
      auto const make = [&](int microbatches) {
        problem const problem(placement::linear(3), microbatches, checked::costs(), 87);
        return make_plan(zb_h1{}, problem, {.step = kind});
      };
      pipeline whole(make(whole_size), backend, all.stages(), options);
      pipeline last(make(rest), backend, all.stages(), options);
      checked::history given;
      auto const note = [&](step_result const& step) { given.add(step); };
      for (int epoch = 0; epoch < epochs; ++epoch) {
        whole.run(whole_batches, note);
        last.resume(whole.state());
        last.run(1, note);
        whole.resume(last.state());
      }
      given.bits = all.bits();
      return checked::difference(given, expected);
    };
    CHECK(train(virtual_time{}) == "");
    CHECK(train(threads{}) == "");
    CHECK(expected.scales[3] < expected.scales[2]);
  }
}

}  // namespace test_other_sizes
