// SPDX-License-Identifier: Apache-2.0
//
// A small network whose every float is compared: layers of matrices with tanh or ReLU, spread over
// stages, and a squared loss. Each stage has a skip connection, so edges carry two buffers; a batch
// has as many rows as its number says, so sizes vary; some layers share weights with another layer
// of their stage, first and last stage share some too, and some layers are frozen.
//
// Here stand the arithmetic, and the stages as zbpp runs them. What they must give, to the bit, is
// in toy_reference.hpp.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::test::toy {

inline constexpr std::size_t width = 4;
inline constexpr std::size_t most_rows = 3;
inline constexpr std::size_t most_layers = 3;
/// Declared size of an edge in bytes: two buffers of the largest batch.
inline constexpr bytes edge = 2 * most_rows * width * sizeof(float);

using floats = std::span<float>;
using const_floats = std::span<float const>;

/// How many rows a microbatch has.
[[nodiscard]] constexpr std::size_t rows_of(int microbatch) {
  return 1 + static_cast<std::size_t>(microbatch) % most_rows;
}

enum class activation : std::uint8_t { tanh, relu };

struct layer {
  activation function = activation::tanh;
  bool is_frozen = false;
  std::size_t weights = 0;      // which of its stage's weights it uses
  std::vector<float> gradient;  // of its own use alone
};

/// Weights are a matrix of width rows and, in row `width`, the bias.
struct stage_model {
  std::vector<std::vector<float>> weights;
  std::vector<layer> layers;
};

using model = std::vector<stage_model>;

// The arithmetic. Nothing is inlined, so that both sides of a comparison run the same machine code.

[[gnu::noinline]] inline float noise(std::uint32_t seed, std::uint32_t index) {
  std::uint32_t x = seed * 2654435761U + index * 40503U + 12345U;
  x = (x ^ (x >> 15)) * 2246822519U;
  x = (x ^ (x >> 13)) * 3266489917U;
  return static_cast<float>((x ^ (x >> 16)) >> 8) * 0x1p-23F - 1;  // in [-1, 1)
}

[[gnu::noinline]] inline void fill_batch(std::int64_t step, int microbatch, floats x) {
  auto const seed =
      static_cast<std::uint32_t>(step) * 977U + static_cast<std::uint32_t>(microbatch);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = noise(seed, static_cast<std::uint32_t>(i));
}

[[gnu::noinline]] inline void forward(layer const& l, const_floats w, const_floats x, floats y) {
  for (std::size_t r = 0; r < x.size() / width; ++r)
    for (std::size_t o = 0; o < width; ++o) {
      float sum = w[width * width + o];
      for (std::size_t i = 0; i < width; ++i) sum += x[r * width + i] * w[i * width + o];
      y[r * width + o] = l.function == activation::tanh ? std::tanh(sum) : (sum > 0 ? sum : 0);
    }
}

[[gnu::noinline]] inline void backward_input(
    layer const& l, const_floats w, const_floats y, const_floats dy, floats dz, floats dx) {
  for (std::size_t i = 0; i < y.size(); ++i)
    dz[i] = l.function == activation::tanh ? dy[i] * (1 - y[i] * y[i]) : (y[i] > 0 ? dy[i] : 0);
  for (std::size_t r = 0; r < y.size() / width; ++r)
    for (std::size_t i = 0; i < width; ++i) {
      float sum = 0;
      for (std::size_t o = 0; o < width; ++o) sum += dz[r * width + o] * w[i * width + o];
      dx[r * width + i] = sum;
    }
}

/// Adds what the rows of a microbatch give together.
[[gnu::noinline]] inline void backward_weight(const_floats x, const_floats dz, floats gradient) {
  for (std::size_t i = 0; i <= width; ++i)
    for (std::size_t o = 0; o < width; ++o) {
      float sum = 0;
      for (std::size_t r = 0; r < dz.size() / width; ++r)
        sum += (i < width ? x[r * width + i] : 1) * dz[r * width + o];
      gradient[i * width + o] += sum;
    }
}

