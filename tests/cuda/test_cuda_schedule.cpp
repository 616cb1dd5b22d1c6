// SPDX-License-Identifier: Apache-2.0
//
// Optimizers whose settings are in device memory: their steps have the bits of those on the CPU,
// whatever the host asks for in between, and pipelines replay them as part of a captured step.
#include <zbpp/cuda/detail/layer_rows.hpp>
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_optim.hpp>
#include <support/cuda_training.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace test_cuda_schedule {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using cuda::detail::adamw_rule;
using cuda::detail::sgd_rule;
using gpu_optim::is_same;
using gpu_optim::moments_of;
using gpu_optim::on_gpu;
using gpu_optim::values;
using zbpp::optim::undo_method;

namespace {

double rate_of(std::vector<double> const& rates, std::int64_t updates) {
  auto const last = static_cast<std::int64_t>(rates.size()) - 1;
  return rates[static_cast<std::size_t>(std::min(updates, last))];
}

std::vector<double> random_rates(seeded_random& random, std::int64_t count) {
  std::vector<double> rates;
  for (std::int64_t i = 0; i < count; ++i) rates.push_back(random.real(0, 0.1));
  return rates;
}

/// Takes steps by a schedule on the GPU and by their numbers on the CPU; in between the host asks
/// both for steps that it commits or takes back, and gives other rates.
template <class Rule, class OnCpu>
void check(
    typename Rule::settings const& settings, std::int64_t updates, std::int64_t rates_given) {
  ZBPP_SEEDED(random, static_cast<std::uint64_t>(updates + rates_given));
  checked_gpus const gpus({.seed = 3});
  values all({5, 4097, 0, 300}, random);
  OnCpu cpu(all.here, settings);
  on_gpu<Rule> gpu(all.there, settings);
  auto rates = random_rates(random, rates_given);
  gpu.set_schedule(rates, updates);
  cuda::device_context context({}, 1, {}, {});
  zbpp::arena memory;
  zbpp::pass_context const there(memory, zbpp::backend_kind::cuda, &context);
  zbpp::pass_context const here(memory);
  for (int round = 0; round < thinned(16, 8); ++round) {
    all.refill(random);
    auto const act = random.integer(0, 5);
    zbpp::step_settings const early{
        .updates = updates + 3, .learning_rate = 0.1, .coefficient = 0.5, .is_final = false};
    if (act <= 1) {
      cpu.step(early, here);
      gpu.step(early, there);
      if (act == 0) {
        cpu.commit(here);
        gpu.commit(there);
      } else {
        cpu.undo(here);
        gpu.undo(there);
      }
    } else if (act == 2) {
      context.compute().synchronize();
      rates = random_rates(random, random.integer(1, 5));
      gpu.set_schedule(rates, updates);
    } else if (act == 3) {
      context.compute().synchronize();
      if constexpr (requires { cpu.missed_steps(); }) {
        cpu.missed_steps()[1] = random.integer(0, updates);
        gpu_optim::write(gpu.missed(), cpu.missed_steps());
      }
    }
    if (act != 0) {
      cpu.step({.updates = updates, .learning_rate = rate_of(rates, updates)}, here);
      gpu.step(there);
      ++updates;
    }
    context.compute().synchronize();
    CHECK(*gpu.updates() == updates);
    CHECK(is_same(all.weights, {all.device_weights.data(), all.device_weights.size()}));
    CHECK(is_same(all.gradients, {all.device_gradients.data(), all.device_gradients.size()}));
    auto const moments = moments_of(cpu);
    for (std::size_t k = 0; k < moments.size(); ++k)
      CHECK(is_same(moments[k], gpu.moment(static_cast<int>(k))));
  }
}

constexpr std::int64_t starts[] = {0, 2, 250, 1'000'000'000'000};
constexpr std::int64_t counts[] = {1, 4, 600};  // 256 go in a launch

}  // namespace

TEST_CASE("AdamW by a schedule in device memory has the bits of AdamW on the CPU", "[cuda]") {
  for (auto const undo : {undo_method::weights, undo_method::copies})
    for (auto const start : starts)
      for (auto const count : counts)
        check<adamw_rule, zbpp::optim::adamw>(
            {.beta2 = start == 2 ? 0.95F : 0.999F, .weight_decay = 0.1F, .undo = undo},
            start,
            count);
}

