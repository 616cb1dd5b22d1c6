// SPDX-License-Identifier: Apache-2.0
//
// The layout of a chart: title, legend, axes, then curves below their marks.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/detail/chart_scale.hpp>
#include <zbpp/io/detail/text_encoding.hpp>
#include <zbpp/io/line_chart.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Writes the elements of a picture, each above the one before.
class chart_drawing {
 public:
  explicit chart_drawing(line_chart const& chart) : chart_(chart) {
    require(chart.width >= 320, "chart: the width is at least 320 pixels");
    require(chart.height >= 240, "chart: the height is at least 240 pixels");
    check(chart.vertical);
    for (auto const& panel : chart.panels) {
      check(panel.horizontal);
      for (auto const& curve : panel.curves) {
        add_name(curve.colour_like.empty() ? curve.name : curve.colour_like);
        most_points_ = std::max(most_points_, curve.points.size());
      }
    }
  }

  [[nodiscard]] std::string draw() {
    if (!chart_.title.empty()) text("n", left_, 24, xml_text(chart_.title));
    top_ = chart_.title.empty() ? 20 : 48;
    draw_legend();
    bool const are_titled = std::ranges::any_of(
        chart_.panels, [](chart_panel const& panel) { return !panel.title.empty(); });
    if (are_titled) top_ += 24;
    auto const exponent = place_panels();
    text(
        "t",
        "transform=\"translate(17 " + px(top_ + plot_height() / 2) + ")rotate(-90)\"",
        axis_title(chart_.vertical, exponent));
    for (auto const& panel : panels_) draw_panel(panel);
    return head() + body_ + "</svg>\n";
  }

 private:
  // Colours that stay apart for the colour-blind, on white. @source Okabe and Ito, 2008
  static constexpr std::array<char const*, 8> colours_{
      "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7f3fbf", "#444444"};
  // Outlines around 0 0 that look equally large, to be scaled: circle, square, diamond, triangle.
  static constexpr std::array<char const*, 4> shapes_{
      "M-1 0A1 1 0 1 1 1 0A1 1 0 1 1-1 0z",
      "M-.89-.89H.89V.89H-.89z",
      "M0-1.25L1.25 0 0 1.25-1.25 0z",
      "M0-1.25L1.2.85H-1.2z"};
  static constexpr double letter_ = 6.6;  // a generous mean width of 12 pixel sans-serif
  static constexpr double left_ = 34;     // of the first panel with its labels
  static constexpr double right_ = 24;
  static constexpr double bottom_ = 56;
  static constexpr double row_ = 22;  // height of a row of the legend
  static constexpr double dash_ = 10;

  /// Where a panel stands.
  struct placed_panel {
    chart_panel const* panel;
    chart_scale horizontal;
    chart_scale vertical;
    double left = 0;
    double width = 0;
  };

