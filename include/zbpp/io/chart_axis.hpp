// SPDX-License-Identifier: Apache-2.0
//
// An axis of a chart: its title, and which of its values have labels.
#pragma once

#include <string>
#include <vector>

namespace zbpp {

/// Labels a place on an axis.
struct chart_label {
  double value = 0;
  std::string text;
};

/// Describes an axis.
struct chart_axis {
  std::string title = {};
  std::string unit = {};  ///< follows the title in brackets, with a power of ten for long numbers
  std::vector<chart_label> labels = {};  ///< by ascending value; empty: at round numbers
  bool is_logarithmic = false;
  bool is_whole = false;  ///< whether only whole numbers get labels
  bool begins_at_zero = false;
};

}  // namespace zbpp
