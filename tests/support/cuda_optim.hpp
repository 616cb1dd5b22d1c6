// SPDX-License-Identifier: Apache-2.0
//
// What tests of the optimizers for GPUs share: weights on the host and on the model of CUDA, and
// optimizers whose kernels run there.
#pragma once

#include <zbpp/cuda/detail/layer_optimizer.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/sgd.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/model_rows.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace zbpp::test::gpu_optim {

/// Weights and gradients of some layers, once on the host and once in memory of the device.
struct values {
  explicit values(std::vector<std::size_t> const& sizes, seeded_random& random) {
    std::size_t all = 0;
    for (auto const size : sizes) all += size;
    weights.resize(all);
    gradients.resize(all);
    device_weights = cuda::device_array<float>(all);
    device_gradients = cuda::device_array<float>(all);
    for (auto& w : weights) w = static_cast<float>(random.real(-1, 1));
    write(device_weights, weights);
    std::size_t first = 0;
    for (auto const size : sizes) {
      bool const decays = here.size() % 2 == 0;
      here.push_back(
          {.weights = std::span(weights).subspan(first, size),
           .gradients = std::span(gradients).subspan(first, size),
           .decays = decays});
      there.push_back(
          {.weights = {device_weights.data() + first, size},
           .gradients = {device_gradients.data() + first, size},
           .decays = decays});
      first += size;
    }
  }
  void refill(seeded_random& random) {
    for (auto& g : gradients) g = static_cast<float>(random.real(-1, 1));
    write(device_gradients, gradients);
  }
  // The memory of a device is memory of the host in the model; the devices are idle here.
  static void write(cuda::device_array<float> const& to, std::vector<float> const& from) {
    if (from.empty()) return;
    std::ranges::copy(from, to.data());
    cuda_model::host_writes(to.data(), to.size() * sizeof(float));
  }

  std::vector<float> weights;
  std::vector<float> gradients;
  cuda::device_array<float> device_weights;
  cuda::device_array<float> device_gradients;
  std::vector<optim::layer> here;
  std::vector<optim::layer> there;
};

/// Writes numbers into memory of the device, which is memory of the host in the model, and idle.
inline void write(std::span<std::int64_t> to, std::span<std::int64_t const> from) {
  if (from.empty()) return;
  std::ranges::copy(from, to.begin());
  cuda_model::host_writes(to.data(), to.size_bytes());
}

/// @return whether the device has the bits of the host
[[nodiscard]] inline bool is_same(std::span<float const> host, std::span<float const> device) {
  return host.size() == device.size() &&
         (host.empty() || std::memcmp(host.data(), device.data(), host.size_bytes()) == 0);
}

/// Names the moments of both kinds of optimizers alike.
/// @tparam Run  launches its kernels
template <class Rule, class Run = model_rows>
struct on_gpu : cuda::detail::layer_optimizer<Rule, Run> {
  using base = cuda::detail::layer_optimizer<Rule, Run>;
  using base::base;
  using base::missed;
  using base::moment;
};
[[nodiscard]] inline std::vector<std::span<float>> moments_of(optim::adamw& of) {
  return {of.mean(), of.mean_square()};
}
[[nodiscard]] inline std::vector<std::span<float>> moments_of(optim::sgd& of) {
  return {of.momentum()};
}

}  // namespace zbpp::test::gpu_optim
