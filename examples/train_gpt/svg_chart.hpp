// SPDX-License-Identifier: Apache-2.0
//
// Draws curves that are expected to lie on each other: the first wide and pale, the others as
// dashes that take turns on top of it, so that each is seen, and seen to differ where it does.
#pragma once

#include "table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Is a curve with its name; one value per step.
struct curve {
  std::string name;
  std::vector<double> values;
};

/// Says what a chart shows.
struct chart {
  std::string title;
  std::vector<curve> curves;  ///< the first is the reference
  double level = 0.0;         ///< a horizontal line
  std::string level_name;
};

/// Divides an axis of losses at 1, 2 or 5 times a power of ten, and no finer than at halves. It
/// begins and ends at a tick, and has few of them, whatever there is to draw.
class loss_axis {
 public:
  /// Values beyond are drawn at the end of the axis: their differences would be infinite.
  static constexpr double greatest = 1e300;

  /// Holds all from `least` to `most`, which are finite.
  loss_axis(double least, double most) {
    constexpr double parts = 12.0;
    least = std::clamp(least, -greatest, greatest);
    most = std::clamp(most, least, greatest);
    // Far from 0 neighbours of a double lie apart, and so do ticks.
    auto const size = std::max(std::abs(least), std::abs(most));
    step_ = round_up(std::max({0.5, (most - least) / parts, size * 1e-9}));
    first_ = std::floor(least / step_);
    last_ = std::max(std::ceil(most / step_), first_ + 1.0);
  }

  /// @return how many ticks there are, at least two
  [[nodiscard]] int ticks() const { return static_cast<int>(last_ - first_) + 1; }
  /// @return the value of a tick, from 0
  [[nodiscard]] double tick(int i) const { return (first_ + i) * step_; }
  /// @return how far above the lower end a value stands, 0 to 1
  [[nodiscard]] double share(double value) const {
    return std::clamp((value / step_ - first_) / (last_ - first_), 0.0, 1.0);
  }

 private:
  [[nodiscard]] static double round_up(double step) {
    auto const power = std::pow(10.0, std::floor(std::log10(step)));
    for (double const digit : {1.0, 2.0, 5.0})
      if (digit * power >= step) return digit * power;
    return 10.0 * power;
  }

  double step_;
  double first_;  // in steps
  double last_;
};

/// Draws one chart.
class chart_drawing {
 public:
  explicit chart_drawing(chart const& what) : chart_(what), losses_(axis_of(what)) {
    for (auto const& c : what.curves) {
      steps_ = std::max(steps_, c.values.size());
      right_ = std::max(right_, 54.0 + 7.5 * static_cast<double>(c.name.size()));
    }
  }

