// SPDX-License-Identifier: Apache-2.0
//
// The manifest of a checkpoint: a text of lines `name: value` that has the step and what the next
// one depends on, the settings of the run, its split, and each rank's file with its checksum. Its
// last line is the checksum of those before. It is written last; a checkpoint is what has one.
#pragma once

#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/checkpoint/safetensors.hpp>
#include <zbpp/runtime/training.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::checkpoint::detail {

/// Holds what a manifest says beside the settings.
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
/// @param settings  of the run that wants to go on
/// @throws error (bad_format) with what is wrong, without its path: it is damaged or of another
///         version, or of another run, whose settings that differ are then in `differences`
[[nodiscard]] manifest read_manifest(
    std::string_view text, std::vector<setting> const& settings, std::string& differences);

}  // namespace zbpp::checkpoint::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/checkpoint/impl/manifest.ipp>
#endif
