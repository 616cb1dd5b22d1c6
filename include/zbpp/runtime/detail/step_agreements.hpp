// SPDX-License-Identifier: Apache-2.0
//
// The parts that the ranks of this process take in optimizer steps.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/step_agreement.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/training.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Checks whether a backend can run the optimizer steps of a program.
/// @param agrees     whether its transport is an `agreeing_transport`
/// @param validates  whether it is a `multi_step_transport`
/// @throws error (bad_argument) when it cannot
void check_backend(program const& program, bool agrees, bool validates);

/// @throws error (bad_argument) unless a state is one that a training can have
void check(training_state const& state);

/// Holds one `step_agreement` for each rank of the process, where ranks agree, or where the host
/// has a part in the optimizer step of a stage; else none.
class step_agreements {
 public:
  /// @param stages  those of these ranks, rank after rank
  /// @throws error (bad_argument) when options contradict each other or the program, a stage has an
  ///         update of its own where ranks agree, or not the tied weights that the problem states
  step_agreements(
      program const& program,
      problem const& problem,
      std::span<int const> ranks,
      std::span<stage_ref const> stages,
      training_options const& options);

  /// @return that of a rank, counted among those of the process; null where there are none
  [[nodiscard]] step_agreement* of(std::size_t here) const noexcept { return parts_[here].get(); }
  /// @return of how many steps in turn results are needed at a time, where ranks agree
  [[nodiscard]] std::size_t results_in_turn() const noexcept { return may_not_agree_ ? 3 : 2; }
  /// Continues from a state.
  void resume(training_state const& state);
  /// Counts a step that is over.
  void count_step(training_state& state) const;
  /// Drops what a callback asked for in an earlier run.
  void forget_request() noexcept {
    if (parts_.front() != nullptr) parts_.front()->forget_request();
  }
  /// Ends the step of every rank after a failure: alike on all where ranks agree. Otherwise each
  /// stage has stepped or not, and the step counts as not run; a step that ranks did not agree on
  /// does unless all have ended it.
  /// @param run  called with a rank, counted among those of the process, and what it has to run
  ///             where its passes run
  void settle(
      std::function<void(std::size_t, std::function<void(pass_context)> const&)> const& run);

 private:
  bool agrees_ = false;
  bool may_not_agree_ = false;  // there may be steps on which ranks do not
  bool steps_ = false;          // whether the program has optimizer steps
  std::vector<std::unique_ptr<step_agreement>> parts_;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/step_agreements.ipp>
#endif
