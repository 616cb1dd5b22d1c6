// SPDX-License-Identifier: Apache-2.0
//
// How a sweep becomes an SVG picture: axes, legend, curves and points.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/detail/round_axis.hpp>
#include <zbpp/io/detail/xml_text.hpp>
#include <zbpp/io/sweep_svg.hpp>
#include <zbpp/io/text.hpp>

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

/// Writes legend, grid, bounds, lines and points, each above the one before.
class sweep_drawing {
 public:
  sweep_drawing(std::vector<sweep_curve> const& curves, sweep_svg_options const& options)
      : curves_(curves), options_(options) {
    require(options.width >= 320, "sweep: the width is at least 320 pixels");
    require(options.height >= 240, "sweep: the height is at least 240 pixels");
    for (auto const& curve : curves) check(curve);
    limits_ = axis_of_limits();
    rates_ = axis_of_rates();
  }

  [[nodiscard]] std::string draw() {
    if (!options_.title.empty())
      text("n", left_, 24, xml_text(options_.title));
    else
      top_ -= 20;
    draw_legend();
    draw_grid();
    for (std::size_t i = 0; i < curves_.size(); ++i) draw_bound(curves_[i], style(i));
    for (std::size_t i = 0; i < curves_.size(); ++i) draw_line(curves_[i], style(i));
    for (std::size_t i = 0; i < curves_.size(); ++i) draw_points(curves_[i], i);
    return head() + body_ + "</svg>\n";
  }

 private:
  // Colours that stay apart for the colour-blind, on white. @source Okabe and Ito, 2008
  static constexpr std::array<char const*, 6> colours_{
      "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#444444"};
  // Outlines around 0 0 that look equally large, to be scaled: circle, square, diamond, triangle.
  static constexpr std::array<char const*, 4> shapes_{
      "M-1 0A1 1 0 1 1 1 0A1 1 0 1 1-1 0z",
      "M-.89-.89H.89V.89H-.89z",
      "M0-1.25L1.25 0 0 1.25-1.25 0z",
      "M0-1.25L1.2.85H-1.2z"};
  static constexpr int left_ = 66;
  static constexpr int right_ = 28;
  static constexpr int bottom_ = 56;
  static constexpr int row_ = 22;                 // height of a row of the legend
  static constexpr std::int64_t whole_ = 10'000;  // rates on the axis count in 1/10000

  static void check(sweep_curve const& curve) {
    bytes before = 0;
    for (auto const& sample : curve.samples) {
      auto refuse = [&](char const* reason) {
        throw error(
            errc::bad_argument,
            "sweep: '" + one_line(curve.name) + "' at limit " +
                std::to_string(sample.memory_limit) + ": " + reason);
      };
      if (sample.memory_limit < before) refuse("limits ascend, from 0 on");
      if (!(sample.bubble_rate >= 0 && sample.bubble_rate <= 1))
        refuse("a bubble rate lies between 0 and 1");
      if (!(sample.lower_bound >= 0 && sample.lower_bound <= 1))
        refuse("a lower bound of the bubble rate lies between 0 and 1");
      before = sample.memory_limit;
    }
  }

  [[nodiscard]] round_axis axis_of_limits() const {
    constexpr bytes most = bytes{1} << 60;
    bytes least = most;
    bytes greatest = 0;
    for (auto const& curve : curves_) {
      for (auto const& sample : curve.samples) {
        least = std::min(least, sample.memory_limit);
        greatest = std::max(greatest, sample.memory_limit);
      }
    }
    require(greatest <= most, "sweep: limits go up to 2^60; use a coarser unit");
    return {std::min(least, greatest), greatest, std::max(2, plot_width() / 90)};
  }

  [[nodiscard]] round_axis axis_of_rates() const {
    double most = 0;
    for (auto const& curve : curves_)
      for (auto const& sample : curve.samples)
        most = std::max({most, sample.bubble_rate, sample.lower_bound});
    auto const up = static_cast<std::int64_t>(std::ceil(most * static_cast<double>(whole_)));
    return {0, std::max<std::int64_t>(up, 10), std::max(2, options_.height / 64)};
  }

  [[nodiscard]] int plot_width() const { return options_.width - left_ - right_; }
  [[nodiscard]] int plot_height() const { return options_.height - top_ - bottom_; }

