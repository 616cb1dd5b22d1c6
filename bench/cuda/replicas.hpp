// SPDX-License-Identifier: Apache-2.0
//
// A network with weights, of which there are two replicas: its stages on GPUs, and what a plain
// loop on the host makes of both. A sum of two has the same bits in either order.
#pragma once

#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/microbatch.hpp>

#include <array>
#include <bench/cuda/kernel_values.hpp>
#include <bench/cuda/kernels.hpp>
#include <bench/cuda/optimizers.hpp>
#include <bench/cuda/work.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::bench::replicas {

inline constexpr int count = 2;
inline constexpr std::array<std::size_t, 2> layer_sizes{5'000, 60'001};
inline constexpr int width = 65'001;
inline constexpr std::size_t message_size = width * sizeof(float);
inline constexpr double learning_rate = 0.001;

/// @return the problem of the network
[[nodiscard]] inline problem problem_of(placement const& placement, int microbatches) {
  return with_replicas(
      problem(
          placement,
          microbatches,
          stage_costs{
              .forward = 10,
              .backward_input = 10,
              .backward_weight = 10,
              .activation = 2 * message_size,
              .weight_gradient_input = 2 * message_size,
              .edge = message_size,
              .gradients = message_size},
          1),
      {.count = count});
}

/// @return element 0 of a batch; `scale` adds the same to each further one
[[nodiscard]] inline float first_of_batch(int replica, std::int64_t step, int microbatch) {
  return 0.25F * static_cast<float>((replica + 2 * step + 3 * microbatch) % 5);
}
inline constexpr float batch_slope = 0x1p-17F;
inline constexpr float weight_slope = -0x1p-18F;
[[nodiscard]] inline float first_weight(int stage) {
  return 1.0F + 0.125F * static_cast<float>(stage);
}

/// @return two layers of some weights
[[nodiscard]] inline std::vector<optim::layer> layers_of(
    std::span<float> weights, std::span<float> gradients) {
  std::vector<optim::layer> all;
  std::size_t first = 0;
  for (auto const size : layer_sizes) {
    all.push_back(
        {.weights = weights.subspan(first, size), .gradients = gradients.subspan(first, size)});
    first += size;
  }
  return all;
}

/// A stage on the device that is current when it is made: F multiplies each number by a weight.
class stage {
 public:
  stage(int number, int replica)
      : replica_(replica),
        weights_(width),
        gradients_(width),
        optimizer_(make_sgd(layers_of({weights_.data(), width}, {gradients_.data(), width}), {})) {
    cuda::check(
        scale(on_.view(), weights_.data(), nullptr, weight_slope, first_weight(number), width));
    cuda::check(cudaMemsetAsync(gradients_.data(), 0, message_size, on_.view()));
    on_.view().synchronize();  // the streams of ranks do not wait for it
  }

  flow operator()(microbatch mb) {
    buffer x;
    buffer y;
    buffer dy;
    auto const input = co_await mb.recv_activation();
    auto forward = [&](pass_context ctx) {
      auto const on = cuda::stream_of(ctx);
      x = mb.is_first_stage() ? ctx.allocate(message_size) : buffer(input);
      if (mb.is_first_stage())
        cuda::check(scale(
            on,
            floats(x),
            nullptr,
            batch_slope,
            first_of_batch(replica_, mb.step(), mb.index()),
            width));
      y = ctx.allocate_edge(message_size);
      cuda::check(multiply(on, floats(y), floats(x), weights_.data(), false, width));
      if (mb.is_last_stage()) cuda::report_loss(mb, ctx, floats(y) + 1);
    };
    co_await F(forward);
    co_await mb.send_activation(y);
    auto const back = co_await mb.recv_gradient();
    buffer dx;
    auto backward_input = [&](pass_context ctx) {
      auto const on = cuda::stream_of(ctx);
      dy = mb.is_last_stage() ? ctx.allocate(message_size) : buffer(back);
      if (mb.is_last_stage()) cuda::check(scale(on, floats(dy), floats(y), 1, -1, width));
      dx = ctx.allocate_edge(message_size);
      cuda::check(multiply(on, floats(dx), floats(dy), weights_.data(), false, width));
      y.reset();
    };
    co_await B(backward_input);
    co_await mb.send_gradient(std::move(dx));
    auto backward_weight = [&](pass_context ctx) {
      cuda::check(
          multiply(cuda::stream_of(ctx), gradients_.data(), floats(x), floats(dy), true, width));
    };
    co_await W(backward_weight);
  }
  [[nodiscard]] device_optimizer& optimizer() const { return *optimizer_; }

