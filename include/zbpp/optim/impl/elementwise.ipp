// SPDX-License-Identifier: Apache-2.0
//
// How steps are measured, kept and taken back.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/optim/detail/elementwise.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::optim::detail {

/// Adds squares in eight sums that are added up in the end, always in the same order.
[[nodiscard]] ZBPP_EXACT ZBPP_INLINE double sum_of_squares(std::span<float const> values) {
  ZBPP_EXACT_BODY
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= values.size(); i += sums.size())
    for (std::size_t k = 0; k < sums.size(); ++k) {
      auto const value = static_cast<double>(values[i + k]);
      sums[k] += value * value;
    }
  double total = 0;
  for (double sum : sums) total += sum;
  for (; i < values.size(); ++i) {
    auto const value = static_cast<double>(values[i]);
    total += value * value;
  }
  return total;
}

ZBPP_INLINE elementwise::elementwise(std::vector<layer> layers, int moments, undo_by undo)
    : layers_(std::move(layers)), undo_(undo), tied_weights_(detail::tied_weights(layers_)) {
  std::size_t size = 0;
  for (auto const& l : layers_) {
    zbpp::detail::require(
        l.weights.size() == l.gradients.size(), "a layer has as many gradients as weights");
    size += l.weights.size();
  }
  moments_.assign(static_cast<std::size_t>(moments), std::vector<float>(size, 0.0F));
}

ZBPP_INLINE void elementwise::measure(std::span<gradient_state> states, pass_context) const {
  for (std::size_t i = 0; i < states.size(); ++i) {
    // No square of a float overflows a double, so the sum is finite where all of them are.
    auto const sum = sum_of_squares(layers_[i].gradients);
    states[i] = {sum, std::isfinite(sum)};
  }
}

ZBPP_INLINE void elementwise::step(step_settings const& how, pass_context) {
  how_ = how;
  if (how.is_final) {
    apply_all(change::both);
    clear_gradients();
    return;
  }
  keep();
  apply_all(undo_ == undo_by::weights ? change::weights : change::both);
}

ZBPP_INLINE void elementwise::commit(pass_context) {
  if (undo_ == undo_by::weights) apply_all(change::moments);
  clear_gradients();
}

ZBPP_INLINE void elementwise::undo(pass_context) {
  auto const* from = kept_.front().data();
  for (auto const& l : layers_) {
    std::copy_n(from, l.weights.size(), l.weights.begin());
    from += l.weights.size();
  }
  if (undo_ == undo_by::copies)
    for (std::size_t i = 0; i < moments_.size(); ++i)
      std::ranges::copy(kept_[i + 1], moments_[i].begin());
}

ZBPP_INLINE void elementwise::skip(pass_context) { clear_gradients(); }

ZBPP_INLINE void elementwise::read_tied(std::span<float> copy, pass_context) const {
  auto to = copy.begin();
  for (auto const& l : layers_)
    if (l.is_tied) to = std::ranges::copy(l.gradients, to).out;
}

ZBPP_INLINE void elementwise::write_tied(std::span<float const> sum, pass_context) const {
  for (auto const& l : layers_)
    if (l.is_tied) std::ranges::copy(sum, l.gradients.begin());
}

ZBPP_INLINE void elementwise::apply_all(change what) {
  std::size_t first = 0;
  for (auto const& l : layers_) {
    // A commit changes moments after the weights.
    auto const* const before =
        what == change::moments ? kept_.front().data() + first : l.weights.data();
    apply(
        how_,
        {before, l.weights.data(), l.gradients.data(), l.weights.size(), first, l.decays},
        what);
    first += l.weights.size();
  }
}

ZBPP_INLINE void elementwise::keep() {
  kept_.resize(undo_ == undo_by::copies ? 1 + moments_.size() : 1);
  auto& weights = kept_.front();
  weights.clear();  // keeps its memory, so that later steps allocate nothing
  for (auto const& l : layers_) weights.insert(weights.end(), l.weights.begin(), l.weights.end());
  for (std::size_t i = 1; i < kept_.size(); ++i)
    kept_[i].assign(moments_[i - 1].begin(), moments_[i - 1].end());
}

ZBPP_INLINE void elementwise::clear_gradients() {
  for (auto const& l : layers_) std::ranges::fill(l.gradients, 0.0F);
}

}  // namespace zbpp::optim::detail
