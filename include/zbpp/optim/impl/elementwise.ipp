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

// In eight sums that are added up in the end.
ZBPP_EXACT ZBPP_INLINE double sum_of_squares(std::span<float const> values) {
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

ZBPP_INLINE elementwise::elementwise(std::vector<layer> layers, int moments, undo_method undo)
    : layers_(std::move(layers)),
      is_trained_(layers_.size(), 1),
      is_own_(layers_.size(), 1),
      missed_(layers_.size(), 0),
      moments_(static_cast<std::size_t>(moments)),
      undo_(undo),
      tied_weights_(detail::tied_weights(layers_)) {
  std::size_t size = 0;
  for (auto const& l : layers_) {
    bool const is_there = l.source == nullptr || !l.gradients.empty();
    zbpp::detail::require(
        !is_there || l.weights.size() == l.gradients.size(),
        "a layer has as many gradients as weights");
    has_moments_.push_back(is_there ? 1 : 0);
    size += is_there ? l.weights.size() : 0;
  }
  for (auto& each : moments_) each.assign(size, 0.0F);
}

ZBPP_INLINE std::span<float const> elementwise::weights(int layer) const {
  auto found = at(layer);
  if (found.source != nullptr) found.source->locate_weights(found);
  return found.weights;
}

ZBPP_INLINE std::size_t elementwise::first_moment(int layer) const noexcept {
  std::size_t first = 0;
  for (int i = 0; i < layer; ++i) first += has_moments(i) ? at(i).weights.size() : 0;
  return first;
}

ZBPP_INLINE void elementwise::keep_moments(int layer, bool has_some) {
  if (has_moments(layer) == has_some) return;
  auto& found = layers_[static_cast<std::size_t>(layer)];
  if (found.source != nullptr) found.source->locate_weights(found);
  auto const first = static_cast<std::ptrdiff_t>(first_moment(layer));
  auto const count = found.weights.size();
  for (auto& each : moments_)
    if (has_some)
      each.insert(each.begin() + first, count, 0.0F);
    else
      each.erase(each.begin() + first, each.begin() + first + static_cast<std::ptrdiff_t>(count));
  has_moments_[static_cast<std::size_t>(layer)] = has_some ? 1 : 0;
}

ZBPP_INLINE void elementwise::locate() {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto& l = layers_[i];
    if (l.source == nullptr) continue;
    if (!is_held_)
      is_trained_[i] = l.source->locate(l) ? 1 : 0;
    else if (is_trained_[i] != 0)
      l.source->locate_weights(l);
  }
}

ZBPP_INLINE void elementwise::hold_gradients() {
  is_held_ = true;
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (is_trained_[i] != 0 && layers_[i].source != nullptr) layers_[i].source->hold_gradients();
}

ZBPP_INLINE bool elementwise::hold(pass_context) {
  locate();
  hold_gradients();
  return true;
}

ZBPP_INLINE void elementwise::measure(std::span<gradient_state> states, pass_context) {
  locate();
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (is_trained_[i] == 0 || is_own_[i] == 0) continue;
    // No square of a float overflows a double, so the sum is finite where all of them are.
    auto const sum = sum_of_squares(layers_[i].gradients);
    states[i] = {sum, std::isfinite(sum)};
  }
}

ZBPP_INLINE void elementwise::step(step_settings const& step, pass_context) {
  locate();
  for (int i = 0; i < layers(); ++i) {
    auto const at = static_cast<std::size_t>(i);
    if (is_trained_[at] == 0 || is_own_[at] == 0 || has_moments(i)) continue;
    keep_moments(i, true);
    missed_[at] = step.updates;  // it has taken none
  }
  step_ = step;
  if (step.is_final) {
    apply_all(change::both);
    count_missed();
    clear_gradients();
    return_gradients(false);
    return;
  }
  keep();
  is_early_ = true;
  apply_all(undo_ == undo_method::weights ? change::weights : change::both);
  hold_gradients();
}

ZBPP_INLINE void elementwise::commit(pass_context) {
  if (!std::exchange(is_early_, false)) return;
  if (undo_ == undo_method::weights) apply_all(change::moments);
  count_missed();
  clear_gradients();
  return_gradients(false);
}

ZBPP_INLINE void elementwise::undo(pass_context) {
  return_gradients(true);
  if (!std::exchange(is_early_, false)) return;  // the step failed before it changed anything
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (is_trained_[i] != 0 && layers_[i].source != nullptr)
      layers_[i].source->locate_weights(layers_[i]);
  auto const* from = kept_.front().data();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (is_trained_[i] == 0) continue;
    auto const& l = layers_[i];
    std::copy_n(from, l.weights.size(), l.weights.begin());
    from += l.weights.size();
  }
  if (undo_ == undo_method::copies)
    for (std::size_t i = 0; i < moments_.size(); ++i)
      std::copy(kept_[i + 1].begin(), kept_[i + 1].end(), moments_[i].begin());
}

