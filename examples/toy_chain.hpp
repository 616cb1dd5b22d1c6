// SPDX-License-Identifier: Apache-2.0
//
// The model of examples 10 to 12: a chain of layers y = w x + b on 64 numbers, trained with
// momentum. Each piece of work is an object that a GPU runs for many i at once and a plain loop on
// the host for one after another, so both give the same bits.
#pragma once

#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/zbpp.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

namespace toy {

inline constexpr int width = 64;
inline constexpr std::size_t size = width * sizeof(float);  // of a message, in bytes

struct parameters {
  float w[width], b[width], dw[width], db[width];
  friend bool operator==(parameters const&, parameters const&) = default;
};

struct initial {
  parameters* p;
  int stage;
  __host__ __device__ void operator()(int i) const {
    p->w[i] = 1.0F + static_cast<float>((i + stage) % 7) / 16;
    p->b[i] = static_cast<float>((i + 3 * stage) % 5) / 8;
    p->dw[i] = p->db[i] = 0;
  }
};
struct batch {
  float* x;
  int microbatch;
  __host__ __device__ void operator()(int i) const {
    x[i] = static_cast<float>((7 * i + 5 * microbatch) % 16) / 16;
  }
};
struct forward {
  parameters const* p;
  float const* x;
  float* y;
  __host__ __device__ void operator()(int i) const { y[i] = p->w[i] * x[i] + p->b[i]; }
};
struct loss_gradient {
  float const* y;
  float* dy;
  __host__ __device__ void operator()(int i) const { dy[i] = (y[i] - 0.5F) / width; }
};
struct loss {  // for i = 0 alone: the order of a sum is part of its bits
  float const* y;
  float* value;
  __host__ __device__ void operator()(int) const {
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += (y[i] - 0.5F) * (y[i] - 0.5F) / (2 * width);
    *value = sum;
  }
};
struct backward_input {
  parameters const* p;
  float const* dy;
  float* dx;
  __host__ __device__ void operator()(int i) const { dx[i] = p->w[i] * dy[i]; }
};
struct backward_weight {
  parameters* p;
  float const* x;
  float const* dy;
  __host__ __device__ void operator()(int i) const {
    p->dw[i] += x[i] * dy[i];
    p->db[i] += dy[i];
  }
};
struct update {
  parameters* p;
  __host__ __device__ void operator()(int i) const {
    p->w[i] -= 0.05F * p->dw[i];
    p->b[i] -= 0.05F * p->db[i];
    p->dw[i] *= 0.5F;  // what the next step adds to
    p->db[i] *= 0.5F;
  }
};

/// Enqueues work for each i below `count`; toy_chain.cu has it for all of the above.
template <class Work>
void run(cudaStream_t on, Work const& work, int count = width);

/// Owns the parameters of a layer on a device.
class layer {
 public:
  explicit layer(int stage, int device = 0)
      : device_(device),
        memory_(zbpp::arena(zbpp::cuda::device_memory(device)).allocate(sizeof(parameters))) {
    zbpp::cuda::device_guard const here(device_);
    zbpp::cuda::stream const on(zbpp::cuda::stream_priority::usual);
    run(on.view(), initial{get(), stage});
    on.view().synchronize();
  }

  [[nodiscard]] parameters* get() const { return memory_.as<parameters>().data(); }

  [[nodiscard]] parameters read() const {
    zbpp::cuda::device_guard const here(device_);
    zbpp::cuda::stream const on(zbpp::cuda::stream_priority::usual);
    zbpp::cuda::pinned<parameters> const copy(1);
    zbpp::cuda::check(cudaMemcpyAsync(
        copy.data(), get(), sizeof(parameters), cudaMemcpyDeviceToHost, on.view().get()));
    on.view().synchronize();
    return *copy.data();
  }

 private:
  int device_;
  zbpp::buffer memory_;
};

/// Trains the same model in a plain loop on the host.
class plain_loop {
 public:
  explicit plain_loop(int stages) : layers_(static_cast<std::size_t>(stages)) {
    for (int s = 0; s < stages; ++s) each(initial{&layers_[static_cast<std::size_t>(s)], s});
  }

  /// @return the losses of a step
  std::vector<double> step(int microbatches) {
    std::vector<double> losses;
    std::vector<float> x((layers_.size() + 1) * width);  // of all layers, and what the last gives
    std::vector<float> dy(width);
    float value = 0;
    for (int m = 0; m < microbatches; ++m) {
      each(batch{x.data(), m});
      auto* y = x.data();
      for (auto& p : layers_) {
        each(forward{&p, y, y + width});
        y += width;
      }
      loss{y, &value}(0);
      losses.push_back(static_cast<double>(value));
      each(loss_gradient{y, dy.data()});
      for (auto p = layers_.rbegin(); p != layers_.rend(); ++p) {
        y -= width;
        each(backward_weight{&*p, y, dy.data()});
        each(backward_input{&*p, dy.data(), dy.data()});
      }
    }
    for (auto& p : layers_) each(update{&p});
    return losses;
  }
  [[nodiscard]] parameters const& of(int stage) const {
    return layers_[static_cast<std::size_t>(stage)];
  }

