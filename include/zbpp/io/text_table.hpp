// SPDX-License-Identifier: Apache-2.0
//
// Tables of plain text, for terminals.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace zbpp {

/// Lines up rows of cells: the first column to the left, the others to the right.
class text_table {
 public:
  /// Begins with the names of the columns.
  explicit text_table(std::vector<std::string> names);

  /// Adds a row; cells that are missing at its end are empty.
  /// @param remark  follows the cells and may be wider than any column; or empty
  void add(std::vector<std::string> cells, std::string remark = {});

  /// @return the lines, each ended and moved to the right by `indent` blanks
  [[nodiscard]] std::string text(std::size_t indent = 0) const;

 private:
  struct row {
    std::vector<std::string> cells;
    std::string remark;
  };

  std::vector<row> rows_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/text_table.ipp>
#endif
