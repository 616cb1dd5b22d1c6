// SPDX-License-Identifier: Apache-2.0
//
// A small network whose stages are shared by the members of a tensor group: each is two products,
// the first divided by columns, the second by rows, with a bias behind their sum and a gain. What
// `train_alone` gives is one process that computes the part of each member and adds partial sums in
// the order of the members.
#pragma once

#include <zbpp/optim/adamw.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/training.hpp>

#include <support/checked_model.hpp>
#include <support/policy_grid.hpp>
#include <support/step_rules.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace zbpp::test::tensor {

inline constexpr std::size_t tokens = 6;
inline constexpr std::size_t width = 4;
inline constexpr std::size_t hidden = 6;  // of all members together
inline constexpr bytes edge = tokens * width * sizeof(float);

using checked::history;
using checked::noise;
using values = std::vector<float>;

/// Where a gradient of one member is changed, or its W throws.
struct fault_at {
  std::int64_t step = 0;
  int stage = 0;
  int microbatch = 0;
  int member = 0;
  float value = std::numeric_limits<float>::infinity();
  bool is_replicated = false;  ///< of a layer that all members have whole
  bool is_thrown = false;
};

/// Says what network is trained, and how.
struct model_settings {
  int stages = 1;
  int members = 2;            ///< of the tensor group
  bool sends_shares = false;  ///< each member sends its share of an edge, rather than all of it
  bool leaves_tokens_out = false;  ///< from gradients of replicated layers, as a faulty stage may
  int first_batch = 0;             ///< added to the numbers of microbatches, for other data
  optim::undo_method undo = optim::undo_method::weights;
  std::vector<fault_at> faults{};
};

/// Gives every stage uneven costs.
[[nodiscard]] inline problem make_problem(
    placement const& placement, int microbatches, model_settings const& settings) {
  auto all = uneven_costs();
  all.edge = settings.sends_shares ? edge / settings.members : edge;
  all.recompute = {};
  return {placement, microbatches, all, transfer_costs(87)};
}

/// What one microbatch keeps on one member.
struct kept_pass {
  values x;   // tokens x width
  values h;   // tokens x own columns
  values t;   // tokens x width, behind the sum
  values dz;  // made by B, for W
  values dh;
  values dy;
};

/// The part of a stage that one member has, and its arithmetic, which pipelines and the plain loop
/// share.
class block {
 public:
  block(model_settings const& settings, int stage, int member)
      : settings_(settings),
        stage_(stage),
        member_(member),
        columns_(hidden / static_cast<std::size_t>(settings.members)),
        sizes_{columns_ * width, columns_, width * columns_, width, width} {
    for (std::size_t k = 0; k < sizes_.size(); ++k) {
      weights_.emplace_back(sizes_[k]);
      gradients_.emplace_back(sizes_[k]);
      bool const is_part = k < 3;
      for (std::size_t i = 0; i < sizes_[k]; ++i)
        weights_[k][i] = (k == 4 ? 1.0F : 0.0F) +
                         0.8F * noise(11 + (is_part ? 100 * key(member) : 0), key(stage), k, i);
    }
  }

  /// @return its layers, of which the last two are replicated
  [[nodiscard]] std::vector<optim::layer> layers() {
    std::vector<optim::layer> all;
    for (std::size_t k = 0; k < weights_.size(); ++k)
      all.push_back(
          {.weights = weights_[k],
           .gradients = gradients_[k],
           .decays = k != 1 && k < 3,
           .is_replicated = k >= 3});
    return all;
  }
  [[nodiscard]] std::vector<values> const& weights() const { return weights_; }
  [[nodiscard]] std::vector<values>& gradients() { return gradients_; }

