// SPDX-License-Identifier: Apache-2.0
//
// A small network whose stages have optimizers: dense layers with tanh and dropout, gradients that
// overflow where those of fp16 would, and faults at chosen places. `train_alone` is what one
// process gives with the same arithmetic and a plain loop.
#pragma once

#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <support/policy_grid.hpp>
#include <support/step_rules.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
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

/// Where a gradient is made infinite or not a number, or a pass throws.
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
  void throw_in(std::int64_t step, int microbatch) {
    throws_ = true;
    throwing_ = {step, stage_, microbatch};
  }
  /// Makes W of a microbatch throw, once.
  void throw_in_w(std::int64_t step, int microbatch) {
    throws_in_w_ = true;
    throwing_ = {step, stage_, microbatch};
  }

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
    if (throws_ && throwing_.step == step && throwing_.microbatch == m) {
      throws_ = false;
      throw std::runtime_error("thrown by the test");
    }
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
    if (throws_in_w_ && throwing_.step == step && throwing_.microbatch == m) {
      throws_in_w_ = false;
      throw std::runtime_error("thrown by the test");
    }
    for (std::size_t k = 0; k < layers(); ++k)
      for (std::size_t o = 0; o < width; ++o)
        for (std::size_t i = 0; i < width; ++i)
          gradients_[k][o * width + i] += kept[k].dz[o] * kept[k].x[i];
    for (auto const& f : settings_.faults)
      if (f.step == step && f.stage == stage_ && f.microbatch == m)
        gradients_.back().back() += f.value;
  }

 private:
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
  bool throws_ = false;
  bool throws_in_w_ = false;
  fault_at throwing_;
};

/// Adds the gradients of one replica to those of another.
[[nodiscard]] inline std::vector<matrix> sum_of_gradients(
    stage_maths const& first, stage_maths const& second) {
  auto sum = first.gradients();
  for (std::size_t k = 0; k < sum.size(); ++k)
    for (std::size_t i = 0; i < sum[k].size(); ++i) sum[k][i] += second.gradients()[k][i];
  return sum;
}

/// A stage of a pipeline without an optimizer.
class frozen_stage {
 public:
  explicit frozen_stage(stage_maths& maths) : maths_(&maths) {}

  flow operator()(microbatch mb) {
    std::vector<kept_layer> kept;
    vector v{};
    message in = co_await mb.recv_activation();
    buffer out;
    co_await F([&](pass_context ctx) {
      if (!mb.is_first_stage()) std::memcpy(v.data(), in[0].data(), sizeof v);
      v = maths_->forward(kept, v, mb.step(), mb.index());
      out = ctx.allocate_edge(sizeof v);
      std::memcpy(out.data(), v.data(), sizeof v);
      if (mb.is_last_stage()) mb.report_loss(maths_->loss(v, mb.step(), mb.index()));
    });
    in.clear();
    co_await mb.send_activation(std::move(out));
    message const back = co_await mb.recv_gradient();
    auto b = [&](pass_context ctx) {
      vector d{};
      if (mb.is_last_stage())
        d = maths_->loss_gradient(v, mb.step(), mb.index(), mb.loss_scale());
      else
        std::memcpy(d.data(), back[0].data(), sizeof d);
      d = maths_->backward_input(kept, d, mb.step(), mb.index());
      out = ctx.allocate_edge(sizeof d);
      std::memcpy(out.data(), d.data(), sizeof d);
    };
    auto w = [&](pass_context) { maths_->backward_weight(kept, mb.step(), mb.index()); };
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

 protected:
  stage_maths* maths_;
};

/// A stage with an optimizer.
template <class Optimizer>
class optimized_stage : public frozen_stage {
 public:
  optimized_stage(stage_maths& maths, Optimizer& optimizer)
      : frozen_stage(maths), optimizer_(&optimizer) {}
  [[nodiscard]] Optimizer& optimizer() { return *optimizer_; }

 private:
  Optimizer* optimizer_;
};

/// All stages of a model with their optimizers.
class model {
 public:
  explicit model(model_settings const& settings) : settings_(settings) {
    for (int s = 0; s < settings.stages; ++s)
      maths_.push_back(std::make_unique<stage_maths>(settings, s));
    for (int s = 0; s < settings.stages; ++s) add(*maths_[static_cast<std::size_t>(s)], s);
  }

