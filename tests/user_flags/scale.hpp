// SPDX-License-Identifier: Apache-2.0
//
// The least stage that trains, for programs that are there to be compiled.
#pragma once

#include <zbpp/zbpp.hpp>

#include <utility>

/// Keeps one weight, and adds its gradient up.
struct scale {
  double weight = 0.5;
  double gradient = 0;

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer x, dy, y, dx;
    zbpp::message const in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = mb.is_first_stage() ? number(ctx, mb.index() + 1) : zbpp::buffer(in);
      auto const value = of(x) * weight;
      if (mb.is_last_stage()) mb.report_loss(value);
      y = number(ctx, value);
    });
    co_await mb.send_activation(std::move(y));
    zbpp::message const back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      dy = mb.is_last_stage() ? number(ctx, 1) : zbpp::buffer(back);
      dx = number(ctx, of(dy) * weight);
    });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W([&] { gradient += of(x) * of(dy); });
  }

  void update(zbpp::pass_context) { weight -= 0.01 * std::exchange(gradient, 0); }

 private:
  static zbpp::buffer number(zbpp::pass_context ctx, double value) {
    auto made = ctx.allocate(sizeof value);
    made.as<double>()[0] = value;
    return made;
  }
  static double of(zbpp::buffer const& from) { return from.as<double>()[0]; }
};
