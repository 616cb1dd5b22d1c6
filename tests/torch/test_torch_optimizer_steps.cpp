// SPDX-License-Identifier: Apache-2.0
//
// Optimizers of LibTorch that ranks agree on give the bits of a plain loop, whatever of their steps
// is clipped, scaled, accumulated, skipped or taken back.
#include <zbpp/policy/one_chunk.hpp>

#include <support/torch_tied.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <utility>
#include <vector>

namespace test_torch_optimizer_steps {

using namespace zbpp::test;
using zbpp::step_kind;
using zbpp::training_options;
using zbpp::torch::module_stage;
using zbpp::torch::optimizer_steps;
using zbpp::torch::rate_from;
using zbpp::torch::tensors;

namespace {

constexpr int steps = 10;
constexpr int microbatches = 4;
constexpr double own_rate = 3e-2;

double rate(std::int64_t updates) { return 1e-2 / static_cast<double>(updates + 1); }

// Has an infinite gradient in one step.
torch_model make_model() {
  auto model = mlp_model(run_seed(), 2, 2, 6, 3);
  model.batch = [make = model.batch](std::int64_t number) {
    return number == 6 * microbatches + 1 ? make(number) * 1e30 : make(number);
  };
  return model;
}

zbpp::plan plan_of(step_kind kind) {
  return zbpp::make_plan(
      zbpp::zb_h2{},
      zbpp::problem(zbpp::placement::linear(2), microbatches, zbpp::stage_costs{.forward = 10}),
      {.step = kind});
}

// Takes the steps of a plain loop with an optimizer of LibTorch.
class plain_optimizer {
 public:
  plain_optimizer(
      torch::optim::Optimizer& optimizer,
      tensors parameters,
      training_options options,
      rate_from by,
      tensors tied = {})
      : optimizer_(optimizer),
        parameters_(std::move(parameters)),
        options_(std::move(options)),
        by_(by),
        tied_(std::move(tied)) {
    scale_ = options_.scaling.initial;
  }
  [[nodiscard]] double scale() const { return scale_; }

  void step() {
    if (++accumulated_ < options_.accumulate) return;
    accumulated_ = 0;
    std::vector<zbpp::gradient_state> states;
    bool has_tied = false;
    for (auto const& p : parameters_) {
      bool const is_tied =
          std::ranges::any_of(tied_, [&](auto const& each) { return each.is_same(p); });
      if (is_tied && std::exchange(has_tied, true)) continue;
      auto& state = states.emplace_back();
      if (p.requires_grad() && p.grad().defined()) {
        state.sum_of_squares =
            zbpp::torch::detail::state_of_gradient(p.grad().clone()).sum_of_squares;
        state.is_finite = at::isfinite(p.grad()).all().item<bool>();
      }
    }
    auto const verdict = zbpp::judge(states, options_.clip, scale_);
    if (!verdict.is_finite) {
      optimizer_.zero_grad();
      scale_ = std::max(options_.scaling.smallest, scale_ / 2);
      finite_ = 0;
      return;
    }
    auto const factor = static_cast<float>(verdict.coefficient) / static_cast<float>(scale_);
    for (auto const& p : parameters_) {
      if (!p.requires_grad()) p.mutable_grad().reset();
      if (p.grad().defined()) p.mutable_grad().mul_(factor);
    }
    if (by_ == rate_from::options)
      for (auto& group : optimizer_.param_groups())
        group.options().set_lr(options_.learning_rate(updates_));
    optimizer_.step();
    optimizer_.zero_grad();
    ++updates_;
    if (++finite_ != options_.scaling.growth_interval) return;
    scale_ = std::min(options_.scaling.largest, scale_ * 2);
    finite_ = 0;
  }

