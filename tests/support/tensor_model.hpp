// SPDX-License-Identifier: Apache-2.0
//
// A small network whose stages are shared by the members of a tensor group: each is two products,
// the first divided by columns, the second by rows, with a bias behind their sum and a gain. What
// `train_alone` gives is one process that computes the part of each member and adds partial sums in
// the order of the members.
#pragma once

#include <zbpp/optim/adamw.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/training.hpp>

#include <support/checked_model.hpp>
#include <support/pass_order.hpp>
#include <support/plain_training.hpp>
#include <support/policy_grid.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
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

/// What a microbatch keeps of a stage, and its passes.
struct passes {
  block* own;
  bool sends_shares;
  kept_pass kept{};
  values y{};

  message forward(message const& in, microbatch mb, pass_context ctx) {
    auto& members = mb.grid().tensor();
    auto x = mb.is_first_stage() ? own->batch(mb.step(), mb.index()) : gather(in[0], members);
    y = own->forward(kept, std::move(x));
    members.all_reduce(y);
    y = own->finish_forward(kept, std::move(y));
    if (mb.is_last_stage()) mb.report_loss(own->loss(y, mb.step(), mb.index()));
    if (!sends_shares) return edge_of(y, ctx);
    auto const size = y.size() / static_cast<std::size_t>(members.size());
    return edge_of(
        std::span(y).subspan(static_cast<std::size_t>(members.place()) * size, size), ctx);
  }
  message backward(message const& back, microbatch mb, pass_context ctx) {
    auto& members = mb.grid().tensor();
    auto d = own->backward_input(
        kept,
        mb.is_last_stage() ? own->loss_gradient(y, mb.step(), mb.index(), mb.loss_scale())
                           : gather(back[0], members));
    if (!sends_shares) {
      members.all_reduce(d);
      return edge_of(d, ctx);
    }
    values share(d.size() / static_cast<std::size_t>(members.size()));
    members.reduce_scatter(d, share);
    return edge_of(share, ctx);
  }
  void weight(microbatch mb) { own->backward_weight(kept, mb.step(), mb.index()); }

  // What came over an edge, of which each member has its share or all.
  [[nodiscard]] values gather(buffer const& received, group& members) const {
    std::span<float const> const part = received.as<float>();
    if (!sends_shares) return {part.begin(), part.end()};
    values all(part.size() * static_cast<std::size_t>(members.size()));
    members.all_gather(part, all);
    return all;
  }
};

/// The stage of a pipeline.
class stage {
 public:
  stage(block& own, optim::adamw& optimizer, bool sends_shares)
      : block_(&own), optimizer_(&optimizer), sends_shares_(sends_shares) {}

  flow operator()(microbatch mb) { return in_order(passes{block_, sends_shares_}, mb); }
  [[nodiscard]] optim::adamw& optimizer() { return *optimizer_; }

 private:
  block* block_;
  optim::adamw* optimizer_;
  bool sends_shares_;
};

/// What one member has of all stages.
class model {
 public:
  model(model_settings const& settings, int member) {
    for (int s = 0; s < settings.stages; ++s) {
      auto& own = blocks_.emplace_back(settings, s, member);
      stages_.emplace_back(
          own,
          optimizers_.emplace_back(
              own.layers(), optim::adamw_settings{.weight_decay = 0.01F, .undo = settings.undo}),
          settings.sends_shares);
    }
  }
  [[nodiscard]] std::vector<stage>& stages() { return stages_; }
  [[nodiscard]] block& at(int stage) { return blocks_[static_cast<std::size_t>(stage)]; }
  /// @return what a plain loop trains
  [[nodiscard]] checked::plain_pipeline plain() {
    checked::plain_pipeline all;
    for (std::size_t s = 0; s < blocks_.size(); ++s)
      all.push_back({blocks_[s].layers(), &optimizers_[s]});
    return all;
  }
  /// @return all weights and moments, bit by bit
  [[nodiscard]] std::vector<std::uint32_t> bits() {
    values all;
    for (auto const& each : blocks_)
      for (auto const& w : each.weights()) all.insert(all.end(), w.begin(), w.end());
    for (auto& each : optimizers_)
      for (auto const moments : {each.mean(), each.mean_square()})
        all.insert(all.end(), moments.begin(), moments.end());
    return checked::bits_of(all);
  }

 private:
  std::deque<block> blocks_;
  std::deque<optim::adamw> optimizers_;
  std::vector<stage> stages_;
};

/// Trains as one process would, in a plain loop over replicas, microbatches and members.
/// @param of_replicas  the settings of each, which differ in data and faults alone
/// @return by replica and member, what each gives
[[nodiscard]] inline std::vector<std::vector<history>> train_alone(
    std::vector<model_settings> const& of_replicas,
    int microbatches,
    int steps,
    training_options const& options) {
  auto const& settings = of_replicas.front();
  std::vector<std::deque<model>> replicas(of_replicas.size());
  std::vector<std::vector<checked::plain_pipeline>> all(of_replicas.size());
  for (std::size_t n = 0; n < replicas.size(); ++n)
    for (int t = 0; t < settings.members; ++t)
      all[n].push_back(replicas[n].emplace_back(of_replicas[n], t).plain());
  auto const run = [&](int step, double scale) {
    std::vector<std::vector<double>> losses;
    for (auto& own : replicas) {
      losses.emplace_back();
      for (int m = 0; m < microbatches; ++m) {
        std::vector<std::vector<kept_pass>> kept(
            static_cast<std::size_t>(settings.stages), std::vector<kept_pass>(own.size()));
        auto x = own[0].at(0).batch(step, m);
        // Adds up what the members of a stage give, in their order.
        auto const sum_of = [&](int s, auto const& part) {
          auto& of_stage = kept[static_cast<std::size_t>(s)];
          auto sum = part(own[0].at(s), of_stage[0]);
          for (std::size_t t = 1; t < own.size(); ++t) {
            auto const more = part(own[t].at(s), of_stage[t]);
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
          }
          return sum;
        };
        for (int s = 0; s < settings.stages; ++s) {
          auto const sum =
              sum_of(s, [&](block const& of, kept_pass& by) { return of.forward(by, x); });
          for (std::size_t t = 0; t < own.size(); ++t)
            x = own[t].at(s).finish_forward(kept[static_cast<std::size_t>(s)][t], sum);
        }
        auto const& last = own[0].at(settings.stages - 1);
        losses.back().push_back(last.loss(x, step, m));
        auto d = last.loss_gradient(x, step, m, scale);
        for (int s = settings.stages - 1; s >= 0; --s) {
          d = sum_of(s, [&](block const& of, kept_pass& by) { return of.backward_input(by, d); });
          for (std::size_t t = 0; t < own.size(); ++t)
            own[t].at(s).backward_weight(kept[static_cast<std::size_t>(s)][t], step, m);
        }
      }
    }
    return losses;
  };
  auto const common = checked::train_plainly(all, steps, options, {}, run);
  std::vector<std::vector<history>> results(replicas.size());
  for (std::size_t n = 0; n < replicas.size(); ++n)
    for (auto& own : replicas[n]) results[n].emplace_back(common[n]).bits = own.bits();
  return results;
}

}  // namespace zbpp::test::tensor