  [[nodiscard]] std::vector<stage_ref>& stages() { return stages_; }
  [[nodiscard]] stage_maths& maths(int stage) { return *maths_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] zbpp::optimizer* optimizer(int stage) const {
    return stages_[static_cast<std::size_t>(stage)].optimizer();
  }
  /// Gives all tied layers the sum of their gradients, in the order of the model.
  void sum_tied() {
    std::vector<matrix*> tied;
    for (int s : settings_.tied)
      for (std::size_t k = 0; k < maths(s).layers(); ++k)
        if (settings_.is_tied(s, k)) tied.push_back(&maths(s).gradient(k));
    if (tied.empty()) return;
    auto sum = *tied.front();
    for (std::size_t n = 1; n < tied.size(); ++n)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (*tied[n])[i];
    for (auto* gradient : tied) *gradient = sum;
  }
  /// @return all weights, bit by bit
  [[nodiscard]] std::vector<std::uint32_t> weight_bits() const {
    std::vector<std::uint32_t> bits;
    for (auto const& m : maths_)
      for (auto const& layer : m->weights())
        for (float const w : layer) bits.push_back(std::bit_cast<std::uint32_t>(w));
    return bits;
  }
  /// @return how many weights its optimizers keep moments for
  [[nodiscard]] std::size_t moments() const {
    std::size_t count = 0;
    for (auto const& o : adamws_) count += o->mean().size();
    for (auto const& o : sgds_) count += o->momentum().size();
    return count;
  }
  /// @return all weights and moments, bit by bit
  [[nodiscard]] std::vector<std::uint32_t> bits() {
    std::vector<float> all;
    for (auto const& m : maths_)
      for (auto const& w : m->weights()) all.insert(all.end(), w.begin(), w.end());
    for (auto& o : adamws_)
      for (auto moments : {o->mean(), o->mean_square()})
        all.insert(all.end(), moments.begin(), moments.end());
    for (auto& o : sgds_) all.insert(all.end(), o->momentum().begin(), o->momentum().end());
    std::vector<std::uint32_t> bits(all.size());
    std::memcpy(bits.data(), all.data(), all.size() * sizeof(float));
    return bits;
  }

 private:
  void add(stage_maths& maths, int stage) {
    if (settings_.has_frozen_stage && stage == 1 && settings_.stages >= 3) {
      frozen_.push_back(std::make_unique<frozen_stage>(maths));
      stages_.emplace_back(*frozen_.back());
    } else if (settings_.uses_adamw) {
      adamws_.push_back(std::make_unique<optim::adamw>(
          maths.optimized(), optim::adamw_settings{.weight_decay = 0.01F, .undo = settings_.undo}));
      with_adamw_.push_back(
          std::make_unique<optimized_stage<optim::adamw>>(maths, *adamws_.back()));
      stages_.emplace_back(*with_adamw_.back());
    } else {
      sgds_.push_back(std::make_unique<optim::sgd>(
          maths.optimized(),
          optim::sgd_settings{.momentum = 0.9F, .weight_decay = 0.01F, .undo = settings_.undo}));
      with_sgd_.push_back(std::make_unique<optimized_stage<optim::sgd>>(maths, *sgds_.back()));
      stages_.emplace_back(*with_sgd_.back());
    }
  }

  model_settings settings_;
  std::vector<std::unique_ptr<stage_maths>> maths_;
  std::vector<std::unique_ptr<optim::adamw>> adamws_;
  std::vector<std::unique_ptr<optim::sgd>> sgds_;
  std::vector<std::unique_ptr<frozen_stage>> frozen_;
  std::vector<std::unique_ptr<optimized_stage<optim::adamw>>> with_adamw_;
  std::vector<std::unique_ptr<optimized_stage<optim::sgd>>> with_sgd_;
  std::vector<stage_ref> stages_;
};

/// What a training gives, to be compared to the bit.
struct history {
  std::vector<std::vector<double>> losses;  // by step
  std::vector<double> norms;
  std::vector<double> coefficients;
  std::vector<double> scales;
  std::vector<std::uint32_t> bits;

  /// Takes in what a step gave.
  void add(step_result const& step) {
    losses.push_back(step.losses);
    norms.push_back(step.update.norm);
    coefficients.push_back(step.update.coefficient);
    scales.push_back(step.update.loss_scale);
  }
  /// Forgets what steps without agreement do not report.
  void forget_updates() {
    norms.clear();
    coefficients.clear();
    scales.clear();
  }

  friend bool operator==(history const& a, history const& b) {
    auto const same = [](std::vector<double> const& x, std::vector<double> const& y) {
      return x.size() == y.size() &&
             std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
    };
    bool const losses_same =
        std::equal(a.losses.begin(), a.losses.end(), b.losses.begin(), b.losses.end(), same);
    return losses_same && same(a.norms, b.norms) && same(a.coefficients, b.coefficients) &&
           same(a.scales, b.scales) && a.bits == b.bits;
  }
};

/// @return what differs first, or nothing
[[nodiscard]] inline std::string difference(history const& a, history const& b) {
  auto const first = [](std::vector<double> const& x, std::vector<double> const& y) {
    std::size_t i = 0;
    while (i < x.size() && i < y.size() && std::memcmp(&x[i], &y[i], sizeof(double)) == 0) ++i;
    return i;
  };
  auto const tell = [](char const* quantity, std::size_t i, double x, double y) {
    return std::string(quantity) + " of step " + std::to_string(i) + ": " + std::to_string(x) +
           " and " + std::to_string(y);
  };
  if (a == b) return "";
  if (a.losses.size() != b.losses.size()) return "numbers of steps";
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    if (auto const k = first(a.losses[i], b.losses[i]); k < a.losses[i].size())
      return tell("losses", i, a.losses[i][k], b.losses[i][k]);
    for (auto const& [name, x, y] :
         {std::tuple("norms", &a.norms, &b.norms),
          std::tuple("coefficients", &a.coefficients, &b.coefficients),
          std::tuple("scales", &a.scales, &b.scales)})
      if (std::memcmp(&(*x)[i], &(*y)[i], sizeof(double)) != 0)
        return tell(name, i, (*x)[i], (*y)[i]);
  }
  return "weights or moments";
}

