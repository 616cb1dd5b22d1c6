// SPDX-License-Identifier: Apache-2.0
//
// Optimizers of zbpp step parameters of LibTorch wherever their memory is by then, and those alone
// that are trained in the step.
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/refusal.hpp>
#include <support/thinned.hpp>
#include <support/torch_training.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>
#include <utility>
#include <vector>

namespace test_torch_parameters {

using namespace zbpp::test;
using zbpp::step_kind;
using zbpp::optim::undo_method;
using zbpp::torch::layers_of;
using zbpp::torch::module_stage;
using zbpp::torch::tensors;

namespace {

constexpr int steps = 8;
constexpr int microbatches = 4;

struct disturbance {
  char const* name;
  std::function<void(at::Tensor const& parameter)> run;
};

// What trainers do between two steps. Nothing of it changes a plain loop, whose gradients are 0 by
// then.
std::vector<disturbance> disturbances() {
  return {
      {"nothing", [](at::Tensor const&) {}},
      {"grad dropped", [](at::Tensor const& p) { p.mutable_grad().reset(); }},
      {"grad of zeros", [](at::Tensor const& p) { p.mutable_grad() = at::zeros_like(p.detach()); }},
      {"grad in another order",
       [](at::Tensor const& p) {
         if (p.dim() > 1) p.mutable_grad() = at::zeros_like(p.detach()).t();
       }},
      {"grad cleared in place",
       [](at::Tensor const& p) {
         if (p.grad().defined()) p.mutable_grad().zero_();
       }},
      {"data set",
       [](at::Tensor const& p) { const_cast<at::Tensor&>(p).set_data(p.detach().clone()); }},
      {"data and grad",
       [](at::Tensor const& p) {
         const_cast<at::Tensor&>(p).set_data(p.detach().clone());
         p.mutable_grad().reset();
         static_cast<void>(at::full({4096}, 7.0));  // takes the memory that was freed
       }},
      {"loaded", [](at::Tensor const& p) {
         std::stringstream file;
         torch::save(p.detach(), file);
         at::Tensor read;
         torch::load(read, file);
         const_cast<at::Tensor&>(p).set_data(read);
       }}};
}

torch_model make_model() { return mlp_model(run_seed(), 2, 2, 6, 3); }

zbpp::plan plan_of(step_kind kind) {
  return zbpp::make_plan(
      zbpp::zb_h2{},
      zbpp::problem(zbpp::placement::linear(2), microbatches, zbpp::stage_costs{.forward = 10}),
      {.step = kind});
}

template <class Optimizer, class Settings>
std::vector<module_stage<Optimizer>> stages_of(torch_model const& model, Settings settings) {
  std::vector<module_stage<Optimizer>> stages;
  for (auto const& slice : model.slices)
    stages.emplace_back(
        slice.forward, ends_of(model), Optimizer(layers_of(slice.parameters), settings));
  return stages;
}

// Disturbs before each step, or at the head of each first F, where the step before may still be
// undone.
template <class Optimizer, class Settings>
torch_outcome train(
    step_kind kind,
    Settings settings,
    zbpp::training_options const& options,
    disturbance const& between,
    bool in_pass,
    int& amended) {
  auto model = make_model();
  if (in_pass)
    model.batch = [&, make = model.batch](std::int64_t number) {
      if (number % microbatches == 0)
        for (auto const& each : model.slices.front().parameters) between.run(each);
      return make(number);
    };
  auto stages = stages_of<Optimizer>(model, settings);
  zbpp::pipeline pipe{plan_of(kind), one_thread_each(), stages, options};
  torch_outcome made;
  auto const take = [&](zbpp::step_result const& result) {
    made.losses.insert(made.losses.end(), result.losses.begin(), result.losses.end());
    amended += result.update.is_amended ? 1 : 0;
  };
  if (in_pass) {
    pipe.run(steps, take);
  } else {
    for (int step = 0; step < steps; ++step) {
      for (auto const& each : parameters_of(model)) between.run(each);
      take(pipe.step());
    }
  }
  made.weights = weights_of(model);
  return made;
}

template <class Optimizer, class Settings>
void check_disturbed(Settings settings) {
  int amended = 0;
  for (auto const undo : {undo_method::weights, undo_method::copies})
    for (auto const kind :
         {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated})
      for (double const clip : {0.0, 0.05}) {
        if (kind == step_kind::unchecked && clip > 0) continue;
        settings.undo = undo;
        // Looks at no step before, so each is early where its kind allows it.
        zbpp::training_options options{.clip = clip};
        if (kind == step_kind::post_validated) options.window = {.steps = 0, .most_amended = 0};
        auto const all = disturbances();
        auto const expected =
            train<Optimizer>(kind, settings, options, all.front(), false, amended);
        for (auto const& each : all)
          for (bool const in_pass : {false, true}) {
            INFO(each.name << ", in a pass " << in_pass << ", clip " << clip);
            CHECK(is_same(
                train<Optimizer>(kind, settings, options, each, in_pass, amended), expected));
          }
      }
  CHECK(amended > 0);
}

}  // namespace

TEST_CASE("memory of parameters that moved is found in each step", "[torch][parameters]") {
  check_disturbed<zbpp::optim::adamw>(zbpp::optim::adamw_settings{.weight_decay = 0.1F});
  check_disturbed<zbpp::optim::sgd>(
      zbpp::optim::sgd_settings{.momentum = 0.5F, .weight_decay = 0.1F});
}

namespace {

// Steps each parameter by an optimizer of its own, or leaves it alone while it is frozen. The first
// weights of the moments are those of when it was trained first.
class plain_adamw {
 public:
  explicit plain_adamw(tensors parameters) : parameters_(std::move(parameters)) {
    for (auto const& each : parameters_) {
      auto const size = static_cast<std::size_t>(each.numel());
      auto const& gradient = gradients_.emplace_back(at::zeros_like(each.detach()));
      own_.emplace_back(std::vector<zbpp::optim::layer>{
          {.weights = {each.data_ptr<float>(), size},
           .gradients = {gradient.data_ptr<float>(), size},
           .decays = each.dim() > 1}});
    }
  }
  void step(double clip) {
    std::vector<zbpp::gradient_state> states;
    zbpp::pass_context const ctx(memory_);
    for (std::size_t i = 0; i < own_.size(); ++i) {
      auto& gradient = parameters_[i].mutable_grad();
      gradients_[i].zero_();
      if (parameters_[i].requires_grad() && gradient.defined()) gradients_[i].copy_(gradient);
      gradient.reset();
      own_[i].measure({&states.emplace_back(), 1}, ctx);
    }
    auto const verdict = zbpp::judge(states, clip, 1);
    taken_.resize(own_.size());
    for (std::size_t i = 0; i < own_.size(); ++i)
      if (parameters_[i].requires_grad())
        own_[i].step(
            {.updates = taken_[i]++, .learning_rate = 1e-3, .coefficient = verdict.coefficient},
            ctx);
  }

