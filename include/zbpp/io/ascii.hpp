// SPDX-License-Identifier: Apache-2.0
//
// Draws timelines as text, to scale, one line per rank:
//
//   1F1B: cost 12 ms, bubble rate 25.0 %
//   0|F0F1..BW0 F2BW1 ..BW2 |
//   1|..F0BW0 F1BW1 F2BW2 ..|
//
// A pass is the letters of its kind, its microbatch where that fits, and blank as long as it runs;
// every second chunk is in lower case. Dots are bubble: all of it, and nothing else. Colours repeat
// what the letters say.
#pragma once

#include <zbpp/io/drawing.hpp>
#include <zbpp/model/timeline.hpp>

#include <string>
#include <vector>

namespace zbpp {

/// Chooses how timelines become text.
struct ascii_options {
  int width = 100;      ///< most columns of a line, at least 20
  bool colour = false;  ///< whether backgrounds are coloured, for terminals with 256 colours
  bool legend = true;   ///< whether a last line says what the letters mean
};

/// Draws timelines below each other on one scale, each under its name, cost and bubble rate. No
/// line is longer than the options say.
/// @throws error (bad_argument) when the width is less than 20 or a timeline makes no sense
[[nodiscard]] std::string to_ascii(
    std::vector<named_timeline> const& lines, ascii_options options = {});

/// Draws one timeline.
/// @throws error (bad_argument) when the width is less than 20 or the timeline makes no sense
[[nodiscard]] std::string to_ascii(timeline const& line, ascii_options options = {});

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/ascii.ipp>
#endif
