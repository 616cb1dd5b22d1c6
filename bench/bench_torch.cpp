// SPDX-License-Identifier: Apache-2.0
//
// What it takes to split LibTorch's backward pass: time and memory of one microbatch on one stage,
// for an MLP, a GPT block and a CNN. `plain` is one backward, `split` is split_backward, `twice`
// asks autograd::grad for the gradients of the input first and for those of the weights later, so
// that W runs the chain of layers again. The kinds take turns; times are medians. The memory of
// freed tensors is kept.
//
// B, W and total are in microseconds; kept_F is what is held from F to B, kept_W from B to W, and
// peak_B the most during B, all in KiB of tensors beyond parameters, their gradients, input and
// output.
#include "median.hpp"
#include <zbpp/torch/torch.hpp>

#include <support/torch_models.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>
#include <vector>

namespace {

using tensors = std::vector<at::Tensor>;

#if TORCH_VERSION_MAJOR >= 2
using total_bytes = std::size_t;
#else
using total_bytes = std::int64_t;
#endif

struct memory_count : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t size, total_bytes, total_bytes, c10::Device) override {
    bytes += size;
    peak = std::max(peak, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t bytes = 0;
  std::int64_t peak = 0;
};

enum class kind { plain, split, twice };

// One slice, its input and the gradient of its output.
struct layer {
  zbpp::test::torch_slice slice;
  at::Tensor x;
  at::Tensor dy;
};

layer mlp() {
  layer made;
  zbpp::test::parameter_maker make(1, made.slice, 0);
  for (int i = 0; i < 4; ++i) zbpp::test::append(made.slice, zbpp::test::linear_gelu(make, 256));
  made.x = at::randn({128, 256});
  return made;
}

layer gpt_block() {
  layer made;
  zbpp::test::parameter_maker make(1, made.slice, 0);
  zbpp::test::append(made.slice, zbpp::test::gpt_block(make, 128, 2));
  made.x = at::randn({2, 64, 128});
  return made;
}

layer conv() {
  layer made;
  zbpp::test::parameter_maker make(1, made.slice, 0);
  for (int i = 0; i < 3; ++i) zbpp::test::append(made.slice, zbpp::test::residual_conv(make, 32));
  made.x = at::randn({4, 32, 24, 24});
  return made;
}

// As mlp, and so small that only the host's work counts.
layer tiny() {
  layer made;
  zbpp::test::parameter_maker make(1, made.slice, 0);
  for (int i = 0; i < 4; ++i) zbpp::test::append(made.slice, zbpp::test::linear_gelu(make, 8));
  made.x = at::randn({4, 8});
  return made;
}

struct sample {
  double b = 0;
  double w = 0;
  std::int64_t kept_f = 0;
  std::int64_t kept_w = 0;
  std::int64_t peak_b = 0;
};

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

sample run(layer const& of, kind how, bool count) {
  auto const memory = std::make_shared<memory_count>();
  std::unique_ptr<c10::DebugInfoGuard> guard;
  if (count) {
    guard = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, memory);
  }
  sample found;
  at::Tensor x = of.x.detach().requires_grad_();
  at::Tensor y = of.slice.forward(x);
  found.kept_f = memory->bytes - static_cast<std::int64_t>(y.nbytes());
  memory->peak = memory->bytes;
  std::int64_t const before = memory->bytes;
  auto start = std::chrono::steady_clock::now();
  auto const end_b = [&] {
    found.b = microseconds_since(start);
    found.peak_b = memory->peak - before + found.kept_f;
    found.kept_w = memory->bytes;
    start = std::chrono::steady_clock::now();
  };
  if (how == kind::plain) {
    torch::autograd::backward({y}, {of.dy});
    y.reset();
    end_b();
  } else if (how == kind::split) {
    zbpp::torch::split_backward passes(x, y);
    tensors const dx = passes.backward_input({of.dy});
    y.reset();
    end_b();
    found.kept_w -= static_cast<std::int64_t>(dx[0].nbytes());
    passes.backward_weight();
    found.w = microseconds_since(start);
  } else {
    tensors const dx = torch::autograd::grad({y}, {x}, {of.dy}, true);
    end_b();
    found.kept_w -= static_cast<std::int64_t>(dx[0].nbytes() + y.nbytes());
    tensors dw = torch::autograd::grad({y}, of.slice.parameters, {of.dy});
    for (std::size_t i = 0; i < dw.size(); ++i) {
      at::Tensor& grad = at::Tensor(of.slice.parameters[i]).mutable_grad();
      if (grad.defined()) {
        grad.add_(dw[i]);
      } else {
        grad = dw[i];
      }
    }
    found.w = microseconds_since(start);
  }
  return found;
}

void split(benchmark::State& state, layer (*make)()) {
  zbpp::torch::keep_freed_memory();
  layer of = make();
  of.dy = at::randn(of.slice.forward(of.x).sizes());
  std::vector<double> b[3], w[3], all[3];
  constexpr kind kinds[] = {kind::plain, kind::split, kind::twice};
  for (auto _ : state) {
    for (std::size_t k = 0; k < 3; ++k) {
      sample const found = run(of, kinds[k], false);
      b[k].push_back(found.b);
      w[k].push_back(found.w);
      all[k].push_back(found.b + found.w);
    }
  }
  char const* const names[] = {"plain_", "split_", "twice_"};
  for (std::size_t k = 0; k < 3; ++k) {
    sample const memory = run(of, kinds[k], true);
    std::string const name = names[k];
    auto const kib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1024; };
    state.counters[name + "total"] = zbpp::bench::median(all[k]);
    if (k == 0) {
      state.counters["kept_F"] = kib(memory.kept_f);
    } else {
      state.counters[name + "B"] = zbpp::bench::median(b[k]);
      state.counters[name + "W"] = zbpp::bench::median(w[k]);
      state.counters[name + "kept_W"] = kib(memory.kept_w);
    }
    state.counters[name + "peak_B"] = kib(memory.peak_b);
  }
}

BENCHMARK_CAPTURE(split, mlp, mlp)->Unit(benchmark::kMillisecond)->Iterations(50);
BENCHMARK_CAPTURE(split, gpt_block, gpt_block)->Unit(benchmark::kMillisecond)->Iterations(50);
BENCHMARK_CAPTURE(split, conv_group_norm, conv)->Unit(benchmark::kMillisecond)->Iterations(50);
BENCHMARK_CAPTURE(split, tiny_mlp, tiny)->Unit(benchmark::kMillisecond)->Iterations(500);

}  // namespace