 private:
  torch::optim::Optimizer& optimizer_;
  tensors parameters_;
  training_options options_;
  rate_from by_;
  tensors tied_;
  double scale_ = 1;
  std::int64_t updates_ = 0;
  std::int64_t finite_ = 0;
  int accumulated_ = 0;
};

// What an optimizer keeps for parameters, field after field.
template <class Optimizer>
tensors state_of(Optimizer& optimizer, tensors const& parameters) {
  using fields = zbpp::torch::param_state<Optimizer>;
  using key = typename std::remove_cvref_t<decltype(optimizer.state())>::key_type;
  tensors all;
  for (auto const& p : parameters) {
    auto const found = optimizer.state().find(zbpp::torch::detail::state_key<key>(p));
    all.push_back(at::scalar_tensor(found != optimizer.state().end()));
    if (found == optimizer.state().end()) continue;
    fields::visit(
        static_cast<typename fields::type&>(*found->second), [&](char const*, auto& value) {
          if constexpr (zbpp::torch::detail::is_number<decltype(value)>)
            all.push_back(at::scalar_tensor(value, at::kLong));
          else
            all.push_back(value.defined() ? value.clone() : at::Tensor());
        });
  }
  return all;
}

struct outcome {
  torch_outcome training;
  tensors state;
  int amended = 0;
  int skipped = 0;
};

// Freezes the first parameter in some of the steps, to see who steps it.
void freeze(torch_model const& model, int step) {
  model.slices.front().parameters.front().set_requires_grad(step < 4 || step >= 8);
}

using step_list = std::vector<int>;  // how many steps each call of `run` has

template <class Make>
outcome plain(Make make, training_options const& options, rate_from by) {
  at::set_num_threads(1);
  auto const model = make_model();
  auto const optimizer = make(parameters_of(model));
  plain_optimizer steps_of(*optimizer, parameters_of(model), options, by);
  outcome made;
  for (int step = 0; step < steps; ++step) {
    freeze(model, step);
    auto const losses = plain_microbatches(model, step, microbatches, steps_of.scale());
    auto& all = made.training.losses;
    all.insert(all.end(), losses.begin(), losses.end());
    steps_of.step();
  }
  made.training.weights = weights_of(model);
  made.state = state_of(*optimizer, parameters_of(model));
  return made;
}

// At the head of each first F, where the step before may still be undone, parameters lose their
// gradients, or get other memory.
template <class Make>
outcome pipelined(
    Make make, step_kind kind, training_options const& options, rate_from by, bool is_disturbed) {
  auto model = make_model();
  if (is_disturbed)
    model.batch = [&, batch = model.batch](std::int64_t number) {
      for (auto p : model.slices.front().parameters) {
        // Gradients of an accumulation wait for their step.
        if (number % microbatches == 0 && options.accumulate == 1) p.mutable_grad().reset();
        if (number % microbatches == 0) p.set_data(p.detach().clone());
      }
      return batch(number);
    };
  using type = typename decltype(make({}))::element_type;
  std::vector<module_stage<optimizer_steps<type>>> stages;
  for (auto const& slice : model.slices)
    stages.emplace_back(
        slice.forward, ends_of(model), optimizer_steps<type>(make(slice.parameters), by));
  zbpp::pipeline pipe{plan_of(kind), one_thread_each(), stages, options};
  outcome made;
  int done = 0;
  for (int const count : {4, 4, 2}) {
    freeze(model, done);
    pipe.run(count, [&](zbpp::step_result const& result) {
      auto& all = made.training.losses;
      all.insert(all.end(), result.losses.begin(), result.losses.end());
      made.amended += result.update.is_amended ? 1 : 0;
      made.skipped += result.update.is_skipped ? 1 : 0;
    });
    done += count;
  }
  made.training.weights = weights_of(model);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    auto const some = state_of(stages[s].optimizer().libtorch(), model.slices[s].parameters);
    made.state.insert(made.state.end(), some.begin(), some.end());
  }
  return made;
}

template <class Make>
void check(char const* name, Make make) {
  struct variant {
    training_options options;
    rate_from by;
  };
  zbpp::validation_window const none{.steps = 0, .most_amended = 0};
  std::vector<variant> const all{
      {{.learning_rate = rate, .window = none}, rate_from::options},
      {{.clip = 0.1, .learning_rate = rate, .window = none}, rate_from::options},
      {{.clip = 0.1, .accumulate = 2, .window = none}, rate_from::optimizer},
      {{.learning_rate = rate, .scaling = {.initial = 1024, .growth_interval = 3}, .window = none},
       rate_from::options}};
  int amended = 0;
  int skipped = 0;
  for (auto const& [options, by] : all) {
    auto const expected = plain(make, options, by);
    for (auto const& [kind, is_disturbed] :
         {std::pair(step_kind::synchronous, false),
          std::pair(step_kind::post_validated, false),
          std::pair(step_kind::post_validated, true)}) {
      INFO(
          name << ", disturbed " << is_disturbed << ", clip " << options.clip << ", accumulate "
               << options.accumulate << ", scale " << options.scaling.initial << ", late "
               << (kind == step_kind::post_validated));
      auto const made = pipelined(make, kind, options, by, is_disturbed);
      CHECK(made.training.losses.size() == expected.training.losses.size());
      CHECK(same_bits(made.training.weights, expected.training.weights));
      CHECK(same_bits(made.state, expected.state));
      amended += made.amended;
      skipped += made.skipped;
    }
  }
  CHECK(amended > 0);
  CHECK(skipped > 0);
}

}  // namespace

