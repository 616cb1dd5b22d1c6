// SPDX-License-Identifier: Apache-2.0
//
// Tables of figures, written as Markdown for people and as JSON for programs.
#pragma once

#include <zbpp/error.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <ostream>
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

/// Writes tables to two files; an empty name stands for none.
/// @throws error (io_failed)
inline void write(
    std::vector<table> const& tables, std::string const& markdown, std::string const& json) {
  auto const into = [](std::string const& name, auto const& write_to) {
    if (name.empty()) return;
    std::ofstream file(name);
    write_to(file);
    file.flush();
    if (!file) throw error(errc::io_failed, "cannot write " + name);
  };
  into(markdown, [&](std::ostream& to) {
    for (auto const& t : tables) t.write_markdown(to);
  });
  into(json, [&](std::ostream& to) {
    to << "[";
    for (std::size_t i = 0; i < tables.size(); ++i) {
      to << (i == 0 ? "\n" : ",\n");
      tables[i].write_json(to);
    }
    to << "]\n";
  });
}

}  // namespace zbpp::bench
