// SPDX-License-Identifier: Apache-2.0
//
// A small network whose stages have optimizers: dense layers with tanh and dropout, gradients that
// overflow where those of fp16 would, and faults at chosen places. `train_alone` is what one
// process gives with the same arithmetic and a plain loop.
#pragma once

#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/training.hpp>

#include <support/pass_order.hpp>
#include <support/plain_training.hpp>
#include <support/policy_grid.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace zbpp::test::checked {

inline constexpr std::size_t width = 4;
inline constexpr bytes edge = width * sizeof(float);

/// Costs for these stages, which cannot recompute.
[[nodiscard]] inline stage_costs costs() {
  auto all = uneven_costs();
  all.edge = edge;
  all.recompute = {};
  return all;
}

/// Where a gradient is made infinite or not a number.
struct fault_at {
  std::int64_t step = 0;
  int stage = 0;
  int microbatch = 0;
  float value = std::numeric_limits<float>::infinity();
};

/// Says what network is trained, and how.
struct model_settings {
  int stages = 1;
  bool dropout = false;
  bool has_frozen_stage = false;  ///< stage 1 where there are three
  bool uses_adamw = true;
  optim::undo_method undo = optim::undo_method::weights;
  float loss_weight = 1;  ///< makes gradients larger
  int first_batch = 0;    ///< added to the numbers of microbatches, for other data
  std::vector<fault_at> faults{};
  std::vector<int> tied{};        ///< stages with tied layers, in ascending order
  bool ties_first_layers = true;  ///< only the first layers of these stages, rather than all
  std::vector<int> at_once{};     ///< stages that do not wait for the norm

  [[nodiscard]] bool is_tied(int stage, std::size_t layer) const {
    return std::find(tied.begin(), tied.end(), stage) != tied.end() &&
           (layer == 0 || !ties_first_layers);
  }
};

/// Gives a number in [-1, 1) that depends on the keys alone.
[[nodiscard]] inline float noise(
    std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15U + b * 0xBF58476D1CE4E5B9U + c * 0x94D049BB133111EBU + d;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-23F - 1;
}

using vector = std::array<float, width>;
using matrix = std::array<float, width * width>;

/// Gives every stage `costs()`, and some of them tied weights.
[[nodiscard]] inline problem make_problem(
    placement const& placement,
    int microbatches,
    transfer_costs transfer,
    std::vector<int> const& tied) {
  std::vector<stage_costs> all(static_cast<std::size_t>(placement.stages()), costs());
  for (int s : tied) all[static_cast<std::size_t>(s)].tied = sizeof(matrix);
  return {placement, microbatches, std::move(all), std::move(transfer)};
}

/// What one microbatch keeps of a layer.
struct kept_layer {
  vector x;
  vector y;
  vector dz;
};

/// The weights of one stage and its arithmetic, which pipelines and the plain loop share.
class stage_maths {
 public:
  stage_maths(model_settings const& settings, int stage)
      : settings_(settings), stage_(stage), weights_(1 + static_cast<std::size_t>(stage) % 2) {
    for (std::size_t k = 0; k < weights_.size(); ++k)
      for (std::size_t i = 0; i < width * width; ++i)
        weights_[k][i] = settings.is_tied(stage, k)
                             ? 0.8F * noise(11, 99, 99, i)
                             : 0.8F * noise(11, static_cast<std::uint64_t>(stage), k, i);
    gradients_.assign(weights_.size(), matrix{});
  }

  /// Makes F of a microbatch throw, once.
  void throw_in(std::int64_t step, int microbatch) { failing_ = {step, microbatch, false}; }
  /// Makes W of a microbatch throw, once.
  void throw_in_w(std::int64_t step, int microbatch) { failing_ = {step, microbatch, true}; }

  [[nodiscard]] std::size_t layers() const { return weights_.size(); }
  [[nodiscard]] std::vector<optim::layer> optimized() {
    std::vector<optim::layer> all;
    for (std::size_t k = 0; k < layers(); ++k)
      all.push_back({weights_[k], gradients_[k], settings_.is_tied(stage_, k)});
    return all;
  }
  [[nodiscard]] std::vector<matrix> const& weights() const { return weights_; }
  [[nodiscard]] std::vector<matrix> const& gradients() const { return gradients_; }
  void set_gradients(std::vector<matrix> const& all) { gradients_ = all; }
  [[nodiscard]] matrix& gradient(std::size_t layer) { return gradients_[layer]; }

