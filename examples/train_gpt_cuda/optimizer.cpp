// SPDX-License-Identifier: Apache-2.0
//
// The optimizer of a chunk: by nvcc through kernels.cu for a GPU, by the compiler of the host for
// the model of CUDA.
#include "weights.hpp"

#ifdef ZBPP_CUDA_MODEL
#include <zbpp/cuda/optimizers.hpp>

#include <support/model_rows.hpp>
#else
#include <zbpp/cuda/adamw.cuh>
#endif

#include <zbpp/cuda/rank_device.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpt::cuda {

struct chunk_optimizer::state {
#ifdef ZBPP_CUDA_MODEL
  zbpp::cuda::basic_adamw<zbpp::test::model_rows> rule;
#else
  zbpp::cuda::adamw rule;
#endif
  round_weights rounding;

  void round(zbpp::pass_context ctx) const { run(zbpp::cuda::stream_of(ctx), rounding); }
};

void chunk_optimizer::prepare(weights const& of) {
  zbpp::optim::adamw_settings const by{
      .beta1 = how_.base.momentum,
      .beta2 = how_.base.mean_square,
      .weight_decay = how_.weight_decay};
  state_.reset(new state{decltype(state::rule)(of.layers(), by), of.rounding()});
}

void chunk_optimizer::rehearse(zbpp::pass_context ctx, bool by_schedule) {
  std::vector<zbpp::gradient_state> states(static_cast<std::size_t>(layers_));
  measure(states, ctx);
  step({.is_final = false}, ctx);
  undo(ctx);
  skip(ctx);
  if (!by_schedule) return;
  // At this rate a step without gradients changes nothing.
  state_->rule.set_schedule(std::array{0.0});
  step(ctx);
  zbpp::cuda::stream_of(ctx).synchronize();
  follow_schedule(0);
}

void chunk_optimizer::measure(std::span<zbpp::gradient_state> states, zbpp::pass_context ctx) {
  state_->rule.measure(states, ctx);
}

void chunk_optimizer::step(zbpp::step_settings const& settings, zbpp::pass_context ctx) {
  state_->rule.step(settings, ctx);
  state_->round(ctx);
}

// It changes no weight.
void chunk_optimizer::commit(zbpp::pass_context ctx) { state_->rule.commit(ctx); }

void chunk_optimizer::undo(zbpp::pass_context ctx) {
  state_->rule.undo(ctx);
  state_->round(ctx);
}

void chunk_optimizer::skip(zbpp::pass_context ctx) { state_->rule.skip(ctx); }

void chunk_optimizer::follow_schedule(std::int64_t updates) {
  std::vector<double> rates;
  for (std::int64_t i = 0; i < how_.base.steps; ++i) rates.push_back(how_.base.rate(i));
  state_->rule.set_schedule(rates, updates);
}

void chunk_optimizer::step(zbpp::pass_context ctx) {
  state_->rule.step(ctx);
  state_->round(ctx);
}

std::int64_t const* chunk_optimizer::updates() const { return state_->rule.updates(); }

std::span<float> chunk_optimizer::mean() const { return state_->rule.mean(); }

std::span<float> chunk_optimizer::mean_square() const { return state_->rule.mean_square(); }

}  // namespace gpt::cuda
