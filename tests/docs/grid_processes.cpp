// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/grid.md that needs zbpp::asio.
#include <zbpp/asio/tcp.hpp>
#include <zbpp/zbpp.hpp>

namespace docs_grid_processes {

template <class Stages>
void train(zbpp::problem const& problem, Stages& stages, zbpp::training_options const& options) {
  // [run
  zbpp::asio::rendezvous run(zbpp::asio::find_launch());  // all ranks of the grid
  zbpp::grid_layout const layout({.pipeline = 2, .data = 2}, run.ranks());
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, with_replicas(problem, {.count = 2}));
  zbpp::pipeline replica(plan, zbpp::asio::tcp(run, layout), stages, options);
  replica.run(100);
  // run]
}

}  // namespace docs_grid_processes