  static void check(chart_axis const& axis) {
    auto const& labels = axis.labels;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      bool const ascends = i == 0 || labels[i - 1].value < labels[i].value;
      if (ascends && stands_on(axis, labels[i].value)) continue;
      throw error(errc::bad_argument) + "chart: label " + i + " of '" + one_line(axis.title) +
          "' is at " + number_text(labels[i].value) +
          "; labels need ascending values, above 0 on a logarithmic axis";
    }
  }

  void add_name(std::string const& name) {
    if (std::ranges::find(names_, name) == names_.end()) names_.push_back(name);
  }
  [[nodiscard]] std::size_t number_of(chart_curve const& curve) const {
    auto const& name = curve.colour_like.empty() ? curve.name : curve.colour_like;
    return static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
  }
  [[nodiscard]] static std::string style(std::size_t name) {
    return std::string("c").append(std::to_string(name));
  }
  [[nodiscard]] bool is_backdrop(std::size_t name) const { return chart_.is_overlaid && name == 0; }

  // Positions are rounded to hundredths of a pixel.
  [[nodiscard]] static std::string px(double pixels) {
    return decimal(std::llround(100 * pixels), 100);
  }
  [[nodiscard]] double plot_height() const { return chart_.height - bottom_ - top_; }
  [[nodiscard]] double y(placed_panel const& at, double value) const {
    return top_ + (1 - at.vertical.share(value)) * plot_height();
  }
  [[nodiscard]] static double x(placed_panel const& at, double value) {
    return at.left + at.horizontal.share(value) * at.width;
  }

  [[nodiscard]] static bool stands_on(chart_axis const& axis, double value) {
    return std::isfinite(value) && (!axis.is_logarithmic || value > 0);
  }
  [[nodiscard]] bool is_drawn(chart_panel const& panel, chart_point const& point) const {
    return stands_on(panel.horizontal, point.x) && stands_on(chart_.vertical, point.y);
  }
  [[nodiscard]] bool has_level(chart_panel const& panel) const {
    return panel.level && stands_on(chart_.vertical, panel.level->value);
  }

  [[nodiscard]] chart_scale vertical_scale(chart_panel const& panel) const {
    range values;
    for (auto const& curve : panel.curves)
      for (auto const& point : curve.points)
        if (is_drawn(panel, point)) values.add(point.y);
    if (has_level(panel)) values.add(panel.level->value);
    return values.scale(chart_.vertical, std::max(2, static_cast<int>(plot_height() / 40)));
  }

  struct range {
    double least = std::numeric_limits<double>::infinity();
    double most = -std::numeric_limits<double>::infinity();

    void add(double value) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
    [[nodiscard]] chart_scale scale(chart_axis const& axis, int parts) const {
      auto const none = axis.is_logarithmic ? 1.0 : 0.0;
      return least > most ? chart_scale(axis, none, none, parts)
                          : chart_scale(axis, least, most, parts);
    }
  };

  // Gives all panels plots of one width, each with room for its labels.
  // @return the exponent of the vertical axis, whose title the panels share
  int place_panels() {
    std::vector<chart_scale> vertical;
    for (auto const& panel : chart_.panels) vertical.push_back(vertical_scale(panel));
    int exponent = 0;
    for (auto const& scale : vertical)
      if (std::abs(scale.exponent()) > std::abs(exponent)) exponent = scale.exponent();
    std::vector<double> label_room;
    auto room = chart_.width - left_ - right_;
    for (auto& scale : vertical) {
      scale.set_exponent(exponent);
      std::size_t longest = 1;
      for (auto const& label : scale.labels()) longest = std::max(longest, label.text.size());
      label_room.push_back(16 + letter_ * static_cast<double>(longest));
      room -= label_room.back();
    }
    auto const width =
        std::max(room / static_cast<double>(std::max<std::size_t>(vertical.size(), 1)), 40.0);
    auto left = left_;
    for (std::size_t i = 0; i < vertical.size(); ++i) {
      auto const& panel = chart_.panels[i];
      range values;
      for (auto const& curve : panel.curves)
        for (auto const& point : curve.points)
          if (is_drawn(panel, point)) values.add(point.x);
      left += label_room[i];
      panels_.push_back(
          {&panel,
           values.scale(panel.horizontal, std::max(2, static_cast<int>(width / 90))),
           std::move(vertical[i]),
           left,
           width});
      left += width;
    }
    return exponent;
  }

  void text(std::string const& kind, std::string const& place, std::string const& words) {
    if (words.empty()) return;
    body_ += "<text class=\"" + kind + "\" " + place + ">" + words + "</text>\n";
  }
  void text(std::string const& kind, double at_x, double at_y, std::string const& words) {
    text(kind, "x=\"" + px(at_x) + "\" y=\"" + px(at_y) + "\"", words);
  }
  // Moves to the beginning of the outline, and draws it.
  void path(std::string const& kind, std::string const& outline) {
    body_ += "<path class=\"" + kind + "\" d=\"M" + outline + "\"/>\n";
  }
  void mark(std::size_t name, char const* kind, double at_x, double at_y, std::string_view title) {
    body_ += "<path class=\"" + style(name) + " " + kind + "\" transform=\"translate(" + px(at_x) +
             " " + px(at_y) + ")scale(" + px(radius(name)) + ")\" d=\"" +
             shapes_[name % shapes_.size()] + "\"";
    body_ += title.empty() ? "/>\n" : "><title>" + xml_text(title) + "</title></path>\n";
  }

  // Marks of a long curve shrink before they touch.
  [[nodiscard]] double radius(std::size_t name) const {
    auto const panels = static_cast<double>(std::max<std::size_t>(chart_.panels.size(), 1));
    auto const room = 0.35 * chart_.width / panels;
    auto const later = static_cast<double>(names_.size() - 1 - name);
    return std::clamp(
        room / static_cast<double>(std::max<std::size_t>(most_points_, 2) - 1),
        1.5,
        std::min(3.2 + 0.4 * later, 5.2));
  }
  [[nodiscard]] double line_width(std::size_t name) const {
    if (chart_.is_overlaid) return name == 0 ? 7 : 2;
    return std::min(1.6 + 0.5 * static_cast<double>(names_.size() - 1 - name), 4.6);
  }

  [[nodiscard]] std::string line_kind(chart_curve const& curve) const {
    return (curve.is_dashed ? "dashed " : "line ") + style(number_of(curve));
  }

  // The curves, then the meaning of marks; in as many rows as the width asks for.
  void draw_legend() {
    auto const begin = left_ + 16;
    auto at = begin;
    auto place = [&](std::string const& words, double key) {
      auto const length = key + letter_ * static_cast<double>(words.size());
      if (at > begin && at + length > chart_.width - right_) {
        at = begin;
        top_ += row_;
      }
      auto const here = std::exchange(at, at + length + 18);
      text("o", here + key, top_ + 4, xml_text(words));
      return here;
    };
    std::vector<std::string_view> done{""};
    for (auto const& panel : chart_.panels) {
      for (auto const& curve : panel.curves) {
        if (std::ranges::find(done, curve.name) != done.end()) continue;
        done.emplace_back(curve.name);
        auto const here = place(curve.name, 34);
        path(line_kind(curve) + " key", px(here) + " " + px(top_) + "h26");
        if (curve.has_marks && !chart_.is_overlaid)
          mark(number_of(curve), "full", here + 13, top_, {});
      }
    }
    if (!chart_.dashed_meaning.empty()) {
      auto const here = place(chart_.dashed_meaning, 34);
      path("dashed meaning", px(here) + " " + px(top_) + "h26");
    }
    auto const explain = [&](std::string const& words, char const* kind) {
      if (words.empty()) return;
      auto const here = place(words, 16);
      body_ += joined("<circle class=\"meaning ") + kind + "\" cx=\"" + px(here + 6) + "\" cy=\"" +
               px(top_) + "\" r=\"4.2\"/>\n";
    };
    explain(chart_.filled_meaning, "full");
    explain(chart_.hollow_meaning, "open");
    top_ += row_;
  }

  [[nodiscard]] static std::string axis_title(chart_axis const& axis, int exponent) {
    auto unit = exponent == 0 ? std::string() : power_text(exponent);
    if (!axis.unit.empty()) unit += (unit.empty() ? "" : " ") + xml_text(axis.unit);
    return xml_text(axis.title) + (unit.empty() ? "" : " [" + unit + "]");
  }

  void draw_panel(placed_panel const& at) {
    auto const& panel = *at.panel;
    text("n", at.left, top_ - 12, xml_text(panel.title));
    draw_axes(at);
    if (has_level(panel))
      path("level", px(at.left) + " " + px(y(at, panel.level->value)) + "h" + px(at.width));
    for (bool const dashed : {true, false})
      for (auto const& curve : panel.curves)
        if (curve.is_dashed == dashed) draw_line(at, curve);
    for (auto const& curve : panel.curves) draw_marks(at, curve);
    if (has_level(panel)) draw_level_name(at);
  }

  void draw_axes(placed_panel const& at) {
    auto const bottom = chart_.height - bottom_;
    for (auto const& label : at.vertical.labels()) {
      auto const height = y(at, label.value);
      path(height == bottom ? "axis" : "grid", px(at.left) + " " + px(height) + "h" + px(at.width));
      text("r", at.left - 8, height + 4, xml_text(label.text));
    }
    for (auto const& label : at.horizontal.labels()) {
      path("axis", px(x(at, label.value)) + " " + px(bottom) + "v5");
      text("t", x(at, label.value), bottom + 20, xml_text(label.text));
    }
    text(
        "t",
        at.left + at.width / 2,
        bottom + 44,
        axis_title(at.panel->horizontal, at.horizontal.exponent()));
  }

  void draw_line(placed_panel const& at, chart_curve const& curve) {
    std::string outline;
    bool is_drawing = false;
    for (auto const& point : curve.points) {
      bool const is_point = is_drawn(*at.panel, point);
      if (is_point) {
        if (!outline.empty()) outline += is_drawing ? 'L' : 'M';
        outline += px(x(at, point.x)) + " " + px(y(at, point.y));
      }
      is_drawing = is_point;
    }
    if (!outline.empty() && curve.points.size() > 1) path(line_kind(curve), outline);
  }

  void draw_marks(placed_panel const& at, chart_curve const& curve) {
    if (!curve.has_marks || chart_.is_overlaid) return;
    for (auto const& point : curve.points)
      if (is_drawn(*at.panel, point))
        mark(
            number_of(curve),
            point.is_hollow ? "open" : "full",
            x(at, point.x),
            y(at, point.y),
            point.title);
  }

  // On top of the curves, on a white rim. The rim is text of its own, because some programs do not
  // know `paint-order` and would hide the name under its rim.
  void draw_level_name(placed_panel const& at) {
    auto const& level = *at.panel->level;
    for (auto const* const kind : {"r rim", "r"})
      text(kind, at.left + at.width - 4, y(at, level.value) - 6, xml_text(level.name));
  }

  // White behind it all: a picture looks the same on a page of any colour. Hollow marks are white
  // inside, so that the lines behind them do not look like a filling.
  [[nodiscard]] std::string head() const {
    auto const width = std::to_string(chart_.width);
    auto const height = std::to_string(chart_.height);
    auto result =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height +
        "\" viewBox=\"0 0 " + width + " " + height +
        "\">\n<style>\n"
        "text{font-family:Helvetica,Arial,sans-serif;font-size:12px;fill:#333}\n"
        ".n{font-size:13px;font-weight:bold;fill:#222}.r{text-anchor:end}.t{text-anchor:middle}\n"
        ".rim{stroke:#fff;stroke-width:4}\n"
        "path{fill:none;stroke-linejoin:round}.grid{stroke:#e6e6e6}.axis{stroke:#888}\n"
        ".level{stroke:#888;stroke-dasharray:2 4}\n"
        ".meaning{stroke:#666;stroke-width:1.7}.full.meaning{fill:#666}.open.meaning{fill:#fff}\n";
    for (std::size_t i = 0; i < names_.size(); ++i) {
      auto const* const colour = is_backdrop(i)       ? "#bbb"
                                 : chart_.is_overlaid ? colours_[(i - 1) % colours_.size()]
                                                      : colours_[i % colours_.size()];
      auto const name = std::string(".").append(style(i));
      result += name + "{stroke:" + colour + ";stroke-width:" + px(line_width(i)) + dashes(i) +
                "}" + name + ".full,";
      result += name + ".open{stroke-width:" + px(1.7 / radius(i)) + "}" + name +
                ".full{fill:" + colour + "}" + name + ".open{fill:#fff}\n";
    }
    return result +
           ".dashed{stroke-width:1.5;stroke-dasharray:5 4;opacity:.8}\n"
           // Without dashes that take turns: a short line would show one or none.
           ".line.key{stroke-dasharray:none}\n</style>\n<rect width=\"" +
           width + "\" height=\"" + height + "\" fill=\"#fff\"/>\n";
  }

  [[nodiscard]] std::string dashes(std::size_t name) const {
    if (!chart_.is_overlaid || name == 0 || names_.size() < 3) return {};
    auto const gap = dash_ * static_cast<double>(names_.size() - 2);
    return ";stroke-dasharray:" + px(dash_) + " " + px(gap) + ";stroke-dashoffset:-" +
           px(dash_ * static_cast<double>(name - 1));
  }

  line_chart const& chart_;
  std::vector<std::string> names_;  // of colours
  std::size_t most_points_ = 0;
  std::vector<placed_panel> panels_;
  double top_ = 0;  // of the legend's row; of the plots once that is drawn
  std::string body_;
};

}  // namespace detail

ZBPP_INLINE std::string to_svg(line_chart const& chart) {
  return detail::chart_drawing(chart).draw();
}

}  // namespace zbpp
