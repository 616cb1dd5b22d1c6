// SPDX-License-Identifier: Apache-2.0
//
// Modules as stages of ranks that are joined by sockets alone give the bits of one process.
#include <zbpp/asio/measure.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/torch/auto_pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/freed_memory.hpp>
#include <support/plan_grid.hpp>
#include <support/scratch_folder.hpp>
#include <support/thinned.hpp>
#include <support/torch_hooked.hpp>
#include <support/torch_modes.hpp>
#include <support/torch_sequential.hpp>
#include <support/torch_tied.hpp>
// After LibTorch, whose macros torch_checks.hpp takes away.
#include <support/same_bits.hpp>

#include <ATen/autocast_mode.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <torch/optim/adamw.h>
#include <utility>
#include <vector>

namespace test_torch_tcp {

using namespace zbpp::test;
using zbpp::microbatch;
using zbpp::step_kind;
using zbpp::torch::module_stage;
using zbpp::torch::tensors;

namespace {

zbpp::asio::tcp one_thread(zbpp::asio::rendezvous& meeting) {
  zbpp::asio::tcp_settings settings;
  settings.on_thread_start = zbpp::torch::intra_op_threads(1);
  return zbpp::asio::tcp(meeting, settings);
}

// Gathers what ranks find out, each in a thread of its own.
struct gathered {
  std::mutex mutex;
  std::map<int, tensors> by_stage;
  std::vector<double> losses;

