// SPDX-License-Identifier: Apache-2.0
//
// A stage on the model of CUDA whose passes take the time that the problem says.
#pragma once

#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <support/cuda_model/cuda_model.hpp>

#include <cstddef>
#include <vector>

namespace zbpp::test {

/// Passes that do nothing but take the time that the problem says.
struct timed_passes {
  struct saved {};
  problem const* what;
  int stage;

  message forward(saved&, message const& in, microbatch mb, pass_context ctx) const {
    return run(pass_kind::forward, in, mb.is_last_stage(), ctx);
  }
  message backward_input(saved&, message const& in, microbatch mb, pass_context ctx) const {
    return run(pass_kind::backward_input, in, mb.is_first_stage(), ctx);
  }
  message backward(saved&, message const& in, microbatch mb, pass_context ctx) const {
    return run(pass_kind::backward, in, mb.is_first_stage(), ctx);
  }
  void backward_weight(saved&, microbatch, pass_context ctx) const {
    static_cast<void>(run(pass_kind::backward_weight, {}, true, ctx));
  }
  void recompute(saved&, microbatch, pass_context ctx) const {
    static_cast<void>(run(pass_kind::recompute, {}, true, ctx));
  }

 private:
  message run(pass_kind kind, message const& in, bool is_end, pass_context ctx) const {
    std::vector<cuda_model::range> reads;
    std::vector<cuda_model::range> writes;
    if (!in.empty()) reads.push_back({in[0].data(), in[0].size()});
    message out;
    if (!is_end) {
      out.push_back(ctx.allocate_edge(static_cast<std::size_t>(what->costs(0).edge)));
      writes.push_back({out[0].data(), out[0].size()});
    }
    auto const cost = what->costs(stage).of(kind);
    cuda::check(cuda_model::launch(cuda::stream_of(ctx), "timed", reads, writes, {}, cost));
    return out;
  }
};

}  // namespace zbpp::test
