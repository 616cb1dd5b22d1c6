// SPDX-License-Identifier: Apache-2.0
//
// How timelines become an SVG picture: panels, passes, axis, legend and style sheet.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/detail/drawing.hpp>
#include <zbpp/io/detail/text_encoding.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

namespace detail {

/// Writes panels, axis and legend from top to bottom.
class svg_drawing {
 public:
  svg_drawing(std::vector<named_timeline> const& lines, svg_options options)
      : lines_(lines), options_(options) {
    require(options.width >= 200, "svg: the width is at least 200 pixels");
    require(options.row_height >= 4, "svg: the height of a row is at least 4 pixels");
    check_drawable(lines);
    longest_ = last_end(lines);
    unit_ = unit_for(longest_);
  }

  [[nodiscard]] std::string draw() {
    auto y = margin_;
    for (auto const& named : lines_) y = draw_panel(named, y);
    draw_axis(y);
    draw_legend(y + 40);
    return head(y + 52) + body_ + "</svg>\n";
  }

 private:
  static constexpr int margin_ = 12;
  static constexpr int left_ = 56;     // where time 0 is
  static constexpr int right_ = 28;    // room beside the last pass, for the last number of the axis
  static constexpr int heading_ = 20;  // height of a timeline's name
  static constexpr int gap_ = 2;       // between ranks
  static constexpr int digit_width_ = 62;  // in hundredths of the font's size
  static constexpr int padding_ = 200;     // around a number, in hundredths of a pixel

  // Positions are counted in hundredths of a pixel, so that neighbours meet exactly.
  [[nodiscard]] std::int64_t x(ticks time) const {
    auto const room = static_cast<long double>(100 * (options_.width - left_ - right_));
    if (longest_ == 0) return 0;
    return std::llround(static_cast<long double>(time) / static_cast<long double>(longest_) * room);
  }
  [[nodiscard]] static std::string px(std::int64_t hundredths) { return decimal(hundredths, 100); }

  // One size for all numbers of a timeline, 6 to 12 pixels: what fits most of its passes. Two
  // fifths may be too short, so that a short W does not make the numbers of F and B small.
  void choose_font(timeline const& line) {
    std::vector<std::int64_t> widths;
    widths.reserve(line.size());
    std::int32_t most = 0;
    for (auto const& timed : line.all()) {
      widths.push_back(x(timed.end) - x(timed.start));
      most = std::max(most, timed.pass.microbatch);
    }
    if (widths.empty()) return;
    auto const middle = widths.begin() + static_cast<std::ptrdiff_t>(widths.size() * 2 / 5);
    std::nth_element(widths.begin(), middle, widths.end());
    auto const digit = digit_width_ * static_cast<std::int64_t>(std::to_string(most).size());
    font_ = static_cast<int>(std::clamp<std::int64_t>((*middle - padding_) / digit, 6, 12));
    number_width_ = font_ * digit + padding_;
  }

  [[nodiscard]] int draw_panel(named_timeline const& named, int y) {
    auto const& line = named.line;
    auto title = "<tspan class=\"n\">" + xml_text(named.name) + "</tspan>";
    text(left_, y + 13, "", title + (named.name.empty() ? "" : " \u00a0 ") + summary(line));
    y += heading_;
    choose_font(line);
    chunk_finder const chunk_of(line);
    auto const windows = windows_of(line);
    chunks_ = std::max(chunks_, chunk_of.chunks());
    auto const top = y;
    for (int rank = 0; rank < line.ranks(); ++rank, y += options_.row_height) {
      text(left_ - 8, y + options_.row_height / 2 + 4, "r", "rank " + std::to_string(rank));
      body_ +=
          joined("<g font-size=\"", font_, "\" transform=\"translate(", left_, " ", y, ")\">\n");
      auto const whole = options_.row_height - gap_;
      box("bubble", windows[index(rank)].begin, windows[index(rank)].end, "", 0, whole);
      auto const row = line[rank];
      for (std::size_t i = 0; i < row.size(); ++i)
        draw_pass(row[i], chunk_of(rank, row[i].pass.stage), next_is_paired(row, i));
      for (auto const& span : named.longer)
        if (span.rank == rank) draw_longer(span, whole);
      if (named.reductions.ranks() != 0)
        for (auto const& sum : named.reductions[rank]) draw_reduction(sum, whole);
      if (named.updates.ranks() != 0)
        for (auto const& update : named.updates[rank]) draw_update(update);
      body_ += "</g>\n";
    }
    if (!named.path.empty()) draw_path(named.path, top);
    return y + margin_;
  }

  void draw_longer(rank_span const& span, int height) {
    has_longer_ = true;
    box("longer",
        span.start,
        span.end,
        time_text(span.end - span.start, unit_) + " longer than planned",
        0,
        height);
    body_ += '\n';
  }