  void add(std::map<int, tensors> const& found, std::vector<double> const& of_steps) {
    std::lock_guard const lock(mutex);
    by_stage.insert(found.begin(), found.end());
    if (!of_steps.empty()) losses = of_steps;
  }
  tensors all() const {
    tensors joined;
    for (auto const& [stage, values] : by_stage)
      joined.insert(joined.end(), values.begin(), values.end());
    return joined;
  }
};

// Trains with a rank in each thread, with a model of its own. `make()` has the slices of a model
// and what is tied; `stages(model, numbers)` makes the stages of a rank.
template <class Make, class Stages>
torch_outcome on_sockets(
    zbpp::plan const& planned,
    int steps,
    zbpp::training_options const& options,
    Make make,
    Stages make_stages,
    int* amended = nullptr) {
  auto const& placement = planned.problem().placement();
  gathered found;
  auto const thrown = run_ranks(placement.ranks(), patient_settings(), [&](auto& meeting) {
    at::set_num_threads(1);
    auto const model = make();
    auto const own = placement.stages_of(meeting.rank());
    auto stages = make_stages(model, own);
    zbpp::pipeline pipe(planned, one_thread(meeting), stages, options);
    bool const is_last = placement.rank_of(placement.stages() - 1) == meeting.rank();
    std::vector<double> losses;
    int undone = 0;
    pipe.run(steps, [&](zbpp::step_result const& result) {
      undone += result.update.is_amended ? 1 : 0;
      if (is_last) losses.insert(losses.end(), result.losses.begin(), result.losses.end());
    });
    std::map<int, tensors> results;
    for (int s : own) {
      auto& to = results[s];
      for (auto const& p : model.slices.slices[static_cast<std::size_t>(s)].parameters)
        to.push_back(p.detach());
    }
    found.add(results, losses);
    if (amended != nullptr && is_last) *amended += undone;
  });
  for (auto const& text : thrown) CHECK(text == "");
  return {found.losses, found.all()};
}

}  // namespace

TEST_CASE("over sockets modules give the bits of a plain loop", "[torch][tcp]") {
  at::set_num_threads(1);
  constexpr int steps = 2;
  struct plain {
    torch_model slices;
  };
  std::vector<std::function<torch_model(int)>> const models{
      [](int slices) { return gpt_model(run_seed(), slices, 1, 8, 2, 4); },
      [](int slices) { return cnn_model(run_seed(), slices, 1, 4, 2, 5); }};
  for (auto const& make : models) {
    INFO(make(2).name);
    same_bits(
        [&](zbpp::plan const& planned) {
          auto const model = make(planned.problem().stages());
          plain_steps optimizer(parameters_of(model), {});
          return train_plainly(
              model, steps, planned.problem().microbatches(), [&] { optimizer.step(); });
        },
        {{"sockets",
          [&](zbpp::plan const& planned, auto) {
            return on_sockets(
                planned,
                steps,
                {},
                [&] { return plain{make(planned.problem().stages())}; },
                [](plain const& model, auto own) { return adamw_stages(model.slices, own); });
          }}},
        {{"linear and V",
          {2},
          only(4),
          torch_problem,
          {.recomputed = true, .steps = {step_kind::post_validated}, .placements = lines_and_vs}}});
  }
}

TEST_CASE("over sockets hooks run as in a plain loop, once", "[torch][tcp][hooks]") {
  at::set_num_threads(1);
  constexpr int microbatches = 4;
  struct hooked {
    torch_model slices;
  };
  for (auto const& placement : {zbpp::placement::linear(2), zbpp::placement::v_shape(2)}) {
    auto const plain_counts = std::make_shared<hook_counts>();
    auto const alone =
        hooked_model(placement.stages(), plain_counts, std::make_shared<seen_tensors>());
    plain_steps optimizer(parameters_of(alone), {});
    torch_outcome expected;
    expected.losses = plain_microbatches(alone, 0, microbatches);
    optimizer.step();
    expected.weights = weights_of(alone);
    zbpp::problem const problem(
        placement, microbatches, zbpp::stage_costs{.forward = 10, .recompute = 10});
    for_each_plan_of(problem, {.recomputed = true}, [&](auto const& name, auto const& planned) {
      INFO(name);
      auto const counts = std::make_shared<hook_counts>();
      auto const trained = on_sockets(
          planned,
          1,
          {},
          [&] {
            return hooked{
                hooked_model(placement.stages(), counts, std::make_shared<seen_tensors>())};
          },
          [](hooked const& model, auto own) { return adamw_stages(model.slices, own); });
      CHECK(is_same(trained, expected));
      CHECK(counts->all() == plain_counts->all());
    });
  }
}

TEST_CASE("over sockets R makes what F made", "[torch][tcp][recompute]") {
  at::set_num_threads(1);
  struct noisy {
    torch_model slices;
  };
  auto const placement = zbpp::placement::v_shape(2);
  zbpp::problem const problem(placement, 4, zbpp::stage_costs{.forward = 10, .recompute = 10});
  auto const planned =
      zbpp::make_plan("recomputed", with_all_r(zbpp::zb_v{}(problem), true), problem);
  auto const made = std::make_shared<made_twice>(placement.stages());
  static_cast<void>(on_sockets(
      planned,
      5,
      {},
      [&] { return noisy{noisy_model(placement.stages(), made)}; },
      [](noisy const& model, auto own) { return adamw_stages(model.slices, own); }));
  for (std::size_t s = 0; s < made->first.size(); ++s) {
    CHECK(made->first[s].size() == 20);
    CHECK(same_bits(made->first[s], made->second[s]));
  }
}

TEST_CASE("over sockets modules have the modes and statistics of a plain loop", "[torch][tcp]") {
  auto const limit = one_thread_each();
  auto const placement = zbpp::placement::v_shape(2);
  zbpp::problem const problem(placement, 4, zbpp::stage_costs{.forward = 10, .recompute = 10});
  auto const planned =
      zbpp::make_plan("recomputed", with_all_r(zbpp::zb_v{}(problem), true), problem);
  auto const expected = normed_slices(4);
  auto const slices = normed_slices(4);
  auto const trained = plain_losses(expected, 0, 4);
  auto const evaluated = plain_evaluation(expected, 1, 4);
  slices[3]->modules()[2]->eval();  // as if its statistics were frozen after the step
  auto const modes = modes_of(slices);
  slices[3]->modules()[2]->train();
  std::vector<double> losses, of_evaluation;
  auto const thrown = run_ranks(2, patient_settings(), [&](auto& meeting) {
    auto ends = normed_ends();
    ends.loss = [loss = ends.loss](tensors const& out, microbatch mb) {
      if (mb.evaluation() == 1) throw std::runtime_error("no loss");
      return loss(out, mb);
    };
    std::vector<module_stage<>> stages;
    for (int s : placement.stages_of(meeting.rank()))
      stages.emplace_back(slices[static_cast<std::size_t>(s)], ends);
    zbpp::pipeline pipe(planned, one_thread(meeting), stages);
    at::autocast::set_cpu_enabled(true);  // of the thread that calls, which ends with the rank
    auto const of_step = pipe.step().losses;
    bool const is_last = placement.rank_of(3) == meeting.rank();
    if (is_last) slices[3]->modules()[2]->eval();
    auto const found = pipe.evaluate().losses;
    if (is_last) {
      losses = of_step;
      of_evaluation = found;
    }
    pipe.evaluate();
  });
  for (auto const& text : thrown) CHECK_THAT(text, Catch::Contains("no loss"));
  CHECK(losses == trained);
  CHECK(of_evaluation == evaluated);
  CHECK(modes_of(slices) == modes);
  CHECK(same_bits(statistics_of(slices), statistics_of(expected)));
  CHECK(same_bits(gradients_of(slices), gradients_of(expected)));
}

TEST_CASE("every rank tells what a stage did wrong, without a backtrace", "[torch][tcp]") {
  at::set_num_threads(1);
  zbpp::problem const problem(
      zbpp::placement::linear(3), 4, zbpp::stage_costs{.forward = 10, .recompute = 10});
  auto const planned =
      zbpp::make_plan("recomputed", with_all_r(zbpp::zb_h1{}(problem), true), problem);
  zbpp::torch::stage_ends const ends{
      .batch = [](microbatch) -> tensors {
        return {at::ones({2, 2})};
      },
      .loss = [](tensors const& outputs, microbatch) { return outputs.front().sum(); }};
  auto const texts = [&](std::function<at::Tensor(at::Tensor const&)> const& wrong) {
    return run_ranks(3, patient_settings(), [&](auto& meeting) {
      std::vector<module_stage<>> stages;
      auto const fine = [](at::Tensor const& x) { return x * 2; };
      stages.emplace_back(
          meeting.rank() == 1 ? wrong : fine,
          ends,
          zbpp::torch::no_step{},
          zbpp::torch::recompute_options{.check = true});
      zbpp::pipeline pipe(planned, one_thread(meeting), stages);
      pipe.step();
    });
  };
  auto const thrown = texts([](at::Tensor const& x) { return x.matmul(at::ones({3, 3})); });
  auto const calls = std::make_shared<int>(0);
  auto const drifted = texts([=](at::Tensor const& x) { return x + ++*calls; });
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK_THAT(
        thrown[r],
        Catch::Contains("rank 1, position 1, stage 1, microbatch 0: in 1F0: mat1 and mat2 shapes "
                        "cannot be multiplied (2x2 and 3x3)"));
    CHECK_THAT(drifted[r], Catch::Contains("stage 1, microbatch 0: "));
    CHECK_THAT(drifted[r], Catch::Contains("output 0 of R differs from that of F: 4 of 4 numbers"));
    for (auto const& text : {thrown[r], drifted[r]}) {
      CHECK(text.find("frame #") == std::string::npos);
      CHECK(text.find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("over sockets tied parameters have the bits of one process", "[torch][tcp]") {
  at::set_num_threads(1);
  int amended = 0;
  for (double const clip : {0.0, 1e-3}) {
    zbpp::training_options const options{.clip = clip};
    auto const expected = tied_plain_loop(options);
    for (auto const& placement : tied_placements())
      for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
        INFO(placement.name() << " of " << placement.ranks() << ", clip " << clip);
        auto const trained = on_sockets(
            tied_plan(placement, kind),
            tied_steps,
            options,
            [&] { return make_tied_model(placement.stages()); },
            [](tied_model const& model, auto own) {
              return adamw_stages(model.slices, own, model.tied.leaves());
            },
            &amended);
        CHECK(is_same(trained, expected));
      }
  }
  CHECK(amended > 0);
}

TEST_CASE("over sockets each rank saves its part, and another split goes on", "[torch][tcp]") {
  at::set_num_threads(1);
  scratch_folder const folder;
  zbpp::training_options const options{.clip = 1e-3};
  auto const expected = tied_plain_loop(options);
  gathered last;
  auto const train = [&](zbpp::placement const& placement, bool is_first, std::string const& to) {
    auto const planned = tied_plan(placement, step_kind::post_validated);
    std::filesystem::create_directory(folder / to);
    auto const thrown = run_ranks(placement.ranks(), patient_settings(), [&](auto& meeting) {
      at::set_num_threads(1);
      auto const model = make_tied_model(placement.stages());
      auto const own = placement.stages_of(meeting.rank());
      auto stages = adamw_stages(model.slices, own, model.tied.leaves());
      std::vector<zbpp::torch::model_part> parts;
      for (std::size_t i = 0; i < own.size(); ++i)
        parts.push_back(numbered_part(model.slices, own[i], stages[i].optimizer()));
      zbpp::pipeline pipe(planned, one_thread(meeting), stages, options);
      if (!is_first)
        pipe.resume(
            zbpp::torch::load_checkpoint(folder / "first", parts, zbpp::torch::coverage::part));
      pipe.run(tied_steps / 2);
      auto const name = "rank" + std::to_string(meeting.rank()) + ".safetensors";
      zbpp::torch::save_checkpoint(folder / to / name, parts, pipe.state());
      std::map<int, tensors> results;
      for (int s : own)
        results[s] = weights_of({"", {model.slices.slices[static_cast<std::size_t>(s)]}, {}});
      if (!is_first) last.add(results, {});
    });
    for (auto const& text : thrown) CHECK(text == "");
  };
  train(zbpp::placement::v_shape(2), true, "first");
  for (auto const& layout : tied_placements()) {
    INFO(layout.name() << " of " << layout.ranks());
    last.by_stage.clear();
    train(layout, false, "last");
    CHECK(same_bits(last.all(), expected.weights));
  }
}

namespace {

// Trains replicas over sockets, which go on from a folder, where there is one, and save in another.
// @return the weights of each, stage after stage
std::vector<tensors> replicas_on_sockets(
    int replicas,
    bool is_sharded,
    int steps,
    std::filesystem::path const& from,
    std::filesystem::path const& to) {
  zbpp::problem const alone(zbpp::placement::linear(2), 3, zbpp::stage_costs{.forward = 10});
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{},
      with_replicas(alone, {.count = replicas, .shards_optimizer = is_sharded}),
      {.step = step_kind::synchronous});
  zbpp::grid_layout const layout({.pipeline = 2, .data = replicas}, 2 * replicas);
  std::vector<gathered> found(static_cast<std::size_t>(replicas));
  std::filesystem::create_directory(to);
  auto const thrown = run_ranks(layout.ranks(), patient_settings(), [&](auto& meeting) {
    at::set_num_threads(1);
    auto const at = layout.coordinates(meeting.rank());
    auto model = mlp_model(run_seed(), 2, 2, 5, 3);
    model.batch = [make = model.batch, n = at.data](std::int64_t number) {
      return make(number + 1000 * n);
    };
    std::vector const own{at.pipeline};
    auto stages = adamw_stages(model, own);
    zbpp::asio::tcp_settings settings;
    settings.on_thread_start = zbpp::torch::intra_op_threads(1);
    zbpp::asio::tcp const sockets(meeting, layout, settings);
    zbpp::pipeline pipe(planned, sockets, stages, zbpp::training_options{.clip = 1e-2});
    std::vector const parts{numbered_part(model, at.pipeline, stages.front().optimizer())};
    auto const part = zbpp::torch::coverage::part;
    if (!from.empty()) pipe.resume(zbpp::torch::load_checkpoint(from, parts, part));
    pipe.run(steps);
    auto const name = "rank" + std::to_string(meeting.rank()) + ".safetensors";
    zbpp::torch::save_checkpoint(to / name, parts, pipe);
    found[static_cast<std::size_t>(at.data)].add(
        {{at.pipeline,
          weights_of({"", {model.slices[static_cast<std::size_t>(at.pipeline)]}, {}})}},
        {});
  });
  for (auto const& text : thrown) CHECK(text == "");
  std::vector<tensors> all;
  for (auto const& each : found) all.push_back(each.all());
  return all;
}

}  // namespace

TEST_CASE("over sockets replicas go on from what others saved", "[torch][tcp][replicas]") {
  constexpr int steps = 3;
  for (int const replicas : {2, 1}) {
    scratch_folder const folder;
    // As saved without sharing, which test_torch_replicas.cpp compares with plain loops.
    static_cast<void>(replicas_on_sockets(2, false, steps, {}, folder / "plain"));
    auto const expected =
        replicas_on_sockets(replicas, false, steps, folder / "plain", folder / "plain end");
    if (replicas == 2) {
      auto const at_once = replicas_on_sockets(2, true, 2 * steps, {}, folder / "at once");
      for (auto const& weights : at_once) CHECK(same_bits(weights, expected.front()));
    }
    static_cast<void>(replicas_on_sockets(2, true, steps, {}, folder / "shared"));
    for (bool const is_sharded : {false, true}) {
      if (replicas == 1 && is_sharded) continue;
      INFO(replicas << " replicas, sharing: " << is_sharded);
      auto const to = folder / (is_sharded ? "shared end" : "end");
      for (auto const& weights :
           replicas_on_sockets(replicas, is_sharded, steps, folder / "shared", to))
        CHECK(same_bits(weights, expected.front()));
    }
  }
}

namespace {

// Three stages, between which tensors of several types go whose sizes vary, some of them views.
struct mixed_model {
  at::Tensor w = random_tensor({3, 2}, 1).requires_grad_();
  at::Tensor v = random_tensor({3}, 2).requires_grad_();

  static tensors batch(std::int64_t mb) {
    return {random_tensor({mb + 1, 2}, 10 + mb), at::tensor({1, 0, 1}, at::kLong)};
  }
  [[nodiscard]] tensors first(tensors const& in) const {
    auto const y = at::linear(in[0], w);
    return {y, y.t(), in[1], at::Tensor(), in[1].to(at::kByte), y.expand({2, y.size(0), 3})};
  }
  [[nodiscard]] tensors second(tensors const& in) const {
    if (in.size() != 6 || in[3].defined() || in[4].scalar_type() != at::kByte ||
        in[2].requires_grad() || in[1].sizes() != in[0].t().sizes())
      throw std::logic_error("something else came");
    auto const y = in[0] * v + in[1].t().tanh();
    return {in[2], y, (in[5] * v).slice(0, 0, 2, 2).to(at::kDouble), at::Tensor(), in[0] > 0};
  }
  [[nodiscard]] static tensors third(tensors const& in) {
    if (in.size() != 5 || in[4].scalar_type() != at::kBool || in[3].defined())
      throw std::logic_error("something else came");
    auto const chosen = in[1].index_select(1, in[0]);
    return {(chosen.pow(2) * in[4].to(at::kFloat)).sum().to(at::kDouble) + in[2].square().sum()};
  }
  [[nodiscard]] std::vector<module_stage<>> stages() const {
    zbpp::torch::stage_ends const ends{
        .batch = [](microbatch mb) { return batch(mb.index()); },
        .loss = [](tensors const& outputs, microbatch) { return outputs.front(); }};
    std::vector<module_stage<>> made;
    made.emplace_back([this](tensors const& in) { return first(in); }, ends);
    made.emplace_back([this](tensors const& in) { return second(in); }, ends);
    made.emplace_back([](tensors const& in) { return third(in); }, ends);
    return made;
  }
  [[nodiscard]] tensors gradients() const { return {w.grad(), v.grad()}; }
};

}  // namespace

TEST_CASE("over sockets go tensors of any type, size and stride", "[torch][tcp]") {
  auto const threads = one_thread_each();
  constexpr int microbatches = 5;
  mixed_model const alone;
  std::vector<double> expected_losses;
  zbpp::bytes largest = 0;
  for (int mb = 0; mb < microbatches; ++mb) {
    auto const middle = alone.first(mixed_model::batch(mb));
    auto const last = alone.second(middle);
    largest = std::max({largest, zbpp::torch::edge_size(middle), zbpp::torch::edge_size(last)});
    auto const loss = mixed_model::third(last).front();
    loss.backward();
    expected_losses.push_back(loss.item<double>());
  }
  for (zbpp::bytes const stated : {zbpp::bytes{0}, largest}) {
    zbpp::problem const problem(
        zbpp::placement::linear(3),
        microbatches,
        zbpp::stage_costs{.forward = 10, .recompute = 10, .edge = stated});
    for_each_plan_of(problem, {.recomputed = true}, [&](auto const& name, auto const& planned) {
      INFO(name << ", edges of " << stated << " bytes");
      mixed_model const local;
      auto of_threads = local.stages();
      zbpp::pipeline in_threads{planned, threads, of_threads};
      CHECK(in_threads.step().losses == expected_losses);
      CHECK(same_bits(local.gradients(), alone.gradients()));

      std::mutex mutex;
      std::vector<double> losses;
      tensors gradients(2);
      auto const thrown = run_ranks(3, patient_settings(), [&](auto& meeting) {
        mixed_model const own;
        auto const all = own.stages();
        // [ranks
        std::vector<zbpp::torch::module_stage<>> stages;
        for (int s : planned.problem().placement().stages_of(meeting.rank()))
          stages.push_back(all[static_cast<std::size_t>(s)]);
        zbpp::asio::tcp_settings settings;
        settings.on_thread_start = zbpp::torch::intra_op_threads(1);
        zbpp::pipeline pipe{planned, zbpp::asio::tcp(meeting, settings), stages};
        // ranks]
        auto const& result = pipe.step();
        std::lock_guard const lock(mutex);
        if (meeting.rank() == 0) gradients[0] = own.w.grad();
        if (meeting.rank() == 1) gradients[1] = own.v.grad();
        if (meeting.rank() == 2) losses = result.losses;
      });
      for (auto const& text : thrown) CHECK(text == "");
      CHECK(losses == expected_losses);
      CHECK(same_bits(gradients, alone.gradients()));
    });
  }
}

namespace {

constexpr auto make_adamw = [](tensors const& parameters) {
  return std::make_shared<::torch::optim::AdamW>(parameters, 1e-3);
};

// Makes the model of each process. Threads that draw weights would draw from one generator.
std::vector<sequential_model> models_of(int ranks, std::uint64_t seed, int layers) {
  std::vector<sequential_model> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(make_sequential(seed, layers));
  return all;
}

tensors state_of(::torch::nn::Module const& module) {
  auto all = module.parameters();
  for (auto const& each : module.buffers()) all.push_back(each);
  return all;
}

}  // namespace

TEST_CASE("processes make a pipeline of a model in one call", "[torch][tcp][auto]") {
  auto const limit = one_thread_each();
  constexpr int layers = 7;
  constexpr int microbatches = 3;
  for (int ranks = 1; ranks <= 3; ++ranks) {
    ZBPP_SEEDED(random, ranks);
    auto const seed = random.bits();
    auto const plain = make_sequential(seed, layers);
    auto const expected = plain_sequential(plain, microbatches, make_adamw);
    auto models = models_of(ranks, seed, layers);
    std::mutex mutex;
    std::vector<double> losses;
    std::vector<std::string> reports;
    int compared = 0;
    no_malloc_variables const variables;
    static_cast<void>(zbpp::torch::keep_freed_memory(0));
    auto const thrown = run_ranks(ranks, patient_settings(), [&](auto& meeting) {
      auto& own = models[static_cast<std::size_t>(meeting.rank())];
      auto const ends = own.ends();
      std::vector<std::weak_ptr<::torch::nn::Module>> modules;
      for (auto const& each : own.layers->children()) modules.push_back(each);
      std::string report;
      zbpp::torch::auto_settings settings{.microbatches = microbatches};
      settings.pipeline.plan.seconds = 1e-3;
      settings.pipeline.on_report = [&](std::string const& line) { report += line + '\n'; };
      auto const model = [&] { return std::exchange(own.layers, nullptr); };
      // [one_call
      zbpp::asio::tcp const sockets(meeting, {.on_thread_start = zbpp::torch::intra_op_threads(1)});
      auto pipe = zbpp::torch::auto_pipeline(meeting, sockets, model(), ends, make_adamw, settings);
      // one_call]
      std::vector<double> of_steps;
      for (int step = 0; step < sequential_steps; ++step) {
        auto const& found = pipe.step().losses;
        of_steps.insert(of_steps.end(), found.begin(), found.end());
      }
      // It has its own layers alone, with the bits of the plain loop.
      auto const& chosen = pipe.chosen();
      auto const& placement = chosen.problem.placement();
      std::lock_guard const lock(mutex);
      for (int stage = 0; stage < placement.stages(); ++stage) {
        auto const end = static_cast<std::size_t>(chosen.problem.end_layer(stage));
        auto const s = static_cast<std::size_t>(stage);
        for (auto i = static_cast<std::size_t>(chosen.problem.first_layer()[s]); i < end; ++i) {
          auto const module = modules[i].lock();
          CHECK((module != nullptr) == (placement.rank_of(stage) == meeting.rank()));
          if (module == nullptr) continue;
          ++compared;
          CHECK(same_bits(state_of(*module), state_of(*plain.layers->children()[i])));
        }
      }
      if (placement.rank_of(placement.stages() - 1) == meeting.rank()) losses = of_steps;
      // Rank 0 alone measures; all have the same plan.
      CHECK((report.find("measured 7 layers") == 0) == (meeting.rank() == 0));
      reports.push_back(zbpp::to_text(chosen));
    });
    for (auto const& text : thrown) CHECK(text == "");
    CHECK((is_slow_build || !gives_tensors_back()));
    CHECK(compared == layers);
    CHECK(losses == expected.losses);
    CHECK(reports == std::vector<std::string>(static_cast<std::size_t>(ranks), reports.front()));
  }
}

TEST_CASE("a grid of processes makes replicas of a model in one call", "[torch][tcp][auto]") {
  auto const limit = one_thread_each();
  constexpr int layers = 6;
  constexpr int microbatches = 3;
  auto const agreed_adamw = [](tensors const& parameters) {
    return zbpp::torch::optimizer_steps(make_adamw(parameters), zbpp::torch::rate_from::optimizer);
  };
  auto const data_of = [](sequential_model const& model, int replica) {
    auto made = model;
    made.seed += 1000 * replica;  // other batches
    return made;
  };
  for (int const replicas : {1, 2, 3}) {
    INFO(replicas << " replicas");
    auto const seed = run_seed();
    // A plain loop, whose gradients are those of each replica, added up.
    auto const plain = make_sequential(seed, layers);
    auto const parameters = plain.layers->parameters();
    auto const optimizer = make_adamw(parameters);
    for (int step = 0; step < sequential_steps; ++step) {
      tensors sums(parameters.size());
      for (int n = 0; n < replicas; ++n) {
        auto model = data_of(plain, n);
        for (int mb = 0; mb < microbatches; ++mb)
          model.loss(model.layers->forward(model.batch(number_of(step, mb, microbatches))))
              .backward();
        for (std::size_t i = 0; i < sums.size(); ++i) {
          auto const own = std::exchange(parameters[i].mutable_grad(), {});
          sums[i] = sums[i].defined() ? sums[i] + own : own;
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i) parameters[i].mutable_grad() = sums[i];
      optimizer->step();
      optimizer->zero_grad();
    }
    zbpp::grid_layout const layout({.pipeline = 2, .data = replicas}, 2 * replicas);
    auto const models = models_of(layout.ranks(), seed, layers);
    std::mutex mutex;
    int compared = 0;
    auto const thrown = run_ranks(layout.ranks(), patient_settings(), [&](auto& meeting) {
      auto const& own = models[static_cast<std::size_t>(meeting.rank())];
      zbpp::torch::auto_settings settings{.microbatches = microbatches};
      settings.pipeline.plan.seconds = 1e-3;
      auto const ends = data_of(own, layout.coordinates(meeting.rank()).data).ends();
      zbpp::asio::tcp const sockets(
          meeting, layout, {.on_thread_start = zbpp::torch::intra_op_threads(1)});
      auto pipe =
          zbpp::torch::auto_pipeline(meeting, sockets, own.layers, ends, agreed_adamw, settings);
      for (int step = 0; step < sequential_steps; ++step) (void)pipe.step();
      std::lock_guard const lock(mutex);
      for (int s = 0; s < pipe.stages(); ++s)
        for (auto const& each : pipe.stage_at(s).layers().entries()) {
          auto const named = plain.layers->named_parameters();
          if (!named.contains(each.name)) continue;  // a buffer
          ++compared;
          CHECK(same_bits(each.value, named[each.name]));
        }
    });
    for (auto const& text : thrown) CHECK(text == "");
    CHECK(compared == replicas * static_cast<int>(parameters.size()));
  }
  // An optimizer that steps right after the last W of its stage knows no sums.
  zbpp::grid_layout const layout({.pipeline = 2, .data = 2}, 4);
  auto const models = models_of(4, run_seed(), layers);
  auto const thrown = run_ranks(4, patient_settings(), [&](auto& meeting) {
    auto const& own = models[static_cast<std::size_t>(meeting.rank())];
    zbpp::torch::auto_settings settings{.microbatches = microbatches};
    settings.pipeline.plan.seconds = 1e-3;
    auto pipe = zbpp::torch::auto_pipeline(
        meeting, zbpp::asio::tcp(meeting, layout), own.layers, own.ends(), make_adamw, settings);
  });
  for (auto const& text : thrown) {
    CHECK_THAT(text, Catch::Contains("its gradients cannot be added up over replicas; give it"));
    CHECK(text.find('\n') == std::string::npos);
  }
}

TEST_CASE("what one process cannot make a pipeline of ends all", "[torch][tcp][auto]") {
  auto const limit = one_thread_each();
  auto const run = [](auto change) {
    auto models = models_of(2, run_seed(), 4);
    return run_ranks(2, patient_settings(), [&](auto& meeting) {
      auto& own = models[static_cast<std::size_t>(meeting.rank())];
      auto ends = own.ends();
      zbpp::torch::auto_settings settings{.microbatches = 3};
      settings.pipeline.plan.seconds = 1e-3;
      change(meeting.rank(), own, ends, settings);
      auto pipe = zbpp::torch::auto_pipeline(
          meeting, one_thread(meeting), own.layers, ends, make_adamw, settings);
      (void)pipe.step();
    });
  };
  auto const loss_throws = run([](int rank, auto&, auto& ends, auto&) {
    if (rank == 0)
      ends.loss = [](tensors const&, microbatch) -> at::Tensor {
        throw std::runtime_error("no target");
      };
  });
  CHECK(loss_throws[0] == "a pass failed: layer 3 of measure_layers: no target");
  CHECK(loss_throws[1] == "another rank failed: rank 0: layer 3 of measure_layers: no target");
  auto const other_model = run([](int rank, auto& own, auto&, auto&) {
    if (rank == 1) own.layers->push_back(::torch::nn::GELU());
  });
  CHECK(
      other_model[0] == "another rank failed: rank 1: auto_pipeline: rank 0 has another number of "
                        "layers; give all processes the same model");
  CHECK(
      other_model[1] == "bad argument: auto_pipeline: rank 0 has another number of layers; give "
                        "all processes the same model");
  auto const other_settings = run([](int rank, auto&, auto&, auto& settings) {
    if (rank == 1) settings.microbatches = 2;
  });
  std::string const differs =
      "ranks disagree: rank 1 differs from rank 0 in: number of microbatches (2 at rank 1, 3 at "
      "rank 0)";
  for (auto const& text : other_settings) CHECK(text.substr(0, differs.size()) == differs);
  auto const wrong_settings = run([](int rank, auto&, auto&, auto& settings) {
    if (rank == 1) settings.pipeline.plan.first_layer = {0, 2};
  });
  CHECK(
      wrong_settings[0] == "another rank failed: rank 1: plan_choices fixes a cut without a "
                           "placement; give the placement, too");
  CHECK(
      wrong_settings[1] == "bad argument: plan_choices fixes a cut without a placement; give the "
                           "placement, too");
}

}  // namespace test_torch_tcp
