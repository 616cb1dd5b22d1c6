// SPDX-License-Identifier: Apache-2.0
//
// What a checkpoint says beside its arrays: the settings of the run, what its next step depends on
// besides weights and optimizers, and, in its manifest, which file each rank has.
#pragma once

#include <zbpp/checkpoint/safetensors.hpp>
#include <zbpp/runtime/training.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

namespace detail {

/// Holds what a manifest says beside the settings. It is a text of lines `name: value`, the last of
/// which is the checksum of those before. It is written last; a checkpoint is what has one.
struct manifest {
  static constexpr char const* file_name = "manifest.txt";
  static constexpr std::uint64_t largest_size = 1U << 20U;  ///< bytes that are read of one
  static constexpr char const* title = "zbpp checkpoint, version 1";

  training_state state;
  std::vector<setting> split;      ///< of the run that saved it
  std::vector<file_record> files;  ///< by rank
};

[[nodiscard]] std::string to_text(std::vector<setting> const& settings);

/// Ends a text of lines with its checksum.
[[nodiscard]] std::string with_checksum(std::string lines);

[[nodiscard]] std::string rank_file_name(std::size_t rank);

/// Writes a manifest.
[[nodiscard]] std::string to_text(manifest const& of, std::vector<setting> const& settings);

/// Reads a manifest.
/// @param settings     of the run that wants to go on
/// @param differences  says what differs where it is of another run
/// @throws error (bad_format) whose message begins with `name`: it is damaged, of another version
///         or of a program with other settings
[[nodiscard]] manifest read_manifest(
    std::string_view text,
    std::string const& name,
    std::vector<setting> const& settings,
    std::string& differences);

}  // namespace detail

}  // namespace zbpp::checkpoint

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/metadata.ipp>
#endif