ZBPP_INLINE void elementwise::skip(pass_context) {
  locate();
  clear_gradients();
  return_gradients(false);
}

ZBPP_INLINE void elementwise::read_tied(std::span<float> copy, pass_context) {
  locate();
  auto to = copy.begin();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto const& l = layers_[i];
    if (!l.is_tied) continue;
    to = is_trained_[i] != 0 ? std::copy(l.gradients.begin(), l.gradients.end(), to)
                             : std::fill_n(to, tied_weights_, 0.0F);
  }
}

ZBPP_INLINE void elementwise::write_tied(std::span<float const> sum, pass_context) {
  locate();
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (layers_[i].is_tied && is_trained_[i] != 0)
      std::copy(sum.begin(), sum.end(), layers_[i].gradients.begin());
}

ZBPP_INLINE std::optional<std::int64_t> elementwise::gradient_count() const {
  std::size_t count = 0;
  for (int i = 0; i < layers(); ++i) count += weights(i).size();
  return static_cast<std::int64_t>(count);
}

ZBPP_INLINE std::optional<std::int64_t> elementwise::layer_size(int layer) const {
  return static_cast<std::int64_t>(weights(layer).size());
}

ZBPP_INLINE void elementwise::share(int first, int last) {
  for (int i = 0; i < layers(); ++i) {
    bool const is_own = first <= i && i < last;
    is_own_[static_cast<std::size_t>(i)] = is_own ? 1 : 0;
    if (!is_own) keep_moments(i, false);
  }
  for (auto& each : moments_) each.shrink_to_fit();
}

ZBPP_INLINE void elementwise::read_weights(int layer, std::span<float> copy, pass_context) {
  std::ranges::copy(weights(layer), copy.begin());
}

ZBPP_INLINE void elementwise::write_weights(
    int layer, std::span<float const> values, pass_context) {
  auto& found = layers_[static_cast<std::size_t>(layer)];
  if (found.source != nullptr) found.source->locate_weights(found);
  std::ranges::copy(values, found.weights.begin());
}

ZBPP_INLINE void elementwise::read_gradients(std::span<float> copy, pass_context) {
  locate();
  auto to = copy.begin();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto const& l = layers_[i];
    to = is_trained_[i] != 0 ? std::copy(l.gradients.begin(), l.gradients.end(), to)
                             : std::fill_n(to, weights(static_cast<int>(i)).size(), 0.0F);
  }
}

ZBPP_INLINE void elementwise::write_gradients(std::span<float const> sums, pass_context) {
  locate();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto const size = weights(static_cast<int>(i)).size();
    if (is_trained_[i] != 0) std::copy_n(sums.begin(), size, layers_[i].gradients.begin());
    sums = sums.subspan(size);
  }
}

ZBPP_INLINE void elementwise::apply_all(change part) {
  std::size_t first = 0;
  auto const* kept = kept_.empty() ? nullptr : kept_.front().data();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto const& l = layers_[i];
    auto const size = l.weights.size();
    if (is_trained_[i] != 0 && is_own_[i] != 0) {
      // A commit changes moments after the weights.
      auto const* const before = part == change::moments ? kept : l.weights.data();
      auto* const to = l.weights.data();
      apply(step_, {before, to, l.gradients.data(), size, first, l.decays, missed_[i]}, part);
      if (part == change::moments) kept += size;
    }
    if (has_moments_[i] != 0) first += size;
  }
}

ZBPP_INLINE void elementwise::keep() {
  kept_.resize(undo_ == undo_method::copies ? 1 + moments_.size() : 1);
  auto& weights = kept_.front();
  weights.clear();  // keeps its memory, so that later steps allocate nothing
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto const& l = layers_[i];
    if (is_trained_[i] != 0) weights.insert(weights.end(), l.weights.begin(), l.weights.end());
  }
  for (std::size_t i = 1; i < kept_.size(); ++i)
    kept_[i].assign(moments_[i - 1].begin(), moments_[i - 1].end());
}

ZBPP_INLINE void elementwise::count_missed() {
  for (std::size_t i = 0; i < layers_.size(); ++i) missed_[i] += is_trained_[i] == 0 ? 1 : 0;
}

ZBPP_INLINE void elementwise::clear_gradients() {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (is_trained_[i] != 0)
      std::fill(layers_[i].gradients.begin(), layers_[i].gradients.end(), 0.0F);
}

ZBPP_INLINE void elementwise::return_gradients(bool was_undone) {
  if (!std::exchange(is_held_, false)) return;
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (is_trained_[i] != 0 && layers_[i].source != nullptr)
      layers_[i].source->return_gradients(was_undone);
}

}  // namespace zbpp::optim::detail
