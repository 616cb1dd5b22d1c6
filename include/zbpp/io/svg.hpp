// SPDX-License-Identifier: Apache-2.0
//
// Draws timelines as an SVG picture: ranks below each other, passes to scale and coloured by kind,
// bubble hatched, optimizer steps and the moments at which ranks know the norm of all gradients as
// lines, sums over replicas as bars below their passes, the critical path as a line through its
// passes, what took longer than planned dotted. Several timelines share one time scale, so that a
// shorter one looks shorter. Hovering over a pass or a line tells its times.
#pragma once

#include <zbpp/io/drawing.hpp>
#include <zbpp/model/timeline.hpp>

#include <string>
#include <vector>

namespace zbpp {

/// Chooses how timelines become a picture.
struct svg_options {
  int width = 1200;     ///< of the picture in pixels, at least 200
  int row_height = 22;  ///< of a rank in pixels, at least 4
};

/// Draws timelines below each other on one scale, each under its name, cost and bubble rate, with a
/// time axis and a legend.
/// @throws error (bad_argument) when an option is too small or a timeline makes no sense
[[nodiscard]] std::string to_svg(
    std::vector<named_timeline> const& lines, svg_options options = {});

/// Draws one timeline.
/// @throws error (bad_argument) when an option is too small or the timeline makes no sense
[[nodiscard]] std::string to_svg(timeline const& line, svg_options options = {});

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/svg.ipp>
#endif