/// Does the work of both; adds row by row, so its weight gradient is rounded in another way.
[[gnu::noinline]] inline void backward_fused(
    layer& l,
    const_floats w,
    const_floats x,
    const_floats y,
    const_floats dy,
    floats dz,
    floats dx) {
  backward_input(l, w, y, dy, dz, dx);
  if (l.is_frozen) return;
  for (std::size_t r = 0; r < dz.size() / width; ++r)
    for (std::size_t i = 0; i <= width; ++i)
      for (std::size_t o = 0; o < width; ++o)
        l.gradient[i * width + o] += (i < width ? x[r * width + i] : 1) * dz[r * width + o];
}

/// Makes the two outputs of a stage from what its layers made and its skip connection.
[[gnu::noinline]] inline void split(
    const_floats h, const_floats skip, floats sum, floats positive) {
  for (std::size_t i = 0; i < h.size(); ++i) {
    sum[i] = h[i] + skip[i];
    positive[i] = h[i] > 0 ? h[i] : 0;
  }
}

/// Makes the gradient of h; that of skip is `d_sum` itself.
[[gnu::noinline]] inline void split_backward(
    const_floats h, const_floats d_sum, const_floats d_positive, floats d_h) {
  for (std::size_t i = 0; i < h.size(); ++i) d_h[i] = d_sum[i] + (h[i] > 0 ? d_positive[i] : 0);
}

[[gnu::noinline]] inline double loss(
    std::int64_t step,
    int microbatch,
    const_floats sum,
    const_floats positive,
    floats d_sum,
    floats d_positive) {
  double total = 0;
  auto const seed =
      static_cast<std::uint32_t>(step) * 31U + static_cast<std::uint32_t>(microbatch) + 7U;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    float const off = sum[i] - noise(seed, static_cast<std::uint32_t>(i));
    total += static_cast<double>(off * off) + static_cast<double>(positive[i]);
    d_sum[i] = 2 * off;
    d_positive[i] = 1;
  }
  return total;
}

/// Makes a model of some stages: 1 to 3 layers each. In every third stage two layers share weights,
/// every fourth has a frozen layer, and the first and the last share their first weights.
[[nodiscard]] inline model make_model(int stages) {
  model all(detail::index(stages));
  for (std::size_t s = 0; s < all.size(); ++s) {
    auto& stage = all[s];
    std::size_t const layers = 1 + s % most_layers;
    for (std::size_t k = 0; k < layers; ++k) {
      layer l;
      l.function = (s + k) % 2 == 0 ? activation::tanh : activation::relu;
      l.is_frozen = s % 4 == 2 && k == 1;
      bool const shares = s % 3 == 1 && k == 1;
      if (!shares) {
        auto const seed =
            k == 0 && s + 1 == all.size() ? 0U : static_cast<std::uint32_t>(s * 10 + k);
        auto& w = stage.weights.emplace_back((width + 1) * width);
        for (std::size_t i = 0; i < w.size(); ++i)
          w[i] = noise(seed, static_cast<std::uint32_t>(i)) * 0.7F;
      }
      l.weights = stage.weights.size() - 1;
      l.gradient.assign((width + 1) * width, 0);
      stage.layers.push_back(std::move(l));
    }
  }
  return all;
}

inline void clear_gradients(model& all) {
  for (auto& stage : all)
    for (auto& l : stage.layers) l.gradient.assign(l.gradient.size(), 0);
}

/// Takes one step of plain gradient descent: for each weight, adds up the gradients of its uses in
/// the order of stages and layers.
inline void update(model& all) {
  auto add = [](std::vector<float>& sum, stage_model const& stage, std::size_t weights) {
    for (auto const& l : stage.layers)
      if (l.weights == weights)
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += l.gradient[i];
  };
  for (std::size_t s = 0; s < all.size(); ++s)
    for (std::size_t k = 0; k < all[s].weights.size(); ++k) {
      std::vector<float> sum((width + 1) * width, 0);
      if (k == 0 && (s == 0 || s + 1 == all.size())) {
        add(sum, all.front(), 0);
        if (all.size() > 1) add(sum, all.back(), 0);
      } else {
        add(sum, all[s], k);
      }
      for (std::size_t i = 0; i < sum.size(); ++i) all[s].weights[k][i] -= 0.05F * sum[i];
    }
  clear_gradients(all);
}

