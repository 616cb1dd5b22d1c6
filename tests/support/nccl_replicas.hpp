// SPDX-License-Identifier: Apache-2.0
//
// Replicas whose stages have weights, gradients and optimizer in memory of the model's GPUs, and
// what one process makes of the same steps, with sums in the order in which the model's NCCL adds
// up.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/detail/layer_rows.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/training.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <gpu_model/cuda/messages.hpp>
#include <support/cuda_optim.hpp>
#include <support/policy_grid.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace zbpp::test::replicas {

using zbpp::detail::index;

inline constexpr std::size_t width = 24;
inline constexpr std::array<std::size_t, 2> layer_sizes{10, 14};
inline constexpr bytes edge = width * sizeof(float);

using row = std::span<float>;
using const_row = std::span<float const>;

/// The arithmetic of a stage, which multiplies each number by a weight.
inline void make_batch(row x, int replica, std::int64_t step, int microbatch) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    auto const mixed = static_cast<std::uint32_t>(
        (static_cast<std::uint64_t>(replica) * 7919 + static_cast<std::uint64_t>(step) * 104'729 +
         static_cast<std::uint64_t>(microbatch) * 1'299'709 + i * 15'485'863 + 1) *
        2'654'435'761U);
    x[i] = static_cast<float>(mixed >> 8U) / 16'777'216.0F - 0.3F;
  }
}
inline void multiply(const_row a, const_row b, row to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = a[i] * b[i];
}
inline void add_product(const_row a, const_row b, row to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += a[i] * b[i];
}
inline void loss_gradient(const_row y, row to, float scale = 1) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = (y[i] - 1) * scale;
}
[[nodiscard]] inline float first_weight(int stage, std::size_t i) {
  return 1.0F + 0.01F * static_cast<float>((static_cast<std::size_t>(stage) * 5 + i) % 17);
}

/// @return the layers of a stage, the first of which may be tied
[[nodiscard]] inline std::vector<optim::layer> layers_of(row weights, row gradients, bool ties) {
  std::vector<optim::layer> all;
  std::size_t first = 0;
  for (auto const size : layer_sizes) {
    all.push_back(
        {.weights = weights.subspan(first, size),
         .gradients = gradients.subspan(first, size),
         .is_tied = ties && all.empty()});
    first += size;
  }
  return all;
}

/// Says which replica has an infinite gradient in its last stage, and in which step.
struct infinite_gradient {
  int replica = -1;
  std::int64_t step = -1;
};

/// A stage on the GPU that is current when it is made.
class stage {
 public:
  stage(int number, int replica, bool ties, infinite_gradient bad = {})
      : replica_(replica),
        bad_(bad),
        weights_(width),
        gradients_(width),
        steps_(layers_of(weights(), gradients(), ties)) {
    for (std::size_t i = 0; i < width; ++i) weights()[i] = first_weight(ties ? 0 : number, i);
    for (std::size_t i = layer_sizes[0]; i < width; ++i) weights()[i] = first_weight(number, i);
    std::ranges::fill(gradients(), 0.0F);
    for (auto const& all : {weights(), gradients()})
      cuda_model::host_writes(all.data(), all.size_bytes());
  }