  /// @return the text of an SVG file
  [[nodiscard]] std::string draw() {
    body_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + fixed(width_, 0) + " " +
            fixed(height_, 0) + "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#333\">\n" +
            "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    text(left_, 22.0, "start", "<tspan font-weight=\"bold\">" + escaped(chart_.title) + "</tspan>");
    draw_axes();
    draw_level();
    draw_curves();
    draw_level_name();
    return body_ + "</svg>\n";
  }

 private:
  static constexpr double width_ = 960.0;
  static constexpr double height_ = 480.0;
  static constexpr double left_ = 52.0;
  static constexpr double top_ = 40.0;
  static constexpr double bottom_ = 44.0;
  static constexpr double dash_ = 10.0;
  // Colours that stay apart for the colour-blind. @source Okabe and Ito, 2008
  static constexpr std::array<char const*, 7> colours_{
      "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6000"};

  [[nodiscard]] static loss_axis axis_of(chart const& what) {
    auto low = std::numeric_limits<double>::max();
    auto high = -low;
    auto const take = [&](double value) {
      if (!std::isfinite(value)) return;
      low = std::min(low, value);
      high = std::max(high, value);
    };
    take(what.level);
    for (auto const& c : what.curves)
      for (auto const value : c.values) take(value);
    return low > high ? loss_axis(0.0, 0.0) : loss_axis(low, high);
  }

  // Halves as they are, and large numbers in a few digits.
  [[nodiscard]] static std::string label(double value) {
    if (std::abs(value) < 1e6) return fixed(value, 1);
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), "%.9g", value);
    return digits.data();
  }

  [[nodiscard]] double x(double step) const {
    auto const last = std::max<double>(static_cast<double>(steps_) - 1.0, 1.0);
    return left_ + (width_ - left_ - right_) * step / last;
  }
  [[nodiscard]] double y(double value) const {
    return top_ + (height_ - top_ - bottom_) * (1.0 - losses_.share(value));
  }

  [[nodiscard]] static std::string escaped(std::string const& words) {
    std::string result;
    for (char const c : words) {
      if (c == '<')
        result += "&lt;";
      else if (c == '&')
        result += "&amp;";
      else
        result += c;
    }
    return result;
  }

  void text(double at_x, double at_y, char const* anchor, std::string const& words) {
    body_ += "<text x=\"" + fixed(at_x, 1) + "\" y=\"" + fixed(at_y, 1) + "\" text-anchor=\"" +
             anchor + "\">" + words + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, std::string const& style) {
    body_ += "<line x1=\"" + fixed(x1, 1) + "\" y1=\"" + fixed(y1, 1) + "\" x2=\"" + fixed(x2, 1) +
             "\" y2=\"" + fixed(y2, 1) + "\" " + style + "/>\n";
  }

  void draw_axes() {
    for (int i = 0; i < losses_.ticks(); ++i) {
      auto const value = losses_.tick(i);
      line(left_, y(value), width_ - right_, y(value), "stroke=\"#ddd\"");
      text(left_ - 8.0, y(value) + 4.0, "end", label(value));
    }
    auto const last = static_cast<double>(steps_) - 1.0;
    auto const power = std::pow(10.0, std::floor(std::log10(std::max(last, 1.0))));
    auto const stride = std::max(
        1.0,
        last / power < 2.0   ? power / 5.0
        : last / power < 5.0 ? power / 2.0
                             : power);
    for (double step = 0.0; step <= last + 0.5; step += stride) {
      line(x(step), height_ - bottom_, x(step), height_ - bottom_ + 5.0, "stroke=\"#888\"");
      text(x(step), height_ - bottom_ + 20.0, "middle", fixed(step, 0));
    }
    text(x(last / 2.0), height_ - 8.0, "middle", "step");
  }

  void draw_level() {
    if (!std::isfinite(chart_.level)) return;
    line(
        left_,
        y(chart_.level),
        width_ - right_,
        y(chart_.level),
        "stroke=\"#888\" stroke-dasharray=\"2 4\"");
  }

  // On top of the curves, on a white rim. The rim is text of its own, because some programs do not
  // know `paint-order` and would hide the name under its rim.
  void draw_level_name() {
    if (!std::isfinite(chart_.level)) return;
    auto const write = [&] {
      text(width_ - right_ - 4.0, y(chart_.level) - 6.0, "end", escaped(chart_.level_name));
    };
    body_ += "<g stroke=\"#fff\" stroke-width=\"4\">\n";
    write();
    body_ += "</g>\n";
    write();
  }

  void draw_curves() {
    auto const others = std::max<std::size_t>(chart_.curves.size(), 2) - 1;
    for (std::size_t i = 0; i < chart_.curves.size(); ++i) {
      std::string style =
          "fill=\"none\" stroke=\"#bbb\" stroke-width=\"7\" stroke-linejoin=\"round\"";
      if (i > 0) {
        auto const gap = dash_ * static_cast<double>(others - 1);
        style = std::string("fill=\"none\" stroke=\"") + colours_[(i - 1) % colours_.size()] +
                "\" stroke-width=\"2\" stroke-dasharray=\"" + fixed(dash_, 0) + " " +
                fixed(gap, 0) + "\" stroke-dashoffset=\"" +
                fixed(-dash_ * static_cast<double>(i - 1), 0) + "\"";
      }
      body_ += "<path " + style + " d=\"" + path_of(chart_.curves[i]) + "\"/>\n";
      auto const at = top_ + 10.0 + 22.0 * static_cast<double>(i);
      auto const from = width_ - right_ + 12.0;
      // Without dashes in the legend: a short line would show one or none.
      line(from, at, from + 26.0, at, style.substr(0, style.find(" stroke-dasharray")));
      text(from + 34.0, at + 4.0, "start", escaped(chart_.curves[i].name));
    }
  }

  [[nodiscard]] std::string path_of(curve const& c) const {
    std::string path;
    bool is_drawing = false;
    for (std::size_t step = 0; step < c.values.size(); ++step) {
      if (!std::isfinite(c.values[step])) {
        is_drawing = false;
        continue;
      }
      path += is_drawing ? 'L' : 'M';
      path += fixed(x(static_cast<double>(step)), 1) + " " + fixed(y(c.values[step]), 1);
      is_drawing = true;
    }
    return path;
  }

  chart const& chart_;
  loss_axis losses_;
  std::size_t steps_ = 1;
  double right_ = 150.0;  // room for the legend
  std::string body_;
};

/// Draws a chart.
/// @return the text of an SVG file
[[nodiscard]] inline std::string to_svg(chart const& what) { return chart_drawing(what).draw(); }

}  // namespace gpt
