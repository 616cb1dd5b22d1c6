// SPDX-License-Identifier: Apache-2.0
//
// The trainer of example 17 as it was before zbpp, in the style of C: one array of parameters, one
// of gradients, functions over pointers, backward passes written by hand, an AdamW of its own, and
// a plain loop over microbatches. Of what follows, only the cut of matmul_backward and the second
// array of gradients for the embedding were made for the pipeline.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

// The trainer. A token is embedded, goes through layers x + W2 tanh(W1 x), and the head, which is
// the embedding again, says which token comes next.
namespace trainer {

constexpr int vocabulary = 24, channels = 16, hidden = 48, tokens = 10, layers = 4;
constexpr int microbatches = 6;
constexpr int table = vocabulary * channels;             // the embedding, and the head
constexpr int layer_size = 2 * hidden * channels;        // W1, then W2
constexpr int parameters = table + layers * layer_size;  // the embedding, then the layers

struct model {
  std::vector<float> w = std::vector<float>(parameters);
  std::vector<float> d = std::vector<float>(parameters);  // gradients
  std::vector<float> d_head =
      std::vector<float>(table);  // of the table as head; see docs/adopting.md
  std::vector<float> mean = std::vector<float>(parameters), square = mean;  // AdamW's
  int updates = 0;

  model() {
    for (float i = 0; float& value : w) value = 0.3F * std::sin(1.7F * i++);
  }
};

inline int layer_at(int layer) { return table + layer * layer_size; }

inline int token(int step, int microbatch, int i) {
  return (step * 7 + microbatch * 5 + i * i) % vocabulary;
}

inline void matmul(float* out, float const* in, float const* w, int rows, int n, int m) {
  for (int r = 0; r < rows; ++r)
    for (int o = 0; o < m; ++o) {
      float sum = 0;
      for (int i = 0; i < n; ++i) sum += in[r * n + i] * w[o * n + i];
      out[r * m + o] = sum;
    }
}
// [cut
// Gradient of the input: B.
inline void matmul_backward_input(
    float* d_in, float const* d_out, float const* w, int rows, int n, int m) {
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < n; ++i) {
      float sum = 0;
      for (int o = 0; o < m; ++o) sum += d_out[r * m + o] * w[o * n + i];
      d_in[r * n + i] = sum;
    }
}
// Gradient of the weights, added to those of other microbatches: W.
inline void matmul_backward_weight(
    float* dw, float const* d_out, float const* in, int rows, int n, int m) {
  for (int r = 0; r < rows; ++r)
    for (int o = 0; o < m; ++o)
      for (int i = 0; i < n; ++i) dw[o * n + i] += d_out[r * m + o] * in[r * n + i];
}
// What there was before, and what the plain loop still calls.
inline void matmul_backward(
    float* d_in,
    float* dw,
    float const* d_out,
    float const* in,
    float const* w,
    int rows,
    int n,
    int m) {
  matmul_backward_input(d_in, d_out, w, rows, n, m);
  matmul_backward_weight(dw, d_out, in, rows, n, m);
}
// cut]

