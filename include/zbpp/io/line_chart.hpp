// SPDX-License-Identifier: Apache-2.0
//
// Draws curves as an SVG picture: one panel or several side by side, axes divided at round numbers,
// a legend. Hovering over a point shows its title.
#pragma once

#include <zbpp/io/chart_axis.hpp>

#include <optional>
#include <string>
#include <vector>

namespace zbpp {

/// A point of a curve. A coordinate that is not finite, or not above 0 on a logarithmic axis,
/// interrupts the curve.
struct chart_point {
  double x = 0;
  double y = 0;
  std::string title = {};  ///< shown while hovering over the mark; or empty
  bool is_hollow = false;  ///< whether its mark is an outline
};

/// A curve with its name. Curves of one name look alike in all panels.
struct chart_curve {
  std::string name;  ///< stands in the legend unless it is empty
  std::vector<chart_point> points = {};
  bool is_dashed = false;
  bool has_marks = true;         ///< whether its points are marked
  std::string colour_like = {};  ///< the name of the curve whose colour it has; empty: its own
};

/// A horizontal line through a panel, with its name.
struct chart_level {
  double value = 0;
  std::string name;
};

/// One panel of a chart.
struct chart_panel {
  std::string title = {};
  chart_axis horizontal = {};
  std::vector<chart_curve> curves = {};
  std::optional<chart_level> level = {};
};

/// A picture of curves.
struct line_chart {
  std::string title = {};
  chart_axis vertical = {};  ///< of all panels; each has a range of its own
  std::vector<chart_panel> panels = {};
  int width = 900;   ///< of the picture in pixels, at least 320
  int height = 440;  ///< of the picture in pixels, at least 240
  /// Whether the curves are expected to coincide. Then the first is wide and pale, and the others
  /// are dashes that take turns on top of it, so that each is visible; points have no marks.
  bool is_overlaid = false;
  std::string dashed_meaning = {};  ///< explains dashed curves in the legend; or empty
  std::string filled_meaning = {};  ///< explains filled marks in the legend; or empty
  std::string hollow_meaning = {};  ///< explains hollow marks in the legend; or empty
};

/// Draws a chart. Later curves are thinner, so that all are visible where some coincide.
/// @throws error (bad_argument) when the picture is too small, or labels of an axis do not ascend
[[nodiscard]] std::string to_svg(line_chart const& chart);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/line_chart.ipp>
#endif
