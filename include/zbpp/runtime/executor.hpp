// SPDX-License-Identifier: Apache-2.0
//
// The base of executors, which run the ranks of a pipeline in this process, for authors of
// backends. What not every executor has has a default here.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/in_process.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <exception>
#include <memory>
#include <span>
#include <vector>

namespace zbpp {

/// Runs the ranks of a pipeline in this process. The pipeline calls these functions, and those that
/// the concept `backend` asks for besides.
class executor {
 public:
  executor(executor const&) = delete;
  executor& operator=(executor const&) = delete;
  virtual ~executor() = default;

  /// @return the ranks that run in this process, always the same
  [[nodiscard]] virtual std::span<int const> ranks() const noexcept = 0;
  /// @return the memory of a rank: the heap
  [[nodiscard]] virtual arena make_memory(int /*rank*/) { return arena(); }
  /// @return where the passes of a rank run: on the calling thread
  [[nodiscard]] virtual pass_context context_of(int /*rank*/, arena& memory) {
    return pass_context(memory);
  }
  /// Sets up what work of a rank needs that is no pass, such as a current device.
  /// @return what keeps it set up; null where there is nothing to set up
  [[nodiscard]] virtual std::shared_ptr<void> enter(int /*rank*/) { return nullptr; }
  /// @return whether a rank that waits for a message keeps a processor idle, so that it may run a W
  ///         meanwhile
  [[nodiscard]] virtual bool waits_idle() const noexcept { return false; }
  /// @return whether steps are to record when messages were sent, arrived and were taken
  [[nodiscard]] virtual bool records_messages() const noexcept { return false; }
  /// @return the problem whose times the clocks go by; null where they measure
  [[nodiscard]] virtual problem const* stated() const noexcept { return nullptr; }
  /// @return how many steps may be under way
  [[nodiscard]] virtual int steps_at_once() const noexcept { return 1; }
  /// @return what a rank knows of its grid; null where the pipeline is in none
  [[nodiscard]] virtual rank_grid* grid_of(int /*rank*/) { return nullptr; }
  /// Turns the failures of this process, the first one first, into those of all. May block.
  virtual void settle(std::vector<failure>& /*failures*/) {}

  // Where other ranks are in other processes.

  [[nodiscard]] virtual bool has_other_processes() const noexcept { return false; }
  /// Tells them that the pipeline cannot be made here, which ends the run.
  /// @throws the first failure of the run
  virtual void refuse(std::exception_ptr const& /*reason*/) {}
  /// Tells them, before connections close, that the pipeline is destroyed here.
  virtual void leave() {}
  /// Tells them what this process asks for after a step; does not block.
  virtual void propose(after_step /*next*/) {}
  /// Blocks until all processes have proposed something. @return the most that one asks for
  virtual after_step decision() { return after_step::go_on; }
  /// @return whether all processes get the losses of a step
  [[nodiscard]] virtual bool shares_losses() const noexcept { return false; }
  /// Gives them to all processes; blocks until those of the rank `from` are here.
  virtual void share_losses(std::span<double> /*losses*/, int /*from*/) {}

 protected:
  executor() = default;
};

/// The base of an executor whose ranks all run in this process.
class one_process : public executor {
 public:
  /// Makes the list of the plan's ranks.
  explicit one_process(plan const& planned);

  [[nodiscard]] std::span<int const> ranks() const noexcept override { return ranks_; }
  [[nodiscard]] static std::unique_ptr<in_process> make_transport(
      program const& program, traffic const& messages, problem const&) {
    return std::make_unique<in_process>(state_map(program), messages.channels());
  }
  /// Lets the stages of every rank get ready.
  template <class Engine>
  static void warm_up(std::vector<Engine>& engines) {
    for (auto& e : engines) e.warm_up();
  }
  /// Does nothing: the ranks share their memory.
  static void connect(in_process&) noexcept {}

 private:
  std::vector<int> ranks_;
};

namespace detail {

/// @return what a rank knows of its grid, which is one of a single rank where there is none
[[nodiscard]] rank_grid& grid_of(executor& from, int rank);

/// Does a part of making a pipeline; where it throws, other processes are told why.
template <class Work>
auto make_or_refuse(executor& here, Work const& work) {
  try {
    return work();
  } catch (...) {
    here.refuse(std::current_exception());
    throw;
  }
}

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/executor.ipp>
#endif