inline void embed(float* x, float const* wte, int step, int microbatch) {
  for (int t = 0; t < tokens; ++t)
    std::copy_n(wte + token(step, microbatch, t) * channels, channels, x + t * channels);
}
inline void embed_backward(float* d_wte, float const* dx, int step, int microbatch) {
  for (int t = 0; t < tokens; ++t)
    for (int c = 0; c < channels; ++c)
      d_wte[token(step, microbatch, t) * channels + c] += dx[t * channels + c];
}
inline void layer_forward(float* y, float* h, float const* x, float const* w) {
  matmul(h, x, w, tokens, channels, hidden);
  for (int i = 0; i < tokens * hidden; ++i) h[i] = std::tanh(h[i]);
  matmul(y, h, w + layer_size / 2, tokens, hidden, channels);
  for (int i = 0; i < tokens * channels; ++i) y[i] += x[i];
}
// Turns the gradient of tanh(W1 x) into that of W1 x.
inline void tanh_backward(float* dh, float const* h) {
  for (int i = 0; i < tokens * hidden; ++i) dh[i] *= 1 - h[i] * h[i];
}
inline void add(float* to, float const* from, int count) {
  for (int i = 0; i < count; ++i) to[i] += from[i];
}
// Turns logits into their gradient. Returns the loss.
inline float softmax_loss(float* logits, int step, int microbatch) {
  float loss = 0;
  for (int t = 0; t < tokens; ++t) {
    float* const p = logits + t * vocabulary;
    float sum = 0;
    for (int v = 0; v < vocabulary; ++v) sum += p[v] = std::exp(p[v]);
    int const next = token(step, microbatch, t + 1);
    loss -= std::log(p[next] / sum) / tokens;
    for (int v = 0; v < vocabulary; ++v)
      p[v] = (p[v] / sum - (v == next ? 1.0F : 0.0F)) / (tokens * microbatches);
  }
  return loss;
}
// Steps some of the parameters and clears their gradients.
inline void adamw(model& all, int first, int count, int update) {
  float const b1 = 0.9F, b2 = 0.99F, rate = 0.01F, decay = 0.1F;
  float const c1 = 1 - std::pow(b1, float(update)), c2 = 1 - std::pow(b2, float(update));
  for (int i = first; i < first + count; ++i) {
    float &w = all.w.data()[i], &d = all.d.data()[i];
    float &m = all.mean.data()[i], &v = all.square.data()[i];
    m = b1 * m + (1 - b1) * d;
    v = b2 * v + (1 - b2) * d * d;
    w -= rate * (m / c1 / (std::sqrt(v / c2) + 1e-8F) + decay * w);
    d = 0;
  }
}
// Adds both gradients of the table.
inline void sum_tied(model& all) {
  add(all.d.data(), all.d_head.data(), table);
  std::ranges::fill(all.d_head, 0.0F);
}

// One step as the trainer has always made it. Returns the mean loss.
inline double plain_step(model& all, int step) {
  std::vector<float> x(std::size_t((layers + 1) * tokens * channels)), dx(x.size());
  std::vector<float> h(std::size_t(layers * tokens * hidden)), dh(std::size_t(tokens * hidden));
  std::vector<float> logits(std::size_t(tokens * vocabulary)), d_in(std::size_t(tokens * channels));
  auto const x_of = [&](int l) { return x.data() + l * tokens * channels; };
  auto const h_of = [&](int l) { return h.data() + l * tokens * hidden; };
  float *const w = all.w.data(), *const d = all.d.data();
  double loss = 0;
  for (int m = 0; m < microbatches; ++m) {
    embed(x_of(0), w, step, m);
    for (int l = 0; l < layers; ++l) layer_forward(x_of(l + 1), h_of(l), x_of(l), w + layer_at(l));
    matmul(logits.data(), x_of(layers), w, tokens, channels, vocabulary);
    loss += double(softmax_loss(logits.data(), step, m));
    float* dy = dx.data();
    matmul_backward(
        dy, all.d_head.data(), logits.data(), x_of(layers), w, tokens, channels, vocabulary);
    for (int l = layers; l-- > 0;) {
      auto const at = layer_at(l), half = at + layer_size / 2;
      matmul_backward(dh.data(), d + half, dy, h_of(l), w + half, tokens, hidden, channels);
      tanh_backward(dh.data(), h_of(l));
      matmul_backward(d_in.data(), d + at, dh.data(), x_of(l), w + at, tokens, channels, hidden);
      add(dy, d_in.data(), tokens * channels);
    }
    embed_backward(d, dy, step, m);
  }
  sum_tied(all);
  adamw(all, 0, parameters, ++all.updates);
  return loss / microbatches;
}

}  // namespace trainer
