// SPDX-License-Identifier: Apache-2.0
//
// Steps of a run with one rank per process, for authors of backends: all ranks have the same plan,
// and a step ends on all of them when it fails on one.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/agreement.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/failure.hpp>

#include <atomic>
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
  /// @param calls  made when the run fails while a step runs
  /// @param more   what all have to agree on beside the plan
  /// @param ranks  which ranks of the run are those of the plan; the pipelines of a grid have to
  ///               agree on their programs, and the ranks of each on all of the plan
  /// @throws error (bad_argument) unless there is a process for each rank; (no_agreement) that
  ///         says who differs in what; the failure of the run
  step_supervisor(
      control& run,
      plan const& planned,
      failure_calls calls,
      std::vector<agreement_item> const& more = {},
      pipeline_ranks ranks = {});
  step_supervisor(step_supervisor const&) = delete;
  step_supervisor& operator=(step_supervisor const&) = delete;
  ~step_supervisor();
  [[nodiscard]] std::span<int const> ranks() const noexcept { return {&rank_, 1}; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] pipeline_ranks const& places() const noexcept { return places_; }
  [[nodiscard]] control& channel() const noexcept { return *control_; }

  /// Lets rank 0 look whether the steps of a program stall, from before this rank begins one: once
  /// the others may.
  /// @param program  as for `begin`
  void watch(program const& program);
  /// Begins a step. A failure on another rank fails `status` here; at once where the run is over.
  /// @param program  the one that runs, at the same address until the pipeline is destroyed
  void begin(program const& program, step_status& status);
  /// Tells the other ranks what begins to run, once `begin` was called; what is wrong with that is
  /// the failure of the run. Blocks nobody.
  void announce(zbpp::detail::run_statement const& run);
  /// @return the call of the user that connects a program; the first time that makes the pipeline
  [[nodiscard]] rank_call connecting(bool is_first) const noexcept;
  /// @return that in which the pipeline is made
  [[nodiscard]] rank_call making() const noexcept {
    return {.kind = call_kind::make_pipeline, .pipeline = pipeline_};
  }
  /// Tells that the pipeline is destroyed here, before its connections close.
  void leave();
  /// Runs socket handlers that are ready, and fails the step if the run has failed.
  /// @return whether this rank knows that it has: if not, no other has given up messages yet
  bool look();
  /// The same without running handlers. Call only on the I/O thread.
  bool has_stopped();
  /// Tells the other ranks what went wrong here, if its `exception` is not null, before they notice
  /// what comes of it.
  /// @param step  in which, where they may be in another one
  void report(failure const& own, std::optional<std::int64_t> step = {});
  /// Ends a step.
  void end();
  /// Gives all ranks of the pipeline the losses of the step or evaluation that has ended; a
  /// collective call of the run.
  /// @param from  the rank of the last stage in the pipeline, which has them
  /// @throws the failure of the run
  void share(std::span<double> losses, int from);
  /// Blocks until all ranks know all failures, and adds those of the others. From then on their
  /// ranks are those of the run.
  void settle(std::vector<failure>& failures);
  /// Does something outside of a step. If it throws, ends the run: no rank waits for this one.
  /// @throws the first failure of the run
  void or_fail(std::function<void()> const& work);

 private:
  // Ends the step; called on the I/O thread.
  void stop(rank_failure const& first) noexcept;

  control* control_;
  pipeline_ranks places_;
  int rank_;  // in the pipeline
  std::int32_t pipeline_;
  rank_call announced_;  // the last one
  failure_calls calls_;
  // Whether this rank knows that the run has failed. `look` reads it after the handlers, when
  // another thread may be the I/O thread: whoever sees it set sees the step failed.
  std::atomic<bool> is_informed_{false};
  std::int64_t steps_ = 0;
  program const* watched_ = nullptr;  // by rank 0, for a stall
  step_status* status_ = nullptr;     // of the step that runs; touched on the I/O thread
};

}  // namespace asio
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/step_supervisor.ipp>
#endif