  /// Loads the kernels; changes nothing.
  void warm_up(pass_context ctx) {
    auto const on = cuda::stream_of(ctx);
    auto const scratch = ctx.allocate(message_size);
    cuda::check(scale(on, floats(scratch), nullptr, 1, 0, width));
    cuda::check(multiply(on, floats(scratch), floats(scratch), floats(scratch), false, width));
  }

  /// @return the weights, once the step is over
  [[nodiscard]] std::vector<float> weights() const {
    return read_back(on_.view(), weights_.data(), width);
  }

 private:
  static float* floats(buffer const& of) { return of.as<float>().data(); }

  int replica_;
  cuda::stream on_{cuda::stream_priority::usual};
  cuda::device_array<float> weights_;
  cuda::device_array<float> gradients_;
  std::unique_ptr<device_optimizer> optimizer_;
};

/// Holds what training gives.
struct outcome {
  std::vector<std::vector<float>> weights;        // by stage
  std::array<std::vector<double>, count> losses;  // by replica, of all steps
};

/// @return what a plain loop gives that has both replicas
[[nodiscard]] inline outcome expected(int stages, int microbatches, int steps) {
  auto const depth = zbpp::detail::index(stages);
  auto const zeros = std::vector<float>(width);
  outcome result;
  std::vector<std::vector<float>> sums(depth, zeros);
  std::vector<optim::sgd> optimizers;
  for (int s = 0; s < stages; ++s) {
    auto& w = result.weights.emplace_back(width);
    for (int i = 0; i < width; ++i)
      w[zbpp::detail::index(i)] = scaled(nullptr, weight_slope, first_weight(s), i);
  }
  for (std::size_t s = 0; s < depth; ++s)
    optimizers.emplace_back(layers_of(result.weights[s], sums[s]));
  auto const product = [](std::vector<float>& to,
                          std::vector<float> const& a,
                          std::vector<float> const& b,
                          bool adds) {
    for (int i = 0; i < width; ++i)
      to[zbpp::detail::index(i)] = multiplied(to.data(), a.data(), b.data(), adds, i);
  };
  arena memory;
  for (int step = 0; step < steps; ++step) {
    for (int replica = 0; replica < count; ++replica) {
      std::vector<std::vector<float>> own(depth, zeros);
      for (int mb = 0; mb < microbatches; ++mb) {
        std::vector<std::vector<float>> x(depth + 1, zeros);
        for (int i = 0; i < width; ++i)
          x[0][zbpp::detail::index(i)] =
              scaled(nullptr, batch_slope, first_of_batch(replica, step, mb), i);
        for (std::size_t s = 0; s < depth; ++s) product(x[s + 1], x[s], result.weights[s], false);
        result.losses[zbpp::detail::index(replica)].push_back(static_cast<double>(x[depth][1]));
        auto dy = zeros;
        for (int i = 0; i < width; ++i)
          dy[zbpp::detail::index(i)] = scaled(x[depth].data(), 1, -1, i);
        for (std::size_t s = depth; s-- > 0;) {
          product(own[s], x[s], dy, true);
          product(dy, dy, result.weights[s], false);
        }
      }
      for (std::size_t s = 0; s < depth; ++s)
        for (std::size_t i = 0; i < zeros.size(); ++i) sums[s][i] += own[s][i];
    }
    for (auto& each : optimizers)
      each.step({.updates = step, .learning_rate = learning_rate}, pass_context(memory));
  }
  return result;
}

}  // namespace zbpp::bench::replicas
