// SPDX-License-Identifier: Apache-2.0
//
// A stage on the model of CUDA whose passes take the time that the problem says, and a check that
// this is what is measured.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/io/ascii.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_training.hpp>

#include <cstddef>
#include <vector>

namespace zbpp::test {

/// Passes that do nothing but take the time that the problem says.
struct timed_passes {
  struct saved {};
  problem const* stated;
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
      out.push_back(ctx.allocate_edge(static_cast<std::size_t>(stated->costs(0).edge)));
      writes.push_back({out[0].data(), out[0].size()});
    }
    auto const cost = stated->costs(stage).of(kind);
    cuda::check(cuda_model::launch(cuda::stream_of(ctx), "timed", reads, writes, {}, cost));
    return out;
  }
};

/// Runs two steps on a device for all ranks, or one for each, and compares what they took.
inline void check_measured(plan const& planned, int devices) {
  cuda_model::reset({.seed = 3, .devices = devices, .hosts = devices});
  std::vector<timed_passes> objects;
  for (int s = 0; s < planned.problem().stages(); ++s) objects.push_back({&planned.problem(), s});
  std::vector<as_flow<timed_passes>> stages(objects.begin(), objects.end());
  cuda::device backend{.traces = true};
  if (devices > 1) backend.devices = cuda::one_device_per_rank(devices);
  pipeline pipe{planned, backend, stages};
  for (int step = 0; step < 2; ++step) {
    auto const& measured = pipe.step().measured;
    INFO(to_ascii(measured) << to_ascii(planned.timeline()));
    CHECK(measured == planned.timeline());
  }
  CHECK(first_of(cuda_model::faults()) == "");
}

}  // namespace zbpp::test
