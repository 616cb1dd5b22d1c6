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
#include <optional>
#include <span>
#include <vector>

namespace zbpp::optim::detail {

/// Adds squares, in double and always in the same order.
[[nodiscard]] double sum_of_squares(std::span<float const> values);

/// The base of rules that change a weight by its gradient and its moments.
class elementwise : public optimizer {
 public:
  [[nodiscard]] int layers() const noexcept override { return static_cast<int>(layers_.size()); }
  [[nodiscard]] layer const& at(int layer) const noexcept {
    return layers_[static_cast<std::size_t>(layer)];
  }
  /// @throws error (bad_argument) as `layer_source::locate_weights`
  [[nodiscard]] std::span<float const> weights(int layer) const;
  /// Writes the states of the gradients; those of a layer that is frozen are 0.
  /// @throws error (bad_argument) as `layer_source::locate`; all functions that follow do
  void measure(std::span<gradient_state> states, pass_context ctx) override;
  /// Keeps gradients that have a source as they are.
  bool hold(pass_context ctx) override;
  void step(step_settings const& step, pass_context ctx) override;
  void commit(pass_context ctx) override;
  void undo(pass_context ctx) override;
  void skip(pass_context ctx) override;
  [[nodiscard]] bool is_tied(int layer) const noexcept override { return at(layer).is_tied; }
  [[nodiscard]] std::optional<bool> is_replicated(int layer) const noexcept override {
    return at(layer).is_replicated;
  }
  [[nodiscard]] std::int64_t tied_weights() const noexcept override { return tied_weights_; }
  void read_tied(std::span<float> copy, pass_context ctx) override;
  void write_tied(std::span<float const> sum, pass_context ctx) override;
  [[nodiscard]] std::optional<std::int64_t> gradient_count() const override;
  void read_gradients(std::span<float> copy, pass_context ctx) override;
  void write_gradients(std::span<float const> sums, pass_context ctx) override;
  [[nodiscard]] std::optional<std::int64_t> layer_size(int layer) const override;
  [[nodiscard]] bool can_share() const noexcept override { return true; }
  void share(int first, int last) override;
  void read_weights(int layer, std::span<float> copy, pass_context ctx) override;
  void write_weights(int layer, std::span<float const> values, pass_context ctx) override;
  [[nodiscard]] bool is_own(int layer) const noexcept {
    return is_own_[static_cast<std::size_t>(layer)] != 0;
  }
  /// @return whether a layer has moments: one that was never trained has none
  [[nodiscard]] bool has_moments(int layer) const noexcept {
    return has_moments_[static_cast<std::size_t>(layer)] != 0;
  }
  /// Makes the moments of a layer, all 0, or removes them; nothing where that is so already.
  void keep_moments(int layer, bool has_some);
  /// @return how many weights of layers before one have moments: where its own begin
  [[nodiscard]] std::size_t first_moment(int layer) const noexcept;

 protected:
  using change = detail::change;

  /// Refers to the weights of a layer for a rule: those before the step, and where the new ones go.
  struct place {
    float const* before;
    float* weights;
    float const* gradients;
    std::size_t size;
    std::size_t first;    ///< of the moments that belong to them
    bool decays;          ///< whether weight decay is for them
    std::int64_t missed;  ///< steps of the run that they have not taken
  };

  /// @param moments  how many numbers a weight has besides its gradient
  /// @throws error (bad_argument) when a layer has not as many gradients as weights, or tied layers
  ///         differ in size
  elementwise(std::vector<layer> layers, int moments, undo_method undo);

  [[nodiscard]] std::span<float> moment(int index) noexcept {
    return moments_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::span<std::int64_t> missed() noexcept { return missed_; }

 private:
  // Changes what a layer has.
  virtual void apply(step_settings const& step, place const& to, change part) = 0;

  // Finds all layers, and which of them are trained; of gradients that are held, the weights.
  void locate();
  void hold_gradients();
  void apply_all(change part);
  void keep();
  void count_missed();
  void clear_gradients();
  void return_gradients(bool was_undone);

  std::vector<layer> layers_;
  std::vector<char> is_trained_;      // in the step that was begun last, by layer
  std::vector<char> has_moments_;     // by layer
  std::vector<char> is_own_;          // by layer: it is measured and stepped here
  std::vector<std::int64_t> missed_;  // by layer: final steps of the run that it has not taken
  std::vector<std::vector<float>> moments_;
  // The weights of the layers that are trained, then, with copies, the moments.
  std::vector<std::vector<float>> kept_;
  bool is_early_ = false;
  bool is_held_ = false;
  undo_method undo_;
  step_settings step_;
  std::int64_t tied_weights_;
};

}  // namespace zbpp::optim::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/optim/impl/elementwise.ipp>
#endif
