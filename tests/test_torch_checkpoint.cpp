// SPDX-License-Identifier: Apache-2.0
//
// What one split of a model saves, another one loads, and goes on with the same bits.
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/scratch_folder.hpp>
#include <support/torch_training.hpp>
// After LibTorch, whose macros torch_checks.hpp takes away.
#include <support/damaged_texts.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <utility>
#include <vector>

namespace test_torch_checkpoint {

namespace fs = std::filesystem;
using namespace zbpp::test;
using zbpp::errc;
using zbpp::microbatch;
using zbpp::torch::coverage;
using zbpp::torch::layers_of;
using zbpp::torch::load_checkpoint;
using zbpp::torch::model_part;
using zbpp::torch::module_stage;
using zbpp::torch::save_checkpoint;
using zbpp::torch::tensors;

namespace {

constexpr int blocks = 4;
constexpr int microbatches = 4;
constexpr std::int64_t width = 5;

struct block_impl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x + at::gelu(norm(linear(x))); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(width, width));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(width));
};

// A model of four blocks in `count` slices, with other weights for each `seed`.
std::vector<torch::nn::Sequential> make_slices(int count, std::int64_t seed) {
  // [names
  std::vector<torch::nn::Sequential> slices(static_cast<std::size_t>(count));
  for (int b = 0; b < blocks; ++b) {
    auto& slice = slices[static_cast<std::size_t>(b * count / blocks)];
    slice->push_back("block" + std::to_string(b), std::make_shared<block_impl>());
  }
  // names]
  c10::AutoGradMode const off(false);
  std::int64_t number = 0;
  for (auto& slice : slices)
    for (auto& p : slice->parameters()) p.copy_(random_tensor(p.sizes(), seed * 100 + number++));
  return slices;
}

at::Tensor batch(std::int64_t number) { return random_tensor({3, width}, 1000 + number); }

at::Tensor loss_of(at::Tensor const& y) { return y.pow(2).mean() / microbatches; }

double rate(std::int64_t updates) { return 1e-2 / static_cast<double>(updates + 1); }

std::map<std::string, at::Tensor> values_of(std::vector<torch::nn::Sequential> const& slices) {
  std::map<std::string, at::Tensor> all;
  for (auto const& slice : slices) {
    for (auto const& each : slice->named_parameters()) all[each.key()] = each.value();
    for (auto const& each : slice->named_buffers()) all[each.key()] = each.value();
  }
  return all;
}

// Compares name by name, as the splits may differ.
bool same_values(
    std::vector<torch::nn::Sequential> const& a, std::vector<torch::nn::Sequential> const& b) {
  return std::ranges::equal(values_of(a), values_of(b), [](auto const& x, auto const& y) {
    return x.first == y.first && same_bits(x.second, y.second);
  });
}

std::vector<double> plain_microbatches_of(
    std::vector<torch::nn::Sequential> const& slices, std::int64_t step) {
  std::vector<double> losses;
  for (int mb = 0; mb < microbatches; ++mb) {
    auto x = batch(number_of(step, mb, microbatches));
    for (auto slice : slices) x = slice->forward(x);
    auto const loss = loss_of(x);
    loss.backward();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

zbpp::torch::stage_ends block_ends() {
  return {
      .batch = [](microbatch mb) -> tensors {
        return {batch(number_of(mb.step(), mb.index(), mb.count()))};
      },
      .loss = [](tensors const& outputs, microbatch) { return loss_of(outputs.front()); }};
}

zbpp::plan plan_of(int ranks, zbpp::step_kind kind) {
  return zbpp::make_plan(
      zbpp::zb_h1{},
      zbpp::problem(zbpp::placement::linear(ranks), microbatches, zbpp::stage_costs{.forward = 10}),
      {.step = kind});
}

zbpp::training_options stepped() { return {.clip = 0.5, .learning_rate = rate}; }

// Trains with zbpp's AdamW from a checkpoint, if there is one, and saves another, a file for each
// rank.
std::vector<double> run_adamw(int ranks, int steps, fs::path const& from, fs::path const& to) {
  auto const threads = one_thread_each();
  auto slices = make_slices(ranks, from.empty() ? 1 : ranks + 1);
  std::vector<module_stage<zbpp::optim::adamw>> stages;
  for (auto& slice : slices)
    stages.emplace_back(
        slice,
        block_ends(),
        zbpp::optim::adamw(zbpp::torch::layers_of(slice->parameters()), {.weight_decay = 0.1F}));
  zbpp::pipeline pipe{plan_of(ranks, zbpp::step_kind::synchronous), threads, stages, stepped()};
  // [parts
  std::vector<zbpp::torch::model_part> parts;
  for (std::size_t s = 0; s < slices.size(); ++s)
    parts.emplace_back(slices[s], stages[s].optimizer());
  // parts]
  if (!from.empty()) {
    auto const& folder = from;
    // [load
    pipe.resume(zbpp::torch::load_checkpoint(folder, parts));
    // load]
  }
  std::vector<double> losses;
  pipe.run(steps, [&](zbpp::step_result const& result) {
    losses.insert(losses.end(), result.losses.begin(), result.losses.end());
  });
  fs::create_directory(to);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<model_part> own{parts[static_cast<std::size_t>(rank)]};
    auto const& folder = to;
    // [save
    zbpp::torch::save_checkpoint(
        folder / ("rank" + std::to_string(rank) + ".safetensors"), own, pipe);
    // save]
  }
  return losses;
}

// The same with LibTorch's AdamW.
std::vector<double> run_torch(int ranks, int steps, fs::path const& from, fs::path const& to) {
  auto const threads = one_thread_each();
  auto slices = make_slices(ranks, from.empty() ? 1 : ranks + 1);
  std::vector<std::shared_ptr<torch::optim::AdamW>> optimizers;
  std::vector<module_stage<std::function<void()>>> stages;
  std::vector<model_part> parts;
  for (auto& slice : slices) {
    auto const optimizer = std::make_shared<torch::optim::AdamW>(slice->parameters(), 1e-2);
    optimizers.push_back(optimizer);
    stages.emplace_back(slice, block_ends(), [optimizer] {
      optimizer->step();
      optimizer->zero_grad();
    });
    parts.emplace_back(slice, *optimizer);
  }
  zbpp::pipeline pipe{plan_of(ranks, zbpp::step_kind::unchecked), threads, stages};
  if (!from.empty()) pipe.resume(load_checkpoint(from, parts));
  std::vector<double> losses;
  pipe.run(steps, [&](zbpp::step_result const& result) {
    losses.insert(losses.end(), result.losses.begin(), result.losses.end());
  });
  fs::create_directory(to);
  save_checkpoint(to / "all.safetensors", parts, pipe.state());
  return losses;
}

// A plain loop of one process, which begins with a checkpoint and ends with one, too.
template <class Optimizer, class Step>
std::vector<double> run_plain(
    std::vector<torch::nn::Sequential>& slices,
    Optimizer& optimizer,
    zbpp::training_state state,
    int steps,
    Step step) {
  at::set_num_threads(1);
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    auto const some = plain_microbatches_of(slices, state.steps + i);
    losses.insert(losses.end(), some.begin(), some.end());
    step(optimizer);
  }
  return losses;
}

