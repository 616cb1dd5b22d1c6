// SPDX-License-Identifier: Apache-2.0
//
// What the optimizers of this folder share: they step each weight by itself, so that a model in
// parts takes the same step as the whole one, bit for bit.
#pragma once

#include <zbpp/optim/detail/change.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::optim::detail {

/// Models `optimizer` for rules that change a weight by its gradient and its moments.
class elementwise {
 public:
  /// @return how many layers there are
  [[nodiscard]] int layers() const noexcept { return static_cast<int>(layers_.size()); }
  /// @return the weights of a layer
  [[nodiscard]] std::span<float const> weights(int layer) const noexcept {
    return layers_[static_cast<std::size_t>(layer)].weights;
  }
  /// Writes the states of the gradients.
  void measure(std::span<gradient_state> states, pass_context) const;
  /// Takes a step; unless it is final, keeps what `undo` needs.
  void step(step_settings const& how, pass_context);
  /// Makes the last step final.
  void commit(pass_context);
  /// Takes the last step back.
  void undo(pass_context);
  /// Sets gradients to 0.
  void skip(pass_context);
  /// @return whether a layer is tied
  [[nodiscard]] bool is_tied(int layer) const noexcept {
    return layers_[static_cast<std::size_t>(layer)].is_tied;
  }
  /// @return how many weights each tied layer has; 0 where there is none
  [[nodiscard]] std::int64_t tied_weights() const noexcept { return tied_weights_; }
  /// Copies the gradients of the tied layers, one after another.
  void read_tied(std::span<float> copy, pass_context) const;
  /// Replaces the gradients of each tied layer.
  void write_tied(std::span<float const> sum, pass_context) const;

 protected:
  using change = detail::change;

  /// Refers to the weights of a layer for a rule: those before the step, and where the new ones go.
  struct place {
    float const* before;
    float* weights;
    float const* gradients;
    std::size_t size;
    std::size_t first;  ///< of the moments that belong to them
    bool decays;        ///< whether weight decay is for them
  };

  /// @param moments  how many numbers a weight has besides its gradient
  /// @throws error (bad_argument) when a layer has not as many gradients as weights, or tied layers
  ///         differ in size
  elementwise(std::vector<layer> layers, int moments, undo_by undo);
  elementwise(elementwise const&) = default;
  elementwise(elementwise&&) = default;
  elementwise& operator=(elementwise const&) = default;
  elementwise& operator=(elementwise&&) = default;
  ~elementwise() = default;

  [[nodiscard]] std::span<float> moment(int which) noexcept {
    return moments_[static_cast<std::size_t>(which)];
  }

 private:
  // Changes what a layer has.
  virtual void apply(step_settings const& how, place const& to, change what) = 0;

  void apply_all(change what);
  void keep();
  void clear_gradients();

  std::vector<layer> layers_;
  std::vector<std::vector<float>> moments_;
  std::vector<std::vector<float>>
      kept_;  // the weights of all layers, then, with copies, the moments
  undo_by undo_;
  step_settings how_;
  std::int64_t tied_weights_;
};

}  // namespace zbpp::optim::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/optim/impl/elementwise.ipp>
#endif
