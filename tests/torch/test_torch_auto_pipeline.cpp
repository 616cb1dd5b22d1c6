// SPDX-License-Identifier: Apache-2.0
//
// A model of LibTorch becomes a pipeline in one call: whatever it measures and chooses, losses and
// weights are those of a plain loop, and measuring leaves the model as it was.
#include <zbpp/torch/auto_pipeline.hpp>
// What the checks need besides.
#include <zbpp/policy/one_chunk.hpp>

#include <support/freed_memory.hpp>
#include <support/scratch_folder.hpp>
#include <support/thinned.hpp>
#include <support/torch_sequential.hpp>
// Behind the headers of LibTorch, which have a CHECK of their own.
#include <support/settings_fields.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <utility>
#include <vector>

namespace test_torch_auto_pipeline {

using namespace zbpp::test;
using zbpp::bytes;
using zbpp::layer_costs;
using zbpp::microbatch;
using zbpp::placement;
using zbpp::torch::auto_settings;
using zbpp::torch::layer;
using zbpp::torch::layer_sequence;
using zbpp::torch::stage_ends;
using zbpp::torch::tensors;

namespace {

namespace nn = ::torch::nn;
namespace optim = ::torch::optim;

constexpr auto sgd = [](tensors const& parameters) {
  return std::make_shared<optim::SGD>(parameters, optim::SGDOptions(0.05).momentum(0.9));
};
constexpr auto adamw = [](tensors const& parameters) {
  return std::make_shared<optim::AdamW>(parameters, 1e-3);
};
constexpr auto agreed_adamw = [](tensors const& parameters) {
  return zbpp::torch::optimizer_steps(adamw(parameters), zbpp::torch::rate_from::optimizer);
};
constexpr auto no_optimizer = [](tensors const&) { return zbpp::torch::no_step{}; };

// Settings whose searches take little.
auto_settings brief(int ranks, int microbatches) {
  return {
      .ranks = ranks,
      .microbatches = microbatches,
      .measure = {.warm_up = 0, .runs = 1},
      .pipeline = {.plan = {.seconds = 1e-3}}};
}

// Fixes at random some of what can be fixed, and has plans change as often as they can.
auto_settings random_settings(seeded_random& random, int layers) {
  auto const ranks = static_cast<int>(random.integer(1, 3));
  auto made = brief(ranks, static_cast<int>(random.integer(1, 5)));
  auto& pipeline = made.pipeline;
  if (random.chance(0.5))
    pipeline.replan = zbpp::replan_settings{
        .first_steps = 1,
        .window = 1,
        .band = 1e-9,
        .least_gain = 0,
        .least_steps = 1,
        .moves_stages = random.chance(0.5),
        .in_background = false,
        .seconds = 1e-3};
  else
    pipeline.replan.reset();
  if (random.chance(0.5)) return made;
  auto const is_v = 2 * ranks <= layers && random.chance(0.5);
  auto const placed = is_v ? placement::v_shape(ranks) : placement::linear(ranks);
  pipeline.plan.placement = placed;
  if (random.chance(0.5)) pipeline.plan.policy = zbpp::find_policy(is_v ? "zb_v" : "zb_h1");
  if (random.chance(0.5))
    for (int s = 0; s < placed.stages(); ++s) pipeline.plan.first_layer.push_back(s);
  return made;
}

template <class Make>
torch_outcome in_pipeline(
    sequential_model const& model, Make const& make_optimizer, auto_settings const& settings) {
  auto pipe = zbpp::torch::auto_pipeline(model.layers, model.ends(), make_optimizer, settings);
  torch_outcome made;
  for (int step = 0; step < sequential_steps; ++step) {
    auto const& losses = pipe.step().losses;
    made.losses.insert(made.losses.end(), losses.begin(), losses.end());
  }
  made.weights = model.state();
  return made;
}

}  // namespace

TEST_CASE("a random model in one call has the bits of a plain loop", "[torch][auto]") {
  auto const limit = one_thread_each();
  for (int trial = 0; trial < 24; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const seed = random.bits();
    auto const count = static_cast<int>(random.integer(3, 9));
    auto settings = random_settings(random, count);
    std::string report;
    settings.pipeline.on_report = [&](std::string const& line) { report += line + '\n'; };
    auto const compare = [&](auto const& make_plain, auto const& make_staged) {
      auto const plain = make_sequential(seed, count);
      auto const expected = plain_sequential(plain, settings.microbatches, make_plain);
      auto const staged = make_sequential(seed, count);
      auto const found = in_pipeline(staged, make_staged, settings);
      INFO(count << " layers\n" << report);
      CHECK(difference(expected, found) == "");
    };
    switch (random.integer(0, 2)) {
      case 0: compare(sgd, sgd); break;
      case 1: compare(adamw, adamw); break;
      default:
        settings.pipeline.program.step = zbpp::step_kind::post_validated;
        compare(adamw, agreed_adamw);
    }
    CHECK(report.find("measured " + std::to_string(count) + " layers: F takes ") == 0);
    CHECK(report.find(" placement of ") != std::string::npos);
  }
}

TEST_CASE("a model may be a Sequential, or a list of modules or callables", "[torch][auto]") {
  auto const limit = one_thread_each();
  auto const seed = run_seed();
  constexpr int count = 6;
  constexpr int microbatches = 3;
  auto const expected = plain_sequential(make_sequential(seed, count), microbatches, sgd);
  auto const compare = [&](auto const& layers_of) {
    auto const model = make_sequential(seed, count);
    auto pipe =
        zbpp::torch::auto_pipeline(layers_of(model), model.ends(), sgd, brief(2, microbatches));
    torch_outcome found;
    for (int step = 0; step < sequential_steps; ++step) {
      auto const& losses = pipe.step().losses;
      found.losses.insert(found.losses.end(), losses.begin(), losses.end());
    }
    found.weights = model.state();
    CHECK(difference(expected, found) == "");
  };
  compare([](auto const& model) { return model.layers.ptr(); });
  compare([](auto const& model) {
    return std::vector<nn::AnyModule>(model.layers->begin(), model.layers->end());
  });
  compare([](auto const& model) {
    std::vector<layer> made;
    for (auto const& each : *model.layers) {
      nn::AnyModule module = each;
      made.emplace_back(
          [module](at::Tensor const& x) mutable { return module.forward(x); },
          module.ptr()->parameters());
    }
    return made;
  });
}

TEST_CASE("layers may take and give several tensors, and share a tied parameter", "[torch][auto]") {
  auto const limit = one_thread_each();
  constexpr int microbatches = 3;
  // Three layers; the first and the last use one table, by a leaf each.
  struct tied_layers {
    at::Tensor first = random_tensor({6, 4}, 1).requires_grad_();
    at::Tensor middle = random_tensor({4, 4}, 2).requires_grad_();
    zbpp::torch::tied_parameter table{{first, zbpp::torch::tied_parameter::leaf(first)}};

    [[nodiscard]] std::vector<layer> layers() const {
      auto const last = table.leaves()[1];
      return {
          {[w = first](at::Tensor const& tokens) {
             return std::pair(at::embedding(w, tokens), tokens);
           },
           {first}},
          {[w = middle](at::Tensor const& x, at::Tensor const& tokens) {
             return std::pair(at::tanh(at::linear(x, w)), tokens);
           },
           {middle}},
          {[last](tensors const& in) {
             return at::cross_entropy_loss(at::linear(in[0], last).flatten(0, 1), in[1].flatten());
           },
           {last}}};
    }
    [[nodiscard]] tensors parameters() const { return {first, middle, table.leaves()[1]}; }
  };
  stage_ends const ends{
      [](microbatch mb) -> tensors {
        auto const number = mb.step() * mb.count() + mb.index();
        return {at::arange(number, number + 8).remainder(6).view({2, 4})};
      },
      [](tensors const& outputs, microbatch) { return outputs.front(); }};

  tied_layers const plain;
  auto const expected = plain.layers();
  auto const optimizer = adamw(plain.parameters());
  std::vector<double> losses;
  for (int step = 0; step < sequential_steps; ++step) {
    for (int mb = 0; mb < microbatches; ++mb) {
      auto const number = step * microbatches + mb;
      auto const tokens = at::arange(number, number + 8).remainder(6).view({2, 4});
      auto const loss = layer_sequence(expected)({tokens}).front();
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    plain.table.sum_gradients();
    optimizer->step();
    optimizer->zero_grad();
  }

  tied_layers const staged;
  auto settings = brief(3, microbatches);
  settings.tied = staged.table.leaves();
  settings.pipeline.program.step = zbpp::step_kind::synchronous;
  auto const make_optimizer = [&](tensors const& parameters) {
    return zbpp::torch::optimizer_steps(
        adamw(parameters), zbpp::torch::rate_from::options, staged.table.leaves());
  };
  auto pipe = zbpp::torch::auto_pipeline(staged.layers(), ends, make_optimizer, settings);
  CHECK(pipe.chosen().problem.costs(0).tied == staged.table.size());
  CHECK(pipe.chosen().problem.costs(1).tied == 0);
  std::vector<double> found;
  for (int step = 0; step < sequential_steps; ++step) {
    auto const& of_step = pipe.step().losses;
    found.insert(found.end(), of_step.begin(), of_step.end());
  }
  CHECK(found == losses);
  CHECK(same_bits(staged.parameters(), plain.parameters()));
}

TEST_CASE("making a pipeline leaves the model as it was", "[torch][auto]") {
  at::set_num_threads(2);
  auto model = make_sequential(run_seed(), 7);
  model.layers->eval();
  auto const draw = [] { at::rand({4}); };
  auto ends = model.ends();
  ends.batch = [batch = ends.batch, draw](microbatch mb) {
    draw();
    return batch(mb);
  };
  tensors grads;
  for (auto const& each : model.layers->parameters()) {
    each.mutable_grad() = at::full_like(each, 3);
    grads.push_back(each.grad().clone());
  }
  auto const copies = [&] {
    tensors all;
    for (auto const& each : model.state()) all.push_back(each.clone());
    return all;
  };
  auto const before = copies();
  auto const generator = at::detail::getDefaultCPUGenerator();
  auto const state = generator.get_state();
  auto const check = [&] {
    CHECK(same_bits(copies(), before));
    tensors now;
    for (auto const& each : model.layers->parameters()) now.push_back(each.grad());
    CHECK(same_bits(now, grads));
    CHECK(generator.get_state().equal(state));
    CHECK(at::get_num_threads() == 2);
    for (auto const& each : model.layers->modules()) CHECK(!each->is_training());
  };
  SECTION("where all goes well") {
    auto pipe = zbpp::torch::auto_pipeline(model.layers, ends, no_optimizer, brief(2, 4));
    check();
  }
  SECTION("where the loss throws") {
    ends.loss = [draw](tensors const&, microbatch) -> at::Tensor {
      draw();
      throw std::runtime_error("no target");
    };
    CHECK(refusal(zbpp::errc::pass_failed, [&] {
            auto pipe = zbpp::torch::auto_pipeline(model.layers, ends, no_optimizer, brief(2, 4));
          }) == "layer 6 of measure_layers: no target");
    check();
  }
  at::set_num_threads(1);
}

TEST_CASE("stages are saved under the names of the whole model", "[torch][auto]") {
  auto const limit = one_thread_each();
  scratch_folder const folder;
  auto const path = folder / "model.safetensors";
  constexpr int count = 6;
  constexpr int microbatches = 2;
  auto const model = make_sequential(run_seed(), count);
  auto pipe = zbpp::torch::auto_pipeline(model.layers, model.ends(), adamw, brief(2, microbatches));
  for (int step = 0; step < sequential_steps; ++step) (void)pipe.step();
  // [save
  std::vector<zbpp::torch::model_part> parts;
  for (int s = 0; s < pipe.stages(); ++s)
    parts.emplace_back(pipe.stage_at(s).layers().entries(), *pipe.stage_at(s).step());
  zbpp::torch::save_checkpoint(path, parts, pipe.current());
  // save]

  // A plain loop goes on with it as one that was not interrupted.
  auto const loaded = make_sequential(run_seed(), count);
  for (auto& each : loaded.state()) each.zero_();
  auto const optimizer = adamw(loaded.layers->parameters());
  std::vector<zbpp::torch::model_part> const whole{{loaded.layers, *optimizer}};
  CHECK(zbpp::torch::load_checkpoint(path, whole).steps == sequential_steps);
  auto const plain = make_sequential(run_seed(), count);
  auto const never_saved = adamw(plain.layers->parameters());
  (void)run_plain(plain, *never_saved, microbatches, 0, sequential_steps);
  CHECK(
      run_plain(loaded, *optimizer, microbatches, sequential_steps, 2 * sequential_steps) ==
      run_plain(plain, *never_saved, microbatches, sequential_steps, 2 * sequential_steps));
  CHECK(same_bits(loaded.state(), plain.state()));
}

TEST_CASE("batch and loss of measuring see microbatch 0 of a whole model", "[torch][auto]") {
  auto const model = make_sequential(run_seed(), 4);
  int batches = 0;
  auto const ends = model.ends();
  auto const check = [](microbatch mb) {
    CHECK(mb.step() == 0);
    CHECK(mb.index() == 0);
    CHECK(mb.count() == 5);
    CHECK(mb.is_training());
    CHECK(mb.evaluation() == 0);
  };
  auto pipe = zbpp::torch::auto_pipeline(
      model.layers,
      {[&](microbatch mb) {
         ++batches;
         check(mb);
         CHECK(mb.is_first_stage());
         return ends.batch(mb);
       },
       [&](tensors const& outputs, microbatch mb) {
         check(mb);
         CHECK(mb.is_last_stage());
         return ends.loss(outputs, mb);
       }},
      sgd,
      brief(2, 5));
  CHECK(batches == 1);
}

TEST_CASE(
    "a pipeline in one call keeps freed memory unless something else was said", "[torch][auto]") {
  if (is_slow_build || !tells_of_freed_memory) return;  // sanitizers have a malloc of their own
  auto const limit = one_thread_each();
  no_malloc_variables const variables;
  auto const seed = run_seed();
  auto const expected = plain_sequential(make_sequential(seed, 5), 3, sgd);
  auto const keeps = [&](auto_settings const& settings) {
    REQUIRE(zbpp::torch::keep_freed_memory(0));
    REQUIRE(gives_tensors_back());
    CHECK(difference(expected, in_pipeline(make_sequential(seed, 5), sgd, settings)) == "");
    auto const kept = !gives_tensors_back();
    REQUIRE(zbpp::torch::keep_freed_memory(0));
    return kept;
  };
  auto const settings = brief(2, 3);
  CHECK(keeps(settings));
  auto off = settings;
  off.keeps_freed_memory = false;
  CHECK(!keeps(off));
  // What whoever starts the program says of the same thresholds counts.
  for (auto const* variable : {&variables.map, &variables.trim}) {
    variable->set("131072");
    CHECK(!keeps(settings));
    variable->set(nullptr);
  }
  for (auto const* text :
       {"glibc.malloc.mmap_threshold=131072",
        "glibc.malloc.check=0:glibc.malloc.trim_threshold=131072"}) {
    variables.tunables.set(text);
    CHECK(!keeps(settings));
  }
  variables.tunables.set("glibc.malloc.tcache_count=3");
  CHECK(keeps(settings));
}

TEST_CASE("memory is kept before the layers are measured", "[torch][auto]") {
  if (is_slow_build || !tells_of_freed_memory) return;
  no_malloc_variables const variables;
  REQUIRE(zbpp::torch::keep_freed_memory(0));
  auto const model = make_sequential(run_seed(), 4);
  auto ends = model.ends();
  bool gave_back = true;
  ends.batch = [&, batch = ends.batch](microbatch mb) {
    gave_back = gives_tensors_back();
    return batch(mb);
  };
  auto pipe = zbpp::torch::auto_pipeline(model.layers, ends, sgd, brief(2, 3));
  CHECK(!gave_back);
  REQUIRE(zbpp::torch::keep_freed_memory(0));
  // What is refused changes nothing.
  CHECK_THROWS(zbpp::torch::auto_pipeline(model.layers, ends, sgd, brief(9, 3)));
  CHECK(gives_tensors_back());
}

TEST_CASE("each setting of a pipeline in one call has an effect", "[torch][auto]") {
  static_assert(
      count_of_fields<auto_settings>() == 13, "say below what the setting that is new does");
  auto const model = make_sequential(run_seed(), 6);
  auto const made_with = [&](auto_settings const& settings) {
    return zbpp::torch::auto_pipeline(model.layers, model.ends(), sgd, settings).chosen().problem;
  };
  auto settings = brief(2, 3);
  int runs = 0;
  std::vector<int> kernel_threads;
  auto const counted = [&](at::Tensor const& x) {
    ++runs;
    kernel_threads.push_back(at::get_num_threads());
    return x * 2;
  };
  layer_sequence const counting(std::vector<layer>{counted, counted});
  auto const runs_with = [&](auto_settings const& changed) {
    runs = 0;
    kernel_threads.clear();
    stage_ends const ends{
        [](microbatch) -> tensors {
          return {at::ones({2, 2}).requires_grad_()};
        },
        [](tensors const& outputs, microbatch) { return outputs.front().sum(); }};
    auto pipe = zbpp::torch::auto_pipeline(counting, ends, no_optimizer, changed);
    auto const before = runs;
    if (changed.ranks == 1) (void)pipe.step();
    return before;
  };

  SECTION("ranks, microbatches, transfers, limits and speeds") {
    settings.transfer = zbpp::transfer_costs(77);
    settings.memory_limits = {bytes{1} << 30};
    auto const made = made_with(settings);
    CHECK(made.ranks() == 2);
    CHECK(made.microbatches() == 3);
    CHECK(made.transfer() == settings.transfer);
    CHECK(made.memory_limit(1) == bytes{1} << 30);
    settings.costs.assign(6, {.forward = 10});
    settings.rank_speeds = {1, 0.5};
    settings.pipeline.plan.placement = placement::linear(2);
    settings.pipeline.plan.first_layer = {0, 3};
    CHECK(made_with(settings).costs(1).forward == 60);
  }
  SECTION("a placement says how many ranks there are") {
    settings.ranks = 0;
    settings.pipeline.plan.placement = placement::v_shape(3);
    CHECK(made_with(settings).placement() == placement::v_shape(3));
  }
  SECTION("kernel_threads") {
    settings.ranks = 1;
    settings.kernel_threads = 3;
    (void)runs_with(settings);
    CHECK(kernel_threads == std::vector<int>(kernel_threads.size(), 3));
  }
  SECTION("measure and costs") {
    auto const few = runs_with(settings);
    settings.measure.runs = 2;
    CHECK(runs_with(settings) > few);
    settings.costs = {{.forward = 1000, .edge = 1}, {.forward = 7}};
    settings.pipeline.plan.placement = placement::linear(2);
    CHECK(runs_with(settings) == 0);
    settings = brief(2, 3);
    settings.costs.assign(6, {.forward = 11, .static_memory = 13});
    settings.pipeline.plan.placement = placement::linear(2);
    settings.pipeline.plan.first_layer = {0, 2};
    auto const made = made_with(settings);
    CHECK(made.costs(0).forward == 22);
    CHECK(made.costs(1).static_memory == 52);
  }
  SECTION("what the optimizer keeps") {
    bytes weights = 0;
    bytes buffers = 0;
    for (auto const& each : model.layers->parameters())
      weights += static_cast<bytes>(each.nbytes());
    for (auto const& each : model.layers->buffers()) buffers += static_cast<bytes>(each.nbytes());
    for (int tensors_each : {0, 2}) {
      settings.optimizer_tensors = tensors_each;
      auto const made = made_with(settings);
      bytes sum = 0;
      for (int s = 0; s < made.stages(); ++s) sum += made.costs(s).static_memory;
      CHECK(sum == weights * (2 + tensors_each) + buffers);
    }
  }
  SECTION("recompute") {
    // A layer that counts its calls makes something else the second time.
    auto const changing = [calls = 0](at::Tensor const& x) mutable { return x * ++calls; };
    stage_ends const ends{
        [](microbatch) -> tensors {
          return {at::ones({2, 2}).requires_grad_()};
        },
        [](tensors const& outputs, microbatch) { return outputs.front().sum(); }};
    layer_costs const costs{
        .forward = 10, .recompute = 1, .activation = 1000, .recompute_input = 1};
    settings.costs.assign(2, costs);
    settings.memory_limits = {1500};  // of one microbatch without R
    settings.pipeline.plan.placement = placement::linear(2);
    settings.recompute.check = true;
    auto pipe = zbpp::torch::auto_pipeline(
        std::vector<layer>{changing, changing}, ends, no_optimizer, settings);
    auto const text = refusal([&] { (void)pipe.step(); });
    CHECK(text.find(" of R differs from that of F") != std::string::npos);
  }
  SECTION("a plan that is fixed by hand") {
    settings.pipeline.plan.placement = placement::linear(2);
    settings.pipeline.plan.first_layer = {0, 5};
    settings.pipeline.plan.policy = zbpp::find_policy("gpipe");
    auto pipe = zbpp::torch::auto_pipeline(model.layers, model.ends(), sgd, settings);
    CHECK(std::ranges::equal(pipe.chosen().problem.first_layer(), std::array{0, 5}));
    CHECK(pipe.chosen().schedule == zbpp::gpipe{}(pipe.chosen().problem));
    CHECK(pipe.stages() == 2);
  }
}

TEST_CASE("what cannot become a pipeline is refused in a line", "[torch][auto]") {
  auto const model = make_sequential(run_seed(), 4);
  auto const refused = [&](layer_sequence const& layers,
                           stage_ends const& ends,
                           auto_settings const& settings,
                           zbpp::errc code = zbpp::errc::bad_argument) {
    return refusal(code, [&] { (void)zbpp::torch::auto_pipeline(layers, ends, sgd, settings); });
  };
  auto const with = [&](auto change) {
    auto settings = brief(2, 3);
    change(settings);
    return refused(model.layers, model.ends(), settings);
  };
  CHECK(
      refused(nn::Sequential(), model.ends(), brief(2, 3)) ==
      "auto_pipeline: the model has no layers");
  CHECK(with([](auto& s) {
          s.ranks = 5;
        }) == "there are 4 layers for 5 stages; each stage needs at least 1");
  CHECK(with([](auto& s) {
          s.ranks = 0;
          s.pipeline.plan.placement = placement::v_shape(3);
        }) == "there are 4 layers for 6 stages; each stage needs at least 1");
  CHECK(with([](auto& s) {
          s.ranks = 0;
        }) == "auto_pipeline: auto_settings::ranks is not set; it is at least 1");
  CHECK(
      with([](auto& s) { s.pipeline.plan.placement = placement::linear(3); }) ==
      "auto_pipeline: the placement has other ranks than auto_settings::ranks says; leave that 0");
  CHECK(with([](auto& s) {
          s.microbatches = 0;
        }) == "auto_pipeline: auto_settings::microbatches is not set; it is at least 1");
  CHECK(with([](auto& s) {
          s.kernel_threads = 0;
        }) == "auto_pipeline: auto_settings::kernel_threads is less than 1");
  CHECK(with([](auto& s) {
          s.optimizer_tensors = -1;
        }) == "auto_pipeline: auto_settings::optimizer_tensors is negative");
  CHECK(with([](auto& s) {
          s.costs.resize(3);
        }) == "auto_pipeline: auto_settings::costs has 3 layers, the model 4");
  CHECK(with([](auto& s) {
          s.measure.runs = 0;
        }) == "measure_layers takes 1 run or more, and 0 or more to warm up");
  CHECK(with([](auto& s) {
          s.pipeline.plan.first_layer = {0, 2};
        }) == "plan_choices fixes a cut without a placement; give the placement, too");

  auto const ends = model.ends();
  CHECK(
      refused(model.layers, {nullptr, ends.loss}, brief(2, 3)) ==
      "the first stage needs stage_ends::batch, its inputs");
  CHECK(
      refused(model.layers, {ends.batch, nullptr}, brief(2, 3)) ==
      "the last stage needs stage_ends::loss to train");
  CHECK(
      refused(
          model.layers,
          {ends.batch, [](tensors const& outputs, microbatch) { return outputs.front(); }},
          brief(2, 3)) == "stage_ends::loss gives a tensor of one number");
  auto const wrong_shape = refused(
      model.layers,
      {[](microbatch) -> tensors {
         return {at::ones({2, 99})};
       },
       ends.loss},
      brief(2, 3),
      zbpp::errc::pass_failed);
  CHECK(wrong_shape.find("layer 0 of measure_layers: mat1 and mat2 shapes") == 0);
  CHECK(wrong_shape.find('\n') == std::string::npos);

  nn::Sequential shared;
  nn::Linear const twice(4, 4);
  shared->push_back("a", twice);
  shared->push_back("b", nn::GELU());
  shared->push_back("c", twice);
  CHECK(
      refused(shared, ends, brief(2, 3)) ==
      "layers 0 and 2 share a parameter; make them one layer, or give each a leaf of its own "
      "(tied_parameter)");
}

}  // namespace test_torch_auto_pipeline
