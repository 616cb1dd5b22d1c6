// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a chunk on a device: fp32 masters, the bf16 copies that products use, and fp32
// gradients. They start with the bits of train_gpt's.
#pragma once

#include "device_array.hpp"
#include "kernels.hpp"
#include "train_gpt/optimizer_settings.hpp"
#include "train_gpt/parameters.hpp"
#include <zbpp/optim/layer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace gpt::cuda {

/// Gives the settings of AdamW.
struct adam_settings {
  optimizer_settings base;    ///< its rate, its warm-up, its means and what it clips to
  float weight_decay = 0.0F;  ///< of weights; biases, norms and tables do not decay
};

/// Lists parameters and their initial values on the host, then holds all about them on a device.
class weights {
 public:
  using entry = parameter_set::entry;

  explicit weights(std::uint64_t seed) : seed_(seed) {}

  /// Adds a piece, as parameter_set::add does; its values are made by `upload`.
  parameter add(index part, std::string_view name, index size, float mean, float deviation) {
    parameter const at{static_cast<index>(size_), size};
    entries_.push_back({part, name, at});
    first_values_.push_back({mean, deviation});
    size_ += (static_cast<std::size_t>(size) + 15) / 16 * 16;
    return at;
  }
  /// @return every piece, in order
  [[nodiscard]] std::vector<entry> const& entries() const { return entries_; }
  /// @return values of all pieces, and those between that align them
  [[nodiscard]] std::size_t size() const { return size_; }
  /// Bytes of a parameter on the device: masters, gradients, bf16 copies.
  static constexpr std::size_t bytes_each = 2 * sizeof(float) + sizeof(bf16);

  /// Makes everything on the current device and waits until it is there.
  /// @throws zbpp::cuda::cuda_error
  void upload(zbpp::cuda::stream_ref on) {
    value_ = device_array<float>(size_);
    rounded_ = device_array<bf16>(size_);
    gradient_ = device_array<float>(size_);
    parameter_set made(seed_);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      auto const& e = entries_[i];
      made.add(e.part, e.name, e.at.size, first_values_[i].mean, first_values_[i].deviation);
    }
    clear_gradients(on);
    assign(on, made.values());
  }
  /// Sets all fp32 values, and the bf16 copies, and waits until they are there.
  /// @param values  as many as `size()`
  /// @throws zbpp::cuda::cuda_error
  void assign(zbpp::cuda::stream_ref on, std::span<float const> values) const {
    value_.upload(on, values);
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
  /// @throws zbpp::cuda::cuda_error
  void clear_gradients(cudaStream_t on) const { gradient_.clear(on); }

  /// @return all fp32 values, once the stream is through
  /// @throws zbpp::cuda::cuda_error
  [[nodiscard]] std::vector<float> values(zbpp::cuda::stream_ref on) const {
    return value_.download(on);
  }
  /// @return all gradients, once the stream is through
  /// @throws zbpp::cuda::cuda_error
  [[nodiscard]] std::vector<float> gradients(zbpp::cuda::stream_ref on) const {
    return gradient_.download(on);
  }

 private:
  struct distribution {
    float mean;
    float deviation;
  };

  std::uint64_t seed_;
  std::vector<entry> entries_;
  std::vector<distribution> first_values_;  // of each entry
  std::size_t size_ = 0;
  device_array<float> value_;
  device_array<bf16> rounded_;
  device_array<float> gradient_;
};

}  // namespace gpt::cuda
