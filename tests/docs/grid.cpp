// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/grid.md.

// [layout
#include <zbpp/model/grid.hpp>

// layout]
#include <iostream>

namespace docs_grid {

void layout(int rank) {
  // [layout
  zbpp::grid_layout const layout({.pipeline = 4, .tensor = 2}, 16);  // 16 ranks: 2 replicas
  std::cout << to_string(layout) << '\n';
  auto const at = layout.coordinates(rank);  // at.pipeline, at.data, at.tensor
  auto const stages_of = layout.group(zbpp::grid_axis::pipeline, rank);  // ranks of its pipeline
  auto const gradients_of = layout.group(zbpp::grid_axis::data, rank);   // replicas of its stages
  // layout]
  static_cast<void>(at);
}

}  // namespace docs_grid