 private:
  zbpp::arena memory_;
  tensors parameters_;
  tensors gradients_;
  std::vector<zbpp::optim::adamw> own_;
  std::vector<std::int64_t> taken_;  // steps, by parameter
};

// Which parameters of all are frozen in a step.
std::set<std::size_t> frozen_in(int step) {
  if (step < 2) return {0, 5};  // before the first step; each is another kind of change
  if (step < 4) return {0, 2, 7};
  if (step < 6) return {1, 2, 4, 5, 6, 7};
  return {};
}

void freeze(tensors const& all, int step) {
  auto const frozen = frozen_in(step);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].set_requires_grad(!frozen.contains(i));
}

}  // namespace

TEST_CASE("a parameter is stepped in the steps in which it is trained", "[torch][parameters]") {
  for (double const clip : {0.0, 0.05}) {
    auto const plain = make_model();
    plain_adamw expected(parameters_of(plain));
    std::vector<double> losses;
    at::set_num_threads(1);
    for (int step = 0; step < steps; ++step) {
      freeze(parameters_of(plain), step);
      auto const some = plain_microbatches(plain, step, microbatches);
      losses.insert(losses.end(), some.begin(), some.end());
      expected.step(clip);
    }
    for (auto const kind :
         {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated})
      for (auto const undo : {undo_method::weights, undo_method::copies}) {
        if (kind == step_kind::unchecked && clip > 0) continue;
        auto const model = make_model();
        freeze(parameters_of(model), 0);
        auto stages =
            stages_of<zbpp::optim::adamw>(model, zbpp::optim::adamw_settings{.undo = undo});
        zbpp::pipeline pipe{plan_of(kind), one_thread_each(), stages, {.clip = clip}};
        std::vector<double> made;
        for (int step = 0; step < steps; step += 2) {  // so that some are early
          freeze(parameters_of(model), step);
          pipe.run(2, [&](zbpp::step_result const& result) {
            made.insert(made.end(), result.losses.begin(), result.losses.end());
          });
        }
        CHECK(made == losses);
        CHECK(same_bits(weights_of(model), weights_of(plain)));
      }
  }
}

