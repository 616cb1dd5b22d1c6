// SPDX-License-Identifier: Apache-2.0
//
// The manifest of a checkpoint: a text that names the step and what the next one depends on, the
// settings of the run, how it was split, and each rank's file with its checksum. It is written
// last; a checkpoint is what has one.
#pragma once

#include "checksum.hpp"
#include "lines.hpp"
#include "rank_file.hpp"
#include "sequential.hpp"
#include "table.hpp"
#include <zbpp/model/placement.hpp>
#include <zbpp/runtime/training.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpt {

/// Is a setting that has to be the same for a run to go on; by the name of its option, where it has
/// one.
struct run_setting {
  std::string name;
  std::string value;
};

/// Lists what decides the bits of a run.
[[nodiscard]] inline std::vector<run_setting> settings_of(training const& how, text const& on) {
  auto const number = [](auto value) { return std::to_string(value); };
  return {
      {"--text",
       number(on.bytes().size()) + " bytes, checksum " +
           hex(checksum_of(std::as_bytes(on.bytes())))},
      {"--microbatches", number(how.microbatches)},
      {"--steps", number(how.optimizer.steps)},
      {"--layers", number(how.model.layers)},
      {"--width", number(how.model.width)},
      {"--context", number(how.model.context)},
      {"--sequences", number(how.model.sequences)},
      {"--tied", how.model.is_tied ? "yes" : "no"},
      {"--optimizer", how.optimizer.kind == optimizer_kind::adam ? "adam" : "sgd"},
      {"--learning-rate", exact(how.optimizer.learning_rate)},
      {"norm of gradients", how.optimizer.needs_norm ? "checked" : "unchecked"},
      {"--clip", exact(how.optimizer.clip)},
      {"--seed", number(how.seed)}};
}

/// Says how a run was split over ranks. Nothing of it decides the bits: a run with another split
/// can go on from its checkpoints.
struct run_split {
  int ranks = 0;
  std::string policy;
  std::string placement;

  friend bool operator==(run_split const&, run_split const&) = default;
};

/// Says how a run is split.
[[nodiscard]] inline run_split split_of(std::string policy, zbpp::placement const& placement) {
  return {placement.ranks(), std::move(policy), placement.name()};
}

/// Lists a split as settings.
[[nodiscard]] inline std::vector<run_setting> settings_of(run_split const& split) {
  return {
      {"--ranks", std::to_string(split.ranks)},
      {"--policy", split.policy},
      {"placement", split.placement}};
}

/// Writes the lines of settings.
[[nodiscard]] inline std::string to_text(std::vector<run_setting> const& settings) {
  std::string lines;
  for (auto const& s : settings) lines += s.name + ": " + s.value + "\n";
  return lines;
}

/// @return the name of a rank's file
[[nodiscard]] inline std::string rank_file_name(std::size_t rank) {
  return "rank-" + std::to_string(rank) + ".bin";
}

/// Holds what a manifest says beside the settings.
struct manifest {
  static constexpr char const* file_name = "manifest.txt";
  static constexpr std::uint64_t most_bytes = 1U << 20U;  ///< that are read of one
  static constexpr char const* title = "zbpp train_gpt checkpoint, version 3";

  zbpp::training_state state;      ///< but for the loss scale, which always is 1
  run_split split;                 ///< of the run that saved it
  std::vector<file_record> files;  ///< by rank
};

/// Writes a manifest.
[[nodiscard]] inline std::string to_text(
    manifest const& what, std::vector<run_setting> const& settings) {
  auto lines = std::string(manifest::title) + "\n" + "step: " + std::to_string(what.state.steps) +
               "\n" + "updates: " + std::to_string(what.state.updates) + "\n" +
               "amended steps: " + hex(what.state.amended) + "\n" + to_text(settings) +
               to_text(settings_of(what.split));
  for (std::size_t r = 0; r < what.files.size(); ++r)
    lines +=
        rank_file_name(r) + ": " + sized("bytes", what.files[r].size, what.files[r].sum) + "\n";
  return with_checksum(std::move(lines));
}

}  // namespace gpt
