// SPDX-License-Identifier: Apache-2.0
//
// A sweep as a chart.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/line_chart.hpp>
#include <zbpp/io/sweep_svg.hpp>
#include <zbpp/io/text.hpp>

#include <cmath>
#include <string>
#include <vector>

namespace zbpp {

namespace detail {

/// @throws error (bad_argument) naming the first sample that is none
ZBPP_INLINE void check_samples(sweep_curve const& curve) {
  bytes before = 0;
  for (auto const& sample : curve.samples) {
    auto refuse = [&](char const* reason) {
      throw error(errc::bad_argument) + "sweep: '" + one_line(curve.name) + "' at limit " +
          sample.memory_limit + ": " + reason;
    };
    if (sample.memory_limit < before) refuse("limits ascend, from 0 on");
    if (sample.memory_limit > bytes{1} << 60) refuse("limits go up to 2^60; use a coarser unit");
    if (!(sample.bubble_rate >= 0 && sample.bubble_rate <= 1))
      refuse("a bubble rate lies between 0 and 1");
    if (!(sample.lower_bound >= 0 && sample.lower_bound <= 1))
      refuse("a lower bound of the bubble rate lies between 0 and 1");
    before = sample.memory_limit;
  }
}

[[nodiscard]] ZBPP_INLINE chart_point point_of(sweep_curve const& curve, sweep_sample const& from) {
  auto const percent = [](double rate) { return decimal(std::llround(10'000 * rate), 100) + " %"; };
  return {
      static_cast<double>(from.memory_limit),
      100 * from.bubble_rate,
      joined(curve.name) + ", limit " + from.memory_limit + ": bubble rate " +
          percent(from.bubble_rate) +
          (from.is_optimal ? ", proved optimal" : ", at least " + percent(from.lower_bound)),
      !from.is_optimal};
}

}  // namespace detail

ZBPP_INLINE std::string sweep_to_svg(
    std::vector<sweep_curve> const& curves, sweep_svg_options const& options) {
  chart_panel panel{
      .horizontal = {.title = "memory limit of a rank", .unit = options.unit, .is_whole = true}};
  for (auto const& curve : curves) {
    detail::check_samples(curve);
    chart_curve found{curve.name};
    chart_curve bound{.name = "", .is_dashed = true, .has_marks = false, .colour_like = curve.name};
    for (auto const& sample : curve.samples) {
      found.points.push_back(detail::point_of(curve, sample));
      bound.points.push_back({static_cast<double>(sample.memory_limit), 100 * sample.lower_bound});
    }
    panel.curves.push_back(std::move(found));
    panel.curves.push_back(std::move(bound));
  }
  return to_svg(line_chart{
      .title = options.title,
      .vertical = {.title = "bubble rate", .unit = "%", .begins_at_zero = true},
      .panels = {std::move(panel)},
      .width = options.width,
      .height = options.height,
      .dashed_meaning = "lower bound",
      .filled_meaning = "proved optimal",
      .hollow_meaning = "best found"});
}

}  // namespace zbpp