void append_to(std::vector<double>& all, std::vector<double> const& some) {
  all.insert(all.end(), some.begin(), some.end());
}

void step_torch(torch::optim::Optimizer& optimizer) {
  optimizer.step();
  optimizer.zero_grad();
}

std::string text_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(fs::path const& path, std::string const& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST_CASE(
    "a run with zbpp's AdamW goes on in another split with the same bits", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto whole = make_slices(1, 1);
  plain_steps all(whole.front()->parameters(), stepped(), {}, {.weight_decay = 0.1F});
  std::vector<double> const expected = run_plain(whole, all, {}, 8, [](auto& o) { o.step(); });

  std::vector<double> losses;
  append_to(losses, run_adamw(2, 2, {}, folder / "2"));
  append_to(losses, run_adamw(4, 2, folder / "2", folder / "4"));
  // One process without a pipeline.
  auto alone = make_slices(1, 9);
  plain_steps optimizer(alone.front()->parameters(), stepped(), {}, {.weight_decay = 0.1F});
  std::vector<model_part> const one{{alone.front(), optimizer.optimizer()}};
  auto const state = load_checkpoint(folder / "4", one);
  CHECK(state.steps == 4);
  CHECK(state.updates == 4);
  optimizer.resume(state);
  append_to(losses, run_plain(alone, optimizer, state, 2, [](auto& o) { o.step(); }));
  fs::create_directory(folder / "1");
  save_checkpoint(folder / "1" / "model.safetensors", one, optimizer.state());
  append_to(losses, run_adamw(2, 2, folder / "1", folder / "end"));

  CHECK(losses == expected);
  auto last = make_slices(4, 9);
  std::vector<model_part> weights;  // without optimizers
  for (auto const& slice : last) weights.emplace_back(slice);
  CHECK(load_checkpoint(folder / "end", weights) == all.state());
  CHECK(same_values(last, whole));
}

TEST_CASE(
    "a run with LibTorch's AdamW goes on in another split with the same bits",
    "[torch][checkpoint]") {
  scratch_folder const folder;
  auto whole = make_slices(1, 1);
  torch::optim::AdamW all(whole.front()->parameters(), 1e-2);
  auto const expected = run_plain(whole, all, {}, 8, step_torch);

  std::vector<double> losses;
  append_to(losses, run_torch(2, 2, {}, folder / "2"));
  append_to(losses, run_torch(4, 2, folder / "2", folder / "4"));
  auto alone = make_slices(1, 9);
  torch::optim::AdamW optimizer(alone.front()->parameters(), 1e-2);
  std::vector<model_part> const one{{alone.front(), optimizer}};
  auto state = load_checkpoint(folder / "4", one);
  append_to(losses, run_plain(alone, optimizer, state, 2, step_torch));
  state.steps += 2;
  save_checkpoint(folder / "1.safetensors", one, state);
  append_to(losses, run_torch(2, 2, folder / "1.safetensors", folder / "end"));

  CHECK(losses == expected);
  auto last = make_slices(1, 9);
  CHECK(load_checkpoint(folder / "end", std::vector{model_part(last.front())}).steps == 8);
  CHECK(same_values(last, whole));
}

TEST_CASE(
    "states of all optimizers come back, before their first step, too", "[torch][checkpoint]") {
  scratch_folder const folder;
  at::set_num_threads(1);
  auto const round = [&](std::string const& name, auto make) {
    INFO(name);
    auto slices = make_slices(1, 1);
    auto const optimizer = make(slices.front()->parameters());
    auto again = make_slices(1, 2);
    auto const other = make(again.front()->parameters());
    std::vector<model_part> const from{{slices.front(), *optimizer}};
    std::vector<model_part> const to{{again.front(), *other}};
    run_plain(again, *other, {}, 2, step_torch);  // what a load has to replace
    for (int step = 0; step < 3; ++step) {
      save_checkpoint(folder / name, from, {.steps = step});
      auto const state = load_checkpoint(folder / name, to);
      auto const expected = run_plain(slices, *optimizer, state, 1, step_torch);
      CHECK(run_plain(again, *other, state, 1, step_torch) == expected);
      CHECK(same_values(again, slices));
    }
  };
  round("adam", [](auto p) {
    return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(1e-2).amsgrad(true));
  });
  round("sgd", [](auto p) {
    return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(1e-2).momentum(0.9));
  });
  round("plain_sgd", [](auto p) { return std::make_unique<torch::optim::SGD>(p, 1e-2); });
  round("rmsprop", [](auto p) {
    return std::make_unique<torch::optim::RMSprop>(
        p, torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true));
  });
  round("adagrad", [](auto p) { return std::make_unique<torch::optim::Adagrad>(p, 1e-2); });
}

