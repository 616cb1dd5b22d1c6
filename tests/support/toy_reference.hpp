// SPDX-License-Identifier: Apache-2.0
//
// The toy network as one process would train it: a plain loop over microbatches, ascending. It
// shares the arithmetic with toy_mlp.hpp and nothing with flows, engines or policies.
#pragma once

#include <support/toy_mlp.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::test::toy {

/// Says of each backward pass that B and W are apart.
struct nothing_fused {
  [[nodiscard]] bool operator()(int, int) const noexcept { return false; }
};

/// Runs one step over `microbatches`; gradients are added to those of the model.
/// @param is_fused  called with stage and microbatch: whether its backward pass is one BW
/// @return the losses
template <class IsFused = nothing_fused>
[[nodiscard]] std::vector<double> reference_step(
    model& all, std::int64_t step, int microbatches, IsFused is_fused = {}) {
  struct memory {
    std::vector<std::vector<float>> x;
    std::vector<std::vector<float>> y;
    std::vector<std::vector<float>> dz;
  };
  std::vector<double> losses;
  for (int m = 0; m < microbatches; ++m) {
    auto const size = rows_of(m) * width;
    std::vector<memory> kept(all.size());
    std::vector<float> h(size);
    std::vector<float> skip(size);
    fill_batch(step, m, h);
    for (std::size_t i = 0; i < size; ++i) skip[i] = h[i] * 0.5F;
    for (std::size_t s = 0; s < all.size(); ++s) {
      for (auto const& l : all[s].layers) {
        kept[s].x.push_back(h);
        std::vector<float> y(size);
        forward(l, all[s].weights[l.weights], h, y);
        kept[s].y.push_back(y);
        h = std::move(y);
      }
      std::vector<float> sum(size);
      std::vector<float> positive(size);
      split(h, skip, sum, positive);
      h = std::move(sum);
      skip = std::move(positive);
    }

    std::vector<float> d_sum(size);
    std::vector<float> d_positive(size);
    losses.push_back(loss(step, m, h, skip, d_sum, d_positive));
    for (std::size_t s = all.size(); s-- > 0;) {
      std::vector<float> d(size);
      split_backward(kept[s].y.back(), d_sum, d_positive, d);
      bool const fused = is_fused(static_cast<int>(s), m);
      kept[s].dz.resize(all[s].layers.size());
      for (std::size_t k = all[s].layers.size(); k-- > 0;) {
        auto& l = all[s].layers[k];
        auto const& w = all[s].weights[l.weights];
        auto& dz = kept[s].dz[k];
        dz.resize(size);
        std::vector<float> dx(size);
        if (fused) {
          backward_fused(l, w, kept[s].x[k], kept[s].y[k], d, dz, dx);
        } else {
          backward_input(l, w, kept[s].y[k], d, dz, dx);
        }
        d = std::move(dx);
      }
      for (std::size_t k = 0; k < all[s].layers.size() && !fused; ++k) {
        auto& l = all[s].layers[k];
        if (!l.is_frozen) backward_weight(kept[s].x[k], kept[s].dz[k], l.gradient);
      }
      d_positive = std::move(d_sum);
      d_sum = std::move(d);
    }
  }
  return losses;
}

}  // namespace zbpp::test::toy
