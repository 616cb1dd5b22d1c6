// SPDX-License-Identifier: Apache-2.0
//
// The toy network on the model of CUDA: the same passes, whose arithmetic is launched on the stream
// of the rank with all that it reads and writes.
#pragma once

#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

namespace zbpp::test::toy {

/// Launches the arithmetic of a pass.
struct launched {
  static auto step(microbatch mb) { return at_once::step(mb); }
  template <class Work>
  static void run(
      pass_context const& ctx,
      std::initializer_list<const_floats> reads,
      std::initializer_list<floats> writes,
      Work work) {
    std::vector<cuda_model::range> read;
    std::vector<cuda_model::range> written;
    for (auto const r : reads) read.push_back({r.data(), r.size_bytes()});
    for (auto const w : writes) written.push_back({w.data(), w.size_bytes()});
    cuda::check(cuda_model::launch(cuda::stream_of(ctx), "toy", read, written, std::move(work)));
  }

  template <class Work>
  static void report(
      microbatch mb,
      pass_context const& ctx,
      std::initializer_list<const_floats> reads,
      std::initializer_list<floats> writes,
      Work work) {
    auto* const result = cuda::loss_slot(mb, ctx);
    std::vector<cuda_model::range> read;
    std::vector<cuda_model::range> written{{result, sizeof(float)}};
    for (auto const r : reads) read.push_back({r.data(), r.size_bytes()});
    for (auto const w : writes) written.push_back({w.data(), w.size_bytes()});
    cuda::check(cuda_model::launch(cuda::stream_of(ctx), "toy loss", read, written, [work, result] {
      *result = static_cast<float>(work());
    }));
  }
};

using launched_stage = basic_hand_written<basic_passes<launched>>;

/// The passes of a stage that use all memory which is free when they end: whatever a slot gets was
/// in use a moment ago.
template <class Runner>
class passes_with_scratch : public basic_passes<Runner> {
  using plain = basic_passes<Runner>;

 public:
  using plain::basic_passes;
  using typename plain::saved;

  message forward(saved& kept, message const& input, microbatch mb, pass_context ctx) {
    auto out = plain::forward(kept, input, mb, ctx);
    work(ctx);
    return out;
  }
  message backward_input(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    auto out = plain::backward_input(kept, gradient, mb, ctx);
    work(ctx);
    return out;
  }
  message backward(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    auto out = plain::backward(kept, gradient, mb, ctx);
    work(ctx);
    return out;
  }
  void backward_weight(saved& kept, microbatch mb, pass_context ctx) {
    plain::backward_weight(kept, mb, ctx);
    kept = {};
    work(ctx);
  }
  void recompute(saved& kept, microbatch mb, pass_context ctx) {
    plain::recompute(kept, mb, ctx);
    work(ctx);
  }
  void update(pass_context ctx) { work(ctx); }

 private:
  static void work(pass_context ctx) {
    std::array<buffer, 16> pieces;
    std::vector<cuda_model::range> written;
    for (auto& piece : pieces) {
      piece = ctx.allocate(edge / 2);
      written.push_back({piece.data(), piece.size()});
    }
    cuda::check(cuda_model::launch(cuda::stream_of(ctx), "scratch", {}, written, [] {}));
  }
};

using launched_passes_with_scratch = passes_with_scratch<launched>;

/// Makes an edge whose content does not matter, by a kernel.
[[nodiscard]] inline buffer launched_edge(pass_context ctx) {
  auto made = ctx.allocate_edge(edge);
  cuda::check(cuda_model::launch(cuda::stream_of(ctx), "out", {}, {{made.data(), made.size()}}));
  return made;
}

/// @return what the messages of the toy network look like
[[nodiscard]] inline std::vector<cuda::message_shape> edge_shapes(problem const& problem) {
  return std::vector<cuda::message_shape>(
      zbpp::detail::index(problem.stages()) - 1, cuda::message_shape{edge / 2, edge / 2});
}

/// @return losses as a device gives them: in single precision
[[nodiscard]] inline std::vector<double> in_single_precision(std::vector<double> losses) {
  for (auto& loss : losses) loss = static_cast<double>(static_cast<float>(loss));
  return losses;
}
/// Runs one step in one process, as `reference_step`. @return losses as a device gives them
template <class IsFused = nothing_fused>
[[nodiscard]] std::vector<double> device_reference_step(
    model& all, std::int64_t step, int microbatches, IsFused is_fused = {}) {
  return in_single_precision(reference_step(all, step, microbatches, is_fused));
}
/// @return a training with such losses
[[nodiscard]] inline history in_single_precision(history exact) {
  for (auto& step : exact.losses) step = in_single_precision(std::move(step));
  return exact;
}

}  // namespace zbpp::test::toy
