// SPDX-License-Identifier: Apache-2.0
//
// The sizes of the model and of one microbatch, as the kernels see them. The vocabulary is that of
// train_gpt: the 256 bytes.
#pragma once

#include "train_gpt/settings.hpp"

#include <string>

namespace gpt::cuda {

/// Gives the sizes of the model and of a microbatch; the default is that of GPT-2 124M, but for the
/// vocabulary.
struct shape {
  index layers = 12;     ///< transformer blocks
  index width = 768;     ///< elements of a token between blocks
  index heads = 12;      ///< of attention; a divisor of the width
  index context = 1024;  ///< tokens of a sequence
  index sequences = 4;   ///< of a microbatch

  /// @return elements of a head's query, key and value
  [[nodiscard]] constexpr index head() const { return width / heads; }
  /// @return elements of a token inside the MLP
  [[nodiscard]] constexpr index hidden() const { return 4 * width; }
  /// @return tokens of a microbatch
  [[nodiscard]] constexpr index tokens() const { return sequences * context; }
  /// @return rows of the attention scores [sequences, heads, context]
  [[nodiscard]] constexpr index score_rows() const { return heads * tokens(); }
  /// @return queries of a block of attention, a multiple of eight. A block meets the keys up to its
  ///         end alone. Own choice: four blocks, so that 10 of 16 parts of the work are left.
  [[nodiscard]] constexpr index causal_block() const { return (context / 8 + 3) / 4 * 8; }
  /// @return elements of a row batch [tokens, width]
  [[nodiscard]] constexpr index row_elements() const { return tokens() * width; }
  /// @return floating-point operations of a token in F, B and W, as MFU counts them: with all of
  ///         attention, of which the products leave out 6 parts of 16
  /// @source Chowdhery et al., arXiv 2204.02311, appendix B: 6 for each weight of a product, and
  ///         12 layers * width * context for attention
  [[nodiscard]] constexpr double operations_of_token() const {
    auto const weights = layers * 12 * width * width + width * vocabulary;
    return 6.0 * static_cast<double>(weights) +
           12.0 * static_cast<double>(layers * width * context);
  }
  /// @return the sizes that the text needs to know
  [[nodiscard]] constexpr model_config of_text() const {
    return {layers, width, context, sequences};
  }

  friend bool operator==(shape const&, shape const&) = default;
};

// Of 12 layers: 24 * 768^2 for the weights and 4 * 1024 * 768 for attention; 2 * 768 * 256 for the
// head; three times, for F, B and W.
static_assert(shape{}.operations_of_token() == 3.0 * (12 * (14155776 + 3145728) + 393216));

/// Refuses sizes the kernels do not handle.
/// @throws setting_error
inline void check(shape const& s) {
  auto const refuse = [](char const* what, index is, std::string const& right) {
    throw setting_error(std::string(what) + " is " + std::to_string(is) + "; it must be " + right);
  };
  if (s.layers < 1) refuse("--layers", s.layers, "at least 1");
  if (s.heads < 1) refuse("--heads", s.heads, "at least 1");
  // Tensor cores want rows of 16 bytes.
  if (s.width < 1 || s.width % (8 * s.heads) != 0)
    refuse("--width", s.width, "a multiple of 8 * --heads = " + std::to_string(8 * s.heads));
  if (s.context < 8 || s.context % 8 != 0) refuse("--context", s.context, "a multiple of 8");
  if (s.sequences < 1) refuse("--batch", s.sequences, "at least 1");
}

}  // namespace gpt::cuda
