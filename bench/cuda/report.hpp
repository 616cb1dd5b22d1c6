// SPDX-License-Identifier: Apache-2.0
//
// Tables of figures, written as Markdown for people and as JSON for programs.
#pragma once

#include <zbpp/io/file.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace zbpp::bench {

/// Is what one place of a table holds.
using cell = std::variant<std::int64_t, double, std::string>;

/// Holds one table.
class table {
 public:
  table(std::string title, std::vector<std::string> columns)
      : title_(std::move(title)), columns_(std::move(columns)) {}

  void add(std::vector<cell> row) { rows_.push_back(std::move(row)); }

  void write_markdown(std::ostream& to) const {
    to << "\n## " << title_ << "\n\n|";
    for (auto const& column : columns_) to << ' ' << column << " |";
    to << "\n|";
    for (std::size_t i = 0; i < columns_.size(); ++i) to << "---|";
    for (auto const& row : rows_) {
      to << "\n|";
      for (auto const& one : row) to << ' ' << text_of(one) << " |";
    }
    to << '\n';
  }
  void write_json(std::ostream& to) const {
    to << "{\"title\": " << quoted(title_) << ", \"rows\": [";
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      to << (r == 0 ? "\n  {" : ",\n  {");
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        to << (c == 0 ? "" : ", ") << quoted(columns_[c]) << ": ";
        if (auto const* text = std::get_if<std::string>(&rows_[r][c]))
          to << quoted(*text);
        else
          to << text_of(rows_[r][c]);
      }
      to << '}';
    }
    to << "]}";
  }

 private:
  [[nodiscard]] static std::string text_of(cell const& one) {
    if (auto const* text = std::get_if<std::string>(&one)) return *text;
    if (auto const* whole = std::get_if<std::int64_t>(&one)) return std::to_string(*whole);
    auto const number = std::get<double>(one);
    if (!std::isfinite(number)) return "null";
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", number);
    return text;
  }
  [[nodiscard]] static std::string quoted(std::string const& text) {
    std::string result = "\"";
    for (char const c : text) {
      if (c == '"' || c == '\\') result += '\\';
      result += c;
    }
    return result + '"';
  }

  std::string title_;
  std::vector<std::string> columns_;
  std::vector<std::vector<cell>> rows_;
};

/// Collects tables in two files, each of which is whole at any time: whoever ends the program early
/// keeps what was measured.
class report {
 public:
  /// @param markdown, json  names of files; empty: none
  report(std::string markdown, std::string json)
      : markdown_(std::move(markdown)), json_(std::move(json)) {}

  /// Begins a table, which lives as long as the report.
  [[nodiscard]] table& begin(std::string title, std::vector<std::string> columns) {
    return tables_.emplace_back(std::move(title), std::move(columns));
  }
  /// Writes the files anew. Call it when a table has grown.
  /// @throws error (io_failed)
  void save() const {
    if (!markdown_.empty()) {
      std::ostringstream text;
      write_markdown(text);
      write_file(markdown_, text.str());
    }
    if (!json_.empty()) {
      std::ostringstream text;
      text << "[";
      for (std::size_t i = 0; i < tables_.size(); ++i) {
        text << (i == 0 ? "\n" : ",\n");
        tables_[i].write_json(text);
      }
      text << "]\n";
      write_file(json_, text.str());
    }
  }
  /// Writes all tables for people.
  void write_markdown(std::ostream& to) const {
    for (auto const& t : tables_) t.write_markdown(to);
  }

 private:
  std::string markdown_;
  std::string json_;
  std::deque<table> tables_;
};

}  // namespace zbpp::bench
