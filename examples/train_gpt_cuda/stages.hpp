// SPDX-License-Identifier: Apache-2.0
//
// The model as stages of a pipeline: what happens to one microbatch on one chunk, as a flow whose
// passes enqueue.
#pragma once

#include "sequential.hpp"
#include <zbpp/cuda/device.hpp>
#include <zbpp/zbpp.hpp>

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Holds what training changes in a stage, on the host.
struct stage_values {
  std::vector<float> weights;  ///< as `weights::values` has them
  std::vector<float> mean;     ///< of gradients, piece after piece
  std::vector<float> square;   ///< mean of squared gradients, the same
};

/// Is one stage: a chunk of the model and the optimizer of its parameters.
class chunk_stage {
 public:
  /// @param on     outlives the stage
  /// @param stage  its place among all `stages` of the model
  chunk_stage(training const& how, text const& on, int stages, int stage)
      : how_(how),
        stage_(stage),
        model_(how, on, part_of(how.model.layers, stages, stage)),
        optimizer_(how.optimizer, model_.parameters()) {}

  /// Is the life of one microbatch on this stage.
  zbpp::flow operator()(zbpp::microbatch mb) { return run(mb, {mb.index(), mb.step()}); }
  /// Is the same, of a microbatch whose text may be chosen on the device.
  zbpp::flow run(zbpp::microbatch mb, microbatch_number which) {
    ++flows_;
    chunk_saved<zbpp::buffer> keep;
    zbpp::message msg = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      auto const* const x = reinterpret_cast<bf16 const*>(msg[0].data());
      auto* const loss = mb.is_last_stage() ? zbpp::cuda::loss_slot(mb, ctx) : nullptr;
      msg = model_.forward(ctx, zbpp::cuda::stream_of(ctx), keep, which, x, loss);
    });
    co_await mb.send_activation(std::move(msg));
    msg = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      msg = model_.backward_input(ctx, zbpp::cuda::stream_of(ctx), keep, msg[0]);
    });
    co_await mb.send_gradient(std::move(msg));
    co_await zbpp::W(
        [&](zbpp::pass_context ctx) { model_.backward_weight(zbpp::cuda::stream_of(ctx), keep); });
  }

  /// Moves the stage to the device of its rank, the first time, and loads what it needs there.
  void warm_up(zbpp::pass_context ctx) {
    if (model_.is_prepared()) return;
    device_ = zbpp::cuda::device_of(ctx);
    stream_ = zbpp::cuda::stream_of(ctx);
    get_ready(model_, stream_, zbpp::cuda::sm_count(ctx));
    optimizer_.prepare(model_.parameters());
    optimizer_.rehearse(ctx, how_.replays);
  }

  /// @return what steps the parameters of this stage
  [[nodiscard]] chunk_optimizer& optimizer() { return optimizer_; }

  /// @return its place among all stages
  [[nodiscard]] int stage() const { return stage_; }
  /// @return the chunk
  [[nodiscard]] chunk const& model() const { return model_; }
  /// @return the parameters as trained so far, on the host
  [[nodiscard]] std::vector<float> parameters() const {
    zbpp::cuda::device_guard const here(device_);
    return model_.parameters().values(stream_);
  }
  /// @return all that was trained so far, on the host
  [[nodiscard]] stage_values read() const {
    zbpp::cuda::device_guard const here(device_);
    auto const mean = optimizer_.mean();
    auto const square = optimizer_.mean_square();
    return {
        parameters(),
        download<float>(stream_, mean.data(), mean.size()),
        download<float>(stream_, square.data(), square.size())};
  }
  /// Goes on from what was read of such a stage.
  /// @param updates  optimizer steps taken until then
  void write(stage_values const& from, std::int64_t updates) {
    zbpp::cuda::device_guard const here(device_);
    model_.parameters().assign(stream_, from.weights);
    upload<float>(stream_, from.mean, optimizer_.mean().data());
    upload<float>(stream_, from.square, optimizer_.mean_square().data());
    if (how_.replays) optimizer_.follow_schedule(updates);
  }
  /// @return how many microbatches the host has issued, or captured
  [[nodiscard]] std::int64_t flows() const { return flows_; }

 private:
  training how_;
  int stage_;
  chunk model_;
  chunk_optimizer optimizer_;
  int device_ = 0;  // from `warm_up` on, as is the stream
  cudaStream_t stream_ = nullptr;
  std::int64_t flows_ = 0;
};

