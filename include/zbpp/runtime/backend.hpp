// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline asks of a backend: which ranks run in this process and where, what carries their
// messages, what runs them, and what is told of a failure. `one_process` is the part shared
// by all backends whose ranks run in one process.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/in_process.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pass_observer.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/transport.hpp>

#include <concepts>
#include <cstddef>
#include <exception>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

namespace zbpp {

/// Models what runs the ranks of a pipeline: clocks (`pass_observer`), a transport, and an
/// `executor`, which is made with the backend and the plan.
///
/// Models also promise: the executor's `run(engines, transport, status)` returns when no engine is
/// running, and its `warm_up(engines)` calls `warm_up` of each engine on the thread that runs its
/// passes; `ranks()` stays the same; `make_transport`, for a program that outlives it, is followed
/// by a `bind` for each of these ranks and then one `connect`; a message notifies `wakeup_of` its
/// receiver; `settle` turns the failures of this process, the first one first, into those of all.
template <class Backend>
concept backend = requires(
    typename Backend::executor executor,
    program const& program,
    traffic const& messages,
    problem const& problem,
    typename Backend::transport_type& channels,
    std::vector<failure>& failures,
    arena& memory,
    int rank) {
  requires std::constructible_from<typename Backend::executor, Backend, plan const&>;
  requires zbpp::transport<typename Backend::transport_type>;
  requires zbpp::pass_observer<typename Backend::pass_observer>;
  { Backend::reserves_memory } -> std::convertible_to<bool>;
  { executor.ranks() } -> std::convertible_to<std::span<int const>>;
  {
    executor.make_transport(program, messages, problem)
  } -> std::same_as<std::unique_ptr<typename Backend::transport_type>>;
  executor.connect(channels);
  { executor.wakeup_of(rank) } -> std::same_as<wakeup*>;
  { executor.make_memory(rank) } -> std::same_as<arena>;
  { executor.context_of(rank, memory) } -> std::same_as<pass_context>;
  executor.start_run();
  { executor.observer_of(rank) } -> std::same_as<typename Backend::pass_observer>;
  executor.settle(failures);
};

// A pipeline also calls what follows, where the backend or its executor has it.

/// Models a backend of which two ranks on one device hand messages over without a copy:
/// `devices_of(ranks)` gives, by rank, the device of each.
template <class Backend>
concept shares_devices = requires(Backend const& backend, int ranks) {
  { backend.devices_of(ranks) } -> std::same_as<std::vector<int>>;
};

/// Models a backend that has something to set up, such as a current device, for work of a rank that
/// is no pass. It is set up while what `enter(rank)` gives lives.
template <class Backend>
concept enters_ranks =
    requires(typename Backend::executor& executor, int rank) { executor.enter(rank); };

/// Models a backend with ranks in other processes: `propose(next)` tells them what this one asks
/// for after a step, without blocking; `decision()` blocks until all have told, and gives the most.
template <class Backend>
concept proposes = requires(typename Backend::executor& executor, after_step next) {
  executor.propose(next);
  { executor.decision() } -> std::same_as<after_step>;
};

/// Models a backend with ranks in other processes that can give all of them the losses of a step:
/// `share_losses(losses, from)` blocks until those of the rank `from` are here, where
/// `shares_losses()` says that all ranks want them.
template <class Backend>
concept shares_losses =
    requires(typename Backend::executor& executor, std::span<double> losses, int rank) {
      { executor.shares_losses() } -> std::convertible_to<bool>;
      executor.share_losses(losses, rank);
    };

/// Models a backend that can record when messages were sent, arrived and were taken:
/// `records_messages()` says whether it is to.
template <class Backend>
concept records_messages = requires(typename Backend::executor& executor) {
  { executor.records_messages() } -> std::convertible_to<bool>;
};

/// Models a backend with ranks in other processes, which are told why the pipeline cannot be made
/// here: `refuse(reason)` ends the run, and throws its first failure.
template <class Backend>
concept refuses = requires(typename Backend::executor& executor, std::exception_ptr reason) {
  executor.refuse(reason);
};

/// Models a backend with ranks in other processes, which are told, before its connections close,
/// that the pipeline is destroyed here: `leave()`.
template <class Backend>
concept leaves_run = requires(typename Backend::executor& executor) { executor.leave(); };

/// Models a backend whose executor says whether a rank that waits for a message keeps a processor
/// idle, so that it may run a W meanwhile: `waits_idle()`.
template <class Backend>
concept runs_on_stall = requires(typename Backend::executor const& executor) {
  { executor.waits_idle() } -> std::convertible_to<bool>;
};

/// Models a backend whose clock is that of a problem: `stated()` of its executor gives it.
template <class Backend>
concept states_times = requires(typename Backend::executor const& executor) {
  { executor.stated() } -> std::same_as<problem const&>;
};

/// Models a backend whose pipeline may be one of several in a grid: `grid_of(rank)` gives what a
/// rank of this process knows of it, or null where there is no grid.
template <class Backend>
concept runs_in_grid = requires(typename Backend::executor& executor, int rank) {
  { executor.grid_of(rank) } -> std::same_as<rank_grid*>;
};

/// Models a backend that can begin a step while others run: its executor has `steps_at_once()`,
/// `start_run(turn)`, `start(engines, transport, status, turn)`, and `finish(transport, turn,
/// failures)`, which blocks until the step is done, and gives whether it is whole; what failed here
/// goes in front of `failures`.
template <class Backend>
concept starts_steps = requires(
    typename Backend::executor& executor,
    typename Backend::transport_type& channels,
    std::size_t turn,
    std::vector<failure>& failures) {
  { executor.steps_at_once() } -> std::convertible_to<int>;
  executor.start_run(turn);
  { executor.finish(channels, turn, failures) } -> std::same_as<bool>;
};

namespace detail {

/// Runs what belongs to a rank, and is no pass, where its passes run.
template <class Backend, class Work>
void run_at(typename Backend::executor& executor, int rank, arena& memory, Work const& work) {
  auto const ctx = executor.context_of(rank, memory);
  if constexpr (enters_ranks<Backend>) {
    auto const entered = executor.enter(rank);
    work(ctx);
  } else {
    work(ctx);
  }
}

/// @return what a rank knows of its grid, which is one of a single rank where there is none
template <class Backend>
[[nodiscard]] rank_grid& grid_of(typename Backend::executor& executor, int rank) {
  // Calls in groups of one change nothing, so all ranks may share it.
  static rank_grid alone;
  if constexpr (runs_in_grid<Backend>)
    if (auto* const grid = executor.grid_of(rank); grid != nullptr) return *grid;
  return alone;
}

/// Does a part of making a pipeline; where it throws, other processes are told why.
template <class Backend, class Work>
auto make_or_refuse(typename Backend::executor& executor, Work const& work) {
  if constexpr (refuses<Backend>) {
    try {
      return work();
    } catch (...) {
      executor.refuse(std::current_exception());
      throw;
    }
  } else {
    return work();
  }
}

}  // namespace detail

/// The base of an executor whose ranks all run in this process.
class one_process {
 public:
  /// Makes the list of the plan's ranks.
  explicit one_process(plan const& planned) : ranks_(detail::index(planned.problem().ranks())) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }

  [[nodiscard]] std::span<int const> ranks() const noexcept { return ranks_; }
  [[nodiscard]] static std::unique_ptr<in_process> make_transport(
      program const& program, traffic const& messages, problem const&) {
    return std::make_unique<in_process>(state_map(program), messages.channels());
  }
  /// @return the memory of a rank: the heap, unless an executor says otherwise
  [[nodiscard]] static arena make_memory(int /*rank*/) { return arena(); }
  /// @return where its passes run: on the calling thread, unless an executor says otherwise
  [[nodiscard]] static pass_context context_of(int /*rank*/, arena& memory) noexcept {
    return pass_context(memory);
  }
  /// Lets the stages of every rank get ready.
  template <class Engine>
  static void warm_up(std::vector<Engine>& engines) {
    for (auto& e : engines) e.warm_up();
  }
  /// Does nothing: the ranks share their memory.
  static void connect(in_process&) noexcept {}
  /// Does nothing: no other process has failures to add.
  static void settle(std::vector<failure> const&) noexcept {}

 private:
  std::vector<int> ranks_;
};

}  // namespace zbpp