  flow operator()(microbatch mb) {
    buffer x;
    buffer y;
    buffer dy;
    buffer dx;
    auto in = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) {
      x = mb.is_first_stage() ? batch(mb, ctx) : buffer(in);
      y = forward(x, mb, ctx);
    });
    co_await mb.send_activation(y);
    co_await R([] {});
    auto back = co_await mb.recv_gradient();
    auto const backward = [&](pass_context ctx) {
      dy = mb.is_last_stage() ? gradient_of_loss(y, mb, ctx) : buffer(back);
      dx = product(dy.as<float>(), weights(), ctx);
      y.reset();
    };
    if (mb.is_fused()) {
      co_await BW([&](pass_context ctx) {
        backward(ctx);
        add_gradients(x, dy, mb, ctx);
      });
      co_await mb.send_gradient(std::move(dx));
    } else {
      co_await B(backward);
      co_await mb.send_gradient(std::move(dx));
      co_await W([&](pass_context ctx) { add_gradients(x, dy, mb, ctx); });
    }
  }
  gpu_optim::on_gpu<cuda::detail::sgd_rule>& optimizer() { return steps_; }

  [[nodiscard]] row weights() const noexcept { return {weights_.data(), width}; }
  [[nodiscard]] row gradients() const noexcept { return {gradients_.data(), width}; }

 private:
  [[nodiscard]] static cuda_model::range range_of(const_row of) noexcept {
    return {of.data(), of.size_bytes()};
  }
  [[nodiscard]] buffer batch(microbatch mb, pass_context ctx) const {
    auto made = ctx.allocate(edge);
    auto const x = made.as<float>();
    auto const work = [x, replica = replica_, step = mb.step(), number = mb.index()] {
      make_batch(x, replica, step, number);
    };
    cuda::check(cuda_model::launch(cuda::stream_of(ctx), "batch", {}, {range_of(x)}, work));
    return made;
  }
  [[nodiscard]] static buffer product(const_row a, const_row b, pass_context ctx) {
    auto made = ctx.allocate_edge(edge);
    auto const to = made.as<float>();
    cuda::check(cuda_model::launch(
        cuda::stream_of(ctx), "product", {range_of(a), range_of(b)}, {range_of(to)}, [=] {
          multiply(a, b, to);
        }));
    return made;
  }
  [[nodiscard]] buffer forward(buffer const& x, microbatch mb, pass_context ctx) const {
    auto made = product(x.as<float>(), weights(), ctx);
    if (!mb.is_last_stage()) return made;
    auto* const loss = cuda::loss_slot(mb, ctx);
    const_row const y = made.as<float>();
    cuda::check(cuda_model::launch(
        cuda::stream_of(ctx), "loss", {range_of(y)}, {{loss, sizeof(float)}}, [=] {
          *loss = y[0] + y[width - 1];
        }));
    return made;
  }
  [[nodiscard]] static buffer gradient_of_loss(buffer const& y, microbatch mb, pass_context ctx) {
    auto made = ctx.allocate(edge);
    const_row const from = y.as<float>();
    auto const to = made.as<float>();
    cuda::check(cuda_model::launch(
        cuda::stream_of(ctx),
        "loss gradient",
        {range_of(from)},
        {range_of(to)},
        [=, scale = static_cast<float>(mb.loss_scale())] { loss_gradient(from, to, scale); }));
    return made;
  }
  void add_gradients(buffer const& x, buffer const& dy, microbatch mb, pass_context ctx) const {
    const_row const a = x.as<float>();
    const_row const b = dy.as<float>();
    auto const to = gradients();
    bool const is_bad = mb.is_last_stage() && bad_.replica == replica_ && bad_.step == mb.step();
    cuda::check(cuda_model::launch(
        cuda::stream_of(ctx), "W", {range_of(a), range_of(b), range_of(to)}, {range_of(to)}, [=] {
          add_product(a, b, to);
          if (is_bad) to[1] = std::numeric_limits<float>::infinity();
        }));
  }

  int replica_;
  infinite_gradient bad_;
  cuda::device_array<float> weights_;
  cuda::device_array<float> gradients_;
  gpu_optim::on_gpu<cuda::detail::sgd_rule> steps_;
};

/// Says how replicas train.
struct training {
  int count = 2;  ///< of replicas
  int steps = 6;
  double clip = 0;
  infinite_gradient bad{};
  int accumulate = 1;
  loss_scaling scaling{};  // by powers of two, so the reference has the same bits without

  [[nodiscard]] static double rate(std::int64_t updates) {
    return 0.01 / (1.0 + static_cast<double>(updates));
  }
  [[nodiscard]] training_options options(plan const& planned) const {
    training_options all{
        .clip = clip, .learning_rate = rate, .scaling = scaling, .accumulate = accumulate};
    if (agrees_on_steps(planned.program())) all.window = {.steps = 4, .most_amended = 3};
    return all;
  }
};

/// The weights of all stages.
using weights = std::vector<std::vector<float>>;

/// @return the costs of some stages; where some are tied, those of the first and the last one
[[nodiscard]] inline std::vector<stage_costs> costs_of(int stages, bool ties) {
  auto costs = uneven_costs();
  costs.edge = edge;
  std::vector all(index(stages), costs);
  if (ties) all.front().tied = all.back().tied = layer_sizes[0] * sizeof(float);
  return all;
}