  [[gnu::noinline]] vector forward(
      std::vector<kept_layer>& kept, vector x, std::int64_t step, int m) {
    fail_if(step, m, false);
    if (stage_ == 0)
      for (std::size_t i = 0; i < width; ++i)
        x[i] = noise(
            static_cast<std::uint64_t>(step),
            static_cast<std::uint64_t>(m + settings_.first_batch),
            3,
            i);
    kept.resize(layers());
    for (std::size_t k = 0; k < layers(); ++k) {
      kept[k].x = x;
      for (std::size_t o = 0; o < width; ++o) {
        float sum = 0;
        for (std::size_t i = 0; i < width; ++i) sum += weights_[k][o * width + i] * x[i];
        kept[k].y[o] = std::tanh(sum);
      }
      x = kept[k].y;
      for (std::size_t o = 0; o < width; ++o) x[o] *= mask(step, m, k, o);
    }
    return x;
  }
  [[gnu::noinline]] double loss(vector const& y, std::int64_t step, int m) const {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) {
      auto const off = static_cast<double>(y[i] - target(step, m, i));
      sum += 0.5 * off * off * static_cast<double>(settings_.loss_weight);
    }
    return sum;
  }
  [[gnu::noinline]] vector loss_gradient(
      vector const& y, std::int64_t step, int m, double scale) const {
    vector d;
    for (std::size_t i = 0; i < width; ++i)
      d[i] = (y[i] - target(step, m, i)) * settings_.loss_weight * static_cast<float>(scale);
    return d;
  }
  [[gnu::noinline]] vector backward_input(
      std::vector<kept_layer>& kept, vector d, std::int64_t step, int m) const {
    for (std::size_t k = layers(); k-- > 0;) {
      vector dx{};
      for (std::size_t o = 0; o < width; ++o) {
        auto const y = kept[k].y[o];
        kept[k].dz[o] = in_half(d[o] * mask(step, m, k, o) * (1 - y * y));
        for (std::size_t i = 0; i < width; ++i) dx[i] += weights_[k][o * width + i] * kept[k].dz[o];
      }
      d = dx;
    }
    return d;
  }
  [[gnu::noinline]] void backward_weight(
      std::vector<kept_layer> const& kept, std::int64_t step, int m) {
    fail_if(step, m, true);
    for (std::size_t k = 0; k < layers(); ++k)
      for (std::size_t o = 0; o < width; ++o)
        for (std::size_t i = 0; i < width; ++i)
          gradients_[k][o * width + i] += kept[k].dz[o] * kept[k].x[i];
    for (auto const& f : settings_.faults)
      if (f.step == step && f.stage == stage_ && f.microbatch == m)
        gradients_.back().back() += f.value;
  }

 private:
  void fail_if(std::int64_t step, int m, bool is_w) {
    if (failing_ != std::tuple(step, m, is_w)) return;
    failing_.reset();
    throw std::runtime_error("thrown by the test");
  }
  // What has no place in fp16 is infinite.
  [[nodiscard]] static float in_half(float value) {
    return std::abs(value) > 65504 ? std::copysign(std::numeric_limits<float>::infinity(), value)
                                   : value;
  }
  [[nodiscard]] float mask(std::int64_t step, int m, std::size_t layer, std::size_t i) const {
    if (!settings_.dropout) return 1;
    auto const key = static_cast<std::uint64_t>(stage_) * 100 + layer * 10 + i;
    auto const drawn =
        noise(7, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(m), key);
    return drawn < -0.5F ? 0.0F : 1.25F;
  }
  [[nodiscard]] static float target(std::int64_t step, int m, std::size_t i) {
    return noise(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(m), 5, i);
  }

  model_settings settings_;
  int stage_;
  std::vector<matrix> weights_;
  std::vector<matrix> gradients_;
  std::optional<std::tuple<std::int64_t, int, bool>> failing_;  // step, microbatch, whether in W
};

/// What a microbatch keeps of a stage, and its passes.
struct passes {
  stage_maths* maths;
  std::vector<kept_layer> kept{};
  vector v{};

  message forward(message const& in, microbatch mb, pass_context ctx) {
    if (!mb.is_first_stage()) std::ranges::copy(in[0].as<float>(), v.begin());
    v = maths->forward(kept, v, mb.step(), mb.index());
    if (mb.is_last_stage()) mb.report_loss(maths->loss(v, mb.step(), mb.index()));
    return edge_of(v, ctx);
  }
  message backward(message const& back, microbatch mb, pass_context ctx) {
    vector d{};
    if (mb.is_last_stage())
      d = maths->loss_gradient(v, mb.step(), mb.index(), mb.loss_scale());
    else
      std::ranges::copy(back[0].as<float>(), d.begin());
    return edge_of(maths->backward_input(kept, d, mb.step(), mb.index()), ctx);
  }
  void weight(microbatch mb) { maths->backward_weight(kept, mb.step(), mb.index()); }
};

/// A stage of a pipeline without an optimizer.
class frozen_stage {
 public:
  explicit frozen_stage(stage_maths& maths) : maths_(&maths) {}

  flow operator()(microbatch mb) { return in_order(passes{maths_}, mb); }

 private:
  stage_maths* maths_;
};

/// A stage with an optimizer.
class optimized_stage : public frozen_stage {
 public:
  optimized_stage(stage_maths& maths, zbpp::optimizer& own) : frozen_stage(maths), own_(&own) {}
  [[nodiscard]] zbpp::optimizer& optimizer() { return *own_; }

 private:
  zbpp::optimizer* own_;
};

