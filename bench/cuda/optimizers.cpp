// SPDX-License-Identifier: Apache-2.0
//
// By nvcc through optimizers.cu for a GPU, by the compiler of the host for the model of CUDA.
#include "optimizers.hpp"

#ifdef ZBPP_CUDA_MODEL
#include <zbpp/cuda/optimizers.hpp>

#include <support/model_rows.hpp>
#else
#include <zbpp/cuda/adamw.cuh>
#include <zbpp/cuda/sgd.cuh>
#endif

#include <utility>

namespace zbpp::bench {
namespace {

#ifdef ZBPP_CUDA_MODEL
using adamw = cuda::basic_adamw<test::model_rows>;
using sgd = cuda::basic_sgd<test::model_rows>;
#else
using cuda::adamw;
using cuda::sgd;
#endif

std::vector<std::span<float>> moments_of(adamw const& of) { return {of.mean(), of.mean_square()}; }
std::vector<std::span<float>> moments_of(sgd const& of) { return {of.momentum()}; }

template <class Optimizer>
class of_kind final : public device_optimizer {
 public:
  of_kind(std::vector<optim::layer> layers, typename Optimizer::settings const& by)
      : own_(std::move(layers), by) {}

  [[nodiscard]] int layers() const override { return own_.layers(); }
  void measure(std::span<gradient_state> states, pass_context ctx) override {
    own_.measure(states, ctx);
  }
  void step(step_settings const& current, pass_context ctx) override { own_.step(current, ctx); }
  void commit(pass_context ctx) override { own_.commit(ctx); }
  void undo(pass_context ctx) override { own_.undo(ctx); }
  void skip(pass_context ctx) override { own_.skip(ctx); }
  [[nodiscard]] std::optional<std::span<float>> gradients(int layer) const override {
    return own_.gradients(layer);
  }
  void set_schedule(std::span<double const> rates, std::int64_t updates) override {
    own_.set_schedule(rates, updates);
  }
  void step(pass_context ctx) override { own_.step(ctx); }
  [[nodiscard]] std::vector<std::span<float>> moments() const override { return moments_of(own_); }

 private:
  Optimizer own_;
};

}  // namespace

std::unique_ptr<device_optimizer> make_adamw(
    std::vector<optim::layer> layers, optim::adamw_settings const& by) {
  return std::make_unique<of_kind<adamw>>(std::move(layers), by);
}

std::unique_ptr<device_optimizer> make_sgd(
    std::vector<optim::layer> layers, optim::sgd_settings const& by) {
  return std::make_unique<of_kind<sgd>>(std::move(layers), by);
}

}  // namespace zbpp::bench
