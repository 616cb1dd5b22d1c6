// SPDX-License-Identifier: Apache-2.0
//
// Autocast in F, and loss scales, give the bits of a plain loop that does the same.
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/torch_training.hpp>
// After LibTorch, whose macros torch_checks.hpp takes away.
#include <support/same_bits.hpp>

#include <ATen/autocast_mode.h>
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace test_torch_mixed_precision {

using namespace zbpp::test;
using zbpp::step_kind;
using zbpp::torch::tensors;

namespace {

// [autocast
// Has LibTorch compute in bf16 on this thread, where that is safe, while it lives.
class bf16_scope {
 public:
  bf16_scope() {
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(false);  // it would outlive a step
    at::autocast::set_cpu_enabled(true);
  }
  bf16_scope(bf16_scope const&) = delete;
  bf16_scope& operator=(bf16_scope const&) = delete;
  ~bf16_scope() {
    at::autocast::set_cpu_enabled(false);
    at::autocast::set_autocast_cache_enabled(true);
  }
};

// Makes a part of a model run so, in F and in R.
template <class Forward>
auto in_bf16(Forward forward) {
  return [forward = std::move(forward)](at::Tensor const& x) {
    bf16_scope const scope;
    return forward(x);
  };
}
// autocast]

constexpr int steps = 3;
constexpr int microbatches = 4;

torch_model make_gpt(int slices, bool casts) {
  auto model = gpt_model(run_seed(), slices, 1, 8, 2, 4);
  if (casts)
    for (auto& slice : model.slices) slice.forward = in_bf16(slice.forward);
  return model;
}

torch_outcome plain_loop(torch_model const& model) {
  plain_steps optimizer(parameters_of(model), {});
  return train_plainly(model, steps, microbatches, [&] { optimizer.step(); });
}

}  // namespace

TEST_CASE("autocast in F gives the bits of a plain loop under autocast", "[torch][mixed]") {
  auto const threads = one_thread_each();
  for (int const slices : {2, 4})
    CHECK_FALSE(is_same(plain_loop(make_gpt(slices, false)), plain_loop(make_gpt(slices, true))));
  same_bits(
      [](zbpp::plan const& planned) {
        return plain_loop(make_gpt(planned.problem().stages(), true));
      },
      {{"threads",
        [&](zbpp::plan const& planned, auto) {
          auto const model = make_gpt(planned.problem().stages(), true);
          std::vector<int> all(model.slices.size());
          std::iota(all.begin(), all.end(), 0);
          auto stages = adamw_stages(model, all);
          zbpp::pipeline pipe{planned, threads, stages};
          return train_in(pipe, model, steps);
        }}},
      {{"linear and V",
        {2},
        only(microbatches),
        torch_problem,
        {.recomputed = true, .steps = {step_kind::post_validated}, .placements = lines_and_vs}}});
}

TEST_CASE("casts that autocast keeps would be those of old weights", "[torch][mixed]") {
  at::set_num_threads(1);
  auto const losses_with = [](bool keeps_casts) {
    auto model = mlp_model(run_seed(), 1, 2, 6, 3);
    auto const parameters = parameters_of(model);
    auto& forward = model.slices.front().forward;
    if (keeps_casts)
      forward = [forward](at::Tensor const& x) {
        at::autocast::set_cpu_enabled(true);
        auto const y = forward(x);
        at::autocast::set_cpu_enabled(false);
        return y;
      };
    else
      forward = in_bf16(forward);
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      losses.push_back(plain_microbatches(model, 0, 1).front());  // the same batch each time
      c10::AutoGradMode const off(false);
      for (auto p : parameters) p.add_(0.5);
    }
    at::autocast::clear_cache();
    return losses;
  };
  auto const kept = losses_with(true);
  auto const fresh = losses_with(false);
  CHECK(kept[0] == fresh[0]);
  CHECK(kept[1] != fresh[1]);
}

namespace {

// Between its slices go tensors in fp16, whose gradients overflow at 65504.
torch_model make_half() {
  auto model = mlp_model(run_seed(), 2, 2, 6, 3);
  auto& first = model.slices[0].forward;
  auto& second = model.slices[1].forward;
  first = [forward = first](at::Tensor const& x) { return forward(x).to(at::kHalf); };
  second = [forward = second](at::Tensor const& x) { return forward(x.to(at::kFloat)) * 16; };
  return model;
}

}  // namespace

TEST_CASE("a loss scale that overflows skips the step and halves", "[torch][mixed]") {
  auto const threads = one_thread_each();
  constexpr int count = 14;
  // [scaling
  zbpp::training_options const options{
      .clip = 1.0,  // of the gradients without the scale
      .scaling = {.initial = 0x1p20, .growth_interval = 3}};
  // scaling]
  auto const plain = make_half();
  plain_steps optimizer(parameters_of(plain), options);
  std::vector<bool> skipped;
  std::vector<double> scales;
  std::vector<tensors> weights;
  for (int step = 0; step < count; ++step) {
    auto const scale = optimizer.state().loss_scale;
    auto const updates = optimizer.state().updates;
    static_cast<void>(plain_microbatches(plain, step, microbatches, scale));
    optimizer.step();
    scales.push_back(scale);
    skipped.push_back(optimizer.state().updates == updates);
    weights.emplace_back();
    for (auto const& each : weights_of(plain)) weights.back().push_back(each.clone());
  }
  CHECK(skipped.front());
  CHECK(std::ranges::count(skipped, true) > 1);  // and again when the scale has grown
  CHECK(std::ranges::count(skipped, false) > 4);

  zbpp::problem const problem(
      zbpp::placement::linear(2), microbatches, zbpp::stage_costs{.forward = 10}, 1);
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
    auto const plan = zbpp::make_plan(zbpp::zb_h2{}, problem, {.step = kind});
    auto const model = make_half();
    auto stages = adamw_stages(model, std::vector{0, 1});
    zbpp::pipeline pipe{plan, threads, stages, options};
    for (std::size_t step = 0; step < weights.size(); ++step) {
      auto const updates = pipe.state().updates;
      auto const& update = pipe.step().update;
      CHECK(update.is_skipped == skipped[step]);
      CHECK(update.loss_scale == scales[step]);
      CHECK(same_bits(weights_of(model), weights[step]));
      if (update.is_skipped) {
        CHECK(pipe.state().loss_scale == update.loss_scale / 2);
        CHECK(pipe.state().updates == updates);
      }
    }
    auto const again = make_half();
    auto others = adamw_stages(again, std::vector{0, 1});
    zbpp::pipeline long_run{plan, threads, others, options};
    long_run.run(count);
    CHECK(same_bits(weights_of(again), weights.back()));
  }
}

}  // namespace test_torch_mixed_precision