/// All stages of a model with their optimizers.
class model {
 public:
  explicit model(model_settings const& settings) {
    for (int s = 0; s < settings.stages; ++s) {
      auto& own = maths_.emplace_back(settings, s);
      if (settings.has_frozen_stage && s == 1 && settings.stages >= 3)
        stages_.emplace_back(frozen_.emplace_back(own));
      else
        stages_.emplace_back(optimized_.emplace_back(own, make_optimizer(settings, own)));
    }
  }

  [[nodiscard]] std::vector<stage_ref>& stages() { return stages_; }
  [[nodiscard]] stage_maths& maths(int stage) { return maths_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] zbpp::optimizer* optimizer(int stage) const {
    return stages_[static_cast<std::size_t>(stage)].optimizer();
  }
  /// Drops the gradients of all stages, such as those of half a step.
  void skip() {
    arena memory;
    for (auto& stage : optimized_) stage.optimizer().skip(pass_context(memory));
  }
  /// @return what a plain loop trains
  [[nodiscard]] plain_pipeline plain() {
    plain_pipeline all;
    for (std::size_t s = 0; s < maths_.size(); ++s)
      all.push_back({maths_[s].optimized(), stages_[s].optimizer()});
    return all;
  }
  /// @return how many weights there are
  [[nodiscard]] std::size_t weights() const {
    std::size_t count = 0;
    for (auto const& each : maths_) count += each.layers() * width * width;
    return count;
  }
  /// @return all weights and then all moments, bit by bit
  [[nodiscard]] std::vector<std::uint32_t> bits() {
    std::vector<float> all;
    auto const add = [&](std::span<float const> more) {
      all.insert(all.end(), more.begin(), more.end());
    };
    for (auto const& each : maths_)
      for (auto const& weights : each.weights()) add(weights);
    for (auto& each : adamws_) add(each.mean()), add(each.mean_square());
    for (auto& each : sgds_) add(each.momentum());
    return bits_of(all);
  }

 private:
  zbpp::optimizer& make_optimizer(model_settings const& settings, stage_maths& own) {
    if (settings.uses_adamw)
      return adamws_.emplace_back(
          own.optimized(), optim::adamw_settings{.weight_decay = 0.01F, .undo = settings.undo});
    return sgds_.emplace_back(
        own.optimized(),
        optim::sgd_settings{.momentum = 0.9F, .weight_decay = 0.01F, .undo = settings.undo});
  }

  std::deque<stage_maths> maths_;  // a deque, as what refers to its elements needs them to stay
  std::deque<optim::adamw> adamws_;
  std::deque<optim::sgd> sgds_;
  std::deque<frozen_stage> frozen_;
  std::deque<optimized_stage> optimized_;
  std::vector<stage_ref> stages_;
};

/// Trains replicas of a model as one process would, in a plain loop over microbatches.
/// @param of_replicas   the settings of each, which differ in data and faults alone
/// @param microbatches  of each step
/// @return what each of them gives
[[nodiscard]] inline std::vector<history> train_replicas(
    std::vector<model_settings> const& of_replicas,
    std::vector<int> const& microbatches,
    training_options const& options) {
  std::vector<std::unique_ptr<model>> replicas;
  std::vector<std::vector<plain_pipeline>> all;
  for (auto const& each : of_replicas)
    all.push_back({replicas.emplace_back(std::make_unique<model>(each))->plain()});
  auto const& settings = of_replicas.front();
  auto const run = [&](int step, double scale) {
    std::vector<std::vector<double>> losses;
    for (auto const& own : replicas) {
      losses.emplace_back();
      for (int m = 0; m < microbatches[static_cast<std::size_t>(step)]; ++m) {
        std::vector<std::vector<kept_layer>> kept(static_cast<std::size_t>(settings.stages));
        vector v{};
        for (int s = 0; s < settings.stages; ++s)
          v = own->maths(s).forward(kept[static_cast<std::size_t>(s)], v, step, m);
        auto const& last = own->maths(settings.stages - 1);
        losses.back().push_back(last.loss(v, step, m));
        vector d = last.loss_gradient(v, step, m, scale);
        for (int s = settings.stages - 1; s >= 0; --s) {
          auto& of_stage = kept[static_cast<std::size_t>(s)];
          d = own->maths(s).backward_input(of_stage, d, step, m);
          own->maths(s).backward_weight(of_stage, step, m);
        }
      }
    }
    return losses;
  };
  auto results =
      train_plainly(all, static_cast<int>(microbatches.size()), options, settings.at_once, run);
  for (std::size_t n = 0; n < results.size(); ++n) results[n].bits = replicas[n]->bits();
  return results;
}

/// Trains one model as one process would.
/// @param microbatches  of each step
[[nodiscard]] inline history train_alone(
    model_settings const& settings,
    std::vector<int> const& microbatches,
    training_options const& options) {
  return train_replicas({settings}, microbatches, options).front();
}
[[nodiscard]] inline history train_alone(
    model_settings const& settings, int microbatches, int steps, training_options const& options) {
  return train_alone(
      settings, std::vector<int>(static_cast<std::size_t>(steps), microbatches), options);
}

}  // namespace zbpp::test::checked