 private:
  template <class Work>
  static void each(Work const& work) {
    for (int i = 0; i < width; ++i) work(i);
  }

  std::vector<parameters> layers_;
};

/// @return how many GPUs there are; 0 where CUDA cannot say
inline int devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // so that nobody finds it later
  return 0;
}

/// The problem of such a chain; on GPUs every edge has a size.
inline zbpp::problem chain(int ranks, int microbatches) {
  return {
      zbpp::placement::linear(ranks),
      microbatches,
      zbpp::stage_costs{
          .forward = 1,
          .backward_input = 1,
          .backward_weight = 1,
          .activation = 2 * size,
          .weight_gradient_input = 2 * size,
          .edge = size}};
}

// [gpu_stage
/// One layer on a GPU. Passes only enqueue; none of them waits for the device.
class chain_stage {
 public:
  explicit chain_stage(layer const& own) : p_(own.get()) {}

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer x, y, dy, dx;
    auto const in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      auto const on = zbpp::cuda::stream_of(ctx);  // where all work of the pass goes
      x = mb.is_first_stage() ? ctx.allocate(size) : zbpp::buffer(in);
      if (mb.is_first_stage()) run(on, batch{floats(x), mb.index()});
      y = ctx.allocate_edge(size);  // device memory
      run(on, forward{p_, floats(x), floats(y)});
      if (mb.is_last_stage())  // the step has it at its end
        run(on, loss{floats(y), zbpp::cuda::loss_slot(mb, ctx)}, 1);
    });
    co_await mb.send_activation(y);
    auto const back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      auto const on = zbpp::cuda::stream_of(ctx);
      dy = mb.is_last_stage() ? ctx.allocate(size) : zbpp::buffer(back);
      if (mb.is_last_stage()) run(on, loss_gradient{floats(y), floats(dy)});
      dx = ctx.allocate_edge(size);
      run(on, backward_input{p_, floats(dy), floats(dx)});
      y.reset();
    });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W([&](zbpp::pass_context ctx) {
      run(zbpp::cuda::stream_of(ctx), backward_weight{p_, floats(x), floats(dy)});
    });
  }

  /// Has every kernel loaded before the first step: during one, that may wait for what runs.
  void warm_up(zbpp::pass_context ctx) {
    auto const on = zbpp::cuda::stream_of(ctx);
    auto const scratch = ctx.allocate(sizeof(parameters));
    auto* const p = scratch.as<parameters>().data();
    run(on, initial{p, 0});
    run(on, batch{p->dw, 0});
    run(on, forward{p, p->dw, p->db});
    run(on, loss{p->dw, p->db}, 1);
    run(on, loss_gradient{p->dw, p->db});
    run(on, backward_input{p, p->dw, p->db});
    run(on, backward_weight{p, p->w, p->b});
    run(on, toy::update{p});
  }
  void update(zbpp::pass_context ctx) { run(zbpp::cuda::stream_of(ctx), toy::update{p_}); }

 private:
  static float* floats(zbpp::buffer const& of) { return of.as<float>().data(); }

  parameters* p_;
};
// gpu_stage]

/// Trains a pipeline of one layer a stage, and the plain loop beside it.
/// @return whether all losses and parameters have the same bits
template <class Pipeline>
bool trains_as_plain_loop(Pipeline& pipe, std::vector<layer> const& layers) {
  auto const stages = static_cast<int>(layers.size());
  plain_loop plain(stages);
  bool same = true;
  for (int step = 0; step < 5; ++step) {
    auto const evaluated = pipe.evaluate().losses;  // F alone, so nothing is trained
    auto const right = plain.step(pipe.planned().problem().microbatches());
    same = pipe.step().losses == right && evaluated == right && same;
    for (int s = 0; s < stages; ++s)
      same = layers[static_cast<std::size_t>(s)].read() == plain.of(s) && same;
  }
  std::puts(same ? "identical to the last bit" : "different");
  return same;
}

/// Runs an example where there are as many GPUs as it needs at least.
/// @param run  called with their number; whether all is right
/// @return the exit status: 77 where there are too few
inline int run_on_gpus(char const* example, int least, bool (*run)(int devices)) {
  int const found = devices();
  if (found < least) {
    std::printf("%d CUDA devices here, and this takes %d: nothing was run\n", found, least);
    return 77;
  }
  try {
    return run(found) ? 0 : 1;
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "%s: %s\n", example, failed.what());
    return 1;
  }
}

}  // namespace toy
