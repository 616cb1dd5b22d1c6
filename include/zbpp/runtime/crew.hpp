// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline asks of a backend: which ranks run in this process and where, what carries their
// messages, who runs them, and who hears of a failure. Here stands the part that is the same for
// all backends whose ranks run in one process.
#pragma once

#include <zbpp/analysis/program.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/plan.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/transport.hpp>
#include <zbpp/runtime/where.hpp>

#include <concepts>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

namespace zbpp {

/// Models what runs the ranks of a pipeline. `Backend::crew` is made with the backend and the plan;
/// its `run(engines, carrier, status)` returns when no engine is running, and `warm_up(engines)`
/// calls that of each.
///
/// Models also promise: `ranks()` stays the same; `make_carrier`, for a program that outlives it,
/// is followed by a `bind` for each of these ranks and then one `connect`; a message rings
/// `bell_of` its receiver; `settle` turns the failures of this process, the first one first, into
/// those of all.
template <class Backend>
concept backend = requires(
    typename Backend::crew crew,
    program const& code,
    traffic const& messages,
    problem const& what,
    typename Backend::carrier& carrier,
    std::vector<failure>& failures,
    arena& memory,
    int rank) {
  requires std::constructible_from<typename Backend::crew, Backend, plan const&>;
  requires transport<typename Backend::carrier>;
  { Backend::reserves_memory } -> std::convertible_to<bool>;
  { crew.ranks() } -> std::convertible_to<std::span<int const>>;
  {
    crew.make_carrier(code, messages, what)
  } -> std::same_as<std::unique_ptr<typename Backend::carrier>>;
  crew.connect(carrier);
  { crew.bell_of(rank) } -> std::same_as<bell*>;
  { crew.make_memory(rank) } -> std::same_as<arena>;
  { crew.place_of(rank, memory) } -> std::same_as<where>;
  crew.start_step();
  { crew.clock_of(rank) } -> std::same_as<typename Backend::clock>;
  crew.settle(failures);
};

/// Is the base of a crew whose ranks all run in this process.
class one_process {
 public:
  explicit one_process(plan const& planned) : ranks_(detail::index(planned.what.ranks())) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }

  /// @return the ranks that run here: all of them
  [[nodiscard]] std::span<int const> ranks() const noexcept { return ranks_; }
  /// @return what carries their messages
  [[nodiscard]] static std::unique_ptr<in_process> make_carrier(
      program const&, traffic const& messages, problem const& what) {
    return std::make_unique<in_process>(what.ranks(), messages.channels());
  }
  /// @return the memory of a rank: the heap, unless a crew says otherwise
  [[nodiscard]] static arena make_memory(int /*rank*/) { return arena(); }
  /// @return where its passes run: on the calling thread, unless a crew says otherwise
  [[nodiscard]] static where place_of(int /*rank*/, arena& memory) noexcept {
    return where(memory);
  }
  /// Lets the stages of every rank get ready.
  template <class Engine>
  static void warm_up(std::vector<Engine>& engines) {
    for (auto& e : engines) e.warm_up();
  }
  /// There is nobody to connect to.
  static void connect(in_process&) noexcept {}
  /// What failed here is all that failed.
  static void settle(std::vector<failure> const&) noexcept {}

 private:
  std::vector<int> ranks_;
};

}  // namespace zbpp