  void draw_reduction(timed_reduction const& sum, int height) {
    has_reductions_ = true;
    auto const bar = std::max(2, height / 5);
    box("sum",
        sum.start,
        sum.end,
        joined("gradients of stage ") + sum.stage +
            " over replicas: " + number_text(sum.start, unit_) + " to " + time_text(sum.end, unit_),
        height - bar,
        bar);
    body_ += '\n';
  }

  // Along each pass in the middle of its row, and straight to the next one.
  void draw_path(std::vector<rank_span> const& path, int top) {
    has_path_ = true;
    body_ += joined("<path class=\"path\" transform=\"translate(", left_, " ", top, ")\" d=\"");
    for (std::size_t i = 0; i < path.size(); ++i) {
      auto const middle =
          px(100 * (std::int64_t{path[i].rank} * options_.row_height) +
             50 * (options_.row_height - gap_));
      body_ += i == 0 ? 'M' : 'L';
      body_ += px(x(path[i].start)) + " " + middle;
      body_ += 'H';
      body_ += px(x(path[i].end));
    }
    body_ += "\"><title>critical path</title></path>\n";
  }

  // The passes of a pair have half the height each, F above.
  void draw_pass(timed_pass const& timed, int chunk, bool begins_pair) {
    auto const kind = static_cast<std::size_t>(timed.pass.kind);
    used_[kind] = true;
    auto const number = std::to_string(timed.pass.microbatch);
    std::string const title = joined(to_string(timed.pass.kind)) + " " + number + " on stage " +
                              timed.pass.stage + ": " + number_text(timed.start, unit_) + " to " +
                              time_text(timed.end, unit_) + ", " +
                              time_text(timed.end - timed.start, unit_);
    auto const whole = options_.row_height - gap_;
    auto const top = timed.pass.is_paired ? whole / 2 : 0;
    auto const height = begins_pair ? whole / 2 : whole - top;
    box(style(kind, chunk), timed.start, timed.end, title, top, height);
    auto const width = x(timed.end) - x(timed.start);
    if (width >= number_width_ && font_ < height + gap_)
      body_ += "<text x=\"" + px(x(timed.start) + width / 2) + "\" y=\"" +
               px(100 * top + 50 * height + 36 * font_) + "\">" + number + "</text>";
    body_ += '\n';
  }

  void draw_update(rank_update const& update) {
    has_updates_ = true;
    auto const mark = [&](std::string const& style, ticks time, std::string const& words) {
      body_ += joined("<path class=\"") + style + "\" d=\"M" + px(x(time)) + " -1v" +
               options_.row_height + "\"><title>" + words + ": " + time_text(time, unit_) +
               "</title></path>";
    };
    mark("known", update.validated, "norm of all gradients known");
    mark("step", update.stepped, update.is_early ? "optimizer step, early" : "optimizer step");
    body_ += '\n';
  }

  [[nodiscard]] static std::string style(std::size_t kind, int chunk) {
    return joined(to_string(static_cast<pass_kind>(kind)), chunk);
  }

  void box(
      std::string const& style,
      ticks begin,
      ticks end,
      std::string const& title,
      int top,
      int height) {
    body_ += joined("<path class=\"") + style + "\" d=\"M" + px(x(begin)) + " " + top + "H" +
             px(x(end)) + "v" + height + "H" + px(x(begin)) + "z\"";
    body_ += title.empty() ? "/>" : "><title>" + title + "</title></path>";
  }

  void text(int at_x, int at_y, std::string_view style, std::string_view content) {
    body_ += joined("<text class=\"o ") + style + "\" x=\"" + at_x + "\" y=\"" + at_y + "\">" +
             content + "</text>\n";
  }

  // Ticks at 1, 2 or 5 times a power of ten, about one every 100 pixels.
  void draw_axis(int y) {
    auto const most = std::max(1, (options_.width - left_) / 100);
    ticks step = 1;
    for (int i = 0; longest_ / step > most; ++i) step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    body_ += joined("<path class=\"axis\" d=\"M", left_, " ", y, "h", px(x(longest_)), "\"/>\n");
    for (ticks time = 0; time <= longest_; time += step) {
      auto const at = px(100 * left_ + x(time));
      body_ += joined("<path class=\"axis\" d=\"M") + at + " " + y +
               "v4\"/><text class=\"o t\" x=\"" + at + "\" y=\"" + (y + 16) + "\">" +
               time_text(time, unit_) + "</text>\n";
      if (longest_ - time < step) break;
    }
  }

