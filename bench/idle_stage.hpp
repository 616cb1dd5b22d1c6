// SPDX-License-Identifier: Apache-2.0
//
// A stage that takes the memory of one, and computes nothing, and a problem of such stages.
#pragma once

#include <zbpp/zbpp.hpp>

#include <cstddef>
#include <utility>

constexpr std::size_t edge = 1 << 20;

// A stage that takes the memory of one, and computes nothing.
struct idle_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer x;
    zbpp::buffer y;
    zbpp::buffer kept;
    zbpp::buffer dx;
    zbpp::message in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = in[0];
      kept = ctx.allocate(4 * edge);
      y = ctx.allocate_edge(edge);
    });
    co_await mb.send_activation(std::move(y));
    zbpp::message back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) { dx = ctx.allocate_edge(edge); });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W([](zbpp::pass_context) {});
  }
};

inline zbpp::problem idle_problem(zbpp::placement const& where, int microbatches) {
  return zbpp::problem(
      where,
      microbatches,
      zbpp::stage_costs{
          .forward = 1000,
          .backward_input = 1000,
          .backward_weight = 1000,
          .activation = 4 * edge,
          .weight_gradient_input = 2 * edge,
          .edge = edge});
}
