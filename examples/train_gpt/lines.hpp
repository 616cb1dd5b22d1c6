// SPDX-License-Identifier: Apache-2.0
//
// Texts of lines "name: value" whose last line is the checksum of those before: manifests, and the
// headers of the files of ranks.
#pragma once

#include "checksum.hpp"
#include "config.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace gpt {

/// Ends a text with its checksum.
[[nodiscard]] inline std::string with_checksum(std::string lines) {
  auto const sum = checksum_of(std::string_view(lines));
  return std::move(lines) + "checksum: " + hex(sum) + "\n";
}

/// Writes a size and a checksum: what `line_reader::sized` reads.
[[nodiscard]] inline std::string sized(char const* unit, std::uint64_t size, std::uint64_t sum) {
  return std::to_string(size) + " " + unit + ", checksum " + hex(sum);
}

/// Reads such texts, line by line.
class line_reader {
 public:
  explicit line_reader(std::string_view all) : all_(all), rest_(all) {}

  /// @return what the checksum at the end says is wrong; nothing where it holds
  [[nodiscard]] std::optional<std::string> find_damage() const {
    auto const before = all_.size() - std::min(all_.size(), last_line);
    auto const right = "checksum: " + hex(checksum_of(all_.substr(0, before))) + "\n";
    if (all_.substr(before) == right) return std::nullopt;
    return "is damaged or torn: it does not end with \"" + right.substr(0, right.size() - 1) + "\"";
  }

  /// @return whether only the line of the checksum is left
  [[nodiscard]] bool is_at_checksum() const { return rest_.size() <= last_line; }

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

  /// Reads a size and a checksum.
  /// @throws setting_error
  [[nodiscard]] static std::pair<std::uint64_t, std::uint64_t> sized(
      char const* unit, std::string_view from) {
    auto const between = " " + std::string(unit) + ", checksum ";
    auto const middle = std::min(from.find(between), from.size());
    auto const sum = from.substr(std::min(middle + between.size(), from.size()));
    return {number(from.substr(0, middle)), number(sum, 16)};
  }

 private:
  static constexpr std::size_t last_line = 10 + 16 + 1;  // "checksum: ", digits, end of line

  std::string_view all_;
  std::string_view rest_;
};

}  // namespace gpt
