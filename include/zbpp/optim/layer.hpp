// SPDX-License-Identifier: Apache-2.0
//
// What optimizers step: the weights and gradients of a layer, and how they come back from a step
// that does not hold.
#pragma once

#include <zbpp/error.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace zbpp::optim {

struct layer;

/// Finds a layer whose memory may move between two steps, or that may be frozen, such as that of a
/// tensor. Optimizers of the host ask it whenever they are called, and keep no address.
class layer_source {
 public:
  layer_source() = default;
  layer_source(layer_source const&) = delete;
  layer_source& operator=(layer_source const&) = delete;
  virtual ~layer_source() = default;

  /// Writes where weights and gradients are now.
  /// @return whether the layer is trained now; where it is frozen, it has no gradients afterwards
  /// @throws error (bad_argument) that names the layer, when it cannot be stepped as it is
  virtual bool locate(layer& found) = 0;
  /// Writes where the weights are now.
  /// @throws error (bad_argument) that names the layer, when they cannot be stepped as they are
  virtual void locate_weights(layer& found) const = 0;
  /// Takes the gradients away, so that nobody changes them while a step may be taken back. They
  /// stay where `locate` found them.
  virtual void hold_gradients() = 0;
  /// Gives the gradients back: those of a step that is final, which are 0, where there are none by
  /// now; those of a step that was taken back in any case.
  virtual void return_gradients(bool was_undone) = 0;
};

/// Refers to the weights of one layer and their gradients, of the same size, in the memory of the
/// host or of a GPU.
struct layer {
  std::span<float> weights;
  std::span<float> gradients;
  bool is_tied = false;  ///< has the weights of all other tied layers of the model
  bool decays = true;    ///< false: weight decay leaves it alone, as is usual for biases and norms
  /// Finds the memory again; none where it stays. On GPUs memory has to stay.
  std::shared_ptr<layer_source> source{};
  /// Whether each member of a tensor group has all of it, with the same gradients; the norm counts
  /// it once. Else each has a part of its own.
  bool is_replicated = false;
};

namespace detail {

/// @return how many weights each tied layer has; 0 where there is none
/// @throws error (bad_argument) when tied layers differ in size
[[nodiscard]] inline std::int64_t tied_weights(std::span<layer const> layers) {
  layer const* first = nullptr;
  for (auto const& l : layers) {
    if (!l.is_tied) continue;
    if (first == nullptr) first = &l;
    zbpp::detail::require(
        l.weights.size() == first->weights.size(),
        "tied layers have as many weights as each other");
  }
  return first == nullptr ? 0 : static_cast<std::int64_t>(first->weights.size());
}

}  // namespace detail

/// Says how an optimizer can take a step back.
enum class undo_method : std::uint8_t {
  /// The old weights are kept, 4 bytes for each; moments are changed when the step is final, from
  /// the gradients, which stay until then.
  weights,
  /// Weights and moments are kept: 8 bytes for each weight with momentum, 12 with Adam.
  copies,
};

}  // namespace zbpp::optim
