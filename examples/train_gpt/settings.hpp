// SPDX-License-Identifier: Apache-2.0
//
// What is trained, and how: the sizes of the model and of one microbatch, and the rule by which the
// optimizer steps.
#pragma once

#include <zbpp/model/grid.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpt {

/// Counts rows, columns and elements; signed, as Eigen counts them.
using index = std::ptrdiff_t;

/// Names some of several things in a row, first to last - 1.
struct range {
  index first;
  index last;
};

/// Divides things evenly; where that leaves some over, the first parts take one more each.
[[nodiscard]] constexpr range part_of(index count, index parts, index part) {
  auto const share = count / parts;
  auto const over = count % parts;
  auto const first = part * share + std::min(part, over);
  return {first, first + share + (part < over ? 1 : 0)};
}

/// Tokens are bytes.
inline constexpr index vocabulary = 256;

/// Elements of a head's query, key and value.
inline constexpr index head_width = 32;

/// Is a wrong setting: the text says what, where and what to do.
class setting_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Gives the sizes of the model and of a microbatch.
struct model_config {
  index layers = 4;          ///< transformer blocks
  index width = 96;          ///< elements of a token between blocks, a multiple of `head_width`
  index context = 64;        ///< tokens of a sequence
  index sequences = 2;       ///< sequences of a microbatch
  bool is_tied = false;      ///< the head has the weights of the embedding
  index words = vocabulary;  ///< of embedding and head: the bytes, and others that no text has
  index shards = 1;   ///< of the head, which divide the words; with more than one, each is a stage
  index members = 1;  ///< of a tensor group, which divide the heads and hidden units of each block

  /// @return attention heads of a block
  [[nodiscard]] constexpr index heads() const { return width / head_width; }
  /// @return elements of a token inside the MLP
  [[nodiscard]] constexpr index hidden() const { return 4 * width; }
  /// @return tokens of a microbatch
  [[nodiscard]] constexpr index tokens() const { return sequences * context; }

  friend bool operator==(model_config const&, model_config const&) = default;
};

/// Refuses sizes the model does not handle.
/// @throws setting_error
inline void check(model_config const& config) {
  auto const refuse = [](char const* name, index size, std::string const& right) {
    throw setting_error(
        std::string(name) + " is " + std::to_string(size) + "; it must be " + right);
  };
  if (config.layers < 1) refuse("--layers", config.layers, "at least 1");
  if (config.width < head_width || config.width % head_width != 0)
    refuse("--width", config.width, "a multiple of " + std::to_string(head_width));
  // Below this Eigen turns to kernels whose rounding depends on where a matrix lies in memory.
  if (config.context < 16) refuse("--context", config.context, "at least 16");
  if (config.sequences < 1) refuse("--sequences", config.sequences, "at least 1");
}

/// Names a rule of steps.
enum class optimizer_kind { sgd, adam };

/// @return a learning rate that suits the rule. Own choice: the best of a few for the default
/// model.
[[nodiscard]] constexpr float default_rate(optimizer_kind kind) {
  return kind == optimizer_kind::adam ? 2e-3F : 5e-2F;
}

/// Gives the settings of an optimizer.
struct optimizer_settings {
  optimizer_kind kind = optimizer_kind::adam;
  float learning_rate = default_rate(optimizer_kind::adam);
  std::int64_t steps = 400;   ///< the learning rate falls to a tenth until here
  std::int64_t warm_up = 20;  ///< the learning rate rises until here
  float momentum = 0.9F;      ///< share of the mean gradient that a step keeps
  float mean_square = 0.95F;  ///< share of the mean squared gradient that a step keeps
  /// Whether the norm of all gradients decides about each step: they are clipped to `clip`, and a
  /// step is skipped where they are not finite.
  bool needs_norm = false;
  double clip = 0.0;  ///< most that the norm may be; 0 clips nothing

  /// @return the learning rate of a step, counted from 0
  [[nodiscard]] float rate(std::int64_t step) const {
    auto const rise =
        static_cast<float>(step + 1) / static_cast<float>(std::max<std::int64_t>(warm_up, 1));
    auto const fall =
        static_cast<float>(step) / static_cast<float>(std::max<std::int64_t>(steps, 1));
    return learning_rate * std::min(1.0F, rise) * std::max(0.1F, 1.0F - 0.9F * fall);
  }
};

/// Says how the steps of a pipeline are taken.
[[nodiscard]] inline zbpp::training_options options_of(optimizer_settings const& how) {
  return {
      .clip = how.clip, .learning_rate = [how](std::int64_t updates) { return how.rate(updates); }};
}

/// Says which rank takes how many times as long as its passes need.
struct slow_rank {
  int rank = -1;  ///< none
  double factor = 1.0;
};

/// Says what is trained, and how.
struct training {
  model_config model;
  optimizer_settings optimizer;
  int microbatches = 8;  ///< of a step, of all replicas together
  int replicas = 1;      ///< of the model, which divide the microbatches of a step
  std::uint64_t seed = 1;

  /// @return the grid of pipelines with so many ranks each
  [[nodiscard]] zbpp::grid_layout layout_of(int ranks) const {
    auto const members = static_cast<int>(model.members);
    return {{.pipeline = ranks, .data = replicas, .tensor = members}, ranks * replicas * members};
  }
  /// @return microbatches of one replica
  [[nodiscard]] constexpr int own_microbatches() const { return microbatches / replicas; }
};

}  // namespace gpt
