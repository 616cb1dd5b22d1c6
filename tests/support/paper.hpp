// SPDX-License-Identifier: Apache-2.0
//
// The paper's measured times and its theoretical bubble rates, as printed.
// @source arXiv 2401.10241v1 tables 5 and 9
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>

#include <array>
#include <cmath>

namespace zbpp::test {

/// Holds one row of table 5 with the profile of table 9 behind it; times in milliseconds.
struct paper_row {
  char const* model;
  int ranks;
  int microbatches;
  int chunks;  ///< of 1F1B-I: one layer a chunk
  double forward;
  double backward_input;
  double backward_weight;
  double transfer;
  double bubble_1f1b;
  double bubble_1f1b_i;
  double bubble_h1;
  double bubble_h2;

  /// The costs of a stage when a rank's share is cut into `pieces` equal chunks.
  [[nodiscard]] stage_costs costs(int pieces = 1) const {
    return {
        .forward = from_milliseconds(forward / pieces),
        .backward_input = from_milliseconds(backward_input / pieces),
        .backward_weight = from_milliseconds(backward_weight / pieces)};
  }
  /// The problem of one chunk per rank.
  [[nodiscard]] problem linear() const {
    return {placement::linear(ranks), microbatches, costs(), from_milliseconds(transfer)};
  }
};

/// Whether a rate, rounded to four decimals, is the printed one.
[[nodiscard]] inline bool is_printed_as(double rate, double printed) {
  return std::llround(rate * 1e4) == std::llround(printed * 1e4);
}

inline constexpr std::array<paper_row, 12> paper_rows{{
    {"1.5B", 8, 24, 3, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083},
    {"1.5B", 8, 32, 3, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242, 0.0837},
    {"1.5B", 8, 64, 3, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674, 0.0444},
    {"6.2B", 8, 24, 4, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 0.1323, 0.0698},
    {"6.2B", 8, 32, 4, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.0628, 0.1045, 0.0559},
    {"6.2B", 8, 64, 4, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0320, 0.0554, 0.0294},
    {"14.6B", 16, 48, 3, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397, 0.0672},
    {"14.6B", 16, 64, 3, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088, 0.0516},
    {"14.6B", 16, 128, 3, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576, 0.0266},
    {"28.3B", 32, 96, 2, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 0.1421, 0.0641},
    {"28.3B", 32, 128, 2, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106, 0.0490},
    {"28.3B", 32, 256, 2, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 0.0594, 0.0257},
}};

}  // namespace zbpp::test
