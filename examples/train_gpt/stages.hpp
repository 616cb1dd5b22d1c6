// SPDX-License-Identifier: Apache-2.0
//
// The model as stages of a pipeline: what happens to one microbatch on one chunk, as a flow.
#pragma once

#include "sequential.hpp"
#include "slow_rank.hpp"
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace gpt {

/// Points at all that training changes in a stage. What else it needs follows from the settings and
/// the number of steps taken.
struct stage_state {
  std::span<parameter_set::entry const> entries;  ///< where each parameter lies in the others
  std::span<float> parameters;
  std::span<float> mean;    ///< of the gradients
  std::span<float> square;  ///< mean of the squared gradients; empty where SGD needs none
};

/// @return the bytes of some floats
[[nodiscard]] constexpr zbpp::bytes bytes_of(index count) {
  return count * static_cast<zbpp::bytes>(sizeof(float));
}

/// Is one stage: a chunk of the model and the optimizer of its parameters.
class chunk_stage {
 public:
  /// @param on       outlives the stage
  /// @param stage    its place among all `stages` of the model
  /// @param replica  of the model that it belongs to
  /// @param member   of the tensor group that shares the stage
  chunk_stage(
      training const& how, text const& on, int stages, int stage, int replica = 0, int member = 0)
      : how_(how),
        text_(&on),
        stage_(stage),
        replica_(replica),
        member_(member),
        first_microbatch_(replica * how.own_microbatches()),
        model_(
            how.model,
            layers_of_stage(how.model, stages, stage),
            how.microbatches,
            how.seed,
            {member, member + 1}),
        optimizer_(how.optimizer, model_.parameters()) {}

  /// Is the life of one microbatch on this stage.
  zbpp::flow operator()(zbpp::microbatch mb) {
    batch const of(how_.model, *text_, how_.seed, mb.step(), first_microbatch_ + mb.index());
    auto const sum = sum_over(mb);
    arrays keep;
    zbpp::message msg = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      slowed_pass const whole;
      auto const& size = model_.keeps();
      keep.until_b = ctx.allocate(bytes(size.until_b));
      keep.until_w = ctx.allocate(bytes(size.until_w));
      zbpp::buffer y;
      if (!model_.is_last()) y = ctx.allocate_edge(bytes(model_.floats_out()));
      auto const scratch = ctx.allocate(bytes(size.scratch));
      auto const loss = model_.forward(keep.first(), of, at(msg[0]), at(scratch), at(y), sum);
      if (mb.is_last_stage()) mb.report_loss(loss);
      msg = std::move(y);
    });
    co_await mb.send_activation(std::move(msg));
    msg = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      slowed_pass const whole;
      if (model_.uses_gradient_in_w()) keep.dy = msg[0];
      keep.gradients = ctx.allocate(bytes(model_.keeps().gradients));
      zbpp::buffer dx;
      if (!model_.is_first()) dx = ctx.allocate_edge(bytes(model_.floats_in()));
      auto const scratch = ctx.allocate(bytes(model_.keeps().scratch));
      model_.backward_input(keep.first(), of, at(msg[0]), at(scratch), at(dx), sum);
      keep.until_b = {};
      msg = std::move(dx);
    });
    co_await mb.send_gradient(std::move(msg));
    co_await zbpp::W([&](zbpp::pass_context ctx) {
      slowed_pass const whole;
      auto const scratch = ctx.allocate(bytes(model_.keeps().scratch));
      model_.backward_weight(keep.first(), of, at(keep.dy), at(scratch));
      keep = {};
    });
  }

  /// @return what steps the parameters of this stage
  [[nodiscard]] zbpp::optimizer& optimizer() { return optimizer_.rule(); }

  /// @return the chunk as trained so far
  [[nodiscard]] chunk const& model() const { return model_; }

  /// @return its place in the model
  [[nodiscard]] int stage() const { return stage_; }
  /// @return the replica of the model that it belongs to
  [[nodiscard]] int replica() const { return replica_; }
  /// @return its place in the tensor group that shares it
  [[nodiscard]] int member() const { return member_; }
  /// @return all that training changes, to be saved or set
  [[nodiscard]] stage_state state() {
    auto& all = model_.parameters();
    return {all.entries(), all.values(), optimizer_.mean(), optimizer_.square()};
  }
  /// Measures what an optimizer step takes, by steps that change the parameters.
  /// @param costs  get its times
  void measure_update(zbpp::stage_costs& costs) {
    // Own choice: the first finds cold caches, and the quickest of a few is not disturbed.
    constexpr int times = 6;
    zbpp::arena memory;
    zbpp::pass_context const at(memory);
    auto& rule = optimizer();
    std::vector<zbpp::gradient_state> gradients(static_cast<std::size_t>(rule.layers()));
    auto const quickest = [&](auto const& work) {
      auto least = std::numeric_limits<zbpp::ticks>::max();
      for (int i = 0; i < times; ++i) {
        auto const start = std::chrono::steady_clock::now();
        work();
        std::chrono::nanoseconds const took = std::chrono::steady_clock::now() - start;
        least = std::min<zbpp::ticks>(least, took.count());
      }
      return least;
    };
    if (how_.optimizer.needs_norm) costs.norm = quickest([&] { rule.measure(gradients, at); });
    costs.optimizer_step = quickest([&] { rule.step({.learning_rate = 1e-3}, at); });
  }

  /// Says how large everything is; times are left at 0.
  [[nodiscard]] zbpp::stage_costs sizes() const {
    auto const& keeps = model_.keeps();
    auto const dy = model_.uses_gradient_in_w() ? model_.floats_out() : 0;
    zbpp::stage_costs costs;
    costs.weight_gradient_input = bytes_of(keeps.until_w + keeps.gradients + dy);
    // Where the gradients are larger than what B frees, room for them is counted from F on: a
    // problem says what passes free, and nothing of what B adds.
    costs.activation =
        std::max(bytes_of(keeps.until_b + keeps.until_w), costs.weight_gradient_input);
    costs.edge = bytes_of(model_.is_last() ? 0 : model_.floats_out());
    costs.workspace = bytes_of(keeps.scratch);
    if (how_.replicas > 1) costs.gradients = bytes_of(std::ssize(model_.parameters().values()));
    if (how_.model.is_tied && (model_.is_first() || model_.is_last()))
      costs.tied = bytes_of(how_.model.words * how_.model.width);
    // Values, gradients, what Adam keeps of them (SGD half of that), and, where the norm may amend
    // a step, the values before.
    costs.static_memory =
        (how_.optimizer.needs_norm ? 5 : 4) * bytes_of(std::ssize(model_.parameters().values()));
    return costs;
  }

 private:
  // What a microbatch keeps between its passes.
  struct arrays {
    zbpp::buffer until_b, until_w, gradients, dy;

    [[nodiscard]] kept first() const { return {at(until_b), at(until_w), at(gradients)}; }
  };
  // Adds up over the members that share the stage; does nothing where there is one.
  [[nodiscard]] member_sum sum_over(zbpp::microbatch const& mb) const {
    if (how_.model.members == 1) return {};
    return [&members = mb.grid().tensor()](std::span<float> values) { members.all_reduce(values); };
  }
  // The first float of a buffer; null where it is none.
  [[nodiscard]] static float* at(zbpp::buffer const& all) { return all.as<float>().data(); }
  [[nodiscard]] static std::size_t bytes(index count) {
    return static_cast<std::size_t>(bytes_of(count));
  }

  training how_;
  text const* text_;
  int stage_;
  int replica_;
  int member_;
  int first_microbatch_;  // of this replica, in a step
  chunk model_;
  gpt::optimizer optimizer_;
};