namespace {

struct resumed_run {
  std::vector<double> losses;
  tensors weights;
};

// How the parameters of a run are stepped; `make` gives what `module_stage` takes.
template <class Step>
struct stepping {
  char const* name;
  zbpp::step_kind kind;
  zbpp::training_options options;
  std::function<Step(tensors const&)> make;
};

constexpr int all_steps = 7;

torch_model resumed_model() { return mlp_model(run_seed(), 2, 2, 6, 3); }

std::vector<zbpp::torch::named_tensor> names_of(tensors const& parameters, std::size_t stage) {
  std::vector<zbpp::torch::named_tensor> named;
  for (auto const& each : parameters)
    named.push_back({std::to_string(stage) + "." + std::to_string(named.size()), each});
  return named;
}

// Trains `all_steps` steps in two runs with a new process, as it were, between them.
template <class Step>
resumed_run train_in_two(stepping<Step> const& settings, int first, fs::path const& folder) {
  resumed_run made;
  for (int run = 0; run < 2; ++run) {
    int const count = run == 0 ? first : all_steps - first;
    if (count == 0) continue;
    auto const model = resumed_model();
    if (run > 0) {  // what a load has to replace
      c10::AutoGradMode const off(false);
      for (auto p : parameters_of(model)) p.add_(1);
    }
    std::vector<module_stage<Step>> stages;
    for (auto const& slice : model.slices)
      stages.emplace_back(slice.forward, ends_of(model), settings.make(slice.parameters));
    zbpp::pipeline pipe{plan_of(2, settings.kind), one_thread_each(), stages, settings.options};
    std::vector<model_part> parts;
    for (std::size_t s = 0; s < stages.size(); ++s)
      parts.emplace_back(names_of(model.slices[s].parameters, s), stages[s].optimizer());
    if (run > 0 && first > 0) {
      for (auto const& p : parameters_of(model)) p.mutable_grad() = at::ones_like(p.detach());
      pipe.resume(load_checkpoint(folder, parts));
      CHECK(pipe.state().accumulated == first % settings.options.accumulate);
    }
    pipe.run(count, [&](zbpp::step_result const& result) {
      made.losses.insert(made.losses.end(), result.losses.begin(), result.losses.end());
    });
    made.weights = weights_of(model);
    fs::create_directory(folder);
    save_checkpoint(folder / "all.safetensors", parts, pipe.state());
  }
  return made;
}

template <class Step>
void check_at_any_step(stepping<Step> const& settings) {
  scratch_folder const folder;
  auto const expected = train_in_two(settings, all_steps, folder / "whole");
  for (int first = 1; first < all_steps; ++first) {
    INFO(
        settings.name << ", kind " << static_cast<int>(settings.kind) << ", saved after " << first);
    auto const made = train_in_two(settings, first, folder / std::to_string(first));
    CHECK(made.losses == expected.losses);
    CHECK(same_bits(made.weights, expected.weights));
  }
}

}  // namespace

TEST_CASE("a checkpoint at any step goes on with the same bits", "[torch][checkpoint]") {
  using adamw = zbpp::optim::adamw;
  using torch_sgd = zbpp::torch::optimizer_steps<torch::optim::SGD>;
  for (auto const kind :
       {zbpp::step_kind::unchecked, zbpp::step_kind::synchronous, zbpp::step_kind::post_validated})
    for (int const accumulate : {1, 3}) {
      bool const agrees = kind != zbpp::step_kind::unchecked;
      zbpp::training_options const options{
          .clip = agrees ? 0.1 : 0,
          .learning_rate = rate,
          .scaling = {.initial = 4, .growth_interval = agrees ? 2 : 0},
          .accumulate = accumulate};
      check_at_any_step<adamw>(
          {"adamw", kind, options, [](tensors const& p) { return adamw(layers_of(p)); }});
      check_at_any_step<torch_sgd>({"sgd of LibTorch", kind, options, [](tensors const& p) {
                                      return torch_sgd(
                                          std::make_shared<torch::optim::SGD>(
                                              p, torch::optim::SGDOptions(1e-2).momentum(0.9)),
                                          zbpp::torch::rate_from::options);
                                    }});
    }
}

TEST_CASE("gradients that a trainer adds up itself are saved", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const make = [] {
    auto slices = make_slices(1, 1);
    auto const all = slices.front()->parameters();
    auto optimizer =
        std::make_shared<torch::optim::SGD>(all, torch::optim::SGDOptions(1e-2).momentum(0.9));
    return std::pair(slices, optimizer);
  };
  auto const [slices, optimizer] = make();
  at::set_num_threads(1);
  for (int step = 0; step < 6; ++step) {
    static_cast<void>(plain_microbatches_of(slices, step));
    auto const [other, stepped] = make();
    save_checkpoint(folder / "a", std::vector{model_part(slices.front(), *optimizer)});
    load_checkpoint(folder / "a", std::vector{model_part(other.front(), *stepped)});
    auto const a = slices.front()->parameters();
    auto const b = other.front()->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(same_bits(a[i].grad(), b[i].grad()));
    if (step % 3 == 2) step_torch(*optimizer);
  }
  // Weights alone have none.
  auto const [bare, unused] = make();
  load_checkpoint(folder / "a", std::vector{model_part(bare.front())});
  for (auto const& p : bare.front()->parameters()) CHECK_FALSE(p.grad().defined());
  // But where some are pending, no part goes without.
  save_checkpoint(
      folder / "a", std::vector{model_part(slices.front())}, {.steps = 1, .accumulated = 1});
  static_cast<void>(plain_microbatches_of(slices, 0));
  save_checkpoint(
      folder / "b", std::vector{model_part(slices.front())}, {.steps = 2, .accumulated = 2});
  CHECK(load_checkpoint(folder / "b", std::vector{model_part(bare.front())}).accumulated == 2);
  for (std::size_t i = 0; i < bare.front()->parameters().size(); ++i)
    CHECK(same_bits(bare.front()->parameters()[i].grad(), slices.front()->parameters()[i].grad()));
  // A sparse one cannot be saved.
  auto const table = at::ones({3, 2}).requires_grad_();
  table.mutable_grad() =
      at::sparse_coo_tensor(at::ones({1, 1}, at::kLong), at::ones({1, 2}), {3, 2});
  torch::optim::SGD sparse({table}, 0.1);
  auto const part = model_part(std::vector<zbpp::torch::named_tensor>{{"table", table}}, sparse);
  CHECK(
      refusal([&] { save_checkpoint(folder / "c", std::vector{part}); }) ==
      "the gradient of 'table' is sparse, which a checkpoint cannot have; save when the optimizer "
      "has stepped and its gradients are cleared");
  table.mutable_grad().reset();
  save_checkpoint(folder / "c", std::vector{part});
}

