// SPDX-License-Identifier: Apache-2.0
//
// The model as stages of a pipeline: what happens to one microbatch on one chunk, as a flow whose
// passes enqueue.
#pragma once

#include "rehearsal.hpp"
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/graph.hpp>
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ranges>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Enqueues the work of a pass, or replays it as a graph.
class pass_work {
 public:
  /// @param graphs  null: as it comes; else where it is kept, under `key`
  pass_work(zbpp::pass_context ctx, zbpp::cuda::graph_cache* graphs, std::int64_t key)
      : on(zbpp::cuda::stream_of(ctx)), ctx_(ctx), graphs_(graphs), key_(key) {}

  /// Calls `work(stream)`; when it replays, the first time alone, and whenever a pointer differs.
  /// @throws zbpp::error (device_failed); what `work` throws
  template <class Work>
  void operator()(std::initializer_list<void const*> pointers, Work const& work) const {
    if (graphs_ == nullptr) return work(on);
    graphs_->run(ctx_, key_, pointers, [&](zbpp::cuda::stream_ref to) { work(to); });
  }

  cudaStream_t on;  ///< of the rank

 private:
  zbpp::pass_context ctx_;
  zbpp::cuda::graph_cache* graphs_;
  std::int64_t key_;
};

/// Is one stage: a chunk of the model and the optimizer of its parameters.
class chunk_stage {
 public:
  /// @param on     outlives the stage
  /// @param stage  its place among all `stages` of the model
  chunk_stage(training const& how, text const& on, int stages, int stage)
      : how_(how),
        model_(
            how.model,
            on,
            blocks_of_stage(how.model.layers, stages, stage),
            how.microbatches,
            how.seed),
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
      msg = model_.forward(ctx, work(ctx, zbpp::pass_kind::forward, mb), keep, which, x, loss);
    });
    co_await mb.send_activation(std::move(msg));
    msg = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      msg =
          model_.backward_input(ctx, work(ctx, zbpp::pass_kind::backward_input, mb), keep, msg[0]);
    });
    co_await mb.send_gradient(std::move(msg));
    co_await zbpp::W([&](zbpp::pass_context ctx) {
      model_.backward_weight(work(ctx, zbpp::pass_kind::backward_weight, mb), keep);
    });
  }

  /// Moves the stage to the device of its rank, the first time, and loads what it needs there.
  void warm_up(zbpp::pass_context ctx) {
    if (model_.is_prepared()) return;
    get_ready(model_, zbpp::cuda::stream_of(ctx), zbpp::cuda::sm_count(ctx));
    optimizer_.prepare(model_.parameters());
    optimizer_.rehearse(ctx);
  }

  /// @return what steps the parameters of this stage
  [[nodiscard]] chunk_optimizer& optimizer() { return optimizer_; }

  /// @return the chunk as trained so far
  [[nodiscard]] chunk& model() { return model_; }
  /// @return the chunk as trained so far
  [[nodiscard]] chunk const& model() const { return model_; }
  /// @return the graphs of its passes; none where they are not replayed
  [[nodiscard]] zbpp::cuda::graph_cache const& graphs() const { return graphs_; }
  /// @return how many microbatches the host has issued, or captured
  [[nodiscard]] std::int64_t flows() const { return flows_; }

 private:
  [[nodiscard]] pass_work work(
      zbpp::pass_context ctx, zbpp::pass_kind kind, zbpp::microbatch const& mb) {
    auto const key = static_cast<std::int64_t>(mb.index()) * 3 + static_cast<std::int64_t>(kind);
    return {ctx, how_.replay == replay_kind::pass ? &graphs_ : nullptr, key};
  }

  training how_;
  chunk model_;
  chunk_optimizer optimizer_;
  zbpp::cuda::graph_cache graphs_;
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
  void warm_up(zbpp::pass_context ctx) {
    of_->warm_up(ctx);
    of_->optimizer().follow_schedule(ctx);
  }
  /// Steps the parameters.
  void update(zbpp::pass_context ctx) { of_->optimizer().step(ctx); }

 private:
  chunk_stage* of_;
};

/// Says how large everything of a chunk is, and guesses its times from the multiplications: enough
/// to plan by where nothing was measured, as only ratios count.
/// @param blocks  how many it has
[[nodiscard]] inline zbpp::stage_costs costs_of(chunk const& of, shape const& s, index blocks) {
  auto const bytes_of = [](std::size_t count) { return static_cast<zbpp::bytes>(count); };
  auto const& keeps = of.keeps();
  auto const rows = of.row_bytes();
  zbpp::stage_costs costs;
  costs.weight_gradient_input =
      bytes_of(keeps.until_w + keeps.gradients + (of.is_last() ? 0 : rows));
  // A problem says what passes free, and nothing of what B adds before it frees anything: room for
  // that is counted from F on, so that no step has to allocate.
  costs.activation = costs.weight_gradient_input + bytes_of(keeps.until_b);
  costs.edge = bytes_of(rows);
  costs.workspace = 0;  // belongs to the stage
  costs.static_memory = bytes_of(
      of.parameters().size() * (weights::bytes_each + chunk_optimizer::bytes_each) + keeps.scratch +
      products::workspace);
  auto const linear = blocks * 12 * s.width * s.width + (of.is_last() ? vocabulary * s.width : 0);
  auto const scores = blocks * (s.context + s.causal_block()) * s.width;
  auto const ticks_of = [&](index products_a_token) {
    return 1 + static_cast<zbpp::ticks>(s.tokens() * products_a_token / 1000);
  };
  costs.forward = ticks_of(linear + scores);
  costs.backward_input = ticks_of(linear + 2 * scores);
  costs.backward_weight = ticks_of(linear);
  return costs;
}

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

/// Makes all stages of a placement.
/// @param on  outlives the stages
[[nodiscard]] inline std::vector<chunk_stage> make_stages(
    training const& how, text const& on, zbpp::placement const& placement) {
  return make_stages(how, on, placement, std::views::iota(0, placement.stages()));
}

/// @return the problem of a placement, as sizes and guesses say
/// @param on  outlives the call
[[nodiscard]] inline zbpp::problem guessed_problem(
    training const& how, text const& on, zbpp::placement const& placement) {
  auto const stages = make_stages(how, on, placement);
  std::vector<zbpp::stage_costs> costs;
  for (int s = 0; s < placement.stages(); ++s) {
    auto const blocks = blocks_of_stage(how.model.layers, placement.stages(), s);
    auto const& model = stages[static_cast<std::size_t>(s)].model();
    costs.push_back(costs_of(model, how.model, blocks.last - blocks.first));
  }
  // Own choice: a message is a few bytes in the time of a thousand multiplications, between what
  // copies within a GPU and those between GPUs reach.
  zbpp::transfer_costs const messages(1 + costs.front().edge / 3);
  return {placement, how.microbatches, std::move(costs), messages};
}

}  // namespace gpt::cuda
