// SPDX-License-Identifier: Apache-2.0
//
// Asks an optimizer on the GPU and its twin on the host for the same steps, and compares all bits.
#pragma once

#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/runtime/arena.hpp>

#include <algorithm>
#include <array>
#include <bench/cuda/optimizers.hpp>
#include <bench/cuda/work.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::bench {

/// The weights and gradients of some layers, on the host and on the device.
class twin_layers {
 public:
  explicit twin_layers(std::span<std::size_t const> sizes) {
    std::size_t all = 0;
    for (auto const size : sizes) all += size;
    weights_.resize(all);
    gradients_.resize(all);
    on_device_ = cuda::device_array<float>(2 * all);
    std::ranges::generate(weights_, [this] { return number(); });
    copy(on_device_.data(), weights_);
    std::size_t first = 0;
    for (auto const size : sizes) {
      bool const decays = here.size() % 2 == 0;
      here.push_back(
          {.weights = std::span(weights_).subspan(first, size),
           .gradients = std::span(gradients_).subspan(first, size),
           .decays = decays});
      there.push_back(
          {.weights = {on_device_.data() + first, size},
           .gradients = {on_device_.data() + all + first, size},
           .decays = decays});
      first += size;
    }
  }

  /// Draws gradients anew.
  void draw_gradients() {
    std::ranges::generate(gradients_, [this] { return number(); });
    copy(on_device_.data() + weights_.size(), gradients_);
  }
  /// @throws std::runtime_error when weights or gradients differ
  void expect_same(std::string const& after) const {
    expect_bits(weights_, on_device_.data(), "weights after " + after);
    expect_bits(gradients_, on_device_.data() + weights_.size(), "gradients after " + after);
  }
  /// @throws std::runtime_error that names `kind` when bits differ
  void expect_bits(
      std::span<float const> host, float const* device, std::string const& kind) const {
    auto const found = read_back(on_.view(), device, host.size());
    if (std::memcmp(found.data(), host.data(), host.size_bytes()) != 0)
      throw std::runtime_error("other " + kind + " than on the host");
  }

  std::vector<optim::layer> here;
  std::vector<optim::layer> there;

 private:
  [[nodiscard]] float number() {
    return static_cast<float>(static_cast<int>(random_() >> 8) - (1 << 23)) * 0x1p-23F;
  }
  void copy(float* to, std::vector<float> const& from) const {
    cuda::pinned<float> const staging(from.size());
    std::ranges::copy(from, staging.data());
    auto const size = from.size() * sizeof(float);
    cuda::check(cudaMemcpyAsync(to, staging.data(), size, cudaMemcpyHostToDevice, on_.view()));
    on_.view().synchronize();
  }

  std::mt19937 random_{1};
  std::vector<float> weights_;
  std::vector<float> gradients_;
  cuda::device_array<float> on_device_;  // the weights, and then the gradients
  cuda::stream on_{cuda::stream_priority::usual};
};

/// @return the moments of an optimizer of the host
[[nodiscard]] inline std::vector<std::span<float>> moments_of(optim::adamw& of) {
  return {of.mean(), of.mean_square()};
}
[[nodiscard]] inline std::vector<std::span<float>> moments_of(optim::sgd& of) {
  return {of.momentum()};
}

/// An optimizer of the host and one of the device that are asked for the same.
template <class OnHost>
class twin_optimizers {
 public:
  twin_optimizers(twin_layers& layers, OnHost host, device_optimizer& device)
      : layers_(&layers), host_(std::move(host)), device_(&device) {}

  /// Takes steps that are final, committed, undone and skipped, and some by a schedule.
  /// @throws std::runtime_error at the first difference; cuda_error
  void step_in_every_way() {
    begin(true);
    compare("a final step");
    begin(false);
    both([](auto& o, auto ctx) { o.commit(ctx); });
    compare("a step that is committed");
    begin(false);
    both([](auto& o, auto ctx) { o.undo(ctx); });
    --updates_;
    compare("a step that is undone");
    layers_->draw_gradients();
    both([](auto& o, auto ctx) { o.skip(ctx); });
    compare("a step that is skipped");
    compare_states();
    begin(true);
    compare("a step after these");
    step_by_schedule();
  }

 private:
  static constexpr std::array rates{0.1, 0.05, 0.03, 0.02};

  template <class Act>
  void both(Act const& act) {
    act(host_, pass_context(memory_));
    act(*device_, on_device());
  }
  [[nodiscard]] pass_context on_device() { return {memory_, backend_kind::cuda, &context_}; }
  void begin(bool is_final) {
    layers_->draw_gradients();
    step_settings const step{
        .updates = updates_++,
        .learning_rate = 0.1,
        .coefficient = 0.7,
        .gradient_scale = 8,
        .is_final = is_final};
    both([&](auto& o, auto ctx) { o.step(step, ctx); });
  }
  void step_by_schedule() {
    device_->set_schedule(rates, updates_);
    for (int i = 0; i < 2; ++i) {
      layers_->draw_gradients();
      device_->step(on_device());
      auto const rate = rates[std::min(static_cast<std::size_t>(updates_), rates.size() - 1)];
      host_.step({.updates = updates_, .learning_rate = rate}, pass_context(memory_));
      ++updates_;
      compare("a step by a schedule");
    }
  }
  void compare(std::string const& after) {
    context_.compute().synchronize();
    layers_->expect_same(after);
    auto const right = moments_of(host_);
    auto const found = device_->moments();
    for (std::size_t k = 0; k < right.size(); ++k)
      layers_->expect_bits(right[k], found[k].data(), "moments after " + after);
  }
  // Both add up exact squares, each in its own order.
  void compare_states() {
    layers_->draw_gradients();
    std::vector<gradient_state> found(layers_->there.size());
    std::vector<gradient_state> right(found.size());
    device_->measure(found, on_device());
    host_.measure(right, pass_context(memory_));
    for (std::size_t i = 0; i < found.size(); ++i)
      if (!found[i].is_finite || std::abs(found[i].sum_of_squares - right[i].sum_of_squares) >
                                     1e-12 * right[i].sum_of_squares)
        throw std::runtime_error("other states of gradients than on the host");
  }

  twin_layers* layers_;
  OnHost host_;
  device_optimizer* device_;
  cuda::device_context context_{{}, 1, {}, {}};
  arena memory_;
  std::int64_t updates_ = 0;
};

/// @throws std::runtime_error when AdamW or SGD on the GPU has other bits than on the host
/// @param is_short  whether layers are small
inline void expect_optimizers_of_host(optim::undo_method undo, bool is_short) {
  // Around the 4,096 weights of a tile.
  std::vector<std::size_t> sizes{1, 31, 4096, 4095, 4097};
  if (!is_short) sizes.insert(sizes.end(), {300'007, 0, 90'000});
  {
    optim::adamw_settings const by{.weight_decay = 0.01F, .undo = undo};
    twin_layers all(sizes);
    auto const device = make_adamw(all.there, by);
    twin_optimizers(all, optim::adamw(all.here, by), *device).step_in_every_way();
  }
  optim::sgd_settings const by{.momentum = 0.9F, .weight_decay = 0.01F, .undo = undo};
  twin_layers all(sizes);
  auto const device = make_sgd(all.there, by);
  twin_optimizers(all, optim::sgd(all.here, by), *device).step_in_every_way();
}

}  // namespace zbpp::bench
