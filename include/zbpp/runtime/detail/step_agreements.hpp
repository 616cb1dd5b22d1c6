// SPDX-License-Identifier: Apache-2.0
//
// The parts that the ranks of this process take in optimizer steps.
#pragma once

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

/// @throws error (bad_argument), because a backend cannot run such a program
[[noreturn]] void refuse_agreement();
/// Throws `errc::bad_argument` for a backend whose ranks cannot validate a step in the next one.
[[noreturn]] void refuse_validation();

/// Holds one `step_agreement` for each rank of the process whose stages have optimizers, or for all
/// of them where ranks agree.
class step_agreements {
 public:
  /// @param stages  those of these ranks, rank after rank
  /// @throws error (bad_argument) when options contradict each other or the program, or a stage has
  ///         an update of its own where ranks agree
  step_agreements(
      program const& program,
      std::span<int const> ranks,
      std::span<stage_ref const> stages,
      training_options const& options);

  /// @return that of a rank, counted among those of the process; null where it has none
  [[nodiscard]] step_agreement* of(std::size_t here) const noexcept { return parts_[here].get(); }
  /// Continues from a state.
  void resume(training_state const& state);
  /// Ends the step of every rank after a failure, alike on all.
  /// @param run  called with a rank, counted among those of the process, and what it has to run
  ///             where its passes run
  void settle(
      std::function<void(std::size_t, std::function<void(pass_context)> const&)> const& run);

 private:
  std::vector<std::unique_ptr<step_agreement>> parts_;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/step_agreements.ipp>
#endif
