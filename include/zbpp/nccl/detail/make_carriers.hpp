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
#include <zbpp/nccl/detail/communicator_map.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/make_communicators.hpp>
#include <zbpp/nccl/detail/make_peers.hpp>
#include <zbpp/nccl/detail/peer_set.hpp>
#include <zbpp/nccl/detail/peer_slots.hpp>
#include <zbpp/nccl/hardware_queues.hpp>
#include <zbpp/nccl/settings.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Holds what the copies of a run need at this rank.
struct copying_carriers {
  std::vector<std::size_t> held;    ///< by channel: slots where copies carry it
  std::shared_ptr<peer_set> peers;  ///< of all channels
};

/// Finds out which channels copies carry, and makes what they need; a collective call.
/// @param shapes  by edge
/// @param made    gets that; it outlives the report of a failure here
/// @throws as `make_peers`
inline void make_copying(
    asio::control& run,
    int device,
    program const& code,
    traffic const& messages,
    std::vector<cuda::message_shape> const& shapes,
    ranks_settings const& settings,
    copying_carriers& made) {
  auto const channels = messages.channels().size();
  made.peers = std::make_shared<peer_set>(channels);
  if (!uses_peer_copies(settings)) return;
  std::vector const filling(channels, cuda::slot_filling::by_sends);
  made.held = held_messages(code, messages);
  auto const needs = cuda::needs_of(code, messages, shapes, filling, made.held);
  make_peers(run, device, needs, made.held, *made.peers);
}

/// Makes communicators for the channels that copies do not carry; a collective call. Ranks differ
/// in how many queues and multiprocessors they have, and need.
/// @param context  of this rank
/// @param peers    of all channels; it outlives the report of a failure here
/// @throws error (refused_program) when the program can deadlock on the hardware queues of a
///         device; (bad_argument) when messages could hold all multiprocessors; as
///         `make_communicators`
[[nodiscard]] inline std::shared_ptr<communicator_set> make_rest(
    asio::control& run,
    cuda::device_context const& context,
    program const& code,
    traffic const& messages,
    peer_set const& peers,
    ranks_settings const& settings) {
  auto how = map_rest(messages.channels(), code.ranks(), layout_of(settings), [&](int channel) {
    return peers.carries(channel);
  });
  auto const own = how.count_of(run.rank());
  check_hardware_queues(code, run.rank(), streams_of_rank(code, run.rank(), own, peers.senders()));
  if (settings.adopted == nullptr)
    check_multiprocessors(how, run.rank(), settings.most_ctas, context.sm_count());
  return make_communicators(run, context.device(), messages.channels(), std::move(how), settings);
}

}  // namespace zbpp::nccl::detail