TEST_CASE("AdamW and Adam of LibTorch step as in a plain loop", "[torch][optimizer-steps]") {
  check("adamw", [](tensors const& p) {
    return std::make_shared<torch::optim::AdamW>(
        p, torch::optim::AdamWOptions(own_rate).weight_decay(0.1));
  });
  check("adam", [](tensors const& p) {
    return std::make_shared<torch::optim::Adam>(
        p, torch::optim::AdamOptions(own_rate).amsgrad(true));
  });
}

TEST_CASE(
    "SGD, RMSprop and Adagrad of LibTorch step as in a plain loop", "[torch][optimizer-steps]") {
  check("sgd", [](tensors const& p) {
    return std::make_shared<torch::optim::SGD>(
        p, torch::optim::SGDOptions(own_rate).momentum(0.9).nesterov(true));
  });
  check("rmsprop", [](tensors const& p) {
    return std::make_shared<torch::optim::RMSprop>(
        p, torch::optim::RMSpropOptions(own_rate).momentum(0.9).centered(true));
  });
  check("adagrad", [](tensors const& p) {
    return std::make_shared<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(own_rate));
  });
}

TEST_CASE("tied parameters train with an optimizer of LibTorch", "[torch][optimizer-steps][tied]") {
  int amended = 0;
  for (double const clip : {0.0, 1e-3}) {
    training_options const options{.clip = clip, .learning_rate = rate};
    auto const make = [](tensors const& p) {
      return std::make_shared<torch::optim::AdamW>(p, torch::optim::AdamWOptions(own_rate));
    };
    auto const alone = make_tied_model(1);
    auto const optimizer = make(parameters_of(alone.slices));
    plain_optimizer steps_of(
        *optimizer, parameters_of(alone.slices), options, rate_from::options, alone.tied.leaves());
    at::set_num_threads(1);
    for (int step = 0; step < tied_steps; ++step) {
      static_cast<void>(plain_microbatches(alone.slices, step, tied_microbatches));
      alone.tied.sum_gradients();
      steps_of.step();
    }
    for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
      auto const planned = tied_plan(zbpp::placement::v_shape(2), kind);
      auto const model = make_tied_model(4);
      std::vector<module_stage<optimizer_steps<torch::optim::AdamW>>> stages;
      for (auto const& slice : model.slices.slices)
        stages.emplace_back(
            slice.forward,
            ends_of(model.slices),
            optimizer_steps(make(slice.parameters), rate_from::options, model.tied.leaves()));
      zbpp::pipeline pipe{planned, one_thread_each(), stages, options};
      pipe.run(tied_steps, [&](zbpp::step_result const& result) {
        amended += result.update.is_amended ? 1 : 0;
      });
      CHECK(same_bits(weights_of(model.slices), weights_of(alone.slices)));
    }
  }
  CHECK(amended > 0);
}

