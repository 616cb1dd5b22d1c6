// SPDX-License-Identifier: Apache-2.0
//
// What gives times to the passes and messages of one rank: the clock of a backend, which may also
// follow what its engine does.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>

#include <concepts>
#include <span>

namespace zbpp {

/// Models the clock of a rank. An engine calls it on the thread that runs the rank, and copies it
/// when a run begins. What it throws fails the step.
template <class T>
concept pass_observer = std::default_initializable<T> && std::copyable<T> &&
                        requires(T& observer, T const& fixed, ticks time, pass const& begun) {
                          // Begins a pass whose input arrived at that time; gives its start.
                          { observer.start(time, begun) } -> std::same_as<ticks>;
                          // Ends it, which takes that long as planned; gives its end.
                          { observer.finish(time) } -> std::same_as<ticks>;
                          // Waits for what arrives at that time; gives when the rank goes on.
                          { observer.reach(time) } -> std::same_as<ticks>;
                          // Gives when a message arrives that is sent now and takes that long.
                          { fixed.arrival_of_send(time) } -> std::same_as<ticks>;
                          // Says whether that time has come, and the rank may go on.
                          { fixed.has_arrived(time) } -> std::same_as<bool>;
                        };

// An engine also calls what follows, where the observer of its rank has it.

/// Models one whose clock does not run by itself: `spend` takes time for what is no pass.
template <class T>
concept spends_time = requires(T& observer, ticks time) { observer.spend(time); };

/// Models one that is told when the next two passes are a pair: `begin_pair`, before they start.
template <class T>
concept observes_pairs = requires(T& observer) { observer.begin_pair(); };

/// Models one that may refuse what a pass has done: `check_pass`, after each.
template <class T>
concept checks_passes = requires(T& observer) { observer.check_pass(); };

/// Models one that is told of the steps of a run after its first: `begin_step`, with whether it is
/// the next one or the same one again.
template <class T>
concept observes_steps = requires(T& observer, bool is_next) { observer.begin_step(is_next); };

/// Models one that is told what a rank is about to do besides passes and messages: `begin`, again
/// when it goes on with what has waited.
template <class T>
concept observes_instructions =
    requires(T& observer, instruction const& next) { observer.begin(next); };

/// Models one whose passes run on a device: `await_messages` blocks, before the host measures
/// gradients, until no pass waits for a message. It gives whether the step goes on.
template <class T>
concept awaits_messages = requires(T& observer) {
  { observer.await_messages() } -> std::same_as<bool>;
};

/// Models one that knows the times of passes only when they are over: `complete_passes` gets the
/// times of a step's passes, to correct them, once its gradients are measured.
template <class T>
concept completes_passes =
    requires(T& observer, std::span<timed_pass> passes) { observer.complete_passes(passes); };

}  // namespace zbpp
