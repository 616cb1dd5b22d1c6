// SPDX-License-Identifier: Apache-2.0
//
// The optimizer of a chunk: by nvcc through optimizer.cu for a GPU, by the compiler of the host for
// the model of CUDA.
#include "optimizer.hpp"

#ifdef ZBPP_CUDA_MODEL
#include <zbpp/cuda/detail/layer_optimizer.hpp>
#include <zbpp/cuda/detail/rules.hpp>

#include <support/model_rows.hpp>
#else
#include <zbpp/cuda/adamw.cuh>
#endif

#include <zbpp/cuda/rank_device.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gpt::cuda {
namespace {

#ifdef ZBPP_CUDA_MODEL
using adamw =
    zbpp::cuda::detail::layer_optimizer<zbpp::cuda::detail::adamw_rule, zbpp::test::model_rows>;
#else
using zbpp::cuda::adamw;
#endif

}  // namespace

struct chunk_optimizer::state {
  state(adam_settings const& how, weights const& of)
      : rule(
            of.layers(),
            {.mean = how.base.momentum,
             .mean_square = how.base.mean_square,
             .weight_decay = how.weight_decay}),
        rounding(of.rounding()) {}

  adamw rule;
  round_weights rounding;
};

chunk_optimizer::chunk_optimizer(adam_settings const& how, weights const& of)
    : how_(how), layers_(static_cast<int>(of.entries().size())) {}
chunk_optimizer::chunk_optimizer(chunk_optimizer&&) noexcept = default;
chunk_optimizer& chunk_optimizer::operator=(chunk_optimizer&&) noexcept = default;
chunk_optimizer::~chunk_optimizer() = default;

void chunk_optimizer::prepare(weights const& of) { state_ = std::make_unique<state>(how_, of); }

void chunk_optimizer::rehearse(zbpp::pass_context ctx) {
  std::vector<zbpp::gradient_state> states(static_cast<std::size_t>(layers_));
  measure(states, ctx);
  step({.is_final = false}, ctx);
  undo(ctx);
  skip(ctx);
}

void chunk_optimizer::measure(
    std::span<zbpp::gradient_state> states, zbpp::pass_context ctx) const {
  state_->rule.measure(states, ctx);
}

void chunk_optimizer::step(zbpp::step_settings const& how, zbpp::pass_context ctx) {
  state_->rule.step(how, ctx);
  run(zbpp::cuda::stream_of(ctx), state_->rounding);
}

void chunk_optimizer::follow_schedule(zbpp::pass_context ctx) {
  // At this rate a step without gradients changes nothing.
  state_->rule.set_schedule(std::array{0.0});
  step(ctx);
  zbpp::cuda::stream_of(ctx).synchronize();
  std::vector<double> rates;
  for (std::int64_t i = 0; i < how_.base.steps; ++i) rates.push_back(how_.base.rate(i));
  state_->rule.set_schedule(rates);
}

void chunk_optimizer::step(zbpp::pass_context ctx) {
  state_->rule.step(ctx);
  run(zbpp::cuda::stream_of(ctx), state_->rounding);
}

std::int64_t const* chunk_optimizer::updates() const { return state_->rule.updates(); }

// It changes no weight.
void chunk_optimizer::commit(zbpp::pass_context ctx) { state_->rule.commit(ctx); }

void chunk_optimizer::undo(zbpp::pass_context ctx) const {
  state_->rule.undo(ctx);
  run(zbpp::cuda::stream_of(ctx), state_->rounding);
}

void chunk_optimizer::skip(zbpp::pass_context ctx) const { state_->rule.skip(ctx); }

}  // namespace gpt::cuda
