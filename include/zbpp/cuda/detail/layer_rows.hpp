// SPDX-License-Identifier: Apache-2.0
//
// The kernels of optimizers: each runs once for all layers of a stage, over tiles of their weights,
// and steps each weight with the bits of the optimizers on the CPU.
#pragma once

#include <zbpp/cuda/lanes.hpp>
#include <zbpp/optim/detail/adamw_numbers.hpp>
#include <zbpp/optim/detail/change.hpp>
#include <zbpp/optim/settings.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace zbpp::cuda::detail {

/// A float whose products are never fused with sums, so that steps have the same bits in every
/// kernel, and on the host.
struct exact {
  float value;

  exact() = default;
  __host__ __device__ exact(float from) : value(from) {}

#ifdef __CUDA_ARCH__
  __device__ friend exact operator+(exact a, exact b) { return __fadd_rn(a.value, b.value); }
  __device__ friend exact operator-(exact a, exact b) { return __fsub_rn(a.value, b.value); }
  __device__ friend exact operator*(exact a, exact b) { return __fmul_rn(a.value, b.value); }
  __device__ friend exact operator/(exact a, exact b) { return __fdiv_rn(a.value, b.value); }
  __device__ friend exact sqrt(exact a) { return __fsqrt_rn(a.value); }
#else
  __host__ __device__ friend exact operator+(exact a, exact b) { return a.value + b.value; }
  __host__ __device__ friend exact operator-(exact a, exact b) { return a.value - b.value; }
  __host__ __device__ friend exact operator*(exact a, exact b) { return a.value * b.value; }
  __host__ __device__ friend exact operator/(exact a, exact b) { return a.value / b.value; }
  __host__ __device__ friend exact sqrt(exact a) { return std::sqrt(a.value); }
#endif
};

/// Multiplies a gradient; a factor of 1 multiplies nothing.
__host__ __device__ inline exact scaled(exact gradient, float factor) {
  return factor == 1 ? gradient : gradient * factor;
}

/// Steps by AdamW.
/// @source as optim/adamw.hpp
struct adamw_rule {
  using settings = optim::adamw_settings;
  static constexpr int moments = 2;

  optim::detail::adamw_numbers n;
  settings by;
  step_settings step;

  __host__ __device__
  adamw_rule(settings const& own, step_settings const& current, std::int64_t missed = 0)
      : n(optim::detail::numbers_of(own, current, missed)), by(own), step(current) {}

  /// @return the rule for a layer that has not taken so many steps of the run
  __host__ __device__ adamw_rule behind(std::int64_t missed) const {
    return missed == 0 ? *this : adamw_rule(by, step, missed);
  }

  __host__ __device__ exact operator()(exact before, exact raw, exact* moment, bool decays) const {
    auto const gradient = scaled(raw, n.factor);
    exact const one = 1;
    exact const keep = decays ? n.keep_weight : 1;
    moment[0] = n.beta1 * moment[0] + (one - n.beta1) * gradient;
    moment[1] = n.beta2 * moment[1] + (one - n.beta2) * gradient * gradient;
    return keep * before - n.rate * moment[0] / (sqrt(moment[1] * n.unbias_square) + n.epsilon);
  }
};

/// Steps by gradient descent with momentum.
/// @source as optim/sgd.hpp
struct sgd_rule {
  using settings = optim::sgd_settings;
  static constexpr int moments = 1;

  float rate;
  float factor;
  float momentum;
  float decay;

  __host__ __device__ sgd_rule(settings const& by, step_settings const& step)
      : rate(static_cast<float>(step.learning_rate)),
        factor(step.factor()),
        momentum(by.momentum),
        decay(by.weight_decay) {}

  __host__ __device__ sgd_rule const& behind(std::int64_t) const { return *this; }
  __host__ __device__ exact operator()(exact before, exact raw, exact* moment, bool decays) const {
    exact const share = decays ? decay : 0;
    moment[0] = momentum * moment[0] + (scaled(raw, factor) + share * before);
    return before - rate * moment[0];
  }
};

/// Refers to a part of one layer.
struct tile {
  static constexpr std::int64_t most = 16 * lanes::count;  ///< weights

  float* weights;
  float* gradients;
  std::int64_t first;  ///< of its weights, among those of all layers
  std::int64_t size;
  bool decays;         ///< whether weight decay is for them
  std::int64_t layer;  ///< its number
};

/// Writes the tiles of one layer, of which there is at least one.
struct tile_rows {
  static constexpr char const* name = "tiles";
  tile* to;
  tile whole;  ///< the layer
  std::int64_t* end;
  std::int64_t tiles_until_end;

