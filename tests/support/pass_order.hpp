// SPDX-License-Identifier: Apache-2.0
//
// The flow of stages whose passes are plain calls, so that a test writes the calls alone.
#pragma once

#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace zbpp::test {

/// A class, as the frame of a function template would have a type that g++ takes for one of many
/// files.
template <class Passes>
struct pass_order {
  static flow run(Passes own, microbatch mb) {
    message msg = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) { msg = own.forward(msg, mb, ctx); });
    co_await mb.send_activation(std::move(msg));
    co_await R([] {});
    msg = co_await mb.recv_gradient();
    auto b = [&](pass_context ctx) { msg = own.backward(msg, mb, ctx); };
    if (mb.is_fused()) {
      auto both = [&](pass_context ctx) {
        b(ctx);
        own.weight(mb);
      };
      co_await BW(both);
      co_await mb.send_gradient(std::move(msg));
    } else {
      co_await B(b);
      co_await mb.send_gradient(std::move(msg));
      co_await W([&] { own.weight(mb); });
    }
  }
};

/// Runs the passes of a microbatch in the order of any program.
/// @param own  what the microbatch keeps: `forward(message const&, microbatch, pass_context)` and
///             `backward`, called alike, give what is sent, and `weight(microbatch)` is W
template <class Passes>
flow in_order(Passes own, microbatch mb) {
  return pass_order<Passes>::run(std::move(own), mb);
}

/// Copies numbers to what crosses an edge.
[[nodiscard]] inline buffer edge_of(std::span<float const> from, pass_context ctx) {
  auto to = ctx.allocate_edge(from.size_bytes());
  std::ranges::copy(from, to.as<float>().begin());
  return to;
}

}  // namespace zbpp::test
