// SPDX-License-Identifier: Apache-2.0
//
// The same kernels for the tests' model of CUDA, so that the programs of this folder can be tried
// where there is no GPU; at the end of a program it says what was wrong. Times are those that the
// model is told here: they say nothing about any GPU.
#include "kernel_values.hpp"
#include "kernels.hpp"

#include <gpu_model/cuda/cuda_model.hpp>
#include <gpu_model/cuda/environment.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace zbpp::bench {
namespace {

namespace model = cuda_model;

class machine {
 public:
  // Benchmarks send what nobody wrote.
  machine() {
    model::reset(model::as_in_environment(
        {.check_uninitialised = false, .copy_ns = 2000, .message_ns = 2000}));
  }
  machine(machine const&) = delete;
  machine& operator=(machine const&) = delete;
  ~machine() {
    if (is_broken_) return;  // after a kernel's fault nothing can be given back
    tell(model::faults());
    tell(model::leaks());
    if (is_wrong_) std::_Exit(1);
  }

  void expect_fault() { is_broken_ = true; }

 private:
  void tell(std::vector<std::string> const& what) {
    for (auto const& line : what) std::fprintf(stderr, "%s\n", line.c_str());
    is_wrong_ = is_wrong_ || !what.empty();
  }

  bool is_wrong_ = false;
  bool is_broken_ = false;
};

machine of_this_program;

model::range floats(float const* of, int count) {
  return {of, sizeof(float) * static_cast<std::size_t>(count)};
}

std::int64_t time_of(int rounds) { return std::int64_t{35} * rounds; }

}  // namespace

cudaError_t burn(cudaStream_t on, int, int rounds, float*) {
  return model::launch(on, "burn", {}, {}, {}, time_of(rounds));
}

// The model does not know multiprocessors one by one: each stream has one of its own.
cudaError_t burn_and_note(cudaStream_t on, int blocks, int rounds, unsigned* multiprocessor) {
  static std::map<cudaStream_t, unsigned> numbers;
  auto const id = numbers.try_emplace(on, static_cast<unsigned>(numbers.size())).first->second;
  return model::launch(
      on,
      "burn_and_note",
      {},
      {{multiprocessor, sizeof(unsigned) * static_cast<std::size_t>(blocks)}},
      [=] {
        for (int i = 0; i < blocks; ++i) multiprocessor[i] = id;
      },
      time_of(rounds));
}

cudaError_t scale(
    cudaStream_t on, float* to, float const* from, float factor, float addend, int count) {
  std::vector<model::range> reads;
  if (from != nullptr) reads.push_back(floats(from, count));
  std::vector<model::range> const writes{floats(to, count)};
  return model::launch(on, "scale", reads, writes, [=] {
    for (int i = 0; i < count; ++i) to[i] = scaled(from, factor, addend, i);
  });
}

cudaError_t multiply(
    cudaStream_t on, float* to, float const* a, float const* b, bool adds, int count) {
  std::vector<model::range> reads{floats(a, count), floats(b, count)};
  if (adds) reads.push_back(floats(to, count));
  std::vector<model::range> const writes{floats(to, count)};
  return model::launch(on, "multiply", reads, writes, [=] {
    for (int i = 0; i < count; ++i) to[i] = multiplied(to, a, b, adds, i);
  });
}

cudaError_t fold(cudaStream_t on, float* to, float const* x, float const* g, int count) {
  return model::launch(
      on, "fold", {floats(to, 1), floats(x, count), floats(g, count)}, {floats(to, 1)}, [=] {
        *to = folded(*to, x, g, count);
      });
}

cudaError_t fault(cudaStream_t on) {
  of_this_program.expect_fault();
  model::kernel_fault(0);
  return model::launch(on, "fault", {}, {});
}

}  // namespace zbpp::bench

// Which the model does not have.
extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int device) {
  *about = {};
  std::strcpy(about->name, "model of CUDA without a GPU");
  about->major = 9;
  return cudaDeviceGetAttribute(
      &about->multiProcessorCount, cudaDevAttrMultiProcessorCount, device);
}