  [[nodiscard]] static std::int64_t rows_of(std::int64_t size) {
    return size == 0 ? 1 : (size + tile::most - 1) / tile::most;
  }
  [[nodiscard]] std::int64_t rows() const { return rows_of(whole.size); }
  template <class Touched>
  void touches(Touched& t) const {
    t.writes(to, rows());
    t.writes(end, 1);
  }
  __host__ __device__ void operator()(lanes const& at, std::int64_t row) const {
    auto const& self = *this;
    at.each(1, [&](std::int64_t) {
      auto const skipped = row * tile::most;
      auto const left = self.whole.size - skipped;
      self.to[row] = {
          self.whole.weights + skipped,
          self.whole.gradients + skipped,
          self.whole.first + skipped,
          left < tile::most ? left : tile::most,
          self.whole.decays,
          self.whole.layer};
      *self.end = self.tiles_until_end;  // all rows write the same
    });
  }
};

/// Adds the squares of the gradients of each tile.
struct square_rows {
  static constexpr char const* name = "squares";
  tile const* tiles;
  std::int64_t count;
  double* sums;  ///< by tile

  [[nodiscard]] std::int64_t rows() const { return count; }
  template <class Touched>
  void touches(Touched& t) const {
    t.reads(tiles, count);
    t.writes(sums, count);
  }
  __host__ __device__ void operator()(lanes const& at, std::int64_t row) const {
    auto const& self = *this;
    auto const* const gradients = self.tiles[row].gradients;
    auto const sum = at.sum(self.tiles[row].size, [gradients](std::int64_t i) {
      auto const gradient = static_cast<double>(gradients[i]);
      return gradient * gradient;  // no rounding: 48 bits
    });
    at.each(1, [&](std::int64_t) { self.sums[row] = sum; });
  }
};

/// Adds the sums of the tiles of each layer, in an order that depends on its size alone.
struct state_rows {
  static constexpr char const* name = "states";
  double const* sums;        ///< by tile
  std::int64_t const* ends;  ///< by layer: of its tiles
  std::int64_t count;        ///< layers
  gradient_state* states;
  std::int64_t tiles;  ///< of all layers

  [[nodiscard]] std::int64_t rows() const { return count; }
  template <class Touched>
  void touches(Touched& t) const {
    t.reads(sums, tiles);
    t.reads(ends, count);
    t.writes(states, count);
  }
  __host__ __device__ void operator()(lanes const& at, std::int64_t row) const {
    auto const& self = *this;
    auto const begin = row == 0 ? 0 : self.ends[row - 1];
    auto const* const from = self.sums + begin;
    auto const sum = at.sum(self.ends[row] - begin, [from](std::int64_t i) { return from[i]; });
    at.each(1, [&](std::int64_t) {
      self.states[row].sum_of_squares = sum;
      self.states[row].is_finite = sum - sum == 0;  // neither infinite nor not a number
    });
  }
};

using optim::detail::change;

/// Refers to what an optimizer has for each weight of its layers, array after array.
struct kept_numbers {
  float* moments;              ///< those of all weights, once for each moment of the rule
  float* before;               ///< the weights before a step, then, with copies, the moments
  std::int64_t count;          ///< weights of all layers
  std::int64_t const* missed;  ///< steps of the run that each layer has not taken
  std::int64_t layers;
};

/// Says by which learning rate steps are taken, and how many were, in device memory.
struct schedule {
  std::int64_t updates;  ///< steps taken
  double const* rates;   ///< of the steps from the first on; the last goes on
  std::int64_t count;    ///< rates, of which there is one at least
};

/// Writes some learning rates of a schedule, which come as arguments, then the rest of it.
struct rate_rows {
  static constexpr char const* name = "rates";
  static constexpr std::size_t most = 256;  ///< a launch takes 4 KiB of arguments
  schedule* next;                           ///< null: more rates follow
  schedule value;
  double* to;
  std::int64_t count;
  double rates[most];

  [[nodiscard]] static constexpr std::int64_t rows() { return 1; }
  template <class Touched>
  void touches(Touched& t) const {
    t.writes(next, next == nullptr ? 0 : 1);
    t.writes(to, count);
  }
  __host__ __device__ void operator()(lanes const& at, std::int64_t) const {
    auto const& self = *this;
    at.each(count, [&](std::int64_t i) { self.to[i] = self.rates[i]; });
    at.each(next == nullptr ? 0 : 1, [&](std::int64_t) { *self.next = self.value; });
  }
};

/// Makes the rule of the next step, and counts the step.
template <class Rule>
struct schedule_rows {
  static constexpr char const* name = "schedule";
  typename Rule::settings settings;
  schedule* next;
  Rule* rule;

