// SPDX-License-Identifier: Apache-2.0
//
// What one split of a model saves, another one loads, and goes on with the same bits.
#include <zbpp/io/file.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/scratch_folder.hpp>
#include <support/torch_training.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
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
using named = std::vector<zbpp::torch::named_tensor>;

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

void step_torch(torch::optim::Optimizer& optimizer) {
  optimizer.step();
  optimizer.zero_grad();
}

// AdamW of zbpp, in stages and in a plain loop.
struct with_zbpp {
  using stage = zbpp::optim::adamw;
  static stage staged(tensors const& p) { return stage(layers_of(p), {.weight_decay = 0.1F}); }
  static zbpp::training_options options() { return {.clip = 0.5, .learning_rate = rate}; }
  struct plain : plain_steps {
    explicit plain(tensors const& p) : plain_steps(p, options(), {}, {.weight_decay = 0.1F}) {}
  };
};

// AdamW of LibTorch.
struct with_torch {
  using stage = zbpp::torch::optimizer_steps<torch::optim::AdamW>;
  static stage staged(tensors const& p) {
    return {std::make_shared<torch::optim::AdamW>(p, 1.0), zbpp::torch::rate_from::options};
  }
  static zbpp::training_options options() {
    return {.learning_rate = [](std::int64_t) { return 1e-2; }};
  }
  class plain {
   public:
    explicit plain(tensors const& p) : optimizer_(p, 1e-2) {}
    torch::optim::AdamW& optimizer() { return optimizer_; }
    void resume(zbpp::training_state const& state) { state_ = state; }
    [[nodiscard]] zbpp::training_state const& state() const { return state_; }
    void step() {
      step_torch(optimizer_);
      ++state_.steps;
      ++state_.updates;
    }

   private:
    torch::optim::AdamW optimizer_;
    zbpp::training_state state_;
  };
};

// Is how a run trains.
struct run_settings {
  int ranks;
  zbpp::step_kind kind;
  zbpp::training_options options;
};

// Trains from a checkpoint, if there is one, and saves another, a file for each rank.
template <class With>
std::vector<double> run(
    run_settings const& how, int steps, fs::path const& from, fs::path const& to) {
  auto const threads = one_thread_each();
  auto slices = make_slices(how.ranks, from.empty() ? 1 : 9);
  std::vector<module_stage<typename With::stage>> stages;
  for (auto& slice : slices)
    stages.emplace_back(slice, block_ends(), With::staged(slice->parameters()));
  zbpp::pipeline pipe{plan_of(how.ranks, how.kind), threads, stages, how.options};
  // [parts
  std::vector<zbpp::torch::model_part> parts;
  for (std::size_t s = 0; s < slices.size(); ++s)
    parts.emplace_back(slices[s], stages[s].optimizer());
  // parts]
  if (!from.empty()) {
    auto const& folder = from;
    for (auto const& slice : slices)  // what a load has to replace, too
      for (auto& p : slice->parameters()) p.mutable_grad() = at::ones_like(p.detach());
    // [load
    pipe.resume(zbpp::torch::load_checkpoint(folder, parts));
    // load]
    CHECK(pipe.state().accumulated == pipe.state().steps % how.options.accumulate);
  }
  std::vector<double> losses;
  pipe.run(steps, [&](zbpp::step_result const& result) {
    losses.insert(losses.end(), result.losses.begin(), result.losses.end());
  });
  fs::create_directory(to);
  for (int rank = 0; rank < how.ranks; ++rank) {
    std::vector<model_part> own{parts[static_cast<std::size_t>(rank)]};
    auto const& folder = to;
    // [save
    zbpp::torch::save_checkpoint(
        folder / ("rank" + std::to_string(rank) + ".safetensors"), own, pipe);
    // save]
  }
  return losses;
}

void append(std::vector<double>& to, std::vector<double> const& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// Trains in a plain loop of one process.
template <class Steps>
std::vector<double> run_plain(
    std::vector<torch::nn::Sequential>& slices, Steps& optimizer, int steps) {
  at::set_num_threads(1);
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    append(losses, plain_microbatches_of(slices, optimizer.state().steps));
    optimizer.step();
  }
  return losses;
}