  [[nodiscard]] values batch(std::int64_t step, int m) const {
    values x(tokens * width);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = noise(key(step), key(m + settings_.first_batch), 3, i);
    return x;
  }
  /// @return the part of this member of the sum that makes the output
  [[gnu::noinline]] values forward(kept_pass& kept, values x) const {
    kept.x = std::move(x);
    kept.h.assign(tokens * columns_, 0);
    values part(tokens * width);
    for (std::size_t n = 0; n < tokens; ++n) {
      for (std::size_t c = 0; c < columns_; ++c) {
        float sum = weights_[1][c];
        for (std::size_t i = 0; i < width; ++i)
          sum += weights_[0][c * width + i] * kept.x[n * width + i];
        kept.h[n * columns_ + c] = std::tanh(sum);
      }
      for (std::size_t o = 0; o < width; ++o)
        for (std::size_t c = 0; c < columns_; ++c)
          part[n * width + o] += weights_[2][o * columns_ + c] * kept.h[n * columns_ + c];
    }
    return part;
  }
  /// @return the output, the same on all members
  [[gnu::noinline]] values finish_forward(kept_pass& kept, values sum) const {
    kept.t = std::move(sum);
    values y(tokens * width);
    for (std::size_t i = 0; i < y.size(); ++i) {
      kept.t[i] = std::tanh(kept.t[i] + weights_[3][i % width]);
      y[i] = kept.t[i] * weights_[4][i % width];
    }
    return y;
  }
  [[gnu::noinline]] double loss(values const& y, std::int64_t step, int m) const {
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      auto const off = static_cast<double>(y[i] - target(step, m, i));
      sum += 0.5 * off * off;
    }
    return sum;
  }
  [[gnu::noinline]] values loss_gradient(
      values const& y, std::int64_t step, int m, double scale) const {
    values d(y.size());
    for (std::size_t i = 0; i < y.size(); ++i)
      d[i] = (y[i] - target(step, m, i)) * static_cast<float>(scale);
    return d;
  }
  /// @return the part of this member of the sum that makes the gradient of the input
  [[gnu::noinline]] values backward_input(kept_pass& kept, values dy) const {
    kept.dy = std::move(dy);
    kept.dz.assign(tokens * width, 0);
    kept.dh.assign(tokens * columns_, 0);
    values part(tokens * width);
    for (std::size_t n = 0; n < tokens; ++n) {
      for (std::size_t o = 0; o < width; ++o) {
        auto const i = n * width + o;
        kept.dz[i] = kept.dy[i] * weights_[4][o] * (1 - kept.t[i] * kept.t[i]);
      }
      for (std::size_t c = 0; c < columns_; ++c) {
        float sum = 0;
        for (std::size_t o = 0; o < width; ++o)
          sum += weights_[2][o * columns_ + c] * kept.dz[n * width + o];
        auto const h = kept.h[n * columns_ + c];
        kept.dh[n * columns_ + c] = sum * (1 - h * h);
        for (std::size_t i = 0; i < width; ++i)
          part[n * width + i] += weights_[0][c * width + i] * kept.dh[n * columns_ + c];
      }
    }
    return part;
  }
  [[gnu::noinline]] void backward_weight(kept_pass const& kept, std::int64_t step, int m) {
    for (std::size_t n = 0; n < tokens; ++n) {
      for (std::size_t c = 0; c < columns_; ++c) {
        auto const dh = kept.dh[n * columns_ + c];
        for (std::size_t i = 0; i < width; ++i)
          gradients_[0][c * width + i] += dh * kept.x[n * width + i];
        gradients_[1][c] += dh;
        for (std::size_t o = 0; o < width; ++o)
          gradients_[2][o * columns_ + c] += kept.dz[n * width + o] * kept.h[n * columns_ + c];
      }
      bool const is_left_out = settings_.leaves_tokens_out && n % 2 != key(member_) % 2;
      for (std::size_t o = 0; o < width && !is_left_out; ++o) {
        gradients_[3][o] += kept.dz[n * width + o];
        gradients_[4][o] += kept.dy[n * width + o] * kept.t[n * width + o];
      }
    }
    for (auto const& f : settings_.faults) {
      if (f.step != step || f.stage != stage_ || f.microbatch != m || f.member != member_) continue;
      if (f.is_thrown) throw std::runtime_error("thrown by the test");
      gradients_[f.is_replicated ? 3 : 2].back() += f.value;
    }
  }

 private:
  template <class Number>
  [[nodiscard]] static std::uint64_t key(Number number) {
    return static_cast<std::uint64_t>(number);
  }
  [[nodiscard]] static float target(std::int64_t step, int m, std::size_t i) {
    return noise(key(step), key(m), 5, i);
  }

  model_settings settings_;
  int stage_;
  int member_;
  std::size_t columns_;
  std::vector<std::size_t> sizes_;
  std::vector<values> weights_;  // of the first product, its bias, the second, its bias, the gain
  std::vector<values> gradients_;
};

/// The stage of a pipeline.
class stage {
 public:
  stage(block& own, optim::adamw& optimizer, bool sends_shares)
      : block_(&own), optimizer_(&optimizer), sends_shares_(sends_shares) {}

