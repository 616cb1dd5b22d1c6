// SPDX-License-Identifier: Apache-2.0
//
// A stage that computes nothing and keeps nothing: for tests of order, time and errors.
#pragma once

#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Makes a number out of the one it gets; the last stage reports it as the loss. Runs every
/// program.
struct plain_flow {
  flow operator()(microbatch mb) {
    buffer y;
    message const in = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) {
      auto const before = mb.is_first_stage() ? mb.index() + 1 : in[0].as<double>()[0];
      auto const value = before * 2 + mb.stage();
      if (mb.is_last_stage()) {
        mb.report_loss(value);
      } else {
        y = ctx.allocate_edge(sizeof(double));
        y.as<double>()[0] = value;
      }
    });
    co_await mb.send_activation(std::move(y));
    co_await R([] {});
    message const back = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      co_await BW([] {});
      co_await mb.send_gradient();
    } else {
      co_await B([] {});
      co_await mb.send_gradient();
      co_await W([] {});
    }
  }

  /// What the last of some stages reports for a microbatch.
  [[nodiscard]] static double expected_loss(int stages, int microbatch) {
    double value = microbatch + 1;
    for (int s = 0; s < stages; ++s) value = value * 2 + s;
    return value;
  }
  /// @return whether losses are what the last of some stages reports
  [[nodiscard]] static bool are_expected(std::vector<double> const& losses, int stages) {
    for (std::size_t m = 0; m < losses.size(); ++m)
      if (losses[m] != expected_loss(stages, static_cast<int>(m))) return false;
    return true;
  }
};

}  // namespace zbpp::test
