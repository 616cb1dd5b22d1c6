// SPDX-License-Identifier: Apache-2.0
//
// What files of a checkpoint say beside their arrays: the settings of the run, and what its next
// step depends on besides weights and optimizers.
#pragma once

#include <zbpp/runtime/training.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace zbpp::checkpoint {

/// A property of a run, such as an option and its value.
struct setting {
  std::string name;   ///< has neither `: ` nor ends of lines
  std::string value;  ///< one line

  friend bool operator==(setting const&, setting const&) = default;
};

/// The key of a training state in the metadata of files.
inline constexpr char const* training_key = "zbpp.training_state";

/// Writes the numbers of a state, with blanks between them.
[[nodiscard]] std::string to_text(training_state const& state);

/// What a file says of the run.
struct saved_training {
  training_state state;
  bool has_gradients = false;  ///< what was pending, if anything; older files say nothing of it

  friend bool operator==(saved_training const&, saved_training const&) = default;
};

/// Reads what `to_text` wrote: six numbers, a seventh where there are steps to come without
/// agreement; or five as it was before.
/// @return nothing where it is something else
[[nodiscard]] std::optional<saved_training> to_training(std::string_view text);

}  // namespace zbpp::checkpoint

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/metadata.ipp>
#endif
