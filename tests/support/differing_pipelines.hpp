// SPDX-License-Identifier: Apache-2.0
//
// Pipelines of a grid that can be made to differ in one thing each: replicas of a small network,
// and members of a tensor group of which one leaves out a collective call.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/rank_grid.hpp>

#include <support/checked_model.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::test::differing {

inline constexpr int ranks = 2;
inline constexpr int microbatches = 3;

/// @return a plan of two replicas of a `checked::model` with two stages
[[nodiscard]] inline plan replicated_plan(step_kind kind) {
  auto const alone = checked::make_problem(placement::linear(ranks), microbatches, 87, {});
  std::vector<stage_costs> costs(alone.all_costs().begin(), alone.all_costs().end());
  for (std::size_t s = 0; s < costs.size(); ++s)
    costs[s].gradients = static_cast<bytes>((1 + s % 2) * sizeof(checked::matrix));
  return make_plan(zb_h1{}, with_replicas(with_stages(alone, costs), {.count = 2}), {.step = kind});
}

/// @return a plan of pipelines of two `summing_stage`
[[nodiscard]] inline plan summing_plan(step_kind kind) {
  stage_costs const costs{
      .forward = 3, .backward_input = 2, .backward_weight = 1, .edge = sizeof(float)};
  return make_plan(zb_h1{}, problem(placement::linear(ranks), microbatches, costs), {.step = kind});
}

/// Names a collective call that a stage does not make.
enum class left_out : std::uint8_t { nothing, sum_in_f, exchange_in_f, last_sum_in_b };

/// @return the weights that a stage begins with
[[nodiscard]] inline std::array<float, 2> first_weights(int stage) {
  return {static_cast<float>(stage) + 1.5F, 2.5F};
}

/// A stage that adds up a few numbers with the members of its tensor group, and gives them some.
class summing_stage {
 public:
  summing_stage(left_out fault, std::array<float, 2> const& weights, bool is_replicated)
      : fault_(fault), own_(std::make_unique<parts>(weights, is_replicated)) {}

  [[nodiscard]] std::array<float, 2>& weights() { return own_->weights; }
  [[nodiscard]] optim::sgd& optimizer() { return own_->steps; }

  flow operator()(microbatch mb) {
    auto& members = mb.grid().tensor();
    message const in = co_await mb.recv_activation();
    buffer out;
    std::array<float, 8> sums{};
    std::vector<std::vector<float>> received;
    auto f = [&](pass_context ctx) {
      sums.fill(static_cast<float>(mb.index()));
      auto const fault = mb.index() == 1 ? fault_ : left_out::nothing;
      if (fault != left_out::sum_in_f) members.all_reduce(sums);
      std::span<float const> const all(sums);
      std::array const sent{all.first(0), all};
      if (fault != left_out::exchange_in_f) members.all_to_all(sent, received);
      out = ctx.allocate_edge(sizeof(float));
      if (mb.is_last_stage()) mb.report_loss(static_cast<double>(sums[0]));
    };
    co_await F(f);
    co_await mb.send_activation(std::move(out));
    message const back = co_await mb.recv_gradient();
    auto b = [&](pass_context ctx) {
      bool const is_last = mb.index() == microbatches - 1;
      if (!is_last || fault_ != left_out::last_sum_in_b) members.all_reduce(sums);
      out = ctx.allocate_edge(sizeof(float));
    };
    co_await B(b);
    co_await mb.send_gradient(std::move(out));
    co_await W([] {});
  }

 private:
  struct parts {
    parts(std::array<float, 2> const& first, bool is_replicated)
        : weights(first),
          steps(
              {{.weights = weights, .gradients = gradients, .is_replicated = is_replicated}}, {}) {}

    std::array<float, 2> weights;
    std::array<float, 2> gradients{};
    optim::sgd steps;
  };

  left_out fault_;
  std::unique_ptr<parts> own_;
};

}  // namespace zbpp::test::differing