/// Is a stage whose steps can be replayed, since the host has no part in them: the place of its
/// batches and the settings of its optimizer are in device memory, and its update moves them on.
class replayed_stage {
 public:
  /// @param of  outlives the object
  explicit replayed_stage(chunk_stage& of) : of_(&of) {}

  /// Is the life of one microbatch on this stage.
  zbpp::flow operator()(zbpp::microbatch mb) {
    return of_->run(mb, {mb.index(), 0, of_->optimizer().updates()});
  }
  /// Gets the stage ready for the first step.
  void warm_up(zbpp::pass_context ctx) { of_->warm_up(ctx); }
  /// Steps the parameters.
  void update(zbpp::pass_context ctx) { of_->optimizer().step(ctx); }

 private:
  chunk_stage* of_;
};

/// Cuts the model in as many stages as a placement has, and makes some of them.
/// @param on     outlives the stages
/// @param which  those to make
template <class Numbers>
[[nodiscard]] std::vector<chunk_stage> make_stages(
    training const& how, text const& on, zbpp::placement const& placement, Numbers const& which) {
  std::vector<chunk_stage> stages;
  stages.reserve(static_cast<std::size_t>(std::ranges::size(which)));
  for (int const s : which) stages.emplace_back(how, on, placement.stages(), s);
  return stages;
}

/// Says how large everything of the stages of a placement is, and guesses their times from the
/// multiplications: enough to plan by where nothing was measured, as only ratios count.
/// @param on  outlives the call
[[nodiscard]] inline zbpp::problem guessed_problem(
    training const& how, text const& on, zbpp::placement const& placement) {
  auto const bytes_of = [](std::size_t count) { return static_cast<zbpp::bytes>(count); };
  auto const& s = how.model;
  auto const ticks_of = [&](index products_a_token) {
    return 1 + static_cast<zbpp::ticks>(s.tokens() * products_a_token / 1000);
  };
  std::vector<zbpp::stage_costs> all;
  for (int stage = 0; stage < placement.stages(); ++stage) {
    auto const blocks = part_of(s.layers, placement.stages(), stage);
    chunk const of(how, on, blocks);
    auto const& keeps = of.keeps();
    auto const rows = of.row_bytes();
    auto& costs = all.emplace_back();
    costs.weight_gradient_input =
        bytes_of(keeps.until_w + keeps.gradients + (of.is_last() ? 0 : rows));
    // A problem says what passes free, and nothing of what B adds before it frees anything: room
    // for that is counted from F on, so that no step has to allocate.
    costs.activation = costs.weight_gradient_input + bytes_of(keeps.until_b);
    costs.edge = bytes_of(rows);
    // `overlapped` stays 0, so that no two passes run side by side: those of a stage share its
    // scratch, and the workspace of its products.
    costs.workspace = 0;  // belongs to the stage
    costs.static_memory = bytes_of(
        of.parameters().size() * (weights::bytes_each + chunk_optimizer::bytes_each) +
        keeps.scratch + products::workspace);
    auto const count = blocks.last - blocks.first;
    auto const linear = count * 12 * s.width * s.width + (of.is_last() ? vocabulary * s.width : 0);
    auto const scores = count * (s.context + s.causal_block()) * s.width;
    costs.forward = ticks_of(linear + scores);
    costs.backward_input = ticks_of(linear + 2 * scores);
    costs.backward_weight = ticks_of(linear);
  }
  // Own choice: a message is a few bytes in the time of a thousand multiplications, between what
  // copies within a GPU and those between GPUs reach.
  zbpp::transfer_costs const messages(1 + all.front().edge / 3);
  return {placement, how.microbatches, std::move(all), messages};
}

}  // namespace gpt::cuda
