// SPDX-License-Identifier: Apache-2.0
//
// The same kernels for the tests' model of CUDA, where there is no GPU: with what each reads and
// writes, so that the model finds races; at the end of the program it says what was wrong.
#include "toy_chain.hpp"

#include <gpu_model/cuda/cuda_model.hpp>
#include <gpu_model/cuda/environment.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace toy {
namespace {

namespace model = zbpp::cuda_model;

// A kernel, by which the model knows its first launch, and its memory.
struct launched {
  char const* kernel;
  std::vector<model::range> reads;
  std::vector<model::range> writes;
};

model::range all(float const* of) { return {of, size}; }
model::range weights(parameters const* of) { return {of->w, 2 * size}; }
model::range gradients(parameters const* of) { return {of->dw, 2 * size}; }

launched by(initial const& of) { return {"initial", {}, {{of.p, sizeof(parameters)}}}; }
launched by(batch const& of) { return {"batch", {}, {all(of.x)}}; }
launched by(forward const& of) { return {"forward", {weights(of.p), all(of.x)}, {all(of.y)}}; }
launched by(loss const& of) { return {"loss", {all(of.y)}, {{of.value, sizeof(float)}}}; }
launched by(loss_gradient const& of) { return {"loss gradient", {all(of.y)}, {all(of.dy)}}; }
launched by(backward_input const& of) {
  return {"backward input", {weights(of.p), all(of.dy)}, {all(of.dx)}};
}
launched by(backward_weight const& of) {
  return {"backward weight", {gradients(of.p), all(of.x), all(of.dy)}, {gradients(of.p)}};
}
launched by(update const& of) {
  model::range const whole{of.p, sizeof(parameters)};
  return {"update", {whole}, {whole}};
}

class machine {
 public:
  machine() {
    model::reset(model::as_in_environment({.devices = TOY_DEVICES, .hosts = TOY_DEVICES}));
  }
  machine(machine const&) = delete;
  machine& operator=(machine const&) = delete;
  ~machine() {
    tell(model::faults());
    tell(model::leaks());
    if (is_wrong_) std::_Exit(1);
  }

 private:
  void tell(std::vector<std::string> const& what) {
    for (auto const& line : what) std::fprintf(stderr, "%s\n", line.c_str());
    is_wrong_ = is_wrong_ || !what.empty();
  }

  bool is_wrong_ = false;
};

machine const of_this_program;

}  // namespace

template <class Work>
void run(cudaStream_t on, Work const& work, int count) {
  auto const one = by(work);
  zbpp::cuda::check(model::launch(on, one.kernel, one.reads, one.writes, [work, count] {
    for (int i = 0; i < count; ++i) work(i);
  }));
}

template void run(cudaStream_t, initial const&, int);
template void run(cudaStream_t, batch const&, int);
template void run(cudaStream_t, forward const&, int);
template void run(cudaStream_t, loss const&, int);
template void run(cudaStream_t, loss_gradient const&, int);
template void run(cudaStream_t, backward_input const&, int);
template void run(cudaStream_t, backward_weight const&, int);
template void run(cudaStream_t, update const&, int);

}  // namespace toy
