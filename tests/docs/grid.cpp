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
// [tensor
#include <zbpp/zbpp.hpp>

// tensor]
#include <cstddef>
#include <iostream>
#include <span>
#include <utility>
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

zbpp::buffer first_product(zbpp::buffer const& x, zbpp::pass_context ctx);
zbpp::buffer second_product(zbpp::buffer const& h, zbpp::pass_context ctx);
zbpp::buffer second_product_gradient(
    zbpp::buffer const& h, zbpp::buffer const& dy, zbpp::pass_context ctx);
zbpp::buffer first_product_gradient(zbpp::buffer const& dh, zbpp::pass_context ctx);
void weight_gradients(
    zbpp::buffer const& x, zbpp::buffer const& h, zbpp::buffer const& dy, zbpp::buffer const& dh);

// [tensor
struct shared_stage {
  zbpp::optim::adamw& steps;

  zbpp::flow operator()(zbpp::microbatch mb) {
    auto& members = mb.grid().tensor();  // the ranks that share this stage
    zbpp::buffer x, h, dy, dh, out;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = in;
      h = first_product(x, ctx);            // own columns: nothing is sent
      out = second_product(h, ctx);         // own rows: a part of the sum
      members.all_reduce(out.as<float>());  // now the same on all members
    });
    co_await mb.send_activation(std::move(out));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      dy = back;
      dh = second_product_gradient(h, dy, ctx);
      out = first_product_gradient(dh, ctx);  // a part of the sum
      members.all_reduce(out.as<float>());
    });
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([&] { weight_gradients(x, h, dy, dh); });  // of own columns and rows
  }
  zbpp::optim::adamw& optimizer() { return steps; }
};
// tensor]
static_assert(zbpp::stage<shared_stage>);

using parts = std::vector<std::span<float const>>;  // by member
using batches = std::vector<std::vector<float>>;

parts route(zbpp::buffer const& x);
parts compute(batches const& tokens);
zbpp::buffer combine(zbpp::buffer const& x, batches const& outputs, zbpp::pass_context ctx);
parts route_gradient(zbpp::buffer const& dy);
parts compute_gradient(batches const& gradients);
zbpp::buffer combine_gradient(
    zbpp::buffer const& dy, batches const& gradients, zbpp::pass_context ctx);
void weight_gradients(zbpp::buffer const& x, batches const& tokens, batches const& gradients);

// [experts
struct mixture_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    auto& experts = mb.grid().expert();  // the replicas that have one set of experts together
    zbpp::buffer x, y, dx;
    batches tokens, gradients, returned;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = in;
      experts.all_to_all(route(x), tokens);  // of each member, as many as it has for experts here
      experts.all_to_all(compute(tokens), returned);
      y = combine(x, returned, ctx);
    });
    co_await mb.send_activation(std::move(y));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      experts.all_to_all(route_gradient(back), gradients);
      experts.all_to_all(compute_gradient(gradients), returned);
      dx = combine_gradient(back, returned, ctx);
    });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W(
        [&] { weight_gradients(x, tokens, gradients); });  // of router and experts here
  }
  std::span<float> expert_gradients();
};

// Adds up the gradients of experts: replicas with the same ones do so.
zbpp::training_options with_experts(
    std::vector<mixture_stage>& stages, zbpp::placement const& placement, zbpp::grid_place at) {
  return {.on_gradients_ready = [&stages, &placement, at](int stage, zbpp::pass_context) {
    auto& same_experts = at.grid_of(placement.rank_of(stage))->expert_data();
    same_experts.all_reduce(stages[std::size_t(stage)].expert_gradients());
  }};
}
// experts]

}  // namespace docs_grid
