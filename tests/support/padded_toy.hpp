// SPDX-License-Identifier: Apache-2.0
//
// The toy network where messages have one size: small ones are padded before they leave, and cut
// when they have arrived. The arithmetic is the same, to the bit.
#pragma once

#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <support/cuda_toy.hpp>
#include <support/toy_mlp.hpp>

#include <algorithm>
#include <cstddef>

namespace zbpp::test::toy {

/// The passes of a stage that sends full messages.
template <class Passes>
class padded_passes : public Passes {
 public:
  using saved = typename Passes::saved;
  using Passes::Passes;

  message forward(saved& kept, message const& input, microbatch mb, pass_context ctx) {
    return pad(Passes::forward(kept, cut(input, mb), mb, ctx), ctx);
  }
  message backward_input(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    return pad(Passes::backward_input(kept, cut(gradient, mb), mb, ctx), ctx);
  }
  message backward(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    return pad(Passes::backward(kept, cut(gradient, mb), mb, ctx), ctx);
  }

 private:
  [[nodiscard]] static message cut(message const& whole, microbatch mb) {
    message result;
    for (buffer part : whole.buffers()) {
      part.truncate(rows_of(mb.index()) * width * sizeof(float));
      result.push_back(std::move(part));
    }
    return result;
  }
  [[nodiscard]] static message pad(message const& made, pass_context ctx) {
    message result;
    for (auto const& part : made.buffers()) {
      auto whole = ctx.allocate_edge(static_cast<std::size_t>(edge) / 2);
      auto const from = part.template as<float>();
      auto const to = whole.template as<float>();
      launched::run(ctx, {from}, {to}, [from, to] {
        std::ranges::fill(std::ranges::copy(from, to.begin()).out, to.end(), 0.0F);
      });
      result.push_back(std::move(whole));
    }
    return result;
  }
};

using padded_stage = basic_hand_written<padded_passes<basic_passes<launched>>>;

}  // namespace zbpp::test::toy
