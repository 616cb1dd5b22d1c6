// SPDX-License-Identifier: Apache-2.0
//
// A small network of exact arithmetic in single precision for checks on real devices: its stages,
// and what a plain loop on the host gives, to the bit.
#pragma once

#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/microbatch.hpp>

#include <bench/cuda/kernels.hpp>
#include <bench/cuda/work.hpp>
#include <cstddef>
#include <vector>

namespace zbpp::bench::toy {

inline constexpr int width = 256;
inline constexpr std::size_t message_size = width * sizeof(float);

/// @return the problem of a toy
/// @param overlapped  what F and B take together, in pairs of 10 and 10
[[nodiscard]] inline problem problem_of(
    placement const& placement, int microbatches, ticks overlapped = 20) {
  return {
      placement,
      microbatches,
      stage_costs{
          .forward = 10,
          .backward_input = 10,
          .backward_weight = 10,
          .overlapped = overlapped,
          .activation = 2 * message_size,
          .weight_gradient_input = 2 * message_size,
          .edge = message_size},
      1};
}

/// Is a stage: F doubles and adds its number, B adds one to the gradient, W folds both into a sum,
/// in which the order of microbatches shows.
class stage {
 public:
  /// @param sum  one float on the stage's device; outlives the stage
  stage(int number, float* sum) : number_(number), sum_(sum) {}

  flow operator()(microbatch mb) {
    buffer kept;
    buffer out;
    auto const input = co_await mb.recv_activation();
    auto forward = [&](pass_context ctx) {
      kept = ctx.allocate(message_size);
      out = ctx.allocate_edge(message_size);
      auto* const keeps = floats(kept);
      auto* const gives = floats(out);
      auto const* const from = mb.is_first_stage() ? nullptr : floats(input[0]);
      auto const first = mb.is_first_stage() ? static_cast<float>(mb.index()) : 0.0F;
      auto const on = cuda::stream_of(ctx);
      cuda::check(scale(on, keeps, from, 1, first, width));
      cuda::check(scale(on, gives, keeps, 2, static_cast<float>(number_), width));
      if (mb.is_last_stage()) cuda::report_loss(mb, ctx, gives + 1);
    };
    co_await F(forward);
    co_await mb.send_activation(std::move(out));
    auto const back = co_await mb.recv_gradient();
    buffer gradient;
    auto backward_input = [&](pass_context ctx) {
      gradient = ctx.allocate_edge(message_size);
      auto const* const from = mb.is_last_stage() ? nullptr : floats(back[0]);
      float const factor = mb.is_last_stage() ? 0 : 1;
      cuda::check(scale(cuda::stream_of(ctx), floats(gradient), from, factor, 1, width));
    };
    co_await B(backward_input);
    buffer const own = gradient;
    co_await mb.send_gradient(std::move(gradient));
    auto backward_weight = [&](pass_context ctx) {
      cuda::check(fold(cuda::stream_of(ctx), sum_, floats(kept), floats(own), width));
    };
    co_await W(backward_weight);
  }

  /// Has both kernels loaded before the first step, in which that may wait for what runs.
  void warm_up(pass_context ctx) {
    auto const on = cuda::stream_of(ctx);
    auto const scratch = ctx.allocate(message_size);
    cuda::check(scale(on, floats(scratch), nullptr, 1, 0, width));
    cuda::check(fold(on, floats(scratch), floats(scratch), floats(scratch), width));
  }

 private:
  static float* floats(buffer const& of) { return of.as<float>().data(); }

  int number_;
  float* sum_;
};

/// Holds what steps give.
struct outcome {
  std::vector<double> losses;  // of all steps
  std::vector<float> sums;     // by stage, at the end

  friend bool operator==(outcome const&, outcome const&) = default;
};

/// @return what a plain loop gives
[[nodiscard]] inline outcome expected(int stages, int microbatches, int steps) {
  outcome result;
  result.sums.assign(zbpp::detail::index(stages), 0.0F);
  for (int i = 0; i < steps * microbatches; ++i) {
    auto const first = static_cast<float>(i % microbatches);
    std::vector<float> x(width);
    for (int e = 0; e < width; ++e) x[zbpp::detail::index(e)] = static_cast<float>(e) + first;
    for (int s = 0; s < stages; ++s) {
      auto const gradient = static_cast<float>(stages - s);
      auto& sum = result.sums[zbpp::detail::index(s)];
      for (auto& value : x) {
        float const halved = sum * 0.5F;
        float const product = value * gradient;
        sum = halved + product;
        value = 2 * value + static_cast<float>(s);
      }
    }
    result.losses.push_back(static_cast<double>(x[1]));
  }
  return result;
}

/// Owns the sum of a stage, on the device that was current when it was made.
class sum {
 public:
  sum() {
    cuda::check(cudaMemsetAsync(get(), 0, sizeof(float), on_.view().get()));
    on_.view().synchronize();  // the streams of ranks do not wait for it
  }

  [[nodiscard]] float* get() const noexcept { return memory_.get<float>(); }
  [[nodiscard]] float value() const { return read_back(on_.view(), get(), 1).front(); }

 private:
  device_memory memory_{sizeof(float)};
  cuda::stream on_{cuda::stream_priority::usual};
};

}  // namespace zbpp::bench::toy
