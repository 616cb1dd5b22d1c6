// SPDX-License-Identifier: Apache-2.0
//
// Numbers as text, and tables in Markdown.
#pragma once

#include <zbpp/io/text.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace questions {

using zbpp::fixed_text;

/// @return a share of 1 in percent, with two decimals and without the sign
[[nodiscard]] inline std::string percent(double share) {
  auto text = fixed_text(100 * share, 2);
  return text == "-0.00" ? "0.00" : text;
}

/// Collects the lines of a table.
class table {
 public:
  explicit table(std::vector<std::string> header) : columns_(header.size()) {
    add(std::move(header));
    add(std::vector<std::string>(columns_, "---"));
  }

  /// Appends a line with a cell for each column.
  void add(std::vector<std::string> const& cells) {
    for (auto const& cell : cells) text_ += "| " + cell + " ";
    text_ += "|\n";
  }

  /// @return the table in Markdown, with an empty line behind it
  [[nodiscard]] std::string text() const { return text_ + "\n"; }

 private:
  std::size_t columns_;
  std::string text_;
};

}  // namespace questions
