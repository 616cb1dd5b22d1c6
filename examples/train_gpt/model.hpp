// SPDX-License-Identifier: Apache-2.0
//
// The model, cut into chunks: what the passes F, B and W of a chunk do with arrays that others
// allocate. A stage of a pipeline and the plain loop call the same three functions.
#pragma once

#include "parameters.hpp"
#include "settings.hpp"
#include "text.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace gpt {

/// Says which layers a stage has: blocks, and behind them the shards of the head. A whole head is
/// in the last stage; shards are the last stages, one each.
/// @param stages  at most one a block, and one a shard where there are several
[[nodiscard]] constexpr range layers_of_stage(model_config const& of, index stages, index stage) {
  if (of.shards == 1) {
    auto layers = part_of(of.layers, stages, stage);
    layers.last += stage + 1 == stages ? 1 : 0;
    return layers;
  }
  auto const first_shard = stages - of.shards;
  if (stage < first_shard) return part_of(of.layers, first_shard, stage);
  auto const layer = of.layers + stage - first_shard;
  return {layer, layer + 1};
}

/// Counts the floats that a chunk keeps of a microbatch, and that its passes need as scratch.
struct footprint {
  index until_b = 0;    ///< from F to the end of B
  index until_w = 0;    ///< from F to the end of W
  index gradients = 0;  ///< from B to the end of W
  index scratch = 0;    ///< during a pass
};

/// Points at arrays that a microbatch keeps in a chunk between its passes, of those sizes.
struct kept {
  float* until_b = nullptr;    ///< to be freed after B
  float* until_w = nullptr;    ///< to be freed after W
  float* gradients = nullptr;  ///< given to B, to be freed after W
};

/// Adds numbers up over the members of a tensor group, each of which calls it.
using member_sum = std::function<void(std::span<float>)>;

/// Is a run of layers, with the embedding where it starts the model. Between chunks there are rows
/// [tokens, width]: x goes into a chunk and y out of it; dx and dy are their gradients. Between
/// shards of the head there is something behind the rows: what the softmax of each token adds up
/// to, in x over the shards before, in dx over all.
class chunk {
 public:
  /// Makes the parameters, a function of (seed, part).
  /// @param part          its layers, at least one: blocks, and behind them shards of the head
  /// @param microbatches  of a step: gradients are those of the mean loss over all of them
  /// @param members       of the tensor group, whose shares of the blocks it has
  chunk(
      model_config const& config, range part, int microbatches, std::uint64_t seed, range members);
  /// Has the shares of all members.
  chunk(model_config const& config, range part, int microbatches, std::uint64_t seed)
      : chunk(config, part, microbatches, seed, {0, config.members}) {}
  chunk(chunk&&) noexcept;
  chunk& operator=(chunk&&) noexcept;
  ~chunk();

  /// @return whether it starts the model
  [[nodiscard]] bool is_first() const;
  /// @return whether it ends the model
  [[nodiscard]] bool is_last() const;
  /// @return what a microbatch takes in it
  [[nodiscard]] footprint const& keeps() const { return keeps_; }
  /// @return floats of x, and of dx
  [[nodiscard]] index floats_in() const;
  /// @return floats of y, and of dy
  [[nodiscard]] index floats_out() const;
  /// @return whether W needs dy; shards of the head have all that it needs
  [[nodiscard]] bool uses_gradient_in_w() const;
  /// @return its parameters and their gradients
  [[nodiscard]] parameter_set& parameters() { return parameters_; }
  [[nodiscard]] parameter_set const& parameters() const { return parameters_; }

  /// Runs the forward pass of a microbatch.
  /// @param x  unused at the start of the model
  /// @param y    unused at the end of the model
  /// @param sum  over all members; none where all of their shares are here
  /// @return at the end of the model the mean loss over the tokens, in nats; else 0
  double forward(
      kept const& keep,
      batch const& of,
      float const* x,
      float* scratch,
      float* y,
      member_sum const& sum = {}) const;

  /// Runs the pass that makes the gradient of the input.
  /// @param dy  has to stay until W, where that uses it; unused at the end of the model
  /// @param dx   unused at the start of the model
  /// @param sum  as in `forward`
  void backward_input(
      kept const& keep,
      batch const& of,
      float const* dy,
      float* scratch,
      float* dx,
      member_sum const& sum = {}) const;

  /// Runs the pass that adds to the gradients of the parameters.
  void backward_weight(kept const& keep, batch const& of, float const* dy, float* scratch);

 private:
  struct layers;

  [[nodiscard]] index row_floats() const { return config_.tokens() * config_.width; }
  /// @return floats of what goes into a layer of the model, and back
  [[nodiscard]] index floats_before(index layer) const;
  /// @return the gradient of what goes into layer i of the chunk
  [[nodiscard]] float* gradient_into(kept const& keep, index i) const;

  model_config config_;
  range range_;
  int microbatches_;
  parameter_set parameters_;
  std::unique_ptr<layers> layers_;
  footprint keeps_;
};

/// Makes the whole model as one chunk.
[[nodiscard]] inline chunk whole_model(
    model_config const& config, int microbatches, std::uint64_t seed) {
  return {config, {0, config.layers + config.shards}, microbatches, seed};
}

}  // namespace gpt