template <class With>
void check_splits() {
  scratch_folder const folder;
  auto whole = make_slices(1, 1);
  typename With::plain all(whole.front()->parameters());
  auto const expected = run_plain(whole, all, 8);

  std::vector<double> losses;
  auto const run_on = [&](int ranks, fs::path const& from, fs::path const& to) {
    append(losses, run<With>({ranks, zbpp::step_kind::synchronous, With::options()}, 2, from, to));
  };
  run_on(2, {}, folder / "2");
  run_on(4, folder / "2", folder / "4");
  auto alone = make_slices(1, 9);
  typename With::plain optimizer(alone.front()->parameters());
  std::vector<model_part> const one{{alone.front(), optimizer.optimizer()}};
  optimizer.resume(load_checkpoint(folder / "4", one));
  CHECK(optimizer.state().updates == 4);
  append(losses, run_plain(alone, optimizer, 2));
  save_checkpoint(folder / "1.safetensors", one, optimizer.state());
  run_on(2, folder / "1.safetensors", folder / "end");

  CHECK(losses == expected);
  auto last = make_slices(4, 9);
  std::vector<model_part> weights;  // without optimizers
  for (auto const& slice : last) weights.emplace_back(slice);
  CHECK(load_checkpoint(folder / "end", weights).steps == 8);
  CHECK(same_values(last, whole));
}

}  // namespace

