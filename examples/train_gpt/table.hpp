// SPDX-License-Identifier: Apache-2.0
//
// Tables on the terminal, and numbers as text for them.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Writes a number with a fixed number of decimals.
[[nodiscard]] inline std::string fixed(double value, int decimals) {
  std::array<char, 64> digits{};
  std::snprintf(digits.data(), digits.size(), "%.*f", decimals, value);
  return digits.data();
}

/// Writes the shortest decimal that is read back as the same number.
template <std::floating_point Number>
[[nodiscard]] std::string exact(Number value) {
  std::array<char, 32> digits{};
  auto const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

/// Writes a share of one as a percentage.
[[nodiscard]] inline std::string percent(double share) { return fixed(100.0 * share, 1) + " %"; }

/// Adds cells at the end of a row.
inline void append(std::vector<std::string>& row, std::vector<std::string> const& cells) {
  row.insert(row.end(), cells.begin(), cells.end());
}

/// Lines up rows of cells: the first column to the left, the others to the right.
class table {
 public:
  /// Starts with the row of names.
  explicit table(std::vector<std::string> names) { rows_.push_back({std::move(names), {}}); }

  /// Adds a row; cells that are missing at its end are empty.
  void add(std::vector<std::string> cells) { rows_.push_back({std::move(cells), {}}); }
  /// Adds a row with a remark in place of the cells after the first.
  void add(std::string first, std::string remark) {
    rows_.push_back({{std::move(first)}, std::move(remark)});
  }

  /// @return the lines, each ended
  [[nodiscard]] std::string text() const {
    std::vector<std::size_t> widths;
    for (auto const& r : rows_) {
      widths.resize(std::max(widths.size(), r.cells.size()), 0);
      for (std::size_t i = 0; i < r.cells.size(); ++i)
        widths[i] = std::max(widths[i], r.cells[i].size());
    }
    std::string lines;
    for (auto const& r : rows_) {
      lines += "  ";
      for (std::size_t i = 0; i < r.cells.size(); ++i) {
        std::string const room(widths[i] - r.cells[i].size(), ' ');
        if (i > 0) lines += "  " + room;
        lines += r.cells[i];
        if (i == 0 && (r.cells.size() > 1 || !r.remark.empty())) lines += room;
      }
      if (!r.remark.empty()) lines += "  " + r.remark;
      lines += '\n';
    }
    return lines;
  }

 private:
  struct row {
    std::vector<std::string> cells;
    std::string remark;
  };

  std::vector<row> rows_;
};

}  // namespace gpt