  [[nodiscard]] static constexpr std::int64_t rows() { return 1; }
  // But for the rates: a replay may find others there than there were when it was captured.
  template <class Touched>
  void touches(Touched& t) const {
    t.changes(next, 1);
    t.writes(rule, 1);
  }
  __host__ __device__ void operator()(lanes const& at, std::int64_t) const {
    auto const& self = *this;
    at.each(1, [&](std::int64_t) {
      auto& s = *self.next;
      auto const number = s.updates < s.count ? s.updates : s.count - 1;
      *self.rule = Rule(self.settings, {.updates = s.updates, .learning_rate = s.rates[number]});
      ++s.updates;
    });
  }
};

/// Gives a rule that the host has made.
template <class Rule>
struct rule_given {
  using type = Rule;
  Rule rule;

  template <class Touched>
  void touches(Touched&) const {}
  __host__ __device__ Rule const& operator()() const { return rule; }
};

/// Gives a rule that a kernel has made, in device memory.
template <class Rule>
struct rule_scheduled {
  using type = Rule;
  Rule const* rule;

  template <class Touched>
  void touches(Touched& t) const {
    t.reads(rule, 1);
  }
  __host__ __device__ Rule operator()() const { return *rule; }
};

/// Steps all weights by a rule, which is called with the weight before, the gradient, its moments,
/// which it changes, and whether the weight decays; it returns the new weight.
/// @tparam From  gives the rule
template <class From>
struct step_rows {
  using rule_type = typename From::type;
  static constexpr char const* name = "step";
  tile const* tiles;
  std::int64_t count;
  kept_numbers kept;
  From from;
  change kind;
  bool keeps_weights;
  bool keeps_moments;
  bool clears_gradients;

  [[nodiscard]] std::int64_t rows() const { return count; }
  template <class Touched>
  void touches(Touched& t) const {
    t.reads(tiles, count);
    from.touches(t);
    t.reads(kept.missed, kept.layers);
    t.changes(kept.moments, rule_type::moments * kept.count);
    if (kind == change::moments) t.reads(kept.before, kept.count);
    if (keeps_weights) t.writes(kept.before, kept.count);
    if (keeps_moments) t.writes(kept.before + kept.count, rule_type::moments * kept.count);
  }
  __host__ __device__ void operator()(lanes const& at, std::int64_t row) const {
    auto const& self = *this;
    auto const own = tiles[row];
    auto const rule = from().behind(kept.missed[own.layer]);
    at.each(own.size, [&](std::int64_t i) {
      auto const place = own.first + i;
      exact moments[rule_type::moments];
      for (int k = 0; k < rule_type::moments; ++k)
        moments[k] = self.kept.moments[k * self.kept.count + place];
      float const before = self.kind == change::moments ? self.kept.before[place] : own.weights[i];
      if (self.keeps_weights) self.kept.before[place] = before;
      if (self.keeps_moments)
        for (int k = 0; k < rule_type::moments; ++k)
          self.kept.before[(k + 1) * self.kept.count + place] = moments[k].value;
      exact const weight = rule(before, own.gradients[i], moments, own.decays);
      if (self.kind != change::moments) own.weights[i] = weight.value;
      if (self.kind != change::weights)
        for (int k = 0; k < rule_type::moments; ++k)
          self.kept.moments[k * self.kept.count + place] = moments[k].value;
      if (self.clears_gradients) own.gradients[i] = 0;
    });
  }
};

/// Brings back what a step kept.
struct restore_rows {
  static constexpr char const* name = "undo";
  tile const* tiles;
  std::int64_t count;
  kept_numbers kept;
  int moments;  ///< to bring back; 0 where they were not changed

  [[nodiscard]] std::int64_t rows() const { return count; }
  template <class Touched>
  void touches(Touched& t) const {
    t.reads(tiles, count);
    t.reads(kept.before, (moments + 1) * kept.count);
    t.writes(kept.moments, moments * kept.count);
  }
  __host__ __device__ void operator()(lanes const& at, std::int64_t row) const {
    auto const& self = *this;
    auto const own = tiles[row];
    at.each(own.size, [&](std::int64_t i) {
      auto const place = own.first + i;
      own.weights[i] = self.kept.before[place];
      for (int k = 0; k < self.moments; ++k)
        self.kept.moments[k * self.kept.count + place] =
            self.kept.before[(k + 1) * self.kept.count + place];
    });
  }
};

/// Sets gradients to 0.
struct clear_rows {
  static constexpr char const* name = "clear";
  tile const* tiles;
  std::int64_t count;

  [[nodiscard]] std::int64_t rows() const { return count; }
  template <class Touched>
  void touches(Touched& t) const {
    t.reads(tiles, count);
  }
  __host__ __device__ void operator()(lanes const& at, std::int64_t row) const {
    auto const own = tiles[row];
    at.each(own.size, [&](std::int64_t i) { own.gradients[i] = 0; });
  }
};

}  // namespace zbpp::cuda::detail
