// SPDX-License-Identifier: Apache-2.0
//
// A model for tests of checkpoints: named arrays that any number of ranks share.
#pragma once

#include <zbpp/checkpoint/run_folder.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace zbpp::test {

/// Has one array for each entry; rank `i % ranks` has the entry `i`.
struct checkpointed_model {
  std::vector<std::vector<float>> entries;

  /// @param seed  tells models apart
  explicit checkpointed_model(std::size_t count, int seed = 0) {
    for (std::size_t i = 0; i < count; ++i)
      entries.emplace_back(3 + i, static_cast<float>(seed) + static_cast<float>(i) / 8);
  }

  [[nodiscard]] static std::string name(std::size_t entry) {
    return "block." + std::to_string(entry) + ".weight";
  }
  /// @return the arrays of a rank
  [[nodiscard]] std::vector<checkpoint::array> of_rank(int rank, int ranks) {
    std::vector<checkpoint::array> own;
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (i % static_cast<std::size_t>(ranks) == static_cast<std::size_t>(rank))
        own.push_back(checkpoint::array_of(name(i), std::span(entries[i])));
    return own;
  }
  [[nodiscard]] std::vector<checkpoint::array> all() { return of_rank(0, 1); }
  /// Sets every number.
  void fill(float number) {
    for (auto& each : entries) std::ranges::fill(each, number);
  }
  /// @return whether every number is this one
  [[nodiscard]] bool is_filled_with(float number) const {
    return std::ranges::all_of(entries, [&](auto const& each) {
      return std::ranges::count(each, number) == std::ssize(each);
    });
  }

  friend bool operator==(checkpointed_model const&, checkpointed_model const&) = default;
};

/// @return a folder for checkpoints of `ranks` ranks
[[nodiscard]] inline checkpoint::run_folder folder_of(
    std::filesystem::path const& path, int ranks, std::string const& width = "32") {
  return {
      path,
      {.settings = {{"--width", width}, {"--seed", "1"}},
       .split = {{"--ranks", std::to_string(ranks)}, {"--policy", "zb_v"}},
       .ranks = ranks}};
}

/// Saves a model as the ranks of a folder do.
[[nodiscard]] inline bool save(
    checkpoint::run_folder& to, std::int64_t step, checkpointed_model& model, int ranks) {
  return to.save(
      {.steps = step, .updates = step}, [&](int rank) { return model.of_rank(rank, ranks); });
}

}  // namespace zbpp::test