TEST_CASE("a run goes on in another split with the same bits", "[torch][checkpoint]") {
  check_splits<with_zbpp>();
  check_splits<with_torch>();
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
    auto const step = [](auto const& of, auto& steps, int number) {
      auto const losses = plain_microbatches_of(of, number);
      step_torch(steps);
      return losses;
    };
    for (int i = 0; i < 2; ++i) step(again, *other, i);  // what a load has to replace
    for (int i = 0; i < 3; ++i) {
      save_checkpoint(folder / name, from, {.steps = i});
      CHECK(load_checkpoint(folder / name, to).steps == i);
      CHECK(step(again, *other, i) == step(slices, *optimizer, i));
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

template <class With>
void check_at_any_step(run_settings const& how) {
  constexpr int steps = 7;
  scratch_folder const folder;
  // Running statistics count the batches of amended steps twice, where a run does not end behind
  // them.
  auto const weights_in = [&](char const* name) {
    auto const slice = make_slices(1, 9).front();
    load_checkpoint(folder / name, std::vector{model_part(slice)});
    return slice->parameters();
  };
  auto const expected = run<With>(how, steps, {}, folder / "whole");
  for (int first = 1; first < steps; ++first) {
    CAPTURE(static_cast<int>(how.kind), how.options.accumulate, first);
    auto losses = run<With>(how, first, {}, folder / "half");
    append(losses, run<With>(how, steps - first, folder / "half", folder / "end"));
    CHECK(losses == expected);
    CHECK(same_bits(weights_in("end"), weights_in("whole")));
  }
}

}  // namespace

TEST_CASE("a checkpoint at any step goes on with the same bits", "[torch][checkpoint]") {
  for (auto const kind :
       {zbpp::step_kind::unchecked, zbpp::step_kind::synchronous, zbpp::step_kind::post_validated})
    for (int const accumulate : {1, 3}) {
      bool const agrees = kind != zbpp::step_kind::unchecked;
      zbpp::training_options const options{
          .clip = agrees ? 0.1 : 0,
          .learning_rate = rate,
          .scaling = {.initial = 4, .growth_interval = agrees ? 2 : 0},
          .accumulate = accumulate};
      check_at_any_step<with_zbpp>({2, kind, options});
      check_at_any_step<with_torch>({2, kind, options});
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
}

TEST_CASE("files that say nothing of the run, or of gradients, are read", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  auto const w = at::ones({2, 2}).requires_grad_();
  w.mutable_grad() = at::ones({2, 2});
  std::vector const parts{model_part(named{{"w", w}})};
  std::vector<float> numbers{1, 2, 3, 4};
  auto const load = [&](std::map<std::string, std::string> const& metadata) {
    zbpp::checkpoint::write_arrays(
        path, std::vector{zbpp::checkpoint::array_of("w", std::span(numbers), {2, 2})}, metadata);
    return load_checkpoint(path, parts);
  };
  std::string const key = zbpp::checkpoint::training_key;
  CHECK(load({{"made by", "others"}}) == zbpp::training_state());
  CHECK(same_bits(w, at::arange(1, 5, at::kFloat).view({2, 2})));
  CHECK(
      load({{key, "7 5 4 3 9"}}) ==
      zbpp::training_state{
          .steps = 7, .updates = 5, .loss_scale = 4, .finite_steps = 3, .amended = 9});
  CHECK(same_bits(w.grad(), at::ones({2, 2})));
  CHECK(
      refusal(
          errc::bad_format,
          [&] {
            load({{key, "7 5 4 3"}});
          }) ==
      path.string() +
          ": its training_state is '7 5 4 3', which is not five or six numbers; take another copy "
          "of it");
}

namespace {

// Steps tensors of which `a` is frozen in the first step, `b` since the second one, `c` always.
class frozen_tensors {
 public:
  frozen_tensors() {
    for (auto const* const name : {"a", "b", "c"}) all_.push_back({name, at::ones({2, 2})});
  }
  [[nodiscard]] named const& all() const { return all_; }
  [[nodiscard]] tensors values() const {
    tensors values;
    for (auto const& each : all_) values.push_back(each.value);
    return values;
  }
  void freeze(int step) const {
    all_[0].value.set_requires_grad(step > 0);
    all_[1].value.set_requires_grad(step < 1);
  }
  template <class Optimizer>
  void step(Optimizer& optimizer, int number) const {
    freeze(number);
    for (auto const& each : all_)
      if (each.value.requires_grad()) each.value.mutable_grad() = at::full({2, 2}, number + 1.0);
    zbpp::arena memory;
    optimizer.step({.updates = number, .learning_rate = 0.1}, zbpp::pass_context(memory));
  }

 private:
  named all_;
};

template <class With>
void check_frozen() {
  scratch_folder const folder;
  auto const path = folder / "x.safetensors";
  for (int saved = 0; saved < 4; ++saved) {
    frozen_tensors const one, other;
    one.freeze(0);
    other.freeze(saved);
    auto optimizer = With::staged(one.values());
    auto again = With::staged(other.values());
    for (int i = 0; i < saved; ++i) one.step(optimizer, i);
    save_checkpoint(path, std::vector{model_part(one.all(), optimizer)});
    if constexpr (requires { again.missed_steps(); }) {
      std::ranges::fill(again.missed_steps(), 77);
      // A run whose layers have taken all steps writes the files of before.
      zbpp::checkpoint::stored_model const stored(path);
      CHECK(stored.arrays().contains("optimizer/a/missed_steps") == (saved > 0));
    }
    load_checkpoint(path, std::vector{model_part(other.all(), again)});
    if constexpr (requires { again.missed_steps(); })
      CHECK(std::ranges::equal(again.missed_steps(), optimizer.missed_steps()));
    for (int i = saved; i < 4; ++i) {
      one.step(optimizer, i);
      other.step(again, i);
    }
    CHECK(same_bits(one.values(), other.values()));
  }
}

}  // namespace

TEST_CASE(
    "moments of what was frozen once, and steps that it missed, come back", "[torch][checkpoint]") {
  check_frozen<with_zbpp>();
  check_frozen<with_torch>();
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

TEST_CASE("a checkpoint that does not fit is refused with what is wrong", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  auto const make = [](at::IntArrayRef sizes, std::string const& name, at::ScalarType type) {
    return named{{"w", at::ones({2, 2}).requires_grad_()}, {name, at::ones(sizes, type)}};
  };
  auto const right = make({3, 4}, "block.v", at::kFloat);
  auto const parameters = tensors{right[0].value, right[1].value.requires_grad_()};
  save_checkpoint(path, std::vector{model_part(right)});
  auto const check = [&](fs::path const& from, model_part const& to, std::string const& wrong) {
    for (auto const extent : {coverage::whole, coverage::part})
      CHECK_THAT(
          refusal(errc::bad_format, [&] { load_checkpoint(from, std::vector{to}, extent); }),
          Catch::StartsWith(from.string()) && Catch::EndsWith(wrong));
  };
  for (auto const& [to, wrong] : std::vector<std::pair<named, std::string>>{
           {make({4, 4}, "block.v", at::kFloat),
            ": has 'block.v' as F32 of 3 x 4, here belongs F32 of 4 x 4"},
           {make({3, 4}, "block.v", at::kLong),
            ": has 'block.v' as F32 of 3 x 4, here belongs I64 of 3 x 4"},
           {make({3, 4}, "block.u", at::kFloat),
            ": has no 'block.u', here belongs F32 of 3 x 4; save what all ranks have, under the "
            "names of the whole model"}}) {
    for (auto const& each : to) each.value.detach().zero_();
    check(path, model_part(to), wrong);
    for (auto const& each : to) CHECK(at::count_nonzero(each.value).item<std::int64_t>() == 0);
  }
  std::string const unknown =
      "', which matches nothing in the model; give load_checkpoint all parts of the model, or "
      "coverage::part";
  auto const first = std::vector{model_part(named{right.front()})};
  CHECK(refusal(errc::bad_format, [&] {
          load_checkpoint(path, first);
        }) == path.string() + ": has 'block.v" + unknown);
  load_checkpoint(path, first, coverage::part);

  // Of another optimizer.
  zbpp::optim::sgd sgd(layers_of(parameters));
  zbpp::optim::adamw adamw(layers_of(parameters));
  save_checkpoint(folder / "sgd", std::vector{model_part(right, sgd)});
  check(
      folder / "sgd",
      {right, adamw},
      ": has no 'optimizer/w/mean', here belongs F32 of 2 x 2; save what all ranks have, under the "
      "names of the whole model");
  auto extended = right;
  for (auto const* const field : {"mean", "mean_square", "momentum"})
    for (auto const& each : right)
      extended.push_back({"optimizer/" + each.name + '/' + field, at::zeros(each.value.sizes())});
  save_checkpoint(folder / "more", std::vector{model_part(extended)});
  check(folder / "more", {right, adamw}, ": has 'optimizer/block.v/momentum" + unknown);

  // Of other steps, or twice.
  fs::create_directory(folder / "both");
  auto const a = folder / "both/a.safetensors";
  auto const b = folder / "both/b.safetensors";
  save_checkpoint(a, first, {.steps = 3});
  for (auto const& [state, wrong] : std::vector<std::pair<zbpp::training_state, std::string>>{
           {{.steps = 4},
            ": is of step 4, and " + a.string() +
                " of step 3; load files that were saved at the same time"},
           {{.steps = 3, .updates = 3},
            ": has the training_state '3 3 0 0 0 0', and " + a.string() +
                " has '3 0 0 0 0 0'; load files that were saved at the same time, with the state "
                "of a rank that has an optimizer"},
           {{.steps = 3},
            ": has 'w', which stands elsewhere, too: b.safetensors has all of it, a.safetensors "
            "has all of it; one rank saves what several have"}}) {
    save_checkpoint(b, std::vector{model_part(right)}, state);
    check(folder / "both", model_part(right), b.string() + wrong);
  }
  fs::create_directory(folder / "empty");
  for (auto const& each :
       {std::pair(folder / "none", ": cannot be read: No such file or directory"),
        std::pair(folder / "empty", ": has no file whose name ends in .safetensors")})
    CHECK(refusal(errc::io_failed, [&] {
            load_checkpoint(each.first, {});
          }) == each.first.string() + each.second);
}

TEST_CASE("what a checkpoint cannot have is refused", "[torch][checkpoint]") {
  scratch_folder const folder;
  auto const table = at::ones({3, 2}).requires_grad_();
  table.mutable_grad() =
      at::sparse_coo_tensor(at::ones({1, 1}, at::kLong), at::ones({1, 2}), {3, 2});
  torch::optim::SGD sparse({table}, 0.1);
  model_part const with_sparse(named{{"table", table}}, sparse);
  auto const w = named{{"w", at::ones({2, 2})}};
  for (auto const& each : std::vector<std::pair<std::vector<model_part>, std::string>>{
           {{model_part(w), model_part(w)},
            "two entries of a checkpoint are 'w'; give each the name that it has in the whole "
            "model"},
           {{model_part(named{{"z", at::ones({2}, at::kComplexFloat)}})},
            "'z' is not a dense tensor of a type that a checkpoint can have: it is a "
            "CPUComplexFloatType; save what it is made of"},
           {{model_part(named{{"__metadata__", at::ones({2})}})},
            "an entry of a checkpoint is '__metadata__', which the format has for itself; give it "
            "another name"},
           {{with_sparse},
            "the gradient of 'table' is sparse, which a checkpoint cannot have; save when the "
            "optimizer has stepped and its gradients are cleared"}}) {
    CHECK(refusal([&] { save_checkpoint(folder / "a", each.first); }) == each.second);
    CHECK(fs::is_empty(folder.path()));
  }
  table.mutable_grad().reset();
  save_checkpoint(folder / "a", std::vector{with_sparse});
  CHECK(refusal([&] {
          load_checkpoint(folder / "a", std::vector{with_sparse, with_sparse});
        }).starts_with("two entries of a checkpoint are "));
  // Of more weights, and of as many in another order.
  auto const all =
      named{{"a", at::ones({2}).requires_grad_()}, {"b", at::ones({2}).requires_grad_()}};
  zbpp::optim::sgd sgd(layers_of({all[0].value, all[1].value}));
  for (auto const& other : {named{all[0]}, named{all[1], all[0]}})
    CHECK(
        refusal([&] { static_cast<void>(model_part(other, sgd)); }) ==
        "the optimizer of a model_part steps other weights than those of the part that are "
        "trained, or in another order; make it of layers_of(module->parameters())");
}

namespace {

at::Tensor numbers(double first, at::IntArrayRef sizes) {
  auto const made = at::empty(sizes);
  for (std::int64_t i = 0; i < made.numel(); ++i)
    made.data_ptr<float>()[i] = static_cast<float>(first + static_cast<double>(i) / 8);
  return made;
}

// Gives the same numbers, which do not lie next to each other.
at::Tensor apart(at::Tensor const& of) { return at::stack({of, of}, 1).select(1, 0); }

bool counts_from(std::span<float const> values, double first) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != static_cast<float>(first + static_cast<double>(i) / 8)) return false;
  return true;
}

// Has what is in the files of tests/data/6ed9a29.
struct stored_tensors {
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
      others.push_back({c10::toString(type), apart(numbers(first++, {3}).to(type))});
    others.push_back({"mask", at::full({}, mask)});
    for (auto const& each : trained) each.value.set_requires_grad(true);
  }
  [[nodiscard]] tensors values() const {
    tensors all;
    for (auto const* list : {&trained, &others})
      for (auto const& each : *list) all.push_back(each.value.detach());
    return all;
  }

  [[nodiscard]] tensors parameters() const {
    tensors all;
    for (auto const& each : trained) all.push_back(each.value);
    return all;
  }

  named trained, others;
};

}  // namespace

