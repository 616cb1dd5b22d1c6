// SPDX-License-Identifier: Apache-2.0
//
// The optimizer of a chunk: zbpp's AdamW for the fp32 weights, and the bf16 copies that products
// use, which are made anew whenever the weights change.
#pragma once

#include "weights.hpp"
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace gpt::cuda {

/// Steps the weights of a chunk. Models `zbpp::optimizer`; each piece is a layer. Everything but
/// `measure` enqueues.
class chunk_optimizer {
 public:
  /// Bytes that it keeps of a weight: two means, and the value before a step that may be taken
  /// back.
  static constexpr std::size_t bytes_each = 3 * sizeof(float);

  /// Keeps nothing until `prepare`.
  chunk_optimizer(adam_settings const& how, weights const& of);
  chunk_optimizer(chunk_optimizer&&) noexcept;
  chunk_optimizer& operator=(chunk_optimizer&&) noexcept;
  ~chunk_optimizer();

  /// Makes what it keeps on the current device.
  /// @param of  the weights that it was made for, uploaded; what they have on the device outlives
  ///            the optimizer
  /// @throws zbpp::cuda::cuda_error
  void prepare(weights const& of);
  /// Runs each of its kernels, so that no step has to load one. Weights are afterwards as they
  /// were, and gradients are 0.
  /// @throws zbpp::cuda::cuda_error
  void rehearse(zbpp::pass_context ctx);

  /// @return how many layers there are
  [[nodiscard]] int layers() const { return layers_; }
  /// Writes the states of the gradients; waits until the device has them.
  /// @throws zbpp::cuda::cuda_error
  void measure(std::span<zbpp::gradient_state> states, zbpp::pass_context ctx) const;
  /// Takes a step; unless it is final, keeps what `undo` needs.
  /// @throws zbpp::cuda::cuda_error
  void step(zbpp::step_settings const& how, zbpp::pass_context ctx);
  /// Puts the learning rates of all steps on the device, from the first on, for the function
  /// below, and runs its kernels. Weights are afterwards as they were, where gradients are 0.
  /// @throws zbpp::cuda::cuda_error
  void follow_schedule(zbpp::pass_context ctx);
  /// Takes a final step with the settings that are on the device, and moves them on.
  /// @throws zbpp::cuda::cuda_error
  void step(zbpp::pass_context ctx);
  /// @return where the device has the number of those steps; null before `follow_schedule`
  [[nodiscard]] std::int64_t const* updates() const;
  /// Makes the last step final.
  /// @throws zbpp::cuda::cuda_error
  void commit(zbpp::pass_context ctx);
  /// Takes the last step back.
  /// @throws zbpp::cuda::cuda_error
  void undo(zbpp::pass_context ctx) const;
  /// Sets gradients to 0.
  /// @throws zbpp::cuda::cuda_error
  void skip(zbpp::pass_context ctx) const;

 private:
  struct state;

  adam_settings how_;
  int layers_;
  std::unique_ptr<state> state_;  // what nvcc alone knows
};

}  // namespace gpt::cuda