// The stages as zbpp runs them.

/// Does the arithmetic of a pass at once.
struct at_once {
  /// @return what gives the number of the step when the work runs
  static auto step(microbatch mb) {
    return [number = mb.step()] { return number; };
  }
  /// Runs `work`, which reads and writes these.
  template <class Work>
  static void run(
      pass_context const&,
      std::initializer_list<const_floats>,
      std::initializer_list<floats>,
      Work work) {
    work();
  }
  /// Runs the work of a loss, and reports what it gives.
  template <class Work>
  static void report(
      microbatch mb,
      pass_context const&,
      std::initializer_list<const_floats>,
      std::initializer_list<floats>,
      Work work) {
    mb.report_loss(work());
  }
};

/// The passes of one stage, for `as_flow`; recomputes where the program does.
/// @tparam Runner  does the arithmetic of the passes: now, or later on a device
template <class Runner>
class basic_passes {
 public:
  /// What a microbatch keeps between its passes.
  struct saved {
    std::array<buffer, most_layers> x;   // input of each layer, for W
    std::array<buffer, most_layers> y;   // output of each layer, for B
    std::array<buffer, most_layers> dz;  // made by B, for W
    buffer d_sum;                        // made by the last stage's F
    buffer d_positive;
  };

  explicit basic_passes(stage_model& stage) : model_(&stage) {}

  message forward(saved& kept, message const& input, microbatch mb, pass_context ctx) {
    auto const size = rows_of(mb.index()) * width;
    buffer skip;
    if (mb.is_first_stage()) {
      kept.x[0] = make(ctx, size);
      skip = make(ctx, size);
      auto const x = of(kept.x[0]);
      auto const half = of(skip);
      Runner::run(ctx, {}, {x, half}, [x, half, step = Runner::step(mb), m = mb.index()] {
        fill_batch(step(), m, x);
        for (std::size_t i = 0; i < x.size(); ++i) half[i] = x[i] * 0.5F;
      });
    } else {
      kept.x[0] = input[0];
      skip = input[1];
    }
    run_layers(kept, ctx);
    auto const sum = ctx.allocate_edge(size * sizeof(float));
    auto const positive = ctx.allocate_edge(size * sizeof(float));
    auto const h = of(kept.y[layers() - 1]);
    auto const total = of(sum);
    auto const rest = of(positive);
    Runner::run(ctx, {h, of(skip)}, {total, rest}, [h, total, rest, from = of(skip)] {
      split(h, from, total, rest);
    });
    if (mb.is_recomputed()) forget(kept);
    if (!mb.is_last_stage()) return {sum, positive};
    kept.d_sum = make(ctx, size);
    kept.d_positive = make(ctx, size);
    auto const d_sum = of(kept.d_sum);
    auto const d_positive = of(kept.d_positive);
    Runner::report(
        mb, ctx, {total, rest}, {d_sum, d_positive}, [=, step = Runner::step(mb), m = mb.index()] {
          return loss(step(), m, total, rest, d_sum, d_positive);
        });
    return {sum, positive};
  }

  message backward_input(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    return backward_layers(kept, gradient, mb, ctx, false);
  }
  void backward_weight(saved& kept, microbatch, pass_context ctx) {
    for (std::size_t k = 0; k < layers(); ++k) {
      auto& l = model_->layers[k];
      if (l.is_frozen) continue;
      auto const x = of(kept.x[k]);
      auto const dz = of(kept.dz[k]);
      Runner::run(ctx, {x, dz}, {}, [x, dz, &l] { toy::backward_weight(x, dz, l.gradient); });
    }
  }
  message backward(saved& kept, message const& gradient, microbatch mb, pass_context ctx) {
    return backward_layers(kept, gradient, mb, ctx, true);
  }

  void recompute(saved& kept, microbatch, pass_context ctx) { run_layers(kept, ctx); }

