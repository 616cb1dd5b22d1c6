// SPDX-License-Identifier: Apache-2.0
//
// How the processes of a run find out which channels copies between devices can carry: each
// receiver offers slots, each sender tries to reach them, and all learn what came of it.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/peer_channel.hpp>
#include <zbpp/nccl/detail/peer_set.hpp>
#include <zbpp/nccl/detail/peer_slots.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Makes an end of a channel, or none where that is impossible here. NCCL carries the channel then.
template <class End, class... Arguments>
[[nodiscard]] std::unique_ptr<End> try_peer(Arguments const&... arguments) {
  try {
    return std::make_unique<End>(arguments...);
  } catch (std::exception const&) {  // of the system, of CUDA, of an old driver
    cudaGetLastError();
    return nullptr;
  }
}

/// Values that each rank has for some of the channels, as all ranks get them.
template <class Value>
class values_of_channels {
 public:
  /// Exchanges them; a collective call.
  /// @param mine  in the order of channels
  values_of_channels(asio::control& run, std::span<Value const> mine)
      : parts_(run.collect(asio::collective::all_gather, std::as_bytes(mine))),
        next_(parts_.size(), 0) {}

  /// @return the next one of a rank
  /// @throws error (no_agreement) when there is none
  [[nodiscard]] Value take(int rank) {
    auto const& part = parts_[zbpp::detail::index(rank)];
    auto& at = next_[zbpp::detail::index(rank)];
    if (part.size() < at + sizeof(Value))
      throw error(
          errc::no_agreement,
          "rank " + std::to_string(rank) +
              " tells of fewer channels than it has; start all ranks with the same plan");
    Value value;
    std::memcpy(&value, part.data() + at, sizeof(Value));
    at += sizeof(Value);
    return value;
  }

 private:
  std::vector<asio::blob> parts_;
  std::vector<std::size_t> next_;
};

/// Finds out which channels copies can carry, together with all ranks, and makes what they need.
/// @param device  that of this rank
/// @param needs   of each channel, the same everywhere
/// @param held    by channel, how many messages a receiver holds at one time
/// @param made    gets the ends that are here; it outlives the report of a failure here
/// @throws error (no_agreement) when ranks have other channels; the failure of the run
inline void make_peers(
    asio::control& run,
    int device,
    std::span<cuda::channel_needs const> needs,
    std::span<std::size_t const> held,
    peer_set& made) {
  cuda::device_guard const here(device);
  auto const rank = run.rank();
  std::vector<peer_offer> offers;
  for (std::size_t c = 0; c < needs.size(); ++c) {
    if (needs[c].ends.to != rank) continue;
    auto& offer = offers.emplace_back();
    if (held[c] == 0) continue;
    auto receiver =
        try_peer<peer_receiver>(device, needs[c].ends.from, held[c], largest_of(needs[c]));
    if (receiver == nullptr) continue;
    offer = receiver->offer();
    made.keep(static_cast<int>(c), std::move(receiver));
  }
  values_of_channels<peer_offer> offered(run, offers);
  std::vector<std::uint8_t> reached;
  for (std::size_t c = 0; c < needs.size(); ++c) {
    auto const offer = offered.take(needs[c].ends.to);
    if (needs[c].ends.from != rank) continue;
    std::unique_ptr<peer_sender> sender;
    // Both ends count slots by the same program, and one that differs has another.
    if (offer.is_made != 0 && offer.slots == held[c]) sender = try_peer<peer_sender>(device, offer);
    reached.push_back(sender != nullptr ? 1 : 0);
    made.keep(static_cast<int>(c), std::move(sender));
  }
  values_of_channels<std::uint8_t> answers(run, reached);
  for (std::size_t c = 0; c < needs.size(); ++c)
    made.settle(static_cast<int>(c), answers.take(needs[c].ends.from) != 0);
}

}  // namespace zbpp::nccl::detail