TEST_CASE("checkpoints that say nothing of gradients are read", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  auto const w = at::ones({2, 2}).requires_grad_();
  w.mutable_grad() = at::ones({2, 2});
  std::vector const parts{model_part(std::vector<zbpp::torch::named_tensor>{{"w", w}})};
  zbpp::training_state const state{
      .steps = 7, .updates = 5, .loss_scale = 4, .finite_steps = 3, .amended = 9};
  save_checkpoint(path, parts, state);
  auto text = text_of(path);
  auto const at = text.find("7 5 4 3 9 0\"");
  REQUIRE(at != std::string::npos);
  text.replace(at, 12, "7 5 4 3 9\"  ");
  write_text(path, text);
  CHECK(load_checkpoint(path, parts) == state);
  CHECK(same_bits(w.grad(), at::ones({2, 2})));
  text.replace(at, 12, "7 5 4 3\"    ");
  write_text(path, text);
  CHECK_THAT(
      refusal(errc::bad_format, [&] { load_checkpoint(path, parts); }),
      Catch::EndsWith(
          "its training_state is '7 5 4 3', which is not five or six numbers; take another copy of "
          "it"));
}

TEST_CASE("moments of what was frozen once are saved and loaded", "[torch][checkpoint]") {
  scratch_folder const folder;
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory);
  auto const make = [] {
    std::vector<zbpp::torch::named_tensor> all;
    for (auto const* const name : {"a", "b", "c"}) all.push_back({name, at::ones({2, 2})});
    return all;
  };
  auto const freeze = [](std::vector<zbpp::torch::named_tensor> const& all, int step) {
    for (int i = 0; i < 3; ++i)  // `a` from the second step on, `b` in the first one, `c` never
      all[static_cast<std::size_t>(i)].value.set_requires_grad(
          i == 0 ? step > 0 : i == 1 && step < 1);
  };
  auto const step = [&](auto const& all, auto& optimizer, int number) {
    freeze(all, number);
    for (auto const& each : all)
      if (each.value.requires_grad()) each.value.mutable_grad() = at::full({2, 2}, number + 1.0);
    optimizer.step({.updates = number, .learning_rate = 0.1}, ctx);
  };
  auto const check_saved = [&](auto make_optimizer) {
    for (int saved = 0; saved < 4; ++saved) {
      auto const all = make();
      auto const other = make();
      freeze(all, 0);
      freeze(other, saved);
      auto optimizer = make_optimizer(all);
      auto again = make_optimizer(other);
      for (int i = 0; i < saved; ++i) step(all, *optimizer, i);
      save_checkpoint(folder / "x", std::vector{model_part(all, *optimizer)});
      load_checkpoint(folder / "x", std::vector{model_part(other, *again)});
      for (int i = saved; i < 4; ++i) {
        step(all, *optimizer, i);
        step(other, *again, i);
      }
      for (std::size_t i = 0; i < 3; ++i) CHECK(same_bits(all[i].value, other[i].value));
    }
  };
  check_saved([](auto const& all) { return std::make_unique<zbpp::optim::adamw>(layers_of(all)); });
  check_saved([](auto const& all) {
    tensors values;
    for (auto const& each : all) values.push_back(each.value);
    return std::make_unique<zbpp::torch::optimizer_steps<torch::optim::AdamW>>(
        std::make_shared<torch::optim::AdamW>(values, 1.0), zbpp::torch::rate_from::options);
  });
}

TEST_CASE(
    "steps that were missed are saved, and files of before have none", "[torch][checkpoint]") {
  scratch_folder const folder;
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory);
  auto const make = [] {
    return std::vector<zbpp::torch::named_tensor>{
        {"a", at::ones({2, 2}).requires_grad_()}, {"b", at::ones({2, 2}).requires_grad_()}};
  };
  auto const step = [&](auto const& all, auto& optimizer, int number, bool is_frozen) {
    all[0].value.set_requires_grad(!is_frozen);
    for (auto const& each : all)
      if (each.value.requires_grad()) each.value.mutable_grad() = at::full({2, 2}, number + 1.0);
    optimizer.step({.updates = number, .learning_rate = 0.1}, ctx);
  };
  for (bool const is_frozen : {false, true}) {
    auto const all = make();
    auto const other = make();
    zbpp::optim::adamw optimizer(layers_of(all));
    zbpp::optim::adamw again(layers_of(other));
    again.missed_steps()[0] = 77;
    int updates = 0;
    for (; updates < 6; ++updates)
      step(all, optimizer, updates, is_frozen && updates > 0 && updates < 5);
    save_checkpoint(folder / "x.safetensors", std::vector{model_part(all, optimizer)});
    // A run whose layers have taken all steps writes the files of before.
    std::ifstream file(folder / "x.safetensors", std::ios::binary);
    std::string const text(std::istreambuf_iterator<char>(file), {});
    CHECK((text.find("missed_steps") != std::string::npos) == is_frozen);
    load_checkpoint(folder / "x.safetensors", std::vector{model_part(other, again)});
    CHECK(again.missed_steps()[0] == (is_frozen ? 4 : 0));
    CHECK(again.missed_steps()[1] == 0);
    for (int i = updates; i < updates + 3; ++i) {
      step(all, optimizer, i, false);
      step(other, again, i, false);
    }
    for (std::size_t i = 0; i < 2; ++i) CHECK(same_bits(all[i].value, other[i].value));
  }
}