 private:
  // Releases what run_layers makes again.
  void forget(saved& kept) const {
    for (std::size_t k = 0; k < layers(); ++k) {
      if (k > 0) kept.x[k].reset();
      kept.y[k].reset();
    }
  }
  void run_layers(saved& kept, pass_context ctx) const {
    for (std::size_t k = 0; k < layers(); ++k) {
      auto const& l = model_->layers[k];
      kept.y[k] = make(ctx, of(kept.x[k]).size());
      auto const x = of(kept.x[k]);
      auto const y = of(kept.y[k]);
      Runner::run(
          ctx, {x}, {y}, [x, y, &l, &w = model_->weights[l.weights]] { toy::forward(l, w, x, y); });
      if (k + 1 < layers()) kept.x[k + 1] = kept.y[k];
    }
  }
  [[nodiscard]] static buffer make(pass_context ctx, std::size_t size) {
    return ctx.allocate(size * sizeof(float));
  }
  [[nodiscard]] static floats of(buffer const& b) { return b.as<float>(); }
  [[nodiscard]] std::size_t layers() const { return model_->layers.size(); }

  message backward_layers(
      saved& kept, message const& gradient, microbatch mb, pass_context ctx, bool is_fused) {
    auto const d_sum = mb.is_last_stage() ? kept.d_sum : gradient[0];
    auto const d_positive = mb.is_last_stage() ? kept.d_positive : gradient[1];
    auto const size = of(d_sum).size();
    auto d = make(ctx, size);
    auto const h = of(kept.y[layers() - 1]);
    auto const from = of(d_sum);
    auto const rest = of(d_positive);
    Runner::run(ctx, {h, from, rest}, {of(d)}, [h, from, rest, to = of(d)] {
      split_backward(h, from, rest, to);
    });
    for (std::size_t k = layers(); k-- > 0;) {
      auto& l = model_->layers[k];
      auto const& w = model_->weights[l.weights];
      kept.dz[k] = make(ctx, size);
      auto dx = k == 0 ? ctx.allocate_edge(size * sizeof(float)) : make(ctx, size);
      auto const y = of(kept.y[k]);
      auto const dy = of(d);
      auto const dz = of(kept.dz[k]);
      auto const to = of(dx);
      if (is_fused) {
        auto const x = of(kept.x[k]);
        Runner::run(
            ctx, {x, y, dy}, {dz, to}, [=, &l, &w] { backward_fused(l, w, x, y, dy, dz, to); });
      } else {
        Runner::run(
            ctx, {y, dy}, {dz, to}, [=, &l, &w] { toy::backward_input(l, w, y, dy, dz, to); });
      }
      d = std::move(dx);
      kept.y[k].reset();  // the next layer's x may be the same memory
      if (l.is_frozen) kept.x[k].reset();
    }
    kept.d_sum.reset();
    kept.d_positive.reset();
    if (mb.is_first_stage()) return {};
    return {d, d_sum};  // the gradient of the skip connection goes on as it came
  }

  stage_model* model_;
};

using passes = basic_passes<at_once>;

/// The same stage as a flow that is written by hand.
template <class Passes>
class basic_hand_written {
 public:
  explicit basic_hand_written(stage_model& stage) : work_(stage) {}

  flow operator()(microbatch mb) {
    typename Passes::saved kept;
    message out;
    message const in = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) { out = work_.forward(kept, in, mb, ctx); });
    co_await mb.send_activation(std::move(out));
    co_await R([&](pass_context ctx) { work_.recompute(kept, mb, ctx); });
    message const back = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      auto both = [&](pass_context ctx) { out = work_.backward(kept, back, mb, ctx); };
      co_await BW(both);
      co_await mb.send_gradient(out);
    } else {
      co_await B([&](pass_context ctx) { out = work_.backward_input(kept, back, mb, ctx); });
      co_await mb.send_gradient(out[0], out[1]);
      out.clear();
      co_await W([&](pass_context ctx) { work_.backward_weight(kept, mb, ctx); });
    }
  }

 private:
  Passes work_;
};

using hand_written = basic_hand_written<passes>;

}  // namespace zbpp::test::toy