/// Makes the stages of one rank of a grid, in the order of the model.
/// @param on  outlives the stages
[[nodiscard]] inline std::vector<chunk_stage> make_stages(
    training const& how,
    text const& on,
    zbpp::placement const& placement,
    zbpp::grid_coordinates const& at) {
  std::vector<chunk_stage> stages;
  auto const own = placement.stages_of(at.pipeline);
  stages.reserve(own.size());
  for (int const s : own) stages.emplace_back(how, on, placement.stages(), s, at.data, at.tensor);
  return stages;
}

/// Cuts the model in as many stages as a placement has.
/// @param on  outlives the stages
/// @return those of the first replica, of the members of its tensor groups in turn
[[nodiscard]] inline std::vector<chunk_stage> make_stages(
    training const& how, text const& on, zbpp::placement const& placement) {
  std::vector<chunk_stage> stages;
  auto const members = static_cast<int>(how.model.members);
  stages.reserve(static_cast<std::size_t>(members * placement.stages()));
  for (int member = 0; member < members; ++member)
    for (int s = 0; s < placement.stages(); ++s)
      stages.emplace_back(how, on, placement.stages(), s, 0, member);
  return stages;
}

/// @return those stages that one member has, of the stages of all in turn
[[nodiscard]] inline std::span<chunk_stage> stages_of_member(
    std::span<chunk_stage> all, int members, int member) {
  auto const count = all.size() / static_cast<std::size_t>(members);
  return all.subspan(static_cast<std::size_t>(member) * count, count);
}

/// Gives stages all that training has changed in others of the same cut.
inline void copy_state(std::span<chunk_stage> from, std::span<chunk_stage> to) {
  for (std::size_t s = 0; s < from.size(); ++s) {
    auto const given = from[s].state();
    auto const own = to[s].state();
    std::ranges::copy(given.parameters, own.parameters.begin());
    std::ranges::copy(given.mean, own.mean.begin());
    std::ranges::copy(given.square, own.square.begin());
  }
}

}  // namespace gpt