TEST_CASE("momentum of zbpp's SGD and tensors of all types come back", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const make = [](float value) {
    tensors all{at::full({2, 3}, value).requires_grad_(), at::full({3}, value).requires_grad_()};
    for (auto const type :
         {at::kBFloat16,
          at::kHalf,
          at::kDouble,
          at::kLong,
          at::kInt,
          at::kShort,
          at::kChar,
          at::kByte,
          at::kBool})
      all.push_back(at::full({2}, value).to(type));
    all.push_back(at::full({}, value));
    all.push_back(at::empty({0, 4}));
    all.push_back(at::full({3, 2}, value).t());
    return all;
  };
  auto const named = [](tensors const& all) {
    std::vector<zbpp::torch::named_tensor> made;
    for (auto const& each : all)
      made.push_back({"\"tensor\\\t" + std::to_string(made.size()), each});
    return made;
  };
  auto const a = make(3);
  auto const b = make(0);
  zbpp::optim::sgd from(zbpp::torch::layers_of(a), {.momentum = 0.5F});
  zbpp::optim::sgd to(zbpp::torch::layers_of(b), {.momentum = 0.5F});
  for (std::size_t i = 0; i < 9; ++i) from.momentum()[i] = static_cast<float>(i);
  zbpp::training_state const state{
      .steps = 7,
      .updates = 5,
      .loss_scale = 0.1,
      .finite_steps = 3,
      .amended = ~0ULL,
      .accumulated = 2,
      .unagreed = 4};
  save_checkpoint(folder / "a", std::vector{model_part(named(a), from)}, state);
  CHECK(load_checkpoint(folder / "a", std::vector{model_part(named(b), to)}) == state);
  CHECK(same_bits(a, b));
  for (std::size_t i = 0; i < 9; ++i) CHECK(to.momentum()[i] == static_cast<float>(i));
}

TEST_CASE("ranks load their parts of a checkpoint alone", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const whole = make_slices(1, 1);
  zbpp::optim::adamw from(zbpp::torch::layers_of(whole.front()->parameters()));
  for (std::size_t i = 0; i < from.mean().size(); ++i) from.mean()[i] = static_cast<float>(i);
  auto const path = folder / "a";
  save_checkpoint(path, std::vector{model_part(whole.front(), from, "model.")}, {.steps = 3});
  auto const slices = make_slices(4, 2);
  std::vector<float> means;
  for (auto const& slice : slices) {
    zbpp::optim::adamw optimizer(zbpp::torch::layers_of(slice->parameters()));
    std::vector<model_part> const own{{slice, optimizer, "model."}};
    // [load_own
    auto const state = zbpp::torch::load_checkpoint(path, own, zbpp::torch::coverage::part);
    // load_own]
    CHECK(state.steps == 3);
    means.insert(means.end(), optimizer.mean().begin(), optimizer.mean().end());
  }
  CHECK(same_values(slices, whole));
  CHECK(std::ranges::equal(means, from.mean()));
}

TEST_CASE("files of the format that others wrote are read", "[torch][checkpoint]") {
  scratch_folder const folder;
  // As the format's own library writes it.
  std::string text =
      R"({"__metadata__":{"made by":"another \"library\"\n"},"count":{"dtype":"I64","shape":[],)"
      R"("data_offsets":[0,8]},"block.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
      R"("half":{"dtype":"F16","shape":[2],"data_offsets":[32,36]},"is":{"dtype":"BOOL","shape":[3])"
      R"(,"data_offsets":[36,39]}}      )";
  CHECK(text.size() == 0x128);
  text = std::string("\x28\x01\0\0\0\0\0\0", 8) + text;
  text += std::string("\x07\0\0\0\0\0\0\0", 8);
  for (float const each : {0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 5.0F})
    text.append(reinterpret_cast<char const*>(&each), sizeof each);
  text += std::string("\x00\x3e\x00\xc0\x01\x00\x01", 7);
  write_text(folder / "other.safetensors", text);
  auto const weight = at::zeros({2, 3}).requires_grad_();
  std::vector<zbpp::torch::named_tensor> const entries{
      {"block.weight", weight},
      {"count", at::zeros({}, at::kLong)},
      {"half", at::zeros({2}, at::kHalf)},
      {"is", at::zeros({3}, at::kBool)}};
  auto const state =
      load_checkpoint(folder / "other.safetensors", std::vector{model_part(entries)});
  CHECK(state == zbpp::training_state{});
  CHECK(same_bits(weight, at::arange(6, at::kFloat).view({2, 3})));
  CHECK(entries[1].value.item<std::int64_t>() == 7);
  CHECK(same_bits(entries[2].value, at::tensor({1.5F, -2.0F}).to(at::kHalf)));
  CHECK(same_bits(entries[3].value, at::tensor({1, 0, 1}).to(at::kBool)));
}