TEST_CASE("so has gradient descent", "[cuda]") {
  for (auto const undo : {undo_method::weights, undo_method::copies})
    for (auto const count : counts)
      check<sgd_rule, zbpp::optim::sgd>(
          {.momentum = 0.9F, .weight_decay = 0.01F, .undo = undo}, 2, count);
}

TEST_CASE("a step by a schedule is refused where there is none", "[cuda]") {
  model::reset({});
  {
    on_gpu<adamw_rule> own{std::vector<zbpp::optim::layer>{}};
    cuda::device_context context({}, 1, {}, {});
    zbpp::arena memory;
    CHECK(own.updates() == nullptr);
    CHECK(
        refusal([&] {
          own.step({memory, zbpp::backend_kind::cuda, &context});
        }) == "step(ctx) is called without a schedule; call set_schedule() first, as in warm_up()");
    auto const wrong =
        "a schedule needs a learning rate at least, and a number of steps from 0; give it both";
    CHECK(refusal([&] { own.set_schedule({}); }) == wrong);
    CHECK(refusal([&] { own.set_schedule(std::vector{0.1}, -1); }) == wrong);
  }
  CHECK(first_of(model::leaks()) == "");
}

namespace {

constexpr std::size_t weights_of_stage = 70;
constexpr int microbatches = 4;
constexpr int steps = 9;  // issued, captured, replayed seven times

/// Launches what the optimizer does, but for one launch of the kernel that moves its schedule on.
struct forgetful_rows {
  static inline int left_out = -1;  ///< which of them

  template <class Rows>
  static void run(cudaStream_t on, Rows const& rows, std::span<zbpp::optim::layer const> changed) {
    if (std::string_view(Rows::name) == "schedule" && left_out-- == 0) return;
    model_rows::run(on, rows, changed);
  }
};

/// What W adds to a gradient: it depends on the step.
float share(float weight, std::int64_t step, int microbatch) {
  return 0.1F * weight + 0.01F * static_cast<float>(step % 5) +
         0.3F * static_cast<float>(microbatch);
}

/// Is a stage with one layer, which it steps by a schedule.
class scheduled_stage {
 public:
  scheduled_stage(values& of, std::vector<double> rates)
      : of_(&of), rates_(std::move(rates)), rule_(of.there) {}

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::message const in = co_await mb.recv_activation();
    zbpp::buffer out;
    auto const make = [&](zbpp::pass_context ctx) { out = toy::launched_edge(ctx); };
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      make(ctx);
      if (mb.is_last_stage()) report(ctx, cuda::loss_slot(mb, ctx));
    });
    co_await mb.send_activation(std::move(out));
    zbpp::message const back = co_await mb.recv_gradient();
    co_await zbpp::B(make);
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([&](zbpp::pass_context ctx) { add(ctx, mb.index()); });
  }
  // [scheduled
  void warm_up(zbpp::pass_context) { rule_.set_schedule(rates_); }
  void update(zbpp::pass_context ctx) { rule_.step(ctx); }
  // scheduled]

  [[nodiscard]] on_gpu<adamw_rule, forgetful_rows>& rule() { return rule_; }

 private:
  [[nodiscard]] model::range step() const { return {rule_.updates(), sizeof(std::int64_t)}; }

  void report(zbpp::pass_context ctx, float* slot) {
    auto const* const weights = of_->device_weights.data();
    cuda::check(model::launch(
        cuda::stream_of(ctx),
        "loss",
        {{weights, sizeof(float)}, step()},
        {{slot, sizeof(float)}},
        [=, number = rule_.updates()] { *slot = *weights + static_cast<float>(*number); }));
  }
  void add(zbpp::pass_context ctx, int microbatch) {
    auto const* const weights = of_->device_weights.data();
    auto* const gradients = of_->device_gradients.data();
    model::range const all{gradients, weights_of_stage * sizeof(float)};
    cuda::check(model::launch(
        cuda::stream_of(ctx),
        "add",
        {{weights, weights_of_stage * sizeof(float)}, all, step()},
        {all},
        [=, number = rule_.updates()] {
          for (std::size_t i = 0; i < weights_of_stage; ++i)
            gradients[i] += share(weights[i], *number, microbatch);
        }));
  }

  values* of_;
  std::vector<double> rates_;
  on_gpu<adamw_rule, forgetful_rows> rule_;
};