/// Gives the models of all replicas the sums of their gradients, in the order of the replicas.
inline void sum_over_replicas(std::vector<std::unique_ptr<model>> const& replicas, int stages) {
  for (int s = 0; s < stages && replicas.size() > 1; ++s) {
    auto sums = replicas.front()->maths(s).gradients();
    for (std::size_t n = 1; n < replicas.size(); ++n)
      for (std::size_t k = 0; k < sums.size(); ++k)
        for (std::size_t i = 0; i < sums[k].size(); ++i)
          sums[k][i] += replicas[n]->maths(s).gradients()[k][i];
    for (auto const& each : replicas) each->maths(s).set_gradients(sums);
  }
}

/// Trains replicas of a model as one process would: a plain loop over microbatches, and the rules
/// of optimizer steps written out.
/// @param of_replicas   the settings of each, which differ in data and faults alone
/// @param microbatches  of each step
/// @return what each of them gives
[[nodiscard]] inline std::vector<history> train_replicas(
    std::vector<model_settings> const& of_replicas,
    std::vector<int> const& microbatches,
    training_options const& options) {
  auto const steps = static_cast<int>(microbatches.size());
  auto const& settings = of_replicas.front();
  std::vector<std::unique_ptr<model>> replicas;
  for (auto const& each : of_replicas) replicas.push_back(std::make_unique<model>(each));
  auto& all = *replicas.front();
  arena memory;
  pass_context const ctx(memory);
  std::vector<history> results(replicas.size());
  auto& result = results.front();
  step_rules rules(options);
  for (int step = 0; step < steps; ++step) {
    auto const scale = rules.scale();
    result.scales.push_back(scale);
    for (std::size_t n = 0; n < replicas.size(); ++n) {
      auto& own_model = *replicas[n];
      auto& losses = results[n].losses.emplace_back();
      for (int m = 0; m < microbatches[static_cast<std::size_t>(step)]; ++m) {
        std::vector<std::vector<kept_layer>> kept(static_cast<std::size_t>(settings.stages));
        vector v{};
        for (int s = 0; s < settings.stages; ++s)
          v = own_model.maths(s).forward(kept[static_cast<std::size_t>(s)], v, step, m);
        auto& last = own_model.maths(settings.stages - 1);
        losses.push_back(last.loss(v, step, m));
        vector d = last.loss_gradient(v, step, m, scale);
        for (int s = settings.stages - 1; s >= 0; --s) {
          auto& own = kept[static_cast<std::size_t>(s)];
          d = own_model.maths(s).backward_input(own, d, step, m);
          own_model.maths(s).backward_weight(own, step, m);
        }
      }
    }
    if (!rules.is_due(step)) {
      result.norms.push_back(0);
      result.coefficients.push_back(1);
      continue;
    }
    sum_over_replicas(replicas, settings.stages);
    for (auto const& each : replicas) each->sum_tied();
    double sum = 0;
    bool has_tied = false;
    std::vector<bool> is_finite_stage(static_cast<std::size_t>(settings.stages), true);
    for (int s = 0; s < settings.stages; ++s) {
      auto* const optimizer = all.optimizer(s);
      if (optimizer == nullptr) continue;
      std::vector<gradient_state> states(static_cast<std::size_t>(optimizer->layers()));
      optimizer->measure(states, ctx);
      for (std::size_t k = 0; k < states.size(); ++k) {
        auto const& state = states[k];
        if (!state.is_finite) is_finite_stage[static_cast<std::size_t>(s)] = false;
        if (settings.is_tied(s, k) && std::exchange(has_tied, true)) continue;
        sum += state.is_finite ? state.sum_of_squares : std::numeric_limits<double>::infinity();
      }
    }
    auto const found = rules.judge(sum);
    result.norms.push_back(found.norm);
    result.coefficients.push_back(found.coefficient);
    for (int s = 0; s < settings.stages; ++s) {
      bool const is_alone =
          !found.is_agreed || std::ranges::find(settings.at_once, s) != settings.at_once.end();
      bool const takes_step =
          is_alone ? is_finite_stage[static_cast<std::size_t>(s)] : found.is_finite;
      for (auto const& each : replicas) {
        auto* const optimizer = each->optimizer(s);
        if (optimizer != nullptr && takes_step)
          optimizer->step(is_alone ? found.alone : found.together, ctx);
        else if (optimizer != nullptr)
          optimizer->skip(ctx);
      }
    }
  }
  for (std::size_t n = 0; n < replicas.size(); ++n) {
    results[n].norms = result.norms;
    results[n].coefficients = result.coefficients;
    results[n].scales = result.scales;
    results[n].bits = replicas[n]->bits();
  }
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
