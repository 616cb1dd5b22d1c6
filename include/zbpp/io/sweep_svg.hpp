// SPDX-License-Identifier: Apache-2.0
//
// Draws what memory buys: bubble rate against memory limit as an SVG picture, one curve per
// placement, its lower bound as a dashed line of the same colour, points filled where they are
// proved to be optimal. Hovering over a point tells its numbers.
#pragma once

#include <zbpp/model/costs.hpp>

#include <string>
#include <vector>

namespace zbpp {

/// States what the best schedule found within a memory limit costs.
struct sweep_sample {
  bytes memory_limit = 0;   ///< of every rank
  double bubble_rate = 0;   ///< from 0 to 1
  double lower_bound = 0;   ///< the bubble rate that no schedule goes below, from 0 to 1
  bool is_optimal = false;  ///< whether it equals the lower bound
};

/// Names the samples of one placement, by ascending memory limit.
struct sweep_curve {
  std::string name;
  std::vector<sweep_sample> samples;
};

/// Chooses how a sweep becomes a picture.
struct sweep_svg_options {
  int width = 720;         ///< of the picture in pixels, at least 320
  int height = 440;        ///< of the picture in pixels, at least 240
  std::string title = {};  ///< stands above the picture
  std::string unit = {};   ///< of the sizes, such as `B`; they may have none
};

/// Draws bubble rate against memory limit, a curve for each placement, with a legend.
/// @throws error (bad_argument) when the picture is too small, a rate does not lie between 0 and 1,
///         or the limits of a curve do not ascend
[[nodiscard]] std::string sweep_to_svg(
    std::vector<sweep_curve> const& curves, sweep_svg_options const& options = {});

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/sweep_svg.ipp>
#endif
