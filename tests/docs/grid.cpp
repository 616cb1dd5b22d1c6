// SPDX-License-Identifier: Apache-2.0
//
// The C++ blocks of docs/grid.md.

// [layout
#include <zbpp/model/grid.hpp>

// layout]
// [replicas
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/zbpp.hpp>

// replicas]
#include <iostream>
#include <vector>

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

struct stage {
  zbpp::flow operator()(zbpp::microbatch mb);
};

std::vector<stage> make_stages(int replica);

void replicas(zbpp::problem const& problem) {
  // [replicas
  auto const shared = with_replicas(problem, {.count = 2});
  auto const plan =
      zbpp::make_plan(zbpp::zb_v{}, shared, {.step = zbpp::step_kind::post_validated});
  zbpp::in_process_grid grid({.pipeline = problem.ranks(), .data = 2});
  grid.run([&](zbpp::grid_place const& place) {  // on a thread of its own for each replica
    auto stages = make_stages(place.data());     // the same weights, and data of its own
    zbpp::pipeline replica(plan, zbpp::threads{.place = place}, stages, {.clip = 1.0});
    replica.run(100);
  });
  // replicas]
}

}  // namespace docs_grid