TEST_CASE("a header that is none is refused with what is wrong", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  auto const value = at::zeros({2}).requires_grad_();
  auto const refused = [&](std::string const& header) {
    auto const length = static_cast<std::uint64_t>(header.size());
    write_text(
        path,
        std::string(reinterpret_cast<char const*>(&length), sizeof length) + header +
            std::string(8, '\0'));
    return refusal(errc::bad_format, [&] {
      load_checkpoint(
          path, std::vector{model_part(std::vector{zbpp::torch::named_tensor{"w", value}})});
    });
  };
  auto const entry = [](std::string const& type, std::string const& shape, std::string const& at) {
    return R"("w":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + at + "}";
  };
  auto const whole = entry("F32", "[2]", "[0,8]");
  auto const begin = path.string() + ": is not a valid safetensors file: its header: ";
  auto const end = std::string("; take another copy of it");
  for (auto const& [header, wrong] : std::vector<std::pair<std::string, std::string>>{
           {"[1]", "it is no object"},
           {"{" + whole + "," + whole + "}", "the entry \"w\" stands there twice"},
           {"{" + entry("F8", "[2]", "[0,8]") + "}",
            "the entry 'w' has the type \"F8\", which is not known"},
           {"{" + entry("F32", "[-2]", "[0,8]") + "}",
            "the entry 'w' has a shape that is no list of whole numbers"},
           {"{" + entry("F32", "[2.0]", "[0,8]") + "}",
            "the entry 'w' has a shape that is no list of whole numbers"},
           {"{" + entry("F32", "[18446744073709551615]", "[0,8]") + "}",
            "the entry 'w' has a shape that is no list of whole numbers"},
           {"{" + entry("F32", "2", "[0,8]") + "}",
            "the entry 'w' has a shape that is no list of whole numbers"},
           {"{" + entry("F32", "[2]", "[8,0]") + "}",
            "the entry 'w' has data_offsets that are not a begin and an end"},
           {"{" + entry("F32", "[2]", "[0]") + "}",
            "the entry 'w' has data_offsets that are not a begin and an end"},
           {"{" + entry("F32", "[3]", "[0,8]") + "}", "the data of the entry 'w' is not F32 of 3"},
           {"{" + entry("F32", "[1]", "[4,8]") + "}",
            "the data of two entries overlaps, or a gap is left"},
           {R"({"w":{"dtype":"F32","shape":[2]}})",
            "the entry 'w' is no object of dtype, shape and data_offsets"},
           {R"({"w":7})", "the entry 'w' is no object of dtype, shape and data_offsets"},
           {R"({"__metadata__":{"a":1},)" + whole + "}",
            "its __metadata__ is no object of strings"},
           {R"({"__metadata__":["a"],)" + whole + "}", "its __metadata__ is no object of strings"},
           {R"({"__metadata__":[],)" + whole + "}", "its __metadata__ is no object of strings"},
           {R"({"__metadata__":null,)" + whole + "}", "its __metadata__ is no object of strings"},
           {R"({"__metadata__":false,)" + whole + "}", "its __metadata__ is no object of strings"},
           {R"({"__metadata__":0,)" + whole + "}", "its __metadata__ is no object of strings"},
           {R"({"__metadata__":"",)" + whole + "}", "its __metadata__ is no object of strings"},
           {R"({"__metadata__":{"a":null},)" + whole + "}",
            "its __metadata__ is no object of strings"},
           {R"({"__metadata__":{"a":[]},)" + whole + "}",
            "its __metadata__ is no object of strings"},
           {R"({"__metadata__":{"a":{}},)" + whole + "}",
            "its __metadata__ is no object of strings"},
           {R"({"w":null})", "the entry 'w' is no object of dtype, shape and data_offsets"},
           {R"({"w":[]})", "the entry 'w' is no object of dtype, shape and data_offsets"},
           {R"({"w":{}})", "the entry 'w' is no object of dtype, shape and data_offsets"},
           {"{" + entry("F32", "null", "[0,8]") + "}",
            "the entry 'w' has a shape that is no list of whole numbers"},
           {"{" + entry("F32", "{}", "[0,8]") + "}",
            "the entry 'w' has a shape that is no list of whole numbers"},
           {"{" + entry("F32", "[null]", "[0,8]") + "}",
            "the entry 'w' has a shape that is no list of whole numbers"},
           {"{" + entry("F32", "[{}]", "[0,8]") + "}",
            "the entry 'w' has a shape that is no list of whole numbers"},
           {"{" + entry("F32", "[2]", "null") + "}",
            "the entry 'w' has a data_offsets that is no list of whole numbers"},
           {R"({"w":{"dtype":null,"shape":[2],"data_offsets":[0,8]}})",
            "the entry 'w' has a dtype that is no string"},
           {R"({"w":{"dtype":["F32"],"shape":[2],"data_offsets":[0,8]}})",
            "the entry 'w' has a dtype that is no string"},
           {"null", "it is no object"},
           {"", "it is no object"},
           {" {" + whole + "}", "it is no object: it does not begin with '{'"},
           {"\xEF\xBB\xBF{" + whole + "}", "it is no object: it does not begin with '{'"},
           {"{" + entry("F32", "[[2]]", "[0,8]") + "}", "it has lists in lists"},
           {"{" + entry("F32", std::string(100'000, '['), "[0,8]") + "}",
            "found more than 8 brackets within each other"}}) {
    INFO(header.substr(0, 80));
    auto const text = refused(header);
    CHECK_THAT(text, Catch::StartsWith(begin + wrong));
    CHECK_THAT(text, Catch::EndsWith(end));
  }
  std::string ones = "[1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  CHECK(
      refused("{" + entry("F32", ones + "]", "[0,4]") + "}") ==
      begin + "a list has more than 64 numbers" + end);
  // What the parser finds wrong is told with its place.
  CHECK_THAT(refused("{\"w\":"), Catch::Contains("column 6") && Catch::EndsWith(end));
}

TEST_CASE("a checkpoint that does not fit is refused with what is wrong", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  auto const file = path.string();
  auto const make = [](at::IntArrayRef sizes, std::string const& name) {
    return std::vector<zbpp::torch::named_tensor>{
        {"w", at::ones({2, 2}).requires_grad_()}, {name, at::ones(sizes).requires_grad_()}};
  };
  auto const right = make({3, 4}, "block.v");
  save_checkpoint(path, std::vector{model_part(right)});
  auto const refused = [&](std::vector<zbpp::torch::named_tensor> const& to,
                           fs::path const& from,
                           coverage extent = coverage::whole) {
    for (auto const& each : to) each.value.detach().zero_();
    auto const text = refusal(
        errc::bad_format, [&] { load_checkpoint(from, std::vector{model_part(to)}, extent); });
    for (auto const& each : to) CHECK(each.value.detach().abs().sum().item<float>() == 0);
    return text;
  };
  CHECK(
      refused(make({4, 4}, "block.v"), path) ==
      file + ": the entry 'block.v' is F32 of 3 x 4; the model has F32 of 4 x 4");
  auto other_type = make({3, 4}, "block.v");
  other_type[1].value = at::ones({3, 4}, at::kLong);
  CHECK(
      refused(other_type, path) ==
      file + ": the entry 'block.v' is F32 of 3 x 4; the model has I64 of 3 x 4");
  auto const missing =
      file +
      ": has no entry 'block.u'; the model has it as F32 of 3 x 4: load what was saved of all "
      "parts, under the same names";
  for (auto const extent : {coverage::whole, coverage::part})
    CHECK(refused(make({3, 4}, "block.u"), path, extent) == missing);
  auto const first = std::vector{right.front()};
  CHECK(
      refused(first, path) ==
      file +
          ": the entry 'block.v' matches nothing in the model; give load_checkpoint all parts of "
          "the model, or coverage::part");

  // Of another optimizer.
  zbpp::optim::sgd sgd(zbpp::torch::layers_of({right[0].value, right[1].value}));
  zbpp::optim::adamw adamw(zbpp::torch::layers_of({right[0].value, right[1].value}));
  save_checkpoint(folder / "sgd", std::vector{model_part(right, sgd)});
  auto const with_adamw = [&](fs::path const& from, coverage part) {
    return refusal(errc::bad_format, [&] {
      load_checkpoint(from, std::vector{model_part(right, adamw)}, part);
    });
  };
  CHECK_THAT(
      with_adamw(folder / "sgd", coverage::part),
      Catch::EndsWith("has no entry 'optimizer/w/mean'; the model has it as F32 of 2 x 2: load "
                      "what was saved of all parts, under the same names"));
  auto extended = right;
  for (auto const* const field : {"mean", "mean_square", "momentum"})
    for (auto const& each : right)
      extended.push_back({"optimizer/" + each.name + '/' + field, at::zeros(each.value.sizes())});
  save_checkpoint(folder / "more", std::vector{model_part(extended)});
  for (auto const extent : {coverage::whole, coverage::part})
    CHECK_THAT(
        with_adamw(folder / "more", extent),
        Catch::Contains("the entry 'optimizer/block.v/momentum' matches nothing in the model"));

  // Of other steps, or twice.
  fs::create_directory(folder / "both");
  save_checkpoint(folder / "both/a.safetensors", std::vector{model_part(first)}, {.steps = 3});
  save_checkpoint(
      folder / "both/b.safetensors",
      std::vector{model_part(std::vector{right.back()})},
      {.steps = 4});
  CHECK_THAT(
      refused(right, folder / "both"),
      Catch::Contains("b.safetensors: is of step 4, and ") &&
          Catch::Contains("a.safetensors of step 3; load files that were saved at the same time"));
  save_checkpoint(
      folder / "both/b.safetensors",
      std::vector{model_part(std::vector{right.back()})},
      {.steps = 3, .updates = 3});
  CHECK_THAT(
      refused(right, folder / "both"),
      Catch::Contains("b.safetensors: has the training_state '3 3 0 0 0 0', and ") &&
          Catch::EndsWith("a.safetensors has '3 0 0 0 0 0'; load files that were saved at the same "
                          "time, with the state of a rank that has an optimizer"));
  save_checkpoint(folder / "both/b.safetensors", std::vector{model_part(right)}, {.steps = 3});
  CHECK_THAT(
      refused(right, folder / "both"),
      Catch::Contains("b.safetensors: the entry 'w' is in ") &&
          Catch::Contains("a.safetensors, too; leave the files of one checkpoint alone"));

  CHECK(
      refusal([&] {
        save_checkpoint(path, std::vector{model_part(right), model_part(right)});
      }) ==
      "two entries of a checkpoint are 'w'; name the modules of each part as in the whole model, "
      "or give it a prefix");
  CHECK_THAT(
      refusal([&] {
        save_checkpoint(path, std::vector{model_part({{"z", at::ones({2}, at::kComplexFloat)}})});
      }),
      Catch::Contains(
          "'z' is not a dense tensor of a type that a checkpoint can have: it is ComplexFloat "
          "of 2"));
  CHECK_THAT(
      refusal([&] {
        auto const named = zbpp::torch::named_tensor{"__metadata__", at::ones({2})};
        save_checkpoint(path, std::vector{model_part(std::vector{named})});
      }),
      Catch::Contains("an entry of a checkpoint is '__metadata__'"));
  // Of more weights, and of as many in another order.
  std::vector<zbpp::torch::named_tensor> const swapped{right[1], right[0]};
  for (auto const& other : {first, swapped})
    CHECK_THAT(
        refusal([&] { static_cast<void>(model_part(other, sgd)); }),
        Catch::Contains("the optimizer of a model_part steps other weights than those of the part "
                        "that are trained, or in another order"));
  CHECK_THAT(
      refusal(errc::io_failed, [&] { load_checkpoint(folder / "none", {}); }),
      Catch::Contains("none: cannot be read"));
  fs::create_directory(folder / "empty");
  CHECK_THAT(
      refusal(errc::io_failed, [&] { load_checkpoint(folder / "empty", {}); }),
      Catch::Contains("empty: has no file whose name ends in .safetensors"));
}

TEST_CASE(
    "no part of a checkpoint is taken for all of it, nor another file", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  auto const entries = [](float value) {
    return std::vector<zbpp::torch::named_tensor>{
        {"w", at::full({2, 3}, value)}, {"is", at::ones({3}, at::kBool)}};
  };
  save_checkpoint(path, std::vector{model_part(entries(1))}, {.steps = 12});
  auto const text = text_of(path);
  check_damaged_texts(text, [&](std::string const& changed) {
    write_text(path, changed);
    auto const to = entries(2);
    try {
      load_checkpoint(path, std::vector{model_part(to)});
    } catch (zbpp::error const& refused) {
      CHECK(same_bits(to.front().value, at::full({2, 3}, 2.0F)));
      CHECK(refused.code() == errc::bad_format);
      CHECK_THAT(refused.what(), Catch::StartsWith(path.string() + ": "));
      return true;
    }
    return false;
  });
}

TEST_CASE("a file that cannot be written leaves the old one", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  std::vector<model_part> const parts{
      model_part(std::vector<zbpp::torch::named_tensor>{{"w", at::ones({2})}})};
  save_checkpoint(path, parts);
  auto const before = text_of(path);
  fs::create_directory(path.string() + ".tmp");  // no file can be written under its name
  CHECK_THAT(
      refusal(errc::io_failed, [&] { save_checkpoint(path, parts, {.steps = 1}); }),
      Catch::Contains("a.safetensors: cannot be written"));
  CHECK(text_of(path) == before);
  fs::remove(path.string() + ".tmp");
  save_checkpoint(path, parts, {.steps = 1});
  CHECK(text_of(path) != before);
  CHECK_FALSE(fs::exists(path.string() + ".tmp"));
}

namespace {

at::Tensor numbers(double first, at::IntArrayRef sizes) {
  auto const made = at::empty(sizes);
  for (std::int64_t i = 0; i < made.numel(); ++i)
    made.data_ptr<float>()[i] = static_cast<float>(first + static_cast<double>(i) / 8);
  return made;
}

bool counts_from(std::span<float const> values, double first) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != static_cast<float>(first + static_cast<double>(i) / 8)) return false;
  return true;
}