  flow operator()(microbatch mb) {
    auto& members = mb.grid().tensor();
    kept_pass kept;
    values y;
    message in = co_await mb.recv_activation();
    buffer out;
    co_await F([&](pass_context ctx) {
      auto x = mb.is_first_stage() ? block_->batch(mb.step(), mb.index()) : gather(in[0], members);
      y = block_->forward(kept, std::move(x));
      members.all_reduce(y);
      y = block_->finish_forward(kept, std::move(y));
      std::span<float const> share(y);
      if (sends_shares_) {
        auto const size = y.size() / static_cast<std::size_t>(members.size());
        share = share.subspan(static_cast<std::size_t>(members.place()) * size, size);
      }
      out = copy(share, ctx);
      if (mb.is_last_stage()) mb.report_loss(block_->loss(y, mb.step(), mb.index()));
    });
    in.clear();
    co_await mb.send_activation(std::move(out));
    message const back = co_await mb.recv_gradient();
    auto b = [&](pass_context ctx) {
      auto d = mb.is_last_stage() ? block_->loss_gradient(y, mb.step(), mb.index(), mb.loss_scale())
                                  : gather(back[0], members);
      d = block_->backward_input(kept, std::move(d));
      if (sends_shares_) {
        values share(d.size() / static_cast<std::size_t>(members.size()));
        members.reduce_scatter(d, share);
        d = std::move(share);
      } else {
        members.all_reduce(d);
      }
      out = copy(d, ctx);
    };
    auto w = [&](pass_context) { block_->backward_weight(kept, mb.step(), mb.index()); };
    if (mb.is_fused()) {
      auto both = [&](pass_context ctx) {
        b(ctx);
        w(ctx);
      };
      co_await BW(both);
      co_await mb.send_gradient(std::move(out));
    } else {
      co_await B(b);
      co_await mb.send_gradient(std::move(out));
      co_await W(w);
    }
  }
  [[nodiscard]] optim::adamw& optimizer() { return *optimizer_; }

 private:
  // What came over an edge, of which each member has its share or all.
  [[nodiscard]] values gather(buffer const& received, group& members) const {
    std::span<float const> const part = received.as<float>();
    if (!sends_shares_) return {part.begin(), part.end()};
    values all(part.size() * static_cast<std::size_t>(members.size()));
    members.all_gather(part, all);
    return all;
  }
  [[nodiscard]] static buffer copy(std::span<float const> from, pass_context ctx) {
    auto to = ctx.allocate_edge(from.size_bytes());
    std::memcpy(to.data(), from.data(), from.size_bytes());
    return to;
  }

  block* block_;
  optim::adamw* optimizer_;
  bool sends_shares_;
};

/// What one member has of all stages.
class model {
 public:
  model(model_settings const& settings, int member) {
    for (int s = 0; s < settings.stages; ++s) {
      auto& own = *blocks_.emplace_back(std::make_unique<block>(settings, s, member));
      auto& optimizer = *optimizers_.emplace_back(std::make_unique<optim::adamw>(
          own.layers(), optim::adamw_settings{.weight_decay = 0.01F, .undo = settings.undo}));
      stages_.emplace_back(own, optimizer, settings.sends_shares);
    }
  }
  [[nodiscard]] std::vector<stage>& stages() { return stages_; }
  [[nodiscard]] block& at(int stage) { return *blocks_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] optim::adamw& optimizer(int stage) {
    return *optimizers_[static_cast<std::size_t>(stage)];
  }
  /// @return all weights and moments, bit by bit
  [[nodiscard]] std::vector<std::uint32_t> bits() {
    values all;
    for (auto const& each : blocks_)
      for (auto const& w : each->weights()) all.insert(all.end(), w.begin(), w.end());
    for (auto& each : optimizers_)
      for (auto const moments : {each->mean(), each->mean_square()})
        all.insert(all.end(), moments.begin(), moments.end());
    std::vector<std::uint32_t> bits(all.size());
    std::memcpy(bits.data(), all.data(), all.size() * sizeof(float));
    return bits;
  }

 private:
  std::vector<std::unique_ptr<block>> blocks_;
  std::vector<std::unique_ptr<optim::adamw>> optimizers_;
  std::vector<stage> stages_;
};