/// Trains as one process would that has all replicas, and adds up as the model of NCCL does.
class reference {
 public:
  reference(plan const& planned, training const& by)
      : planned_(planned), by_(by), weights_(index(planned.problem().stages())) {
    auto const count = weights_.size();
    sums_.assign(count, std::vector<float>(width));
    of_replicas_.assign(index(by.count), sums_);
    for (std::size_t s = 0; s < count; ++s) {
      bool const ties = planned.problem().costs(static_cast<int>(s)).tied > 0;
      weights_[s].resize(width);
      for (std::size_t i = 0; i < width; ++i)
        weights_[s][i] = first_weight(ties && i < layer_sizes[0] ? 0 : static_cast<int>(s), i);
      optimizers_.emplace_back(layers_of(weights_[s], sums_[s], false));
    }
  }

  [[nodiscard]] weights const& train() {
    for (int step = 0; step < by_.steps; ++step) {
      for (int replica = 0; replica < by_.count; ++replica) add_gradients(replica, step);
      if ((step + 1) % by_.accumulate != 0) continue;
      add_up();
      update();
    }
    return weights_;
  }
  /// @return the norm of each step that was agreed on
  [[nodiscard]] std::vector<double> const& norms() const noexcept { return norms_; }

 private:
  void add_gradients(int replica, int step) {
    auto const count = weights_.size();
    for (int mb = 0; mb < planned_.problem().microbatches(); ++mb) {
      std::vector<std::vector<float>> x(count + 1, std::vector<float>(width));
      make_batch(x[0], replica, step, mb);
      for (std::size_t s = 0; s < count; ++s) multiply(x[s], weights_[s], x[s + 1]);
      std::vector<float> dy(width);
      loss_gradient(x[count], dy);
      for (std::size_t s = count; s-- > 0;) {
        auto& to = of_replicas_[index(replica)][s];
        add_product(x[s], dy, to);
        if (s + 1 == count && by_.bad.replica == replica && by_.bad.step == step)
          to[1] = std::numeric_limits<float>::infinity();
        multiply(dy, weights_[s], dy);
      }
    }
  }
  void add_up() {
    auto const replicas = index(by_.count);
    for (std::size_t s = 0; s < sums_.size(); ++s) {
      std::size_t first = 0;
      for (auto const size : layer_sizes) {
        for (std::size_t i = 0; i < size; ++i) {
          auto const begin = cuda_model::first_in_sum(i, size, replicas);
          auto& sum = sums_[s][first + i];
          sum = of_replicas_[begin][s][first + i];
          for (std::size_t next = 1; next < replicas; ++next)
            sum += of_replicas_[(begin + next) % replicas][s][first + i];
        }
        first += size;
      }
    }
    for (auto& replica : of_replicas_)
      for (auto& stage : replica) std::ranges::fill(stage, 0.0F);
    auto const tied = planned_.problem().tied_stages();
    for (std::size_t i = 0; !tied.empty() && i < layer_sizes[0]; ++i) {
      auto sum = sums_[index(tied.front())][i];
      for (std::size_t k = 1; k < tied.size(); ++k) sum += sums_[index(tied[k])][i];
      for (int const s : tied) sums_[index(s)][i] = sum;
    }
  }
  void update() {
    auto const tied = planned_.problem().tied_stages();
    std::vector<gradient_state> states;
    std::vector<bool> is_finite;
    for (std::size_t s = 0; s < sums_.size(); ++s) {
      std::array<gradient_state, layer_sizes.size()> own{};
      optimizers_[s].measure(own, pass_context(memory_));
      is_finite.push_back(own[0].is_finite && own[1].is_finite);
      bool const is_counted = planned_.problem().costs(static_cast<int>(s)).tied == 0 ||
                              static_cast<int>(s) == tied.front();
      states.insert(states.end(), own.begin() + (is_counted ? 0 : 1), own.end());
    }
    auto const verdict = judge(states, by_.clip, 1);
    norms_.push_back(verdict.norm);
    step_settings const settings{
        .updates = updates_,
        .learning_rate = training::rate(updates_),
        .coefficient = verdict.coefficient};
    for (auto& each : optimizers_) {
      if (verdict.is_finite)
        each.step(settings, pass_context(memory_));
      else
        each.skip(pass_context(memory_));
    }
    updates_ += verdict.is_finite ? 1 : 0;
  }

  plan const& planned_;
  training by_;
  arena memory_;
  weights weights_;
  weights sums_;
  std::vector<weights> of_replicas_;
  std::vector<optim::sgd> optimizers_;
  std::vector<double> norms_;
  std::int64_t updates_ = 0;
};

}  // namespace zbpp::test::replicas
