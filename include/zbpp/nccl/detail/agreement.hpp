// SPDX-License-Identifier: Apache-2.0
//
// What all ranks of a run over NCCL have to set alike, and how they run a step alike.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/cuda/replay.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/detail/step_replay.hpp>
#include <zbpp/nccl/settings.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace zbpp::nccl::detail {

/// @return the layout of the communicators that a rank uses
[[nodiscard]] inline channel_layout layout_of(ranks_settings const& settings) noexcept {
  return settings.adopted != nullptr ? channel_layout::one_per_rank : settings.layout;
}

/// @return whether copies may carry messages. A graph writes the same values into counters with
///         each launch, so they cannot count the messages of a step that is replayed.
[[nodiscard]] inline bool uses_peer_copies(ranks_settings const& settings) noexcept {
  return settings.peer_copies && settings.adopted == nullptr &&
         settings.replay != cuda::replay::step;
}
/// @return that as ranks agree on it
[[nodiscard]] inline asio::agreement_item peer_copies_item(ranks_settings const& settings) {
  return asio::make_item(
      "peer copies", uses_peer_copies(settings) ? "where GPUs reach each other" : "none");
}

/// Refuses a deadline that is over at once.
/// @throws error (bad_argument)
inline void check_deadline(ranks_settings const& settings) {
  zbpp::detail::require(
      settings.init_deadline.count() > 0,
      "ranks_settings::init_deadline is 0 ms or less; set it above 0 ms");
}

/// @return what ranks compare of their settings
[[nodiscard]] inline std::vector<asio::agreement_item> agreement_of(
    ranks_settings const& settings) {
  std::string shapes;
  for (auto const& edge : settings.edges) {
    shapes += shapes.empty() ? "" : ", ";
    for (auto const part : edge) shapes += std::to_string(part) + " ";
  }
  return {
      asio::make_item(
          "communicators",
          std::string(settings.adopted != nullptr ? "adopted, " : "") +
              std::string(to_string(layout_of(settings)))),
      asio::make_item("edges", shapes.empty() ? "one buffer each" : shapes),
      asio::make_item("most_ctas", std::to_string(settings.most_ctas)),
      asio::make_item("replay", settings.replay == cuda::replay::step ? "step" : "none"),
      asio::make_item("steps_at_once", std::to_string(settings.steps_at_once)),
      asio::make_item("share_losses", settings.share_losses ? "true" : "false"),
      peer_copies_item(settings)};
}

/// Agrees with the other ranks on how all run the next training step of a program that is replayed,
/// which they do not know yet; a collective call.
/// @param turn  of the step among those at once
/// @throws the failure of the run
template <class Engines>
[[nodiscard]] step_way agree_on_step(
    asio::control& run, step_replay& steps, Engines const& engines, std::size_t turn) {
  auto least = steps.propose(engines, turn);
  auto const own = static_cast<std::byte>(least);
  for (auto const& each : run.collect(asio::collective::all_gather, std::span(&own, 1)))
    if (!each.empty()) least = std::min(least, static_cast<step_way>(each.front()));
  steps.settle(least, turn);
  return least;
}

}  // namespace zbpp::nccl::detail