/// What a training gives.
struct history {
  std::vector<std::vector<double>> losses;
  std::vector<std::vector<float>> weights;  ///< at the end, by stage

  friend bool operator==(history const&, history const&) = default;
};

/// Trains two stages; in the middle the rates change, and what layers have missed.
history train(
    cuda::replay replay, model::options const& machine, int left_out = -1, bool is_async = false) {
  ZBPP_SEEDED(random, 5);
  checked_gpus const gpus(machine);
  forgetful_rows::left_out = left_out;
  history seen;
  std::deque<values> all;
  std::vector<scheduled_stage> stages;
  auto const rates = random_rates(random, 4);
  for (int s = 0; s < 2; ++s) {
    auto& of = all.emplace_back(std::vector{weights_of_stage}, random);
    values::write(of.device_gradients, of.gradients);
    stages.emplace_back(of, rates);
  }
  auto const other = random_rates(random, 20);
  zbpp::problem const problem(zbpp::placement::linear(2), microbatches, launched_costs(), 87);
  zbpp::pipeline pipe{
      zbpp::make_plan(zbpp::zb_h1{}, problem),
      cuda::device{.replay = replay, .steps_at_once = is_async ? 2 : 1},
      stages};
  for (int i = 0; i < steps; ++i) {
    if (i == 5)
      for (auto& stage : stages) {
        stage.rule().set_schedule(other, i);
        gpu_optim::write(stage.rule().missed(), std::vector<std::int64_t>{3});
      }
    seen.losses.push_back(is_async ? pipe.step_async().get().losses : pipe.step().losses);
  }
  for (auto& of : all)
    seen.weights.emplace_back(
        of.device_weights.data(), of.device_weights.data() + of.device_weights.size());
  return seen;
}

/// The same on the CPU.
history train_alone() {
  ZBPP_SEEDED(random, 5);
  model::reset({});
  history seen;
  auto const rates = random_rates(random, 4);
  std::deque<values> all;
  for (int s = 0; s < 2; ++s) all.emplace_back(std::vector{weights_of_stage}, random);
  auto const other = random_rates(random, 20);
  std::vector<zbpp::optim::adamw> rules;
  for (auto& of : all) rules.emplace_back(of.here);
  zbpp::arena memory;
  for (int i = 0; i < steps; ++i) {
    if (i == 5)
      for (auto& rule : rules) rule.missed_steps()[0] = 3;
    seen.losses.emplace_back(
        microbatches, static_cast<double>(all.back().weights[0] + static_cast<float>(i)));
    for (std::size_t s = 0; s < all.size(); ++s) {
      auto& of = all[s];
      for (int mb = 0; mb < microbatches; ++mb)
        for (std::size_t k = 0; k < weights_of_stage; ++k)
          of.gradients[k] += share(of.weights[k], i, mb);
      rules[s].step(
          {.updates = i, .learning_rate = rate_of(i < 5 ? rates : other, i)},
          zbpp::pass_context(memory));
    }
  }
  for (auto const& of : all) seen.weights.push_back(of.weights);
  return seen;
}

}  // namespace

TEST_CASE("pipelines replay steps by a schedule with the bits of the CPU", "[cuda]") {
  auto const expected = train_alone();
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(thinned(12, 3)); ++seed) {
    INFO("interleaving " << seed);
    CHECK(train(cuda::replay::none, {.seed = seed}) == expected);
    CHECK(train(cuda::replay::step, {.seed = seed}) == expected);
    CHECK(train(cuda::replay::step, {.seed = seed}, -1, true) == expected);
  }
}

TEST_CASE("a schedule that is not moved on in one step gives other bits", "[cuda]") {
  auto const expected = train_alone();
  // Two stages step; before the first of these launches there is no rule at all.
  for (int left_out = 2; left_out < 2 * steps; ++left_out)
    CHECK_FALSE(train(cuda::replay::none, {.seed = 1}, left_out) == expected);
  // In the captured step: no replay moves on, either.
  for (int left_out : {2, 3})
    CHECK_FALSE(train(cuda::replay::step, {.seed = 1}, left_out) == expected);
}

}  // namespace test_cuda_schedule
