// SPDX-License-Identifier: Apache-2.0
//
// Draws curves over a labelled axis as an SVG picture: panels side by side, one legend for all.
#pragma once

#include "text.hpp"
#include <zbpp/io/detail/round_axis.hpp>
#include <zbpp/io/detail/xml_text.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace questions {

/// Is a curve with its name. Curves of one name look alike in all panels.
struct curve {
  std::string name;
  std::vector<std::pair<double, double>> points = {};
  bool dashed = false;
  std::string like = {};  ///< name of the curve before it whose colour it has; empty: its own
};

/// Says where a word stands below the axis.
struct tick {
  double at = 0;
  std::string word;
};

/// Holds what one panel shows; its horizontal axis goes from the first of its ticks to the last
/// one.
struct panel {
  std::string title;
  std::string below;        ///< names the horizontal axis, with its unit
  std::vector<tick> ticks;  ///< at least one
  std::vector<curve> curves;

  /// Appends a point to each curve, evenly spaced, with a word below them.
  void add(std::string const& word, std::vector<double> const& values) {
    auto const at = static_cast<double>(ticks.size());
    ticks.push_back({at, word});
    for (std::size_t i = 0; i < values.size(); ++i) curves[i].points.emplace_back(at, values[i]);
  }
};

/// Holds a picture.
struct chart {
  std::string beside;  ///< names the vertical axis, with its unit
  std::vector<panel> panels;
  int decimals = 2;  ///< of values that one sees when hovering over a point
};

/// Draws one chart. Vertical axes begin at 0. Later curves are thinner, so that those that lie on
/// each other are all seen.
class chart_drawing {
 public:
  explicit chart_drawing(chart const& what) : chart_(what) {
    for (auto const& each : what.panels) {
      for (auto const& c : each.curves) {
        if (std::find(names_.begin(), names_.end(), colour_of(c)) == names_.end())
          names_.push_back(colour_of(c));
      }
    }
  }

  /// @return the text of an SVG file
  [[nodiscard]] std::string draw() {
    draw_legend();
    for (std::size_t i = 0; i < chart_.panels.size(); ++i) draw_panel(i);
    text(
        "t",
        "transform=\"translate(16 " + px(top_ + plot_height() / 2.0) + ")rotate(-90)\"",
        chart_.beside);
    auto const size =
        "width=\"" + std::to_string(width_) + "\" height=\"" + std::to_string(height_) + "\"";
    std::string head = "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " viewBox=\"0 0 " +
                       std::to_string(width_) + " " + std::to_string(height_) +
                       "\">\n<style>\n"
                       "text{font-family:Helvetica,Arial,sans-serif;font-size:12px;fill:#333}\n"
                       ".n{font-weight:bold}.r{text-anchor:end}.t{text-anchor:middle}\n"
                       "path{fill:none;stroke-linejoin:round}\n"
                       ".grid{stroke:#e6e6e6;stroke-width:1}.axis{stroke:#888;stroke-width:1}\n"
                       ".dashed{stroke-dasharray:6 4}\n";
    for (std::size_t i = 0; i < names_.size(); ++i)
      head += "." + style(i) + "{stroke:" + colours_[i % colours_.size()] +
              ";stroke-width:" + px(thinning(i, 4.5, 1.5)) + "}circle." + style(i) +
              "{fill:" + colours_[i % colours_.size()] + ";stroke:none}\n";
    return head + "</style>\n<rect " + size + " fill=\"#fff\"/>\n" + body_ + "</svg>\n";
  }

