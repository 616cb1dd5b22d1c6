// SPDX-License-Identifier: Apache-2.0
//
// What io/text_table.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/io/text_table.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE text_table::text_table(std::vector<std::string> names) { add(std::move(names)); }

ZBPP_INLINE void text_table::add(std::vector<std::string> cells, std::string remark) {
  rows_.push_back({std::move(cells), std::move(remark)});
}

ZBPP_INLINE std::string text_table::text(std::size_t indent) const {
  std::vector<std::size_t> widths;
  for (auto const& each : rows_) {
    widths.resize(std::max(widths.size(), each.cells.size()), 0);
    for (std::size_t i = 0; i < each.cells.size(); ++i)
      widths[i] = std::max(widths[i], each.cells[i].size());
  }
  std::string lines;
  for (auto const& each : rows_) {
    lines += std::string(indent, ' ');
    for (std::size_t i = 0; i < each.cells.size(); ++i) {
      std::string const room(widths[i] - each.cells[i].size(), ' ');
      bool const is_last = i + 1 == each.cells.size() && each.remark.empty();
      if (i > 0) lines += "  " + room;
      lines += each.cells[i];
      if (i == 0 && !is_last) lines += room;
    }
    if (!each.remark.empty()) lines += (each.cells.empty() ? "" : "  ") + each.remark;
    lines += '\n';
  }
  return lines;
}

}  // namespace zbpp