TEST_CASE("files of version 6ed9a29 are loaded, and written as before", "[torch][checkpoint]") {
  auto const folder = fs::path(ZBPP_TEST_DATA_DIR) / "6ed9a29";
  scratch_folder const written;
  auto const check_written = [&](fs::path const& name, model_part const& part, auto const& state) {
    save_checkpoint(written / "x", std::vector{part}, state);
    CHECK(zbpp::read_file(written / "x") == zbpp::read_file(folder / name));
  };
  auto const saved = stored_tensors(1).values();
  stored_tensors const model(70);
  auto const parameters = model.parameters();
  for (auto const& each : parameters) each.mutable_grad() = at::ones(each.sizes());
  auto const check_gradients = [&] {
    CHECK(same_bits(parameters[0].grad(), numbers(40, {2, 3})));
    CHECK(same_bits(parameters[1].grad(), at::zeros({3})));
  };
  {
    auto first = model.others;
    first.insert(first.begin(), model.trained.begin(), model.trained.begin() + 2);
    zbpp::optim::adamw steps(layers_of({parameters[0], parameters[1]}));
    zbpp::optim::adamw more(layers_of({parameters[2]}));
    std::vector const parts{model_part(first, steps), model_part({model.trained[2]}, more)};
    zbpp::training_state const right{
        .steps = 7,
        .updates = 5,
        .loss_scale = 0.1,
        .finite_steps = 3,
        .amended = 9,
        .accumulated = 2,
        .unagreed = 4};
    CHECK(load_checkpoint(folder / "adamw", parts) == right);
    CHECK(same_bits(model.values(), saved));
    CHECK(counts_from(steps.mean(), 10));
    CHECK(counts_from(steps.mean_square(), 20));
    CHECK(counts_from(more.mean(), 12));
    CHECK(counts_from(more.mean_square(), 22));
    check_gradients();
    check_written("adamw/rank0.safetensors", parts[0], right);
    check_written("adamw/rank1.safetensors", parts[1], right);
  }
  zbpp::training_state const state{.steps = 3};
  {
    zbpp::optim::sgd steps(layers_of(parameters), {.momentum = 0.5F});
    std::vector const part{model_part(model.trained, steps)};
    CHECK(load_checkpoint(folder / "sgd.safetensors", part) == state);
    CHECK(counts_from(steps.momentum(), 30));
    check_gradients();
    check_written("sgd.safetensors", part[0], state);
  }
  torch::optim::AdamW steps(parameters, 0.1);
  std::vector const part{model_part(model.trained, steps)};
  CHECK(load_checkpoint(folder / "libtorch.safetensors", part) == state);
  check_gradients();
  REQUIRE(steps.state().size() == 1);
  auto const& kept =
      static_cast<torch::optim::AdamWParamState const&>(*steps.state().begin()->second);
  CHECK(kept.step() == 6);
  CHECK(same_bits(kept.exp_avg(), numbers(50, {2, 3})));
  CHECK(same_bits(kept.exp_avg_sq(), numbers(60, {2, 3})));
  CHECK_FALSE(kept.max_exp_avg_sq().defined());
  check_written("libtorch.safetensors", part[0], state);
}

}  // namespace test_torch_checkpoint