// Has what is in the files of tests/data/6ed9a29.
struct stored_tensors {
  using named = std::vector<zbpp::torch::named_tensor>;

  // Other numbers where `first` is not 1.
  explicit stored_tensors(double first) {
    auto const mask = first == 1 ? -std::numeric_limits<float>::infinity() : 0;
    trained = {
        {"a.weight", numbers(first, {2, 3})},
        {"a.bias", numbers(first + 1, {3})},
        {"b.weight", numbers(first + 2, {4})}};
    first += 3;
    for (auto const type :
         {at::kBFloat16,
          at::kHalf,
          at::kDouble,
          at::kLong,
          at::kInt,
          at::kShort,
          at::kChar,
          at::kByte,
          at::kBool})
      others.push_back({c10::toString(type), numbers(first++, {3}).to(type)});
    others.push_back({"mask", at::full({}, mask)});
    for (auto const& each : trained) each.value.set_requires_grad(true);
  }
  [[nodiscard]] tensors values() const {
    tensors all;
    for (auto const* list : {&trained, &others})
      for (auto const& each : *list) all.push_back(each.value.detach());
    return all;
  }

  named trained, others;
};

}  // namespace

TEST_CASE("files of version 6ed9a29 are loaded", "[torch][checkpoint]") {
  auto const folder = fs::path(ZBPP_TEST_DATA_DIR) / "6ed9a29";
  auto const saved = stored_tensors(1).values();
  stored_tensors model(70);
  for (auto const& each : model.trained) each.value.mutable_grad() = at::ones(each.value.sizes());
  auto const parameters = [&] {
    tensors all;
    for (auto const& each : model.trained) all.push_back(each.value);
    return all;
  }();
  auto const check_gradients = [&] {
    CHECK(same_bits(parameters[0].grad(), numbers(40, {2, 3})));
    CHECK(same_bits(parameters[1].grad(), at::zeros({3})));
  };
  {
    auto all = model.trained;
    all.insert(all.end(), model.others.begin(), model.others.end());
    zbpp::optim::adamw steps(layers_of(parameters));
    zbpp::training_state const right{
        .steps = 7,
        .updates = 5,
        .loss_scale = 0.1,
        .finite_steps = 3,
        .amended = 9,
        .accumulated = 2,
        .unagreed = 4};
    CHECK(load_checkpoint(folder / "adamw", std::vector{model_part(all, steps)}) == right);
    CHECK(same_bits(model.values(), saved));
    CHECK(counts_from(steps.mean().first(9), 10));
    CHECK(counts_from(steps.mean_square().first(9), 20));
    CHECK(counts_from(steps.mean().subspan(9), 12));
    CHECK(counts_from(steps.mean_square().subspan(9), 22));
    check_gradients();
  }
  {
    zbpp::optim::sgd steps(layers_of(parameters), {.momentum = 0.5F});
    std::vector const part{model_part(model.trained, steps)};
    CHECK(load_checkpoint(folder / "sgd.safetensors", part).steps == 3);
    CHECK(counts_from(steps.momentum(), 30));
    check_gradients();
  }
  torch::optim::AdamW steps(parameters, 0.1);
  std::vector const part{model_part(model.trained, steps)};
  CHECK(load_checkpoint(folder / "libtorch.safetensors", part).steps == 3);
  check_gradients();
  REQUIRE(steps.state().size() == 1);
  auto const& state =
      static_cast<torch::optim::AdamWParamState const&>(*steps.state().begin()->second);
  CHECK(state.step() == 6);
  CHECK(same_bits(state.exp_avg(), numbers(50, {2, 3})));
  CHECK(same_bits(state.exp_avg_sq(), numbers(60, {2, 3})));
  CHECK_FALSE(state.max_exp_avg_sq().defined());
}

}  // namespace test_torch_checkpoint