 private:
  // Colours that stay apart for the colour-blind, on white. @source Okabe and Ito, 2008
  static constexpr std::array<char const*, 8> colours_{
      "#444444", "#0072b2", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#8a6d00", "#7f3fbf"};
  static constexpr int width_ = 900;
  static constexpr int height_ = 400;
  static constexpr int left_ = 62;
  static constexpr int right_ = 20;
  static constexpr int between_ = 44;  // panels
  static constexpr int bottom_ = 52;
  static constexpr int row_ = 22;         // height of a row of the legend
  static constexpr double parts_ = 1000;  // values on the axis count in 1/1000

  [[nodiscard]] static std::string px(double pixels) {
    auto result = fixed(pixels, 1);
    return result.ends_with(".0") ? result.substr(0, result.size() - 2) : result;
  }
  [[nodiscard]] static std::string style(std::size_t name) {
    return std::string("c").append(std::to_string(name));
  }
  [[nodiscard]] static std::string const& colour_of(curve const& c) {
    return c.like.empty() ? c.name : c.like;
  }
  [[nodiscard]] static double thinning(std::size_t name, double first, double least) {
    return std::max(least, first - 0.5 * static_cast<double>(name));
  }
  [[nodiscard]] std::size_t number_of(curve const& c) const {
    return static_cast<std::size_t>(
        std::find(names_.begin(), names_.end(), colour_of(c)) - names_.begin());
  }

  [[nodiscard]] double plot_width() const {
    auto const panels = static_cast<double>(chart_.panels.size());
    return (width_ - left_ - right_ - between_ * (panels - 1)) / panels;
  }
  [[nodiscard]] int plot_height() const { return height_ - bottom_ - top_; }
  [[nodiscard]] double y(double value) const {
    return top_ + (1 - values_.share(value * parts_)) * plot_height();
  }

  void text(std::string const& kind, std::string const& place, std::string const& words) {
    body_ +=
        "<text class=\"" + kind + "\" " + place + ">" + zbpp::detail::xml_text(words) + "</text>\n";
  }
  void text(std::string const& kind, double at_x, double at_y, std::string const& words) {
    text(kind, "x=\"" + px(at_x) + "\" y=\"" + px(at_y) + "\"", words);
  }
  void path(std::string const& kind, std::string const& outline) {
    body_ += "<path class=\"" + kind + "\" d=\"M" + outline + "\"/>\n";
  }
  [[nodiscard]] std::string path_style(curve const& c) const {
    return style(number_of(c)) + (c.dashed ? " dashed" : "");
  }

  void dot(curve const& c, double at_x, double at_y, std::string const& rest) {
    body_ += "<circle class=\"" + style(number_of(c)) + "\" cx=\"" + px(at_x) + "\" cy=\"" +
             px(at_y) + "\" r=\"" + px(thinning(number_of(c), 5, 2.5)) + "\"" + rest + "\n";
  }

  // As many rows as the width asks for; below them stand the titles of the panels.
  void draw_legend() {
    double at = left_;
    std::vector<std::string> done;
    for (auto const& each : chart_.panels) {
      for (auto const& c : each.curves) {
        if (std::find(done.begin(), done.end(), c.name) != done.end()) continue;
        done.push_back(c.name);
        constexpr double letter = 6.4;  // a generous mean of 12 pixel sans-serif
        auto const length = 34 + letter * static_cast<double>(c.name.size());
        if (at > left_ && at + length > width_ - right_) {
          at = left_;
          top_ += row_;
        }
        path(path_style(c), px(at) + " " + px(top_) + "h26");
        dot(c, at + 13, top_, "/>");
        text("o", at + 34, top_ + 4, c.name);
        at += length + 16;
      }
    }
    top_ += 48;
  }

  void draw_panel(std::size_t number) {
    auto const& what = chart_.panels[number];
    auto const from = left_ + static_cast<double>(number) * (plot_width() + between_);
    double most = 0;
    for (auto const& c : what.curves)
      for (auto const& point : c.points) most = std::max(most, point.second);
    values_ = {0, std::max<std::int64_t>(std::llround(most * parts_), 1), 9};
    auto const first = what.ticks.front().at;
    auto const length = std::max(what.ticks.back().at - first, 1.0);
    auto const x = [&](double at) { return from + (at - first) / length * plot_width(); };
    text("n", from, top_ - 14, what.title);
    for (auto value = values_.low; value <= values_.high; value += values_.step) {
      auto const at = y(static_cast<double>(value) / parts_);
      path(value == 0 ? "axis" : "grid", px(from) + " " + px(at) + "h" + px(plot_width()));
      text("r", from - 7, at + 4, zbpp::detail::decimal(value, std::llround(parts_)));
    }
    for (auto const& [at, word] : what.ticks) {
      path("axis", px(x(at)) + " " + px(height_ - bottom_) + "v5");
      text("t", x(at), height_ - bottom_ + 19, word);
    }
    text("t", from + plot_width() / 2, height_ - 10, what.below);
    for (auto const& c : what.curves) draw_curve(c, x);
  }

  template <class Place>
  void draw_curve(curve const& c, Place x) {
    std::string outline;
    for (auto const& [at, value] : c.points)
      outline += (outline.empty() ? "" : "L") + px(x(at)) + " " + px(y(value));
    if (c.points.size() > 1) path(path_style(c), outline);
    for (auto const& [at, value] : c.points)
      dot(c,
          x(at),
          y(value),
          "><title>" + zbpp::detail::xml_text(c.name) + ": " + fixed(value, chart_.decimals) +
              "</title></circle>");
  }

  chart const& chart_;
  std::vector<std::string> names_;            // of colours
  zbpp::detail::round_axis values_{0, 1, 2};  // of the panel that is being drawn
  int top_ = 18;  // of the legend's row; of the plots once that is drawn
  std::string body_;
};

/// Draws a chart.
/// @return the text of an SVG file
[[nodiscard]] inline std::string to_svg(chart const& what) { return chart_drawing(what).draw(); }

}  // namespace questions
