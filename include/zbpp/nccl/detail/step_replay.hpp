// SPDX-License-Identifier: Apache-2.0
//
// Steps of a rank over NCCL that are captured as one graph and replayed, and what has to hold for
// that on all ranks.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/detail/refuse_replay.hpp>
#include <zbpp/cuda/detail/step_graph.hpp>
#include <zbpp/cuda/detail/step_order.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/hardware_queues.hpp>
#include <zbpp/nccl/settings.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace zbpp::nccl::detail {

using cuda::detail::step_way;

/// Refuses settings with which the host has a part in every step, an adopted communicator, and a
/// program whose messages have no order that all ranks share.
/// @throws error (bad_argument); (refused_program)
inline void check_replay(ranks_settings const& settings, plan const& planned) {
  cuda::detail::refuse_to_replay(
      settings.run_ahead, settings.traces, settings.synchronizes, planned);
  zbpp::detail::require(
      settings.adopted == nullptr,
      "replay is replay::step and a communicator is adopted, which a failure can only revoke: "
      "messages of a graph that begin after that wait for ever; let zbpp make its own");
  auto const need = hardware_queues(planned.program(), settings.layout);
  if (need.reason.empty()) return;
  auto const& cycle = need.reason.front();
  throw error(
      errc::refused_program,
      "replay is replay::step, whose graph has the messages of a rank one behind the other, and "
      "the program can deadlock with that; lower the plan with .layout = "
      "channel_layout::one_per_rank: " +
          cycle.text,
      cycle.location);
}

/// Keeps the graph of a rank's steps, one for each of those at once.
///
/// In the graph the messages of the rank stand one behind the other, in the order of the program,
/// beside its passes. CUDA may take the nodes of a graph in any order that their dependences allow,
/// and put them into any hardware queues, so only what they depend on keeps ranks from waiting for
/// one another in turn.
class step_replay {
 public:
  /// @param context  of the rank; it outlives this
  /// @param at_once  how many steps may be under way
  /// @throws cuda_error
  explicit step_replay(cuda::device_context& context, std::size_t at_once = 1)
      : messages_(cuda::on_device(
            context.device(), [] { return cuda::stream(cuda::stream_priority::highest); })),
        graph_({&context}, at_once),
        is_settled_(at_once, 0) {}

  /// @return the stream on which messages are captured
  [[nodiscard]] cuda::stream_ref messages() const { return messages_; }

  /// @param turn  of the step among those at once
  /// @return whether all ranks replay the next training step, and each knows it. Otherwise they
  ///         agree first, since both ends of a message are captured together or not at all.
  [[nodiscard]] bool is_settled(std::size_t turn) const noexcept { return is_settled_[turn] != 0; }
  /// @return how this rank can run the next training step, before ranks agree
  template <class Engines>
  [[nodiscard]] step_way propose(Engines const& engines, std::size_t turn) {
    return graph_.choose(engines, turn);
  }
  /// Notes what ranks have agreed on: the least of what they proposed.
  void settle(step_way agreed, std::size_t turn) noexcept {
    if (agreed == step_way::issue)
      unsettle();
    else
      is_settled_[turn] = 1;
  }
  /// Has ranks agree again: something else ran, which may have left memory in use.
  void unsettle() noexcept { std::ranges::fill(is_settled_, char{0}); }

  /// Launches a step; captures it first, unless it is a replay.
  /// @param order  of steps, which has the streams of the rank, and that of `messages`
  /// @param turn   of the step among those at once
  /// @param issue  as of `step_graph::start`
  /// @throws as `step_graph::start`
  template <class Engines, class Issue>
  void start(
      step_way way,
      Engines& engines,
      cuda::detail::step_order const& order,
      std::size_t turn,
      Issue const& issue) {
    graph_.start(way, engines, order, turn, issue);
  }
  /// Drops all graphs, for which an abort of their communicators waits. Those that run go when they
  /// end.
  /// @source NCCL, commDestroySync in src/init.cc
  void discard() noexcept { graph_.discard(); }

 private:
  cuda::stream messages_;
  cuda::detail::step_graph graph_;
  std::vector<char>
      is_settled_;  // by turn: whether all ranks have captured its graph, and replay it
};

}  // namespace zbpp::nccl::detail