/// Trains as one process would: a plain loop over replicas, microbatches and members, and the rules
/// of optimizer steps written out.
/// @param of_replicas  the settings of each, which differ in data and faults alone
/// @return by replica and member, what each gives
[[nodiscard]] inline std::vector<std::vector<history>> train_alone(
    std::vector<model_settings> const& of_replicas,
    int microbatches,
    int steps,
    training_options const& options) {
  auto const& settings = of_replicas.front();
  auto const members = static_cast<std::size_t>(settings.members);
  std::vector<std::vector<std::unique_ptr<model>>> replicas;
  for (auto const& each : of_replicas) {
    auto& own = replicas.emplace_back();
    for (std::size_t t = 0; t < members; ++t)
      own.push_back(std::make_unique<model>(each, static_cast<int>(t)));
  }
  auto const add_up = [](std::vector<values> const& parts) {
    auto sum = parts.front();
    for (std::size_t t = 1; t < parts.size(); ++t)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += parts[t][i];
    return sum;
  };
  arena memory;
  pass_context const ctx(memory);
  history common;
  std::vector<std::vector<std::vector<double>>> losses(replicas.size());
  step_rules rules(options);
  for (int step = 0; step < steps; ++step) {
    auto const scale = rules.scale();
    common.scales.push_back(scale);
    for (std::size_t n = 0; n < replicas.size(); ++n) {
      auto& own = replicas[n];
      auto& of_step = losses[n].emplace_back();
      for (int m = 0; m < microbatches; ++m) {
        std::vector<std::vector<kept_pass>> kept(
            static_cast<std::size_t>(settings.stages), std::vector<kept_pass>(members));
        auto x = own[0]->at(0).batch(step, m);
        for (int s = 0; s < settings.stages; ++s) {
          std::vector<values> parts;
          auto& of_stage = kept[static_cast<std::size_t>(s)];
          for (std::size_t t = 0; t < members; ++t)
            parts.push_back(own[t]->at(s).forward(of_stage[t], x));
          auto const sum = add_up(parts);
          for (std::size_t t = 0; t < members; ++t)
            x = own[t]->at(s).finish_forward(of_stage[t], sum);
        }
        auto& last = own[0]->at(settings.stages - 1);
        of_step.push_back(last.loss(x, step, m));
        auto d = last.loss_gradient(x, step, m, scale);
        for (int s = settings.stages - 1; s >= 0; --s) {
          std::vector<values> parts;
          auto& of_stage = kept[static_cast<std::size_t>(s)];
          for (std::size_t t = 0; t < members; ++t)
            parts.push_back(own[t]->at(s).backward_input(of_stage[t], d));
          d = add_up(parts);
          for (std::size_t t = 0; t < members; ++t)
            own[t]->at(s).backward_weight(of_stage[t], step, m);
        }
      }
    }
    if (!rules.is_due(step)) {
      common.norms.push_back(0);
      common.coefficients.push_back(1);
      continue;
    }
    for (std::size_t t = 0; t < members; ++t)
      for (int s = 0; s < settings.stages; ++s) {
        auto sums = replicas.front()[t]->at(s).gradients();
        for (std::size_t n = 1; n < replicas.size(); ++n)
          for (std::size_t k = 0; k < sums.size(); ++k)
            for (std::size_t i = 0; i < sums[k].size(); ++i)
              sums[k][i] += replicas[n][t]->at(s).gradients()[k][i];
        for (auto const& each : replicas) each[t]->at(s).gradients() = sums;
      }
    // Of a layer in parts all members count, in their order, of one that is replicated the first.
    double squares = 0;
    std::vector<bool> is_finite_stage(static_cast<std::size_t>(settings.stages), true);
    for (int s = 0; s < settings.stages; ++s) {
      std::vector<std::vector<gradient_state>> states(members);
      for (std::size_t t = 0; t < members; ++t) {
        auto& optimizer = replicas.front()[t]->optimizer(s);
        states[t].resize(static_cast<std::size_t>(optimizer.layers()));
        optimizer.measure(states[t], ctx);
      }
      for (std::size_t k = 0; k < states[0].size(); ++k) {
        double of_layer = 0;
        for (std::size_t t = 0; t < members; ++t) {
          if (!states[t][k].is_finite) {
            of_layer = std::numeric_limits<double>::infinity();
            is_finite_stage[static_cast<std::size_t>(s)] = false;
          }
          if (k < 3 || t == 0) of_layer += states[t][k].sum_of_squares;
        }
        if (std::isnan(of_layer)) of_layer = std::numeric_limits<double>::infinity();
        squares += of_layer;
      }
    }
    auto const found = rules.judge(squares);
    common.norms.push_back(found.norm);
    common.coefficients.push_back(found.coefficient);
    for (auto const& own : replicas)
      for (auto const& each : own)
        for (int s = 0; s < settings.stages; ++s) {
          bool const takes_step =
              found.is_agreed ? found.is_finite : is_finite_stage[static_cast<std::size_t>(s)];
          if (takes_step)
            each->optimizer(s).step(found.is_agreed ? found.together : found.alone, ctx);
          else
            each->optimizer(s).skip(ctx);
        }
  }
  std::vector<std::vector<history>> results(replicas.size());
  for (std::size_t n = 0; n < replicas.size(); ++n)
    for (std::size_t t = 0; t < members; ++t) {
      auto& result = results[n].emplace_back(common);
      result.losses = losses[n];
      result.bits = replicas[n][t]->bits();
    }
  return results;
}

}  // namespace zbpp::test::tensor