  void draw_legend(int y) {
    auto at = left_;
    auto entry = [&](std::string const& style, std::string_view words) {
      body_ += joined("<path class=\"", style, "\" d=\"M", at, " ", y - 11, "h14v13h-14z\"/>");
      at += 14;
      if (words.empty()) return;
      text(at + 6, y, "", words);
      at += 26 + 6 * static_cast<int>(words.size());
    };
    auto const line_entry = [&](std::string const& style, std::string_view words) {
      body_ += joined("<path class=\"", style, "\" d=\"M", at + 7, " ", y - 12, "v15\"/>");
      text(at + 20, y, "", words);
      at += 40 + 6 * static_cast<int>(words.size());
    };
    for (std::size_t kind = 0; kind < used_.size(); ++kind) {
      if (!used_[kind]) continue;
      for (int chunk = 0; chunk < chunks_; ++chunk)
        entry(style(kind, chunk), chunk + 1 < chunks_ ? "" : pass_styles[kind].words);
    }
    entry("bubble", "bubble");
    if (has_updates_) line_entry("step", "optimizer step");
    if (has_updates_) line_entry("known", "norm known");
    if (has_reductions_) entry("sum", "sum over replicas");
    if (has_longer_) entry("longer", "longer than planned");
    if (has_path_) line_entry("path", "critical path");
    if (chunks_ > 1) text(at, y, "", "lighter: later chunk");
  }

  // Later chunks are nearer to white.
  [[nodiscard]] std::string colour(std::size_t kind, int chunk) const {
    std::string result = "#";
    for (int part : pass_styles[kind].colour) {
      auto const mixed = part + (255 - part) * chunk * 55 / (100 * std::max(1, chunks_ - 1));
      for (int digit : {mixed / 16, mixed % 16}) result += "0123456789abcdef"[digit];
    }
    return result;
  }

  [[nodiscard]] std::string head(int height) const {
    std::string const size = joined(options_.width, "\" height=\"", height);
    std::string result =
        joined("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"") + size + "\" viewBox=\"0 0 " +
        options_.width + " " + height + "\">\n<style>\n" +
        "text{font-family:sans-serif;fill:#222;text-anchor:middle;pointer-events:none}\n"
        "path{stroke:#fff;stroke-width:.7}\n"
        ".o{font-size:12px;text-anchor:start}.n{font-weight:bold}\n"
        ".r{font-size:11px;text-anchor:end;fill:#666}.t{font-size:11px;text-anchor:middle;fill:#"
        "666}\n"
        ".axis{stroke:#999;stroke-width:1}.bubble{fill:url(#hatch)}\n";
    if (has_updates_)
      result += ".step{stroke:#222;stroke-width:2.5}.known{stroke:#c22;stroke-width:2}\n";
    if (has_reductions_) result += ".sum{fill:#84c}\n";
    if (has_longer_) result += ".longer{fill:url(#dots);stroke:none}\n";
    if (has_path_) result += ".path{fill:none;stroke:#c22;stroke-width:1.6;stroke-opacity:.8}\n";
    std::string gradients;
    if (has_longer_)
      gradients +=
          "<pattern id=\"dots\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\"><circle "
          "cx=\"2\" cy=\"2\" r=\".9\" fill=\"#222\"/></pattern>";
    for (std::size_t kind = 0; kind < used_.size(); ++kind) {
      for (int chunk = 0; used_[kind] && chunk < chunks_; ++chunk) {
        auto const name = style(kind, chunk);
        bool const both = kind == static_cast<std::size_t>(pass_kind::backward);
        result += "." + name + "{fill:" + (both ? "url(#" + name + ")" : colour(kind, chunk)) + "}";
        if (both) gradients += gradient(name, colour(1, chunk), colour(2, chunk));
      }
    }
    return joined(result) +
           "\n</style>\n<defs><pattern id=\"hatch\" width=\"5\" height=\"5\" "
           "patternUnits=\"userSpaceOnUse\"><path d=\"M0 0h5v5h-5z\" fill=\"#f5f5f5\" "
           "stroke=\"none\"/><path d=\"M0 5L5 0\" style=\"stroke:#bbb\"/></pattern>" +
           gradients + "</defs>\n<path d=\"M0 0h" + options_.width + "v" + height +
           "H0z\" fill=\"#fff\"/>\n";
  }

  [[nodiscard]] static std::string gradient(
      std::string const& name, std::string const& top, std::string const& bottom) {
    return "<linearGradient id=\"" + name +
           "\" x2=\"0\" y2=\"1\"><stop offset=\".7\" stop-color=\"" + top +
           "\"/><stop offset=\".7\" stop-color=\"" + bottom + "\"/></linearGradient>";
  }

  std::vector<named_timeline> const& lines_;
  svg_options options_;
  ticks longest_ = 0;
  time_unit unit_ = time_unit::nanoseconds;
  int font_ = 12;                  // of the timeline being drawn
  std::int64_t number_width_ = 0;  // of its widest microbatch, in hundredths of a pixel
  int chunks_ = 0;
  std::array<bool, pass_kinds> used_{};
  bool has_updates_ = false;
  bool has_reductions_ = false;
  bool has_longer_ = false;
  bool has_path_ = false;
  std::string body_;
};

}  // namespace detail

ZBPP_INLINE std::string to_svg(std::vector<named_timeline> const& lines, svg_options options) {
  return detail::svg_drawing(lines, options).draw();
}

ZBPP_INLINE std::string to_svg(timeline const& line, svg_options options) {
  return to_svg(std::vector<named_timeline>{{"", line}}, options);
}

}  // namespace zbpp