TEST_CASE(
    "a stage of LibTorch's AdamW clips and validates afterwards", "[torch][optimizer-steps]") {
  auto const model = make_model();
  auto const ends = ends_of(model);
  zbpp::problem const problem(
      zbpp::placement::linear(2), microbatches, zbpp::stage_costs{.forward = 10});
  auto const threads = one_thread_each();
  double norm = 0;
  // [steps
  std::vector<zbpp::torch::module_stage<zbpp::torch::optimizer_steps<torch::optim::AdamW>>> stages;
  for (auto const& slice : model.slices) {
    auto const adamw = std::make_shared<torch::optim::AdamW>(slice.parameters, 1e-3);
    stages.emplace_back(
        slice.forward, ends, zbpp::torch::optimizer_steps(adamw, zbpp::torch::rate_from::options));
  }
  auto const plan =
      zbpp::make_plan(zbpp::zb_h2{}, problem, {.step = zbpp::step_kind::post_validated});
  zbpp::pipeline pipe{plan, threads, stages, {.clip = 1.0, .learning_rate = rate}};
  // steps]
  pipe.run(2, [&](zbpp::step_result const& result) { norm = result.update.norm; });
  CHECK(norm > 0);
  CHECK(stages.front().optimizer().libtorch().param_groups().front().options().get_lr() == rate(1));
}

TEST_CASE("what LibTorch's optimizers cannot do is refused", "[torch][optimizer-steps]") {
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory);
  auto const p = at::ones({2, 2}).requires_grad_();
  CHECK(refusal([] {
          static_cast<void>(
              optimizer_steps(std::shared_ptr<torch::optim::SGD>(), rate_from::options));
        }) == "optimizer_steps got a null pointer to an optimizer");
  auto const optimizer = std::make_shared<torch::optim::SGD>(tensors{p}, 0.5);
  optimizer_steps made(optimizer, rate_from::optimizer);
  // The rate is the optimizer's own.
  p.mutable_grad() = at::ones({2, 2});
  made.step({.learning_rate = 100}, ctx);
  CHECK(same_bits(p, at::full({2, 2}, 0.5F)));
  // A step that is put off, and one that comes back.
  p.mutable_grad() = at::ones({2, 2});
  made.hold(ctx);
  CHECK_FALSE(p.grad().defined());
  p.mutable_grad() = at::full({2, 2}, 7.0F);
  made.undo(ctx);
  CHECK(same_bits(p.grad(), at::ones({2, 2})));
  made.hold(ctx);
  made.skip(ctx);
  CHECK(same_bits(p, at::full({2, 2}, 0.5F)));
  CHECK((!p.grad().defined() || same_bits(p.grad(), at::zeros({2, 2}))));
  p.mutable_grad() = at::ones({2, 2});
  made.hold(ctx);
  made.step({.coefficient = 0.5}, ctx);
  CHECK(same_bits(p, at::full({2, 2}, 0.25F)));
  // Other sizes between a step and its validation.
  p.mutable_grad() = at::ones({2, 2});
  made.step({.is_final = false}, ctx);
  const_cast<at::Tensor&>(p).set_data(at::ones({3}));
  CHECK(refusal([&] {
          made.undo(ctx);
        }) == "parameter 0 changed its sizes between a step and the validation of that step");
  const_cast<at::Tensor&>(p).set_data(at::ones({2, 2}));
  optimizer->add_param_group(
      torch::optim::OptimizerParamGroup(tensors{at::ones({1}).requires_grad_()}));
  std::vector<zbpp::gradient_state> states(1);
  CHECK(
      refusal([&] { made.measure(states, ctx); }) ==
      "parameter 1 of an optimizer was added or replaced after its stage was made; make it anew");
  // Doubles are stepped, but not tied.
  auto const wide = at::ones({2}, at::kDouble).requires_grad_();
  auto const of_doubles = std::make_shared<torch::optim::SGD>(tensors{wide}, 0.5);
  optimizer_steps doubles(of_doubles, rate_from::optimizer);
  wide.mutable_grad() = at::full({2}, 0.5, at::kDouble);
  doubles.measure(states, ctx);
  CHECK(states.front().sum_of_squares == 0.5);
  doubles.step({.is_final = false}, ctx);
  doubles.commit(ctx);
  CHECK(same_bits(wide, at::full({2}, 0.75, at::kDouble)));
  CHECK(refusal([&] {
          static_cast<void>(optimizer_steps(of_doubles, rate_from::optimizer, {wide}));
        }) == "a tied parameter has another type than 32-bit floats, which ranks cannot sum");
}

}  // namespace test_torch_optimizer_steps
