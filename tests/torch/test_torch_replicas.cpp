// SPDX-License-Identifier: Apache-2.0
//
// Replicas of a model of LibTorch have the bits of plain loops whose gradients are added up, also
// where they go on from what other replicas saved.
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/scratch_folder.hpp>
#include <support/torch_training.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <torch/optim/adamw.h>
#include <utility>
#include <vector>

namespace test_torch_replicas {

namespace fs = std::filesystem;
using namespace zbpp::test;
using zbpp::step_kind;
using zbpp::torch::load_checkpoint;
using zbpp::torch::model_part;
using zbpp::torch::module_stage;
using zbpp::torch::optimizer_steps;
using zbpp::torch::rate_from;
using zbpp::torch::save_checkpoint;
using zbpp::torch::tensors;

namespace {

constexpr int steps = 6;
constexpr int microbatches = 4;

// Each replica has other data; parameter 1 gets no gradient in step 2 of replica 1, and none at all
// in step 4; parameter 3 is frozen.
torch_model make_model(int replica) {
  auto model = mlp_model(run_seed(), 2, 2, 6, 3);
  model.batch = [make = model.batch, replica](std::int64_t number) {
    return make(number + 1000 * replica);
  };
  model.slices.front().parameters[3].requires_grad_(false);
  return model;
}

void forget_gradient(torch_model const& model, int step, int replica) {
  if ((step == 2 && replica == 1) || step == 4)
    model.slices.front().parameters[1].mutable_grad().reset();
}

// Makes optimizers of LibTorch: for a stage, and for a plain loop.
struct with_torch {
  static std::shared_ptr<torch::optim::AdamW> adamw_of(tensors const& parameters) {
    return std::make_shared<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  }
  static auto staged(tensors const& parameters) {
    return optimizer_steps<torch::optim::AdamW>(adamw_of(parameters), rate_from::optimizer);
  }
  static auto plain(tensors const& parameters, zbpp::training_options const&) {
    return [optimizer = adamw_of(parameters)] {
      optimizer->step();
      optimizer->zero_grad();
    };
  }
  static zbpp::training_options options(step_kind) { return {}; }
};

// Makes optimizers of zbpp, whose steps replicas can share.
struct with_zbpp {
  static auto staged(tensors const& parameters) {
    return zbpp::optim::adamw(zbpp::torch::layers_of(parameters));
  }
  static auto plain(tensors const& parameters, zbpp::training_options const& options) {
    return [optimizer = std::make_shared<plain_steps>(parameters, options)] { optimizer->step(); };
  }
  static zbpp::training_options options(step_kind kind) {
    return {.clip = kind == step_kind::unchecked ? 0 : 1e-2};
  }
};

// Trains with so many replicas in each half of the steps.
// @return the weights of a replica; all have the same
template <class Optimizers>
tensors plain(std::array<int, 2> replicas, step_kind kind) {
  at::set_num_threads(1);
  std::vector<torch_model> models;
  for (int n = 0; n < std::ranges::max(replicas); ++n) models.push_back(make_model(n));
  auto const first = parameters_of(models.front());
  auto take_step = Optimizers::plain(first, Optimizers::options(kind));
  for (int step = 0; step < steps; ++step) {
    std::vector<tensors> gradients;
    for (int n = 0; n < replicas[2 * step < steps ? 0 : 1]; ++n) {
      auto const& model = models[static_cast<std::size_t>(n)];
      static_cast<void>(plain_microbatches(model, step, microbatches));
      forget_gradient(model, step, n);
      auto& own = gradients.emplace_back();
      for (auto& p : parameters_of(model)) own.push_back(std::exchange(p.mutable_grad(), {}));
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
      auto sum = gradients.front()[i];
      for (std::size_t n = 1; n < gradients.size(); ++n) {
        auto const& more = gradients[n][i];
        if (!sum.defined())
          sum = more;
        else if (more.defined())
          sum = sum + more;
      }
      first[i].mutable_grad() = sum;
    }
    take_step();
    c10::AutoGradMode const off(false);
    for (std::size_t n = 1; n < models.size(); ++n) {
      auto const others = parameters_of(models[n]);
      for (std::size_t i = 0; i < first.size(); ++i) others[i].copy_(first[i]);
    }
  }
  return weights_of(models.front());
}

// A part of the steps of a training.
struct part_of_run {
  int replicas = 2;
  step_kind kind = step_kind::synchronous;
  bool is_sharded = false;
  int first = 0;
  int end = steps;
};

fs::path file_of(fs::path const& folder, int replica) {
  return folder / ("replica" + std::to_string(replica) + ".safetensors");
}

// Is what a replica has.
template <class Stages, class Pipeline>
struct running_replica {
  int number;
  torch_model const& model;
  Stages& stages;
  std::vector<model_part> const& parts;
  Pipeline& pipe;
};
// For clang before 17.
template <class Stages, class Pipeline>
running_replica(int, torch_model const&, Stages&, std::vector<model_part> const&, Pipeline&)
    -> running_replica<Stages, Pipeline>;

// Calls `work(replica)` for each, on its thread. They load what there is in a folder, if it is one.
template <class Optimizers, class Work>
void for_each_replica(part_of_run const& of, fs::path const& from, Work work) {
  auto const planned = zbpp::make_plan(
      zbpp::zb_h2{},
      zbpp::with_replicas(
          zbpp::problem(zbpp::placement::linear(2), microbatches, zbpp::stage_costs{.forward = 10}),
          {.count = of.replicas, .shards_optimizer = of.is_sharded}),
      {.step = of.kind});
  zbpp::in_process_grid whole({.pipeline = 2, .data = of.replicas});
  whole.run([&](zbpp::grid_place const& at) {
    auto const model = make_model(at.data());
    std::vector<module_stage<decltype(Optimizers::staged(tensors()))>> stages;
    for (auto const& slice : model.slices)
      stages.emplace_back(slice.forward, ends_of(model), Optimizers::staged(slice.parameters));
    auto backend = one_thread_each();
    backend.place = at;
    int step = of.first;
    auto options = Optimizers::options(of.kind);
    options.on_gradients_ready = [&](int stage, zbpp::pass_context) {
      if (stage == 0) forget_gradient(model, step++, at.data());
    };
    std::vector<model_part> parts;
    for (int s = 0; s < 2; ++s)
      parts.push_back(numbered_part(model, s, stages[static_cast<std::size_t>(s)].optimizer()));
    zbpp::pipeline pipe{planned, backend, stages, options};
    if (!from.empty()) pipe.resume(load_checkpoint(from, parts));
    work(running_replica{at.data(), model, stages, parts, pipe});
  });
}

// @return the weights of each replica
template <class Optimizers>
std::vector<tensors> in_pipelines(
    part_of_run const& of, fs::path const& from = {}, fs::path const& to = {}) {
  std::vector<tensors> all(static_cast<std::size_t>(of.replicas));
  if (!to.empty()) fs::create_directory(to);
  for_each_replica<Optimizers>(of, from, [&](auto replica) {
    auto const count = of.end - of.first;
    auto const save = [&] {
      if (to.empty()) return;
      save_checkpoint(file_of(to, replica.number), replica.parts, replica.pipe);
    };
    replica.pipe.run(count, {.pause_every = count, .on_pause = save});
    all[static_cast<std::size_t>(replica.number)] = weights_of(replica.model);
  });
  return all;
}

}  // namespace

TEST_CASE("replicas of a module have the bits of loops that are added up", "[torch][replicas]") {
  for (int const replicas : {2, 3})
    for (auto const kind :
         {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
      CAPTURE(replicas, static_cast<int>(kind));
      auto const check = [&]<class Optimizers>(Optimizers) {
        auto const expected = plain<Optimizers>({replicas, replicas}, kind);
        for (auto const& weights : in_pipelines<Optimizers>({.replicas = replicas, .kind = kind}))
          CHECK(same_bits(weights, expected));
      };
      check(with_torch());
      check(with_zbpp());
    }
}

TEST_CASE("replicas of a module that begin with other weights are told", "[torch][replicas]") {
  auto const check = [&]<class Optimizers>(Optimizers) {
    auto const text = refusal(zbpp::errc::no_agreement, [] {
      for_each_replica<Optimizers>({}, {}, [](auto replica) {
        c10::AutoGradMode const off(false);
        if (replica.number == 1) replica.model.slices.back().parameters.front().add_(1);
        replica.pipe.step();
      });
    });
    INFO(text);
    CHECK(text.find("weights of layer 0 of stage 1 (") != std::string::npos);
    CHECK(text.find(" on rank 2 (pipeline 1, replica 0), ") != std::string::npos);
  };
  check(with_torch());
  check(with_zbpp());
}

namespace {

// Trains the halves with other replicas, and goes on from what the first ones saved.
template <class Optimizers>
void check_halves(std::array<int, 2> replicas, step_kind kind, std::array<bool, 2> is_sharded) {
  CAPTURE(replicas[0], replicas[1], static_cast<int>(kind), is_sharded[0], is_sharded[1]);
  scratch_folder const folder;
  auto const expected = plain<Optimizers>(replicas, kind);
  static_cast<void>(in_pipelines<Optimizers>(
      {.replicas = replicas[0], .kind = kind, .is_sharded = is_sharded[0], .end = steps / 2},
      {},
      folder / "half"));
  for (auto const& weights : in_pipelines<Optimizers>(
           {.replicas = replicas[1], .kind = kind, .is_sharded = is_sharded[1], .first = steps / 2},
           folder / "half",
           folder / "end"))
    CHECK(same_bits(weights, expected));
}

}  // namespace

TEST_CASE("replicas go on from what others saved", "[torch][replicas][checkpoint]") {
  for (auto const& replicas : {std::array{2, 2}, {1, 2}, {2, 1}, {3, 2}, {2, 5}})
    for (auto const kind :
         {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
      check_halves<with_torch>(replicas, kind, {false, false});
      for (bool const first : {false, true})
        for (bool const second : {false, true}) {
          bool const cannot_share = kind == step_kind::post_validated ||
                                    (first && replicas[0] == 1) || (second && replicas[1] == 1);
          if (cannot_share && (first || second)) continue;
          check_halves<with_zbpp>(replicas, kind, {first, second});
        }
    }
}

namespace {

// @return what each of two replicas is refused with, which go on as if they had not tried
template <class Save>
std::array<std::string, 2> refused(bool is_sharded, Save save) {
  std::array<std::string, 2> texts;
  for_each_replica<with_zbpp>({.is_sharded = is_sharded}, {}, [&](auto replica) {
    replica.pipe.run(3);
    texts[static_cast<std::size_t>(replica.number)] = refusal([&] { save(replica); });
    replica.pipe.step();
  });
  return texts;
}

}  // namespace

TEST_CASE("what replicas save is complete, or refused by name", "[torch][replicas][checkpoint]") {
  scratch_folder const folder;
  std::array<fs::path, 2> const files{file_of(folder.path(), 0), file_of(folder.path(), 1)};
  auto const file = [&](auto const& of) { return files[static_cast<std::size_t>(of.number)]; };
  auto const older = [](float value) {
    return std::vector{model_part({{"older", at::full({2}, value)}})};
  };
  for (auto const& each : files) save_checkpoint(each, older(1), {.steps = 1});
  auto const is_kept = [](std::string const& name) {
    return "another replica keeps '" + name +
           "' and does not save it; call save_checkpoint(path, parts, pipe) on all replicas, with "
           "all parts and their optimizers";
  };
  // As if there were no replicas.
  CHECK(refused(true, [&](auto of) {
          save_checkpoint(file(of), of.parts, of.pipe.state());
        }) == std::array{is_kept("optimizer/layers.2/mean"), is_kept("optimizer/layers.0/mean")});
  auto const with = [&](std::string const& text, bool is_sharded, auto save) {
    CHECK(refused(is_sharded, save) == std::array{text, text});
  };
  with(is_kept("optimizer/layers.6/mean"), true, [&](auto of) {
    auto parts = of.parts;
    if (of.number == 1) parts.pop_back();
    save_checkpoint(file(of), parts, of.pipe);
  });
  with(
      files[0].string() + ": two replicas write it; give each a file of its own",
      true,
      [&](auto of) { save_checkpoint(files[0], of.parts, of.pipe); });
  // What fails on one fails on both.
  for (bool const is_sharded : {false, true})
    for (int const last : {0, 1})
      with(
          "the gradient of 'layers.0' waits for a step, and each replica has another; save when "
          "the optimizer has stepped and its gradients are cleared",
          is_sharded,
          [&](auto of) {
            if (of.number <= last) static_cast<void>(plain_microbatches(of.model, 0, 1));
            save_checkpoint(file(of), of.parts, of.pipe);
          });
  for (auto const& each : files) CHECK(load_checkpoint(each, older(0)).steps == 1);
}

TEST_CASE("no replica waits for one that does not save", "[torch][replicas][checkpoint]") {
  scratch_folder const folder;
  for (int const steps_before : {0, 2}) {
    auto const text = [&](auto instead) {
      return refusal(zbpp::errc::no_agreement, [&] {
        for_each_replica<with_zbpp>({}, {}, [&](auto replica) {
          for (int i = 0; i < steps_before; ++i) replica.pipe.step();
          if (replica.number == 1) return instead(replica);
          save_checkpoint(file_of(folder.path(), 0), replica.parts, replica.pipe);
        });
      });
    };
    CHECK_THAT(
        text([](auto) {}),
        Catch::Contains("waits for rank 1 (pipeline 0, replica 1), whose pipeline has ended"));
    CHECK(text([](auto of) {
            std::vector<std::vector<std::byte>> all;
            of.pipe.grid().data().exchange({}, all);
          }).starts_with("others make another call where this one saves or loads a checkpoint"));
    auto const stepped = text([](auto of) { of.pipe.step(); });
    CAPTURE(stepped);
    CHECK(stepped.find("call") != std::string::npos);
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a replica loads the moments that it keeps", "[torch][replicas][checkpoint]") {
  scratch_folder const folder;
  static_cast<void>(in_pipelines<with_zbpp>({.is_sharded = true, .end = 3}, {}, folder / "half"));
  for (bool const is_sharded : {false, true}) {
    std::array<std::size_t, 2> kept{};
    std::size_t trained = 0;
    for (auto const& each : parameters_of(make_model(0)))
      trained += each.requires_grad() ? static_cast<std::size_t>(each.numel()) : 0;
    for_each_replica<with_zbpp>(
        {.is_sharded = is_sharded, .first = 3}, folder / "half", [&](auto replica) {
          for (auto& stage : replica.stages)
            kept[static_cast<std::size_t>(replica.number)] += stage.optimizer().mean().size();
        });
    CHECK(kept[0] + kept[1] == (is_sharded ? trained : 2 * trained));
    CHECK(kept[0] > 0);
    CHECK(kept[1] > 0);
  }
}

}  // namespace test_torch_replicas