TEST_CASE("replicas that share AdamW step what was frozen as those do that do not", "[torch]") {
  auto const train = [](bool is_sharded) {
    auto const planned = zbpp::make_plan(
        zbpp::zb_h2{},
        zbpp::with_replicas(
            plan_of(step_kind::synchronous).problem(),
            {.count = 2, .shards_optimizer = is_sharded}),
        {.step = step_kind::synchronous});
    zbpp::in_process_grid whole({.pipeline = 2, .data = 2});
    std::vector<tensors> all(2);
    whole.run([&](zbpp::grid_place const& at) {
      auto model = make_model();
      model.batch = [make = model.batch, replica = at.data()](std::int64_t number) {
        return make(number + 1000 * replica);
      };
      auto stages = stages_of<zbpp::optim::adamw>(model, zbpp::optim::adamw_settings{});
      auto backend = one_thread_each();
      backend.place = at;
      zbpp::pipeline pipe{planned, backend, stages, {.clip = 0.5}};
      for (int step = 0; step < steps; step += 2) {
        freeze(parameters_of(model), step);
        pipe.run(2);
      }
      all[static_cast<std::size_t>(at.data())] = weights_of(model);
    });
    CHECK(same_bits(all[0], all[1]));
    return all[0];
  };
  CHECK(same_bits(train(true), train(false)));
}

TEST_CASE("AdamW steps what was frozen as LibTorch's AdamW does", "[torch][parameters]") {
  auto const own = make_model();
  auto const other = make_model();
  auto const parameters = parameters_of(other);
  torch::optim::AdamW plain(
      parameters, torch::optim::AdamWOptions(0.1).betas({0.9, 0.999}).weight_decay(0));
  zbpp::optim::adamw steps(layers_of(parameters_of(own)));
  zbpp::arena memory;
  at::set_num_threads(1);
  for (int step = 0; step < 12; ++step) {
    freeze(parameters_of(own), step);
    freeze(parameters, step);
    static_cast<void>(plain_microbatches(own, step, microbatches));
    // The same gradients, so that what rounding changes does not grow.
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto const& gradient = parameters_of(own)[i].grad();
      parameters[i].mutable_grad() =
          parameters[i].requires_grad() && gradient.defined() ? gradient.clone() : at::Tensor();
    }
    plain.step();
    steps.step({.updates = step, .learning_rate = 0.1}, zbpp::pass_context(memory));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      CHECK(at::allclose(parameters_of(own)[i], parameters[i], 1e-4, 1e-5));
  }
}

TEST_CASE("uses of a tied parameter are frozen together", "[torch][parameters][tied]") {
  auto const first = at::ones({2, 2}).requires_grad_();
  auto const second = at::ones({2, 2}).requires_grad_();
  zbpp::torch::tied_parameter const tied({first, second});
  zbpp::optim::adamw optimizer(layers_of({first}, tied.leaves()));
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory);
  std::vector<zbpp::gradient_state> states(1);
  first.mutable_grad().fill_(3);
  second.set_requires_grad(false);
  CHECK(
      refusal([&] { optimizer.measure(states, ctx); }) ==
      "parameter 0 is frozen in one of its uses, and trained in another; freeze all of them, or "
      "none");
  first.set_requires_grad(false);
  std::vector<float> sum(4, 1.0F);
  optimizer.read_tied(sum, ctx);
  CHECK(sum == std::vector<float>(4, 0.0F));
  optimizer.write_tied(sum, ctx);
  optimizer.measure(states, ctx);
  CHECK(states.front() == zbpp::gradient_state{});
  optimizer.step({.learning_rate = 1}, ctx);
  CHECK(same_bits(first, at::ones({2, 2})));
}

TEST_CASE("what can no longer be stepped is refused by name", "[torch][parameters]") {
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory);
  auto const refused = [&](std::function<void(torch::nn::Linear&)> const& change) {
    torch::nn::Linear module(3, 2);
    zbpp::optim::adamw optimizer(layers_of(module));
    change(module);
    std::vector<zbpp::gradient_state> states(2);
    auto const text = refusal([&] { optimizer.measure(states, ctx); });
    CHECK(refusal([&] { optimizer.step({.learning_rate = 1}, ctx); }) == text);
    optimizer.undo(ctx);  // of a step that failed
    CHECK(refusal([&] { optimizer.skip(ctx); }) == text);
    return text;
  };
  CHECK(
      refused([](auto& module) { module->to(at::kDouble); }) ==
      "parameter 'weight' is not a contiguous tensor of 32-bit floats on the host, but "
      "CPUDoubleType of [2, 3]; step it by an optimizer of LibTorch instead");
  CHECK(
      refused([](auto& module) { module->bias.set_data(at::ones({7})); }) ==
      "parameter 'bias' had 2 weights when its layer was made, and is CPUFloatType of [7] now; "
      "make the stage anew");
  CHECK_THAT(
      refused([](auto& module) {
        module->weight.set_data(at::ones({3, 2}).t());
      }),
      Catch::StartsWith("parameter 'weight' is not a contiguous tensor"));
  CHECK_THAT(
      refused([](auto& module) {
        module->weight.mutable_grad() =
            at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1, 3}), {2, 3});
      }),
      Catch::StartsWith(
          "parameter 'weight' has a grad that is SparseCPUFloatType of [2, 3]; give "));
  CHECK_THAT(
      refused([](auto& module) { module->bias.mutable_grad() = at::ones({3}); }),
      Catch::StartsWith("parameter 'bias' has a grad that is CPUFloatType of [3]; give "));
  // What is frozen may be of any type, until it is trained.
  auto const half = at::ones({2}, at::kHalf);
  zbpp::optim::sgd optimizer(layers_of({half}));
  optimizer.step({.learning_rate = 1}, ctx);
  half.set_requires_grad(true);
  CHECK_THAT(
      refusal([&] { optimizer.step({.learning_rate = 1}, ctx); }),
      Catch::StartsWith("parameter 0 is not a contiguous tensor"));
  const_cast<at::Tensor&>(half).set_data(at::ones({2}));
  half.mutable_grad() = at::full({2}, 0.5F);
  optimizer.step({.learning_rate = 1}, ctx);
  CHECK(same_bits(half, at::full({2}, 0.5F)));
}

