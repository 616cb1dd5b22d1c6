// SPDX-License-Identifier: Apache-2.0
//
// The manifest of a checkpoint: a text that names the step and what the next one depends on, the
// settings of the run, and each rank's file with its checksum. It is written last; a checkpoint is
// what has one.
#pragma once

#include "checksum.hpp"
#include "rank_file.hpp"
#include "sequential.hpp"
#include "table.hpp"
#include <zbpp/model/placement.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
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

/// Lists what decides the bits of a run and what each rank holds.
[[nodiscard]] inline std::vector<run_setting> settings_of(
    training const& how, text const& on, std::string policy, zbpp::placement const& placement) {
  auto const number = [](auto value) { return std::to_string(value); };
  return {
      {"--text",
       number(on.bytes().size()) + " bytes, checksum " +
           hex(checksum_of(std::as_bytes(on.bytes())))},
      {"--ranks", number(placement.ranks())},
      {"--policy", std::move(policy)},
      {"placement", placement.name()},
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
  static constexpr char const* title = "zbpp train_gpt checkpoint, version 2";

  zbpp::training_state state;      ///< but for the loss scale, which always is 1
  std::vector<file_record> files;  ///< by rank
};

/// Writes a manifest.
[[nodiscard]] inline std::string to_text(
    manifest const& what, std::vector<run_setting> const& settings) {
  auto lines = std::string(manifest::title) + "\n" + "step: " + std::to_string(what.state.steps) +
               "\n" + "updates: " + std::to_string(what.state.updates) + "\n" +
               "amended steps: " + hex(what.state.amended) + "\n" + to_text(settings);
  for (std::size_t r = 0; r < what.files.size(); ++r)
    lines += rank_file_name(r) + ": " + std::to_string(what.files[r].size) + " bytes, checksum " +
             hex(what.files[r].sum) + "\n";
  return lines + "checksum: " + hex(checksum_of(std::string_view(lines))) + "\n";
}

/// Reads manifests: line by line, and nothing that `to_text` would not have written.
class manifest_reader {
 public:
  explicit manifest_reader(std::string_view all) : all_(all), rest_(all) {}

  /// @return what the checksum at the end says is wrong; nothing where it holds
  [[nodiscard]] std::optional<std::string> find_damage() const {
    constexpr std::size_t last_line = 10 + 16 + 1;  // "checksum: ", digits, end of line
    auto const before = all_.size() - std::min(all_.size(), last_line);
    auto const right = "checksum: " + hex(checksum_of(all_.substr(0, before))) + "\n";
    if (all_.substr(before) == right) return std::nullopt;
    return "is damaged or torn: it does not end with \"" + right.substr(0, right.size() - 1) + "\"";
  }

  /// Reads the value of the next line.
  /// @throws setting_error unless the line has this name
  [[nodiscard]] std::string_view value(std::string const& name) {
    auto const line = next_line();
    if (!line.starts_with(name + ": "))
      throw setting_error("says \"" + std::string(line) + "\" where \"" + name + ": \" belongs");
    return line.substr(name.size() + 2);
  }

  /// Reads the next line.
  [[nodiscard]] std::string_view next_line() {
    auto const end = std::min(rest_.find('\n'), rest_.size());
    auto const line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return line;
  }

  /// Reads a number that fills a text.
  /// @throws setting_error
  [[nodiscard]] static std::uint64_t number(std::string_view from, int base = 10) {
    std::uint64_t value = 0;
    auto const* const end = from.data() + from.size();
    auto const [stop, fault] = std::from_chars(from.data(), end, value, base);
    if (fault != std::errc{} || stop != end)
      throw setting_error("says \"" + std::string(from) + "\" where a number belongs");
    return value;
  }

  /// Reads the line of a rank's file.
  /// @throws setting_error
  [[nodiscard]] file_record file(std::size_t rank) {
    auto const says = value(rank_file_name(rank));
    constexpr std::string_view between = " bytes, checksum ";
    auto const middle = std::min(says.find(between), says.size());
    auto const sum = says.substr(std::min(middle + between.size(), says.size()));
    return {number(says.substr(0, middle)), number(sum, 16)};
  }

 private:
  std::string_view all_;
  std::string_view rest_;
};

}  // namespace gpt
