// SPDX-License-Identifier: Apache-2.0
//
// How a text in CSV is cut into lines and cells, as spreadsheets and editors write it: with a byte
// order mark, any ends of lines, quotes, and semicolons or tabs where no comma separates cells.
#pragma once

#include <zbpp/io/detail/text_encoding.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace zbpp::detail {

/// Holds one cell of a line.
struct csv_text_cell {
  std::string_view written;  ///< with its quotes, without blanks around it
  std::string_view content;  ///< what the quotes hold, if there are any, without blanks around it
  bool is_quoted = false;
  bool is_closed = true;  ///< whether its quotes end, and nothing stands behind them
};

/// Removes the first line of a text, with its end: LF, CR LF, CR CR LF (which a CR LF becomes that
/// is written twice as text), or a CR alone.
[[nodiscard]] inline std::string_view take_csv_line(std::string_view& text) noexcept {
  auto const line = text.substr(0, text.find_first_of("\r\n"));
  text.remove_prefix(line.size());
  for (std::string_view const end : {"\r\r\n", "\r\n", "\r", "\n"}) {
    if (!text.starts_with(end)) continue;
    text.remove_prefix(end.size());
    break;
  }
  return line;
}

/// @return what separates the cells of a text: commas, or semicolons where there is no comma, or
///         tabs where there is neither; quotes and pairs in brackets do not count
[[nodiscard]] inline char csv_separator(std::string_view text) noexcept {
  bool has_semicolon = false;
  bool has_tab = false;
  char until = '\0';  // what ends the quotes or brackets
  for (char const c : text) {
    if (c == '\n' || c == '\r' || c == until) {
      until = '\0';
    } else if (until == '\0') {
      if (c == '"') until = '"';
      if (c == '(') until = ')';
      if (c == ',') return ',';
      has_semicolon = has_semicolon || c == ';';
      has_tab = has_tab || c == '\t';
    }
  }
  return has_semicolon ? ';' : has_tab ? '\t' : ',';
}

/// Is what is left of a line. An empty text is one more cell, unless the line has ended.
struct csv_rest {
  std::string_view text;
  bool has_ended = false;
};

/// Removes the first cell of a line, and the separator behind it; the line has not ended.
[[nodiscard]] inline csv_text_cell take_csv_cell(csv_rest& rest, char separator) noexcept {
  auto const line = rest.text;
  auto const front = trimmed_front(separator == '\t' ? line.substr(0, line.find('\t')) : line);
  auto const begin = static_cast<std::size_t>(front.data() - line.data());
  std::size_t search = 0;  // where the cell may end
  if (front.starts_with('"')) {
    search = line.find('"', begin + 1);
    while (search != std::string_view::npos && line.substr(search + 1).starts_with('"'))
      search = line.find('"', search + 2);
  }
  if (separator == ';' && front.starts_with('('))
    search = std::min(line.size(), line.find(')', begin));
  auto const end = search == std::string_view::npos ? search : line.find(separator, search);
  csv_text_cell cell;
  cell.written = trimmed(line.substr(0, end));
  cell.content = cell.written;
  cell.is_quoted = cell.written.starts_with('"');
  if (cell.is_quoted) {
    cell.is_closed =
        cell.written.size() > 1 && cell.written.find('"', 1) + 1 == cell.written.size();
    if (cell.is_closed) cell.content = trimmed(cell.written.substr(1, cell.written.size() - 2));
  }
  rest.has_ended = end == std::string_view::npos;
  if (!rest.has_ended) rest.text.remove_prefix(end + 1);
  return cell;
}

/// @return at most `most` characters of a text for a message, with names in place of characters
///         that cannot be seen
[[nodiscard]] inline std::string visible(std::string_view text, std::size_t most) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string shown;
  while (!text.empty() && shown.size() < 4 * most) {
    auto const* const known = std::find_if(
        invisible_characters.begin(), invisible_characters.end(), [&](auto const& one) {
          return text.starts_with(one.bytes);
        });
    auto const first = static_cast<unsigned char>(text.front());
    std::size_t size = 1;
    if (known != invisible_characters.end()) {
      shown += known->name;
      size = known->bytes.size();
    } else if (first < 0x20 || first == 0x7F) {
      shown.append("<U+00").append(1, digits[first >> 4]).append(1, digits[first & 15]) += '>';
    } else {
      shown += text.front();
    }
    text.remove_prefix(size);
  }
  return one_line(shown, most);
}

}  // namespace zbpp::detail