  // Positions are rounded to hundredths of a pixel.
  [[nodiscard]] static std::string px(double pixels) {
    return decimal(std::llround(100 * pixels), 100);
  }
  [[nodiscard]] double x(bytes limit) const {
    return left_ + limits_.share(static_cast<double>(limit)) * plot_width();
  }
  [[nodiscard]] double y(double rate) const {
    auto const share = rates_.share(rate * static_cast<double>(whole_));
    return top_ + (1 - share) * plot_height();
  }

  void text(char const* kind, double at_x, double at_y, std::string const& words) {
    body_ += "<text class=\"" + std::string(kind) + "\" x=\"" + px(at_x) + "\" y=\"" + px(at_y) +
             "\">" + words + "</text>\n";
  }

  // Moves to where the outline begins, and draws it.
  void path(std::string const& kind, std::string const& outline) {
    body_ += "<path class=\"" + kind + "\" d=\"M" + outline + "\"/>\n";
  }

  [[nodiscard]] static std::string style(std::size_t curve) {
    return std::string("c").append(std::to_string(curve % colours_.size()));
  }

  // Hollow points are white inside, so that the lines behind them do not look like a filling.
  void point(
      std::size_t curve, bool filled, double at_x, double at_y, std::string const& title = {}) {
    body_ += "<path class=\"" + style(curve) + (filled ? " full" : " open") + "\" transform=\"" +
             "translate(" + px(at_x) + " " + px(at_y) + ")scale(" + px(radius()) + ")\" d=\"" +
             shapes_[curve % shapes_.size()] + "\"";
    body_ += title.empty() ? "/>\n" : "><title>" + title + "</title></path>\n";
  }

  // Points of a long sweep shrink before they touch.
  [[nodiscard]] double radius() const {
    std::size_t most = 2;
    for (auto const& curve : curves_) most = std::max(most, curve.samples.size());
    return std::clamp(0.35 * plot_width() / static_cast<double>(most - 1), 1.5, 4.2);
  }

  // The curves, then what their marks mean; in as many rows as the width asks for.
  void draw_legend() {
    auto const begin = static_cast<double>(left_);
    auto at = begin;
    auto place = [&](std::string_view words, double mark = 34) {
      constexpr double letter = 6.6;  // a generous mean of 12 pixel sans-serif
      constexpr double space = 20;
      auto const length = mark + letter * static_cast<double>(words.size());
      if (at > begin && at + length > options_.width - right_) {
        at = begin;
        top_ += row_;
      }
      auto const here = at;
      at += length + space;
      text("o", here + mark, top_ + 4, xml_text(words));
      return here;
    };
    for (std::size_t i = 0; i < curves_.size(); ++i) {
      auto const here = place(curves_[i].name);
      path("line " + style(i), px(here) + " " + px(top_) + "h26");
      point(i, true, here + 13, top_);
    }
    auto const bound = place("lower bound");
    path("bound key", px(bound) + " " + px(top_) + "h26");
    auto const key = [&](char const* words, char const* kind) {
      auto const here = place(words, 16);
      body_ += "<circle class=\"key " + std::string(kind) + "\" cx=\"" + px(here + 6) + "\" cy=\"" +
               px(top_) + "\" r=\"4.2\"/>\n";
    };
    key("proved optimal", "full");
    key("best found", "open");
    top_ += row_;
  }

  void draw_grid() {
    auto const bottom = options_.height - bottom_;
    auto const right = std::to_string(options_.width - right_);
    for (auto rate = rates_.low; rate <= rates_.high; rate += rates_.step) {
      auto const at = y(static_cast<double>(rate) / static_cast<double>(whole_));
      path(rate == 0 ? "axis" : "grid", std::to_string(left_) + " " + px(at) + "H" + right);
      text("r", left_ - 9, at + 4, decimal(rate, 100) + " %");
    }
    auto const [scale, power] = scale_of_limits();
    for (auto limit = limits_.low;; limit += limits_.step) {
      path("axis", px(x(limit)) + " " + std::to_string(bottom) + "v5");
      text("t", x(limit), bottom + 20, decimal(limit, scale));
      if (limits_.high - limit < limits_.step) break;
    }
    auto unit = std::string(power);
    if (!options_.unit.empty()) unit += (unit.empty() ? "" : " ") + xml_text(options_.unit);
    text(
        "t",
        left_ + plot_width() / 2.0,
        bottom + 44,
        "memory limit of a rank" + (unit.empty() ? "" : " [" + unit + "]"));
    auto const middle = px(top_ + plot_height() / 2.0);
    body_ += "<text class=\"t\" transform=\"translate(17 " + middle +
             ")rotate(-90)\">bubble rate</text>\n";
  }

