// SPDX-License-Identifier: Apache-2.0
//
// What the passes of the benchmark do: nothing, arithmetic in registers, or products of matrices;
// and a stage made of it.
#pragma once

#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/microbatch.hpp>

#include <bench/cuda/kernels.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::bench {

/// Enqueues what one pass of a rank does.
using work = std::function<void(cuda::stream_ref on, int rank, pass_kind what)>;

/// Owns memory of the current device.
class device_memory {
 public:
  /// @throws cuda_error
  explicit device_memory(std::size_t size) {
    void* taken = nullptr;
    cuda::check(cudaMalloc(&taken, size));
    memory_.reset(taken);
  }

  /// @return its address
  template <class Value = void>
  [[nodiscard]] Value* get() const noexcept {
    return static_cast<Value*>(memory_.get());
  }

 private:
  struct give_back {
    void operator()(void* memory) const noexcept { cudaFree(memory); }
  };
  std::unique_ptr<void, give_back> memory_;
};

/// @return values of the device, copied once the stream is through with what it has
/// @throws cuda_error
template <class Value>
[[nodiscard]] std::vector<Value> read_back(
    cuda::stream_ref on, Value const* from, std::size_t count) {
  cuda::pinned<Value> const landing(count);
  cuda::check(
      cudaMemcpyAsync(landing.data(), from, count * sizeof(Value), cudaMemcpyDeviceToHost, on));
  on.synchronize();
  return {landing.data(), landing.data() + count};
}

/// Makes work that fills all multiprocessors of a rank with arithmetic: `kernels` launches of
/// `rounds` each, whatever the pass.
[[nodiscard]] inline work arithmetic(
    std::vector<cuda::rank_device> const& devices, int rounds, int kernels = 1) {
  auto const sink = std::make_shared<device_memory>(sizeof(float));
  return [=](cuda::stream_ref on, int rank, pass_kind) {
    auto const blocks = 8 * devices[zbpp::detail::index(rank)].sm_count;  // as many as run at once
    for (int i = 0; i < kernels; ++i) cuda::check(burn(on, blocks, rounds, sink->get<float>()));
  };
}

/// Makes work of products of square matrices in bf16 by cuBLAS, `products` a pass: F multiplies by
/// the weights, B by their transpose, W adds up in single precision. Defined where cuBLAS is.
[[nodiscard]] work products(std::vector<cuda::rank_device> const& devices, int products);

/// Lets passes do some work, and exchanges messages of the size that the costs state.
class working_stage {
 public:
  /// @param does  null: nothing
  working_stage(work const* does, int rank, stage_costs costs)
      : does_(does), rank_(rank), costs_(std::move(costs)) {}

  flow operator()(microbatch mb) {
    buffer kept;
    buffer out;
    auto const input = co_await mb.recv_activation();
    auto forward = [&](pass_context ctx) {
      kept = ctx.allocate(zbpp::detail::index(costs_.activation));
      out = ctx.allocate_edge(zbpp::detail::index(costs_.edge));
      act(ctx, pass_kind::forward);
    };
    co_await F(forward);
    co_await mb.send_activation(std::move(out));
    auto const back = co_await mb.recv_gradient();
    auto backward_input = [&](pass_context ctx) {
      out = ctx.allocate_edge(zbpp::detail::index(costs_.edge));
      act(ctx, pass_kind::backward_input);
    };
    co_await B(backward_input);
    co_await mb.send_gradient(std::move(out));
    auto backward_weight = [&](pass_context ctx) {
      act(ctx, pass_kind::backward_weight);
      kept.reset();
    };
    co_await W(backward_weight);
  }

  /// Loads the kernels.
  void warm_up(pass_context ctx) {
    for (auto const what :
         {pass_kind::forward, pass_kind::backward_input, pass_kind::backward_weight})
      act(ctx, what);
  }

 private:
  void act(pass_context ctx, pass_kind what) {
    if (does_ != nullptr) (*does_)(cuda::stream_of(ctx), rank_, what);
  }

  work const* does_;
  int rank_;
  stage_costs costs_;
};

/// @return a stage for each of a problem's
[[nodiscard]] inline std::vector<working_stage> stages_of(
    problem const& problem, work const* does) {
  std::vector<working_stage> stages;
  for (int s = 0; s < problem.stages(); ++s)
    stages.emplace_back(does, problem.placement().rank_of(s), problem.costs(s));
  return stages;
}

}  // namespace zbpp::bench