TEST_CASE("a step that comes back gives the gradient back", "[torch][parameters]") {
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory);
  auto const p = at::ones({3}).requires_grad_();
  for (auto const undo : {undo_method::weights, undo_method::copies}) {
    zbpp::optim::sgd optimizer(layers_of({p}), {.undo = undo});
    p.mutable_grad() = at::full({3}, 0.25F);
    auto const before = p.detach().clone();
    optimizer.step({.learning_rate = 1, .is_final = false}, ctx);
    CHECK_FALSE(p.grad().defined());
    p.mutable_grad() = at::full({3}, 9.0F);  // belongs to a step that does not hold
    optimizer.undo(ctx);
    CHECK(same_bits(p, before));
    CHECK(same_bits(p.grad(), at::full({3}, 0.25F)));
    optimizer.step({.learning_rate = 1, .is_final = false}, ctx);
    optimizer.commit(ctx);
    CHECK(same_bits(p, before - 0.25F));
    CHECK(same_bits(p.grad(), at::zeros({3})));
    optimizer.step({.learning_rate = 1, .is_final = false}, ctx);
    p.mutable_grad() = at::full({3}, 9.0F);  // belongs to the next step
    optimizer.commit(ctx);
    CHECK(same_bits(p.grad(), at::full({3}, 9.0F)));
    // A step that is put off.
    auto const held = p.detach().clone();
    p.mutable_grad() = at::full({3}, 0.25F);
    optimizer.hold(ctx);
    CHECK_FALSE(p.grad().defined());
    optimizer.undo(ctx);
    CHECK(same_bits(p, held));
    CHECK(same_bits(p.grad(), at::full({3}, 0.25F)));
    optimizer.hold(ctx);
    p.mutable_grad() = at::full({3}, 9.0F);
    const_cast<at::Tensor&>(p).set_data(p.detach().clone());
    optimizer.step({.learning_rate = 1, .coefficient = 0.5}, ctx);
    CHECK(same_bits(p, held - 0.125F));
    CHECK(same_bits(p.grad(), at::full({3}, 9.0F)));
    optimizer.hold(ctx);
    optimizer.skip(ctx);
    CHECK(same_bits(p, held - 0.125F));
    CHECK(same_bits(p.grad(), at::zeros({3})));
  }
}

TEST_CASE("memory of freed tensors that is kept takes no page faults again", "[torch]") {
  if (zbpp::test::is_slow_build) return;     // sanitizers have a malloc of their own
  constexpr std::int64_t numbers = 1 << 20;  // 1024 pages
  auto const faults_of = [&](int rounds) {
    auto const faults = [] {
      rusage used{};
      REQUIRE(getrusage(RUSAGE_SELF, &used) == 0);
      return used.ru_minflt;
    };
    auto const before = faults();
    for (int i = 0; i < rounds; ++i) static_cast<void>(at::ones({numbers}));
    return faults() - before;
  };
  if (!zbpp::torch::keep_freed_memory()) return;  // another C library
  static_cast<void>(faults_of(10));
  auto const kept = faults_of(20);
  REQUIRE(zbpp::torch::keep_freed_memory(0));
  auto const given_back = faults_of(20);
  CAPTURE(kept, given_back);
  CHECK(kept < 1024);
  CHECK(given_back > 10 * kept);
  CHECK(refusal([] {
          static_cast<void>(zbpp::torch::keep_freed_memory(-1));
        }) == "keep_freed_memory takes the size of a block, from 0 bytes");
}

}  // namespace test_torch_parameters
