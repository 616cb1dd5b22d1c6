// SPDX-License-Identifier: Apache-2.0
//
// Adds gradients up over replicas where they lie, for authors of backends whose passes are
// enqueued: the host has no part in the sums.
#pragma once

#include <zbpp/runtime/transport.hpp>

#include <concepts>
#include <span>
#include <vector>

namespace zbpp {

/// Adds up the gradients of a rank's stages over its replicas, on the thread of the rank.
class gradient_sums {
 public:
  gradient_sums() = default;
  gradient_sums(gradient_sums const&) = delete;
  gradient_sums& operator=(gradient_sums const&) = delete;
  virtual ~gradient_sums() = default;

  /// Says where the gradients of the next stage of the rank lie, in the order of the model, before
  /// the first step.
  /// @param layers  always the same memory; empty where the stage has no optimizer
  virtual void add_stage(int stage, std::vector<std::span<float>> layers) = 0;
  /// Enqueues the sum of a stage's gradients after all that the rank has enqueued. Blocks nobody.
  virtual void start(int chunk) = 0;
  /// Lets what the rank enqueues from now on wait for that sum.
  virtual void finish(int chunk) = 0;
};

/// Models a transport of a backend that adds gradients up where they lie: stages then have an
/// optimizer with `gradients()`. `sums()` is called where a program has sums and the rank has
/// replicas.
template <class T>
concept summing_transport = transport<T> && requires(T& t) {
  { t.sums() } -> std::same_as<gradient_sums&>;
};

}  // namespace zbpp
