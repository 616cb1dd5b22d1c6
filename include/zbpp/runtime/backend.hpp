// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline asks of a backend: an executor, which runs the ranks of this process, what
// carries their messages, and what reads their clocks.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/executor.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/pass_observer.hpp>
#include <zbpp/runtime/transport.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <vector>

namespace zbpp {

/// Models what runs the ranks of a pipeline: clocks (`pass_observer`), a transport, and an
/// `executor`, which is made with the backend and the plan.
///
/// Models also promise: the executor's `run(engines, transport, status)` returns when no engine is
/// running, and its `warm_up(engines)` calls `warm_up` of each engine on the thread that runs its
/// passes; `make_transport`, for a program that outlives it, is followed by a `bind` for each of
/// these ranks and then one `connect`; a message notifies `wakeup_of` its receiver.
template <class Backend>
concept backend = requires(
    typename Backend::executor& runs,
    program const& program,
    traffic const& messages,
    problem const& problem,
    typename Backend::transport_type& channels,
    int rank) {
  requires std::derived_from<typename Backend::executor, zbpp::executor>;
  requires std::constructible_from<typename Backend::executor, Backend, plan const&>;
  requires zbpp::transport<typename Backend::transport_type>;
  requires zbpp::pass_observer<typename Backend::pass_observer>;
  { Backend::reserves_memory } -> std::convertible_to<bool>;
  {
    runs.make_transport(program, messages, problem)
  } -> std::same_as<std::unique_ptr<typename Backend::transport_type>>;
  runs.connect(channels);
  { runs.wakeup_of(rank) } -> std::same_as<wakeup*>;
  runs.start_run();
  { runs.observer_of(rank) } -> std::same_as<typename Backend::pass_observer>;
};

/// Models a backend of which two ranks on one device hand messages over without a copy:
/// `devices_of(ranks)` gives, by rank, the device of each.
template <class Backend>
concept shares_devices = requires(Backend const& backend, int ranks) {
  { backend.devices_of(ranks) } -> std::same_as<std::vector<int>>;
};

/// Models a backend that can begin a step while others run: its executor has `start_run(turn)`,
/// `start(engines, transport, status, turn)`, and `finish(transport, turn, failures)`, which blocks
/// until the step is done, and gives whether it is whole; what failed here goes in front of
/// `failures`.
template <class Backend>
concept starts_steps = requires(
    typename Backend::executor& executor,
    typename Backend::transport_type& channels,
    std::size_t turn,
    std::vector<failure>& failures) {
  executor.start_run(turn);
  { executor.finish(channels, turn, failures) } -> std::same_as<bool>;
};

}  // namespace zbpp
