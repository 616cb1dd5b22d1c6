// SPDX-License-Identifier: Apache-2.0
//
// The sizes of the model and of one microbatch. Everything else about the model follows from them.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace gpt {

/// Counts rows, columns and elements; signed, as Eigen counts them.
using index = std::ptrdiff_t;

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
  index layers = 4;      ///< transformer blocks
  index width = 96;      ///< elements of a token between blocks, a multiple of `head_width`
  index context = 64;    ///< tokens of a sequence
  index sequences = 2;   ///< sequences of a microbatch
  bool is_tied = false;  ///< the head has the weights of the embedding

  /// @return attention heads of a block
  [[nodiscard]] constexpr index heads() const { return width / head_width; }
  /// @return elements of a token inside the MLP
  [[nodiscard]] constexpr index hidden() const { return 4 * width; }
  /// @return tokens of a microbatch
  [[nodiscard]] constexpr index tokens() const { return sequences * context; }

  friend bool operator==(model_config const&, model_config const&) = default;
};

/// Refuses sizes the kernels do not handle.
/// @throws setting_error
inline void check(model_config const& config) {
  auto const refuse = [](char const* what, index is, std::string const& right) {
    throw setting_error(std::string(what) + " is " + std::to_string(is) + "; it must be " + right);
  };
  if (config.layers < 1) refuse("layers", config.layers, "at least 1");
  if (config.width < head_width || config.width % head_width != 0)
    refuse("width", config.width, "a multiple of " + std::to_string(head_width));
  // Below this Eigen turns to kernels whose rounding depends on where a matrix lies in memory.
  if (config.context < 16) refuse("context", config.context, "at least 16");
  if (config.sequences < 1) refuse("sequences", config.sequences, "at least 1");
}

}  // namespace gpt
