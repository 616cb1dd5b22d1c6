// SPDX-License-Identifier: Apache-2.0
//
// What the engine of a rank, and its parts, are made of.
#pragma once

#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/training.hpp>

#include <span>

namespace zbpp {

class problem;
class program;
class rank_grid;
class traffic;
struct rank_memory;

namespace detail {

class step_agreement;

/// Refers to what one rank runs and where. All that is referred to outlives the engine, and memory
/// does not move.
struct rank_setup {
  int rank;
  zbpp::program const& program;  ///< verified
  traffic const& messages;       ///< of the program
  zbpp::problem const& problem;
  std::span<stage_ref const> stages;  ///< of the rank, in the order of the model
  rank_memory& memory;
  pass_context ctx;
  rank_grid& grid;
  stall_options on_stall{};             ///< of training
  step_agreement* agreement = nullptr;  ///< of training, where the rank has a part in steps
  callback<evaluation_output> const* outputs = nullptr;  ///< of an evaluation; null in training

  [[nodiscard]] bool is_training() const noexcept { return outputs == nullptr; }
};

}  // namespace detail
}  // namespace zbpp
