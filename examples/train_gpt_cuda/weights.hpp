// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device that a stage holds as long as it lives, and the parameters of a chunk there:
// fp32 masters, the bf16 copies that products use, and fp32 gradients, with their optimizer. They
// start with the bits of train_gpt's. All that reaches a device throws zbpp::cuda::cuda_error.
#pragma once

#include "rows.hpp"
#include "train_gpt/parameters.hpp"
#include "train_gpt/settings.hpp"
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace gpt::cuda {

using zbpp::cuda::device_array;

/// Copies values to a device, and waits until they are there.
template <class Value>
void upload(zbpp::cuda::stream_ref on, std::span<Value const> from, Value* to) {
  zbpp::cuda::pinned<Value> const staged(from.size());
  std::copy(from.begin(), from.end(), staged.data());
#ifdef ZBPP_CUDA_MODEL
  zbpp::cuda_model::host_writes(staged.data(), from.size_bytes());
#endif
  zbpp::cuda::check(
      cudaMemcpyAsync(to, staged.data(), from.size_bytes(), cudaMemcpyHostToDevice, on));
  on.synchronize();
}

/// @return values that are on a device, once the stream is through with what it has
template <class Value>
[[nodiscard]] std::vector<Value> download(
    zbpp::cuda::stream_ref on, Value const* from, std::size_t count) {
  zbpp::cuda::pinned<Value> const landing(count);
  zbpp::cuda::check(
      cudaMemcpyAsync(landing.data(), from, count * sizeof(Value), cudaMemcpyDeviceToHost, on));
  on.synchronize();
  return {landing.data(), landing.data() + count};
}

/// Cuts memory into pieces aligned as cudaMalloc's, in the order of the calls; without memory it
/// only counts.
class pieces {
 public:
  static constexpr std::size_t line = 256;  ///< what a piece is aligned to

  /// Counts.
  pieces() = default;
  /// Cuts what starts at `first`; null counts.
  explicit pieces(std::byte* first) : first_(first) {}

  /// @return bytes that so many values take
  template <class Value>
  [[nodiscard]] static std::size_t bytes(index count) {
    return (static_cast<std::size_t>(count) * sizeof(Value) + line - 1) / line * line;
  }
  /// @return the next `count` values
  template <class Value>
  Value* take(index count) {
    auto const at = used_;
    used_ += bytes<Value>(count);
    return first_ == nullptr ? nullptr : reinterpret_cast<Value*>(first_ + at);
  }
  /// @return bytes taken so far
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  std::byte* first_ = nullptr;
  std::size_t used_ = 0;
};

/// Gives the settings of AdamW.
struct adam_settings {
  optimizer_settings base;    ///< its rate, its warm-up, its means and what it clips to
  float weight_decay = 0.0F;  ///< of weights; biases, norms and tables do not decay
};

/// Lists parameters and their initial values on the host, then holds all about them on a device.
class weights {
 public:
  /// Says what a piece is, and of which normal numbers it is first made.
  struct entry : parameter_set::entry {
    float mean;
    float deviation;
  };
  /// Bytes of a parameter on the device: masters, gradients, bf16 copies.
  static constexpr std::size_t bytes_each = 2 * sizeof(float) + sizeof(bf16);

  explicit weights(std::uint64_t seed) : seed_(seed) {}

  /// Adds a piece, as parameter_set::add does; its values are made by `upload`.
  parameter add(index part, std::string_view name, index size, float mean, float deviation) {
    parameter const at{static_cast<index>(size_), size};
    entries_.push_back({{part, name, at}, mean, deviation});
    size_ += (static_cast<std::size_t>(size) + 15) / 16 * 16;
    return at;
  }
  /// @return every piece, in order
  [[nodiscard]] std::vector<entry> const& entries() const { return entries_; }
  /// @return values of all pieces, and those between that align them
  [[nodiscard]] std::size_t size() const { return size_; }

  /// Makes everything on the current device and waits until it is there.
  void upload(zbpp::cuda::stream_ref on) {
    value_ = device_array<float>(size_);
    rounded_ = device_array<bf16>(size_);
    gradient_ = device_array<float>(size_);
    parameter_set made(seed_);
    for (auto const& e : entries_) made.add(e.part, e.name, e.at.size, e.mean, e.deviation);
    clear_gradients(on);
    assign(on, made.values());
  }
  /// Sets all fp32 values, `size()` of them, and the bf16 copies, and waits until they are there.
  void assign(zbpp::cuda::stream_ref on, std::span<float const> values) const {
    cuda::upload(on, values, value_.data());
    run(on, rounding());
    on.synchronize();
  }

  /// @return the fp32 values of a piece, which own kernels use
  [[nodiscard]] float const* value(parameter p) const { return value_.data() + p.offset; }
  /// @return the bf16 values of a piece, which products use
  [[nodiscard]] bf16 const* rounded(parameter p) const { return rounded_.data() + p.offset; }
  /// @return the gradient of a piece
  [[nodiscard]] float* gradient(parameter p) const { return gradient_.data() + p.offset; }

  /// @return all pieces, on the device, for an optimizer
  [[nodiscard]] std::vector<zbpp::optim::layer> layers() const {
    std::vector<zbpp::optim::layer> all;
    for (auto const& e : entries_) {
      auto const first = static_cast<std::size_t>(e.at.offset);
      auto const size = static_cast<std::size_t>(e.at.size);
      all.push_back(
          {.weights = {value_.data() + first, size},
           .gradients = {gradient_.data() + first, size},
           .decays = e.name.ends_with("weight")});
    }
    return all;
  }
  /// @return what makes the bf16 values of all pieces from the fp32 values
  [[nodiscard]] round_weights rounding() const {
    return {.count = static_cast<index>(size_), .value = value_.data(), .rounded = rounded_.data()};
  }
  /// Enqueues what sets all gradients to 0.
  void clear_gradients(cudaStream_t on) const {
    zbpp::cuda::check(cudaMemsetAsync(gradient_.data(), 0, size_ * sizeof(float), on));
  }

  /// @return all fp32 values, once the stream is through
  [[nodiscard]] std::vector<float> values(zbpp::cuda::stream_ref on) const {
    return download(on, value_.data(), size_);
  }
  /// @return all gradients, once the stream is through
  [[nodiscard]] std::vector<float> gradients(zbpp::cuda::stream_ref on) const {
    return download(on, gradient_.data(), size_);
  }

 private:
  std::uint64_t seed_;
  std::vector<entry> entries_;
  std::size_t size_ = 0;
  device_array<float> value_;
  device_array<bf16> rounded_;
  device_array<float> gradient_;
};

/// Steps the weights of a chunk by `zbpp::cuda::adamw`, which nvcc alone knows, and rounds them
/// whenever they change; each piece is a layer. Everything but `measure` enqueues.
class chunk_optimizer final : public zbpp::optimizer {
 public:
  /// Bytes that it keeps of a weight: two means, and the value before a step that may be taken
  /// back.
  static constexpr std::size_t bytes_each = 3 * sizeof(float);

  /// Keeps nothing until `prepare`.
  chunk_optimizer(adam_settings const& how, weights const& of)
      : how_(how), layers_(static_cast<int>(of.entries().size())) {}

  /// Makes what it keeps on the current device.
  /// @param of  the weights that it was made for, uploaded; what they have on the device outlives
  ///            the optimizer
  void prepare(weights const& of);
  /// Runs each of its kernels before the first step, so that none has to load one. Weights are
  /// afterwards as they were, and gradients are 0.
  /// @param by_schedule  whether steps are to go by a schedule, which then begins
  void rehearse(zbpp::pass_context ctx, bool by_schedule);

  [[nodiscard]] int layers() const override { return layers_; }
  void measure(std::span<zbpp::gradient_state> states, zbpp::pass_context ctx) override;
  void step(zbpp::step_settings const& settings, zbpp::pass_context ctx) override;
  void commit(zbpp::pass_context ctx) override;
  void undo(zbpp::pass_context ctx) override;
  void skip(zbpp::pass_context ctx) override;

  /// Puts the learning rates of all steps on the device, for the function below, and the number of
  /// those that were taken; while the device is current.
  void follow_schedule(std::int64_t updates);
  /// Takes a final step with the settings that are on the device, and moves them on.
  void step(zbpp::pass_context ctx);
  /// @return where the device has the number of those steps; null without a schedule
  [[nodiscard]] std::int64_t const* updates() const;

  /// @return the mean gradients of all weights, layer after layer, on the device
  [[nodiscard]] std::span<float> mean() const;
  /// @return the mean squared gradients
  [[nodiscard]] std::span<float> mean_square() const;

 private:
  struct state;

  adam_settings how_;
  int layers_;
  std::shared_ptr<state> state_;  // deletes what is not known here
};

}  // namespace gpt::cuda
