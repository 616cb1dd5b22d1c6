// SPDX-License-Identifier: Apache-2.0
//
// The text that the model learns, byte by byte, and the piece of it that a microbatch sees: a pure
// function of (seed, step, microbatch), so that first and last stage need no word of each other.
#pragma once

#include "random.hpp"
#include "settings.hpp"
#include <zbpp/error.hpp>
#include <zbpp/io/file.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace gpt {

/// Holds a text as bytes.
class text {
 public:
  explicit text(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}

  [[nodiscard]] std::span<std::uint8_t const> bytes() const { return bytes_; }

  /// @return the entropy of one byte drawn from the text, in nats: the loss of a model that knows
  /// how frequent each byte is, and nothing else
  [[nodiscard]] double unigram_entropy() const {
    std::array<double, vocabulary> count{};
    for (auto const byte : bytes_) count[byte] += 1.0;
    double entropy = 0.0;
    for (auto const n : count) {
      auto const share = n / static_cast<double>(bytes_.size());
      if (n > 0.0) entropy -= share * std::log(share);
    }
    return entropy;
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

/// Reads files, one behind the other.
/// @throws setting_error with the path of one that cannot be read
[[nodiscard]] inline text read_files(std::vector<std::filesystem::path> const& files) {
  std::vector<std::uint8_t> bytes;
  try {
    for (auto const& file : files) {
      auto const all = zbpp::read_file(file);
      bytes.insert(bytes.end(), all.begin(), all.end());
    }
  } catch (zbpp::error const& wrong) {
    throw setting_error(wrong.what());
  }
  return text(std::move(bytes));
}

/// Reads one file.
/// @throws setting_error
[[nodiscard]] inline text read_text(std::filesystem::path const& path) {
  return read_files({path});
}

/// Reads the headers and the pages of a repository of C++, in the order of their paths.
/// @throws setting_error unless `root` is a folder that has some
[[nodiscard]] inline text read_repository(std::filesystem::path const& root) {
  std::vector<std::filesystem::path> files;
  for (char const* const folder : {"include", "docs"}) {
    std::error_code none;
    for (auto const& entry : std::filesystem::recursive_directory_iterator(root / folder, none))
      if (entry.path().extension() == ".hpp" || entry.path().extension() == ".md")
        files.push_back(entry.path());
  }
  if (files.empty())
    throw setting_error(
        "no headers or pages under \"" + root.string() +
        "\", where this program was built from; name a text with --text");
  std::sort(files.begin(), files.end());
  return read_files(files);
}

/// Says which pieces of a text belong to a microbatch of a step.
class batch {
 public:
  /// @param of  outlives the batch
  batch(
      model_config const& config,
      text const& of,
      std::uint64_t seed,
      std::int64_t step,
      int microbatch)
      : context_(config.context),
        bytes_(of.bytes()),
        seed_(seed),
        step_(step),
        microbatch_(microbatch) {}

  /// @return the tokens [context] of one of its sequences
  [[nodiscard]] std::uint8_t const* tokens(index sequence) const {
    auto const places = bytes_.size() - static_cast<std::size_t>(context_);
    return bytes_.data() + random_start(seed_, step_, microbatch_, sequence, places);
  }
  /// @return the token that follows each of `tokens` [context]
  [[nodiscard]] std::uint8_t const* targets(index sequence) const { return tokens(sequence) + 1; }

 private:
  index context_;
  std::span<std::uint8_t const> bytes_;
  std::uint64_t seed_;
  std::int64_t step_;
  int microbatch_;
};

/// Refuses a text that has no sequence with a byte after it.
/// @throws setting_error
inline void check(text const& of, model_config const& config) {
  if (of.bytes().size() <= static_cast<std::size_t>(config.context))
    throw setting_error(
        "the text has " + std::to_string(of.bytes().size()) + " bytes; --context " +
        std::to_string(config.context) + " needs a longer one");
}

}  // namespace gpt