  struct size_scale {
    bytes parts;
    char const* name;
  };

  // Long numbers are told in millions and so on, so long as ticks stay short.
  [[nodiscard]] size_scale scale_of_limits() const {
    constexpr std::array<size_scale, 4> scales{
        {{1'000'000'000'000'000, "10\u00b9\u2075"},
         {1'000'000'000'000, "10\u00b9\u00b2"},
         {1'000'000'000, "10\u2079"},
         {1'000'000, "10\u2076"}}};
    for (auto const& scale : scales)
      if (limits_.high >= scale.parts && limits_.step >= scale.parts / 100) return scale;
    return {1, ""};
  }

  template <class Value>
  [[nodiscard]] std::string outline(sweep_curve const& curve, Value value) const {
    std::string result;
    for (auto const& sample : curve.samples) {
      if (!result.empty()) result += 'L';
      result += px(x(sample.memory_limit)) + " " + px(y(value(sample)));
    }
    return result;
  }

  void draw_bound(sweep_curve const& curve, std::string const& name) {
    if (curve.samples.size() < 2) return;
    path("bound " + name, outline(curve, [](sweep_sample const& s) { return s.lower_bound; }));
  }

  void draw_line(sweep_curve const& curve, std::string const& name) {
    if (curve.samples.size() < 2) return;
    path("line " + name, outline(curve, [](sweep_sample const& s) { return s.bubble_rate; }));
  }

  void draw_points(sweep_curve const& curve, std::size_t number) {
    for (auto const& s : curve.samples) {
      auto const percent = [](double rate) {
        return decimal(std::llround(10'000 * rate), 100) + " %";
      };
      point(
          number,
          s.is_optimal,
          x(s.memory_limit),
          y(s.bubble_rate),
          xml_text(curve.name) + ", limit " + std::to_string(s.memory_limit) + ": bubble rate " +
              percent(s.bubble_rate) +
              (s.is_optimal ? ", proved optimal" : ", at least " + percent(s.lower_bound)));
    }
  }

  // White behind it all: a picture looks the same on a page of any colour.
  [[nodiscard]] std::string head() const {
    auto const width = std::to_string(options_.width);
    auto const height = std::to_string(options_.height);
    auto result =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height +
        "\" viewBox=\"0 0 " + width + " " + height +
        "\">\n<style>\n"
        "text{font-family:Helvetica,Arial,sans-serif;font-size:12px;fill:#333}\n"
        ".n{font-size:14px;font-weight:bold;fill:#222}.r{text-anchor:end}.t{text-anchor:middle}\n"
        "path{fill:none}.grid{stroke:#e6e6e6}.axis{stroke:#888}\n"
        ".line{stroke-width:2;stroke-linejoin:round}\n"
        ".bound{stroke-width:1.4;stroke-dasharray:5 4;opacity:.75}\n"
        ".full,.open{stroke-width:" +
        px(1.7 / radius()) +
        "}\n"
        ".key{stroke:#666;stroke-width:1.7}.full.key{fill:#666}.open.key{fill:#fff}\n";
    for (std::size_t i = 0; i < std::min(curves_.size(), colours_.size()); ++i) {
      auto const name = std::string(".").append(style(i));
      result += name + "{stroke:" + colours_[i] + "}" + name + ".full{fill:" + colours_[i] + "}" +
                name + ".open{fill:#fff}\n";
    }
    return result + "</style>\n<rect width=\"" + width + "\" height=\"" + height +
           "\" fill=\"#fff\"/>\n";
  }

  std::vector<sweep_curve> const& curves_;
  sweep_svg_options const& options_;
  round_axis limits_{0, 1, 2};
  round_axis rates_{0, 1, 2};
  int top_ = 52;  // of the plot; of the legend's row while that is drawn
  std::string body_;
};

}  // namespace detail

ZBPP_INLINE std::string sweep_to_svg(
    std::vector<sweep_curve> const& curves, sweep_svg_options const& options) {
  return detail::sweep_drawing(curves, options).draw();
}

}  // namespace zbpp
