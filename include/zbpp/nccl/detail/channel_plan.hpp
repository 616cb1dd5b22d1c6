// SPDX-License-Identifier: Apache-2.0
//
// How the channels of a program share communicators, known from the program alone and without CUDA.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Lists the ranks of a communicator, of the run.
struct communicator_members {
  std::vector<int> ranks;  ///< by their number in the communicator; the first makes its id
  std::string name;        ///< for tools and NCCL's log

  /// @return the number of a rank in it, from 0; the number of its ranks for one that is not in it
  [[nodiscard]] int number_of(int rank) const noexcept {
    return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  }
  [[nodiscard]] bool has(int rank) const noexcept {
    return zbpp::detail::index(number_of(rank)) < ranks.size();
  }
};

/// @return how many thread blocks a message or a sum may use. NCCL would round up to a power of two
///         for messages, so the number is rounded down.
/// @source NCCL, ncclTopoComputeP2pChannels in src/graph/paths.cc
[[nodiscard]] constexpr int cta_limit(int most_ctas) noexcept {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(most_ctas, 0))));
}

/// Maps channels to communicators.
struct communicator_map {
  std::vector<communicator_members> communicators;  ///< in the order in which all ranks make them
  std::vector<int> of_channel;                      ///< by channel, the number of its communicator
  /// How many of them, the first ones, are of replicas, that add gradients up.
  std::size_t of_sums = 0;

  [[nodiscard]] int count_of(int rank) const noexcept {
    return static_cast<int>(
        std::ranges::count_if(communicators, [=](auto const& one) { return one.has(rank); }));
  }
};

/// Maps channels to communicators: one per channel, one per pair of ranks, or one for all. Every
/// rank computes the same list in the same order, so ranks agree on which id belongs to which.
/// @return the communicators for channels of a run, in one order for all its ranks
[[nodiscard]] inline communicator_map map_communicators(
    std::span<channel const> channels, channel_layout layout) {
  communicator_map result;
  std::set<int> all;
  for (auto const& c : channels) all.insert({c.from, c.to});
  for (auto const& c : channels) {
    communicator_members made{{c.from, c.to}, zbpp::detail::joined("zbpp:", c.from, ">", c.to)};
    if (layout == channel_layout::one_per_rank) {
      made = {{all.begin(), all.end()}, "zbpp"};
    } else if (layout == channel_layout::one_per_pair) {
      std::ranges::sort(made.ranks);
      made.name = zbpp::detail::joined("zbpp:", made.ranks[0], "-", made.ranks[1]);
    }
    auto const known =
        std::ranges::find(result.communicators, made.ranks, &communicator_members::ranks);
    result.of_channel.push_back(static_cast<int>(known - result.communicators.begin()));
    if (known == result.communicators.end()) result.communicators.push_back(std::move(made));
  }
  return result;
}

/// Puts communicators in front that add gradients up, one for each group of replicas.
/// @param groups  those of all ranks of the run, so that the first communicators are the same for
///                all its pipelines
inline void add_sums(communicator_map& map, std::span<std::vector<int> const> groups) {
  std::vector<communicator_members> sums;
  for (auto const& ranks : groups)
    sums.push_back({ranks, zbpp::detail::joined("zbpp:sums:", ranks.front())});
  map.of_sums = sums.size();
  map.communicators.insert(map.communicators.begin(), sums.begin(), sums.end());
  for (auto& number : map.of_channel) number += static_cast<int>(sums.size());
}

/// @return the channels between the ranks of a placement, as deep as one message needs
[[nodiscard]] inline std::vector<channel> channels_of(placement const& placement) {
  channel_map const map(placement);
  std::vector<channel> result;
  for (int c = 0; c < map.size(); ++c)
    result.push_back({.from = map.ends(c).first, .to = map.ends(c).second, .in_flight = 1});
  return result;
}

[[nodiscard]] inline communicator_map map_communicators(
    placement const& placement, channel_layout layout) {
  return map_communicators(channels_of(placement), layout);
}

/// @return how many streams the device of a rank has in a run of a program: that of its passes, a
///         second one where it has pairs, for each of its communicators three, and one more where
///         there are any
[[nodiscard]] inline int streams_of_rank(
    program const& code, int rank, int communicators) noexcept {
  auto const of_passes = zbpp::detail::has_pairs(code.instructions(rank)) ? 2 : 1;
  return of_passes + (communicators == 0 ? 0 : 1 + 3 * communicators);
}

/// @return how many events order the sums of a rank: one before them, and one after each
[[nodiscard]] inline int events_of_sums(program const& code, int rank) {
  if (!reduces_gradients(code)) return 0;
  return 1 + static_cast<int>(code.placement().stages_of(rank).size());
}

}  // namespace zbpp::nccl::detail
