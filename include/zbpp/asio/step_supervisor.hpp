// SPDX-License-Identifier: Apache-2.0
//
// Steps of a run with one rank per process, for authors of backends: all ranks have the same plan,
// and a step ends on all of them when it fails on one.
#pragma once

#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/failure.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace zbpp {

class plan;
class program;

namespace asio {

/// Takes part in the steps of a run with one rank. The thread that runs steps calls it.
class step_supervisor {
 public:
  /// Checks with all ranks that they have the same plan.
  /// @param wake  called on the I/O thread when the run fails while a step runs; must not throw
  /// @param more  what all have to agree on beside the plan
  /// @throws error (bad_argument) unless there is a process for each rank; (no_agreement) that
  ///         says who differs in what; the failure of the run
  step_supervisor(
      control& run,
      plan const& planned,
      std::function<void()> wake,
      std::vector<agreement_item> const& more = {});

  /// @return the rank of this process
  [[nodiscard]] std::span<int const> ranks() const noexcept { return {&rank_, 1}; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// @return what connects it with the others
  [[nodiscard]] control& channel() const noexcept { return *control_; }

  /// Begins a step. A failure on another rank fails `status` here; at once where the run is over.
  /// @param program_of  whose program it is, until `control::unwatch`
  void begin(void const* program_of, program const& program, step_status& status);
  /// Fails the step if the run has failed, then runs socket handlers that are ready. Those may fail
  /// the step, too. @return whether the run had failed before they ran
  bool look();
  /// The same without running handlers. Call only on the I/O thread.
  bool has_stopped();
  /// Tells the other ranks what went wrong here, if its `exception` is not null, before they notice
  /// what comes of it.
  /// @param step  in which, where they may be in another one
  void report(failure const& own, std::optional<std::int64_t> step = {});
  /// Ends a step.
  void end();
  /// Blocks until all ranks know all failures, and adds those of the others.
  void settle(std::vector<failure>& failures);
  /// Does something outside of a step. If it throws, ends the run, so that no rank waits for this
  /// one.
  /// @throws the first failure of the run
  void or_fail(std::function<void()> const& work);

 private:
  // Ends the step; called on the I/O thread.
  bool stop(rank_failure const& first) noexcept;

  control* control_;
  int rank_;
  std::function<void()> wake_;
  std::int64_t steps_ = 0;
  step_status* status_ = nullptr;  // of the step that runs; touched on the I/O thread
};

}  // namespace asio
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/step_supervisor.ipp>
#endif
