// SPDX-License-Identifier: Apache-2.0
//
// How timelines become text: the scale, the cells of a line and the legend.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/ascii.hpp>
#include <zbpp/io/detail/drawing.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/pass.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Lays passes out in columns and writes them line by line.
class ascii_drawing {
 public:
  ascii_drawing(std::vector<named_timeline> const& lines, ascii_options options)
      : lines_(lines), options_(options) {
    require(options.width >= 20, "ascii: the width is at least 20 columns");
    check_drawable(lines);
    for (auto const& named : lines)
      label_ = std::max(label_, std::to_string(std::max(named.line.ranks() - 1, 0)).size());
    choose_scale();
  }

  [[nodiscard]] std::string draw() {
    for (auto const& named : lines_) {
      if (!text_.empty()) text_ += '\n';
      auto heading =
          named.name.empty() ? summary(named.line) : named.name + ": " + summary(named.line);
      text_ += one_line(heading, columns()) + "\n";
      chunk_finder const chunk_of(named.line);
      has_chunks_ = has_chunks_ || chunk_of.chunks() > 1;
      auto const windows = windows_of(named.line);
      for (int rank = 0; rank < named.line.ranks(); ++rank)
        draw_rank(named.line[rank], rank, windows[index(rank)], chunk_of);
    }
    if (options_.legend) draw_legend();
    return std::move(text_);
  }

 private:
  static constexpr int no_colour = -1;

  struct cell {
    char text = ' ';
    int colour = no_colour;
  };

  [[nodiscard]] std::size_t columns() const { return index(options_.width); }

  // Columns are whole multiples of what all times are multiples of, where that fits; then passes of
  // one length look alike. Measured times have no such unit and are rounded to the nearest column.
  void choose_scale() {
    ticks unit = 0;
    for (auto const& named : lines_)
      for (auto const& timed : named.line.all())
        unit = std::gcd(std::gcd(unit, timed.start), timed.end);
    longest_ = last_end(lines_);
    room_ = static_cast<std::int64_t>(columns() - label_ - 2);
    if (unit > 0 && room_ >= longest_ / unit) room_ = room_ / (longest_ / unit) * (longest_ / unit);
  }

  [[nodiscard]] std::size_t column(ticks time) const {
    if (longest_ == 0) return 0;
    auto const share = static_cast<long double>(time) / static_cast<long double>(longest_);
    return index(std::llround(share * static_cast<long double>(room_)));
  }

  void draw_rank(
      std::span<timed_pass const> row, int rank, time_window window, chunk_finder const& chunk_of) {
    std::vector<cell> cells(index(room_) + 2);
    for (auto c = column(window.begin); c < column(window.end); ++c) cells[c + 1].text = '.';
    cells[column(window.begin)].text = '|';
    for (auto const& timed : row) {
      // Of a pair, which takes one stretch of time, F is written over by half with the other pass.
      auto const middle = column(timed.start) + (column(timed.end) - column(timed.start) + 1) / 2;
      auto const begin = timed.pass.is_paired ? middle : column(timed.start);
      auto const length = column(timed.end) - begin;
      auto const chunk = chunk_of(rank, timed.pass.stage) % 2;
      auto text = label(timed.pass, length, chunk == 1);
      if (timed.pass.is_paired && text.size() < length) text.insert(0, 1, '&');
      has_pairs_ = has_pairs_ || timed.pass.is_paired;
      for (std::size_t i = 0; i < length; ++i)
        cells[begin + i + 1] = {
            i < text.size() ? text[i] : ' ',
            pass_styles[index(static_cast<int>(timed.pass.kind))].terminal[index(chunk)]};
      used_[static_cast<std::size_t>(timed.pass.kind)] = true;
    }
    cells[column(window.end) + 1].text = '|';
    cells.resize(column(window.end) + 2);
    auto const number = std::to_string(rank);
    text_ += std::string(label_ - number.size(), ' ') + number;
    append(cells);
  }

  // Kind and microbatch, or the kind alone. A BW that is too short for both letters and its number
  // is an X, so that it never looks like a B and a W.
  [[nodiscard]] std::string label(pass const& p, std::size_t length, bool second) {
    std::string letters(to_string(p.kind));
    auto const number = std::to_string(p.microbatch);
    if (letters.size() > 1 && letters.size() + number.size() > length) {
      letters = "X";
      has_x_ = has_x_ || length > 0;
    }
    if (second)
      for (auto& letter : letters) letter = static_cast<char>(letter - 'A' + 'a');
    return letters.size() + number.size() <= length ? letters + number : letters;
  }

  void append(std::vector<cell> const& cells) {
    auto colour = no_colour;
    for (auto const& c : cells) {
      if (options_.colour && c.colour != colour) switch_to(colour = c.colour);
      text_ += c.text;
    }
    text_ += '\n';
  }

  void switch_to(int colour) {
    text_ += colour == no_colour ? "\x1b[0m" : "\x1b[38;5;16;48;5;" + std::to_string(colour) + "m";
  }

  // One line of parts that fit the width, more lines where they do not.
  void draw_legend() {
    std::vector<std::string_view> parts;
    for (std::size_t kind = 0; kind < pass_kinds; ++kind)
      if (used_[kind]) parts.emplace_back(pass_styles[kind].words);
    if (has_x_) parts.push_back("X short BW");
    if (has_chunks_) parts.push_back("lower case: 2nd chunk");
    if (has_pairs_) parts.push_back("& together with the F before");
    parts.push_back(". bubble");
    text_ += '\n';
    std::size_t used = 0;
    for (auto part : parts) {
      part = part.substr(0, columns());
      if (used > 0 && used + 3 + part.size() > columns()) {
        text_ += '\n';
        used = 0;
      }
      if (used > 0) text_ += "   ";
      used += (used > 0 ? 3 : 0) + part.size();
      text_ += part;
    }
    text_ += '\n';
  }

  std::vector<named_timeline> const& lines_;
  ascii_options options_;
  std::size_t label_ = 1;
  ticks longest_ = 0;
  std::int64_t room_ = 0;  // columns for passes
  std::array<bool, pass_kinds> used_{};
  bool has_x_ = false;
  bool has_pairs_ = false;
  bool has_chunks_ = false;
  std::string text_;
};

}  // namespace detail

ZBPP_INLINE std::string to_ascii(std::vector<named_timeline> const& lines, ascii_options options) {
  return detail::ascii_drawing(lines, options).draw();
}

ZBPP_INLINE std::string to_ascii(timeline const& line, ascii_options options) {
  return to_ascii(std::vector<named_timeline>{{"", line}}, options);
}

}  // namespace zbpp
