// SPDX-License-Identifier: Apache-2.0
//
// What F draws from LibTorch's default generators, so that R draws the same.
//
// These generators belong to the process, and ranks that are threads of it draw from them in turns.
// So not a pass is bracketed, but each operation that draws: under a lock, as no other may draw
// between reading a state and drawing.
#pragma once

#include <zbpp/torch/detail/generator_states.hpp>
#include <zbpp/torch/detail/operation_watch.hpp>

#include <cstddef>
#include <mutex>
#include <vector>

namespace zbpp::torch::detail {

/// Says from which states the draws of an F went on. Nothing else drew in between where there is
/// one alone.
struct random_draws {
  struct turn {
    std::size_t draw;  ///< the first that goes on from the states
    generator_states states;
  };
  std::vector<turn> turns;
};

/// Lets the draws of this thread take turns with those that are recorded or made again, while it
/// lives.
class draw_turns : public operation_watch {
 public:
  bool begin(at::RecordFunction const& operation) override;
  void end() noexcept override { drawing_ = {}; }

 private:
  std::unique_lock<std::mutex> drawing_;
};

/// Records the draws of this thread while it lives.
class draw_recorder : public operation_watch {
 public:
  /// @param in  tensors on whose devices the pass computes; they must outlive it
  draw_recorder(random_draws& to, std::vector<at::Tensor> const& in) : draws_(&to), in_(&in) {
    to.turns.clear();
  }

  bool begin(at::RecordFunction const& operation) override;
  void end() noexcept override;

 private:
  random_draws* draws_;
  std::vector<at::Tensor> const* in_;
  std::size_t count_ = 0;
  generator_states last_;
  std::unique_lock<std::mutex> drawing_;  // held while an operation draws
};

/// Makes the draws of this thread those that were recorded, while it lives. Others draw as if it
/// drew nothing.
class draw_replay : public operation_watch {
 public:
  /// @param in  as for the recorder
  draw_replay(random_draws const& from, std::vector<at::Tensor> const& in)
      : draws_(&from), in_(&in) {}

  bool begin(at::RecordFunction const& operation) override;
  void end() noexcept override;

 private:
  random_draws const* draws_;
  std::vector<at::Tensor> const* in_;
  std::size_t count_ = 0;
  std::size_t turn_ = 0;
  generator_states outside_;
  generator_states last_;
  std::unique_lock<std::mutex> drawing_;  // held while an operation draws
};

}  // namespace zbpp::torch::detail

#include <zbpp/torch/impl/random_draws.ipp>
