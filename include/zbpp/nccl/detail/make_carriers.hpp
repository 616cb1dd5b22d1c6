// SPDX-License-Identifier: Apache-2.0
//
// How the processes of a run find out what carries which messages, and make it: copies where
// devices reach each other, and communicators for the rest.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/agreement.hpp>
#include <zbpp/nccl/detail/check_multiprocessors.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/make_communicators.hpp>
#include <zbpp/nccl/detail/make_peers.hpp>
#include <zbpp/nccl/detail/peer_set.hpp>
#include <zbpp/nccl/hardware_queues.hpp>
#include <zbpp/nccl/settings.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Holds what carries the messages of a run at this rank.
struct message_carriers {
  std::vector<std::size_t> held;  ///< by channel: slots where copies carry it
  std::shared_ptr<peer_set> peers;
  std::shared_ptr<communicator_set> communicators;  ///< of the other channels
};

/// Finds out what carries which channel, and makes it; a collective call. Ranks differ in how many
/// queues and multiprocessors they have, and need.
/// @param context  of this rank
/// @param shapes   by edge
/// @throws error (refused_program) when the program can stand still on the hardware queues of a
///         device; (bad_argument) when messages could hold all multiprocessors; as `make_peers` and
///         `make_communicators`
[[nodiscard]] inline message_carriers make_carriers(
    asio::control& run,
    cuda::device_context const& context,
    program const& code,
    traffic const& messages,
    std::vector<cuda::message_shape> const& shapes,
    ranks_settings const& settings) {
  auto const& channels = messages.channels();
  message_carriers made{{}, std::make_shared<peer_set>(channels.size()), nullptr};
  if (uses_peer_copies(settings)) {
    std::vector const filling(channels.size(), cuda::slot_filling::by_sends);
    made.held = held_messages(code);
    made.peers = make_peers(
        run,
        context.device(),
        cuda::needs_of(code, messages, shapes, filling, made.held),
        made.held);
  }
  auto how = map_rest(channels, code.ranks(), layout_of(settings), *made.peers);
  check_hardware_queues(
      code,
      run.rank(),
      streams_of_rank(code, run.rank(), how.count_of(run.rank()), made.peers->senders()));
  if (settings.adopted == nullptr)
    check_multiprocessors(how, run.rank(), settings.most_ctas, context.sm_count());
  made.communicators =
      make_communicators(run, context.device(), channels, std::move(how), settings);
  return made;
}

/// @return by channel, how slots are filled
[[nodiscard]] inline std::vector<cuda::slot_filling> filling_of(peer_set const& peers) {
  std::vector<cuda::slot_filling> filling;
  for (int c = 0; c < peers.channels(); ++c)
    filling.push_back(
        peers.carries(c) ? cuda::slot_filling::by_sends : cuda::slot_filling::by_receives);
  return filling;
}

}  // namespace zbpp::nccl::detail
