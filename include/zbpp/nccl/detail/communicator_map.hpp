// SPDX-License-Identifier: Apache-2.0
//
// Maps the channels of a program to communicators: one per channel, one per pair of ranks, or one
// for all. Every rank computes the same list in the same order, so communicators are made one by
// one.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Lists the ranks of a communicator.
struct communicator_members {
  std::vector<int> ranks;  ///< by their number in the communicator; the first makes its id
  std::string name;        ///< for tools and NCCL's log

  /// @return the number of a rank in it, from 0; the number of its ranks for one that is not in it
  [[nodiscard]] int number_of(int rank) const noexcept {
    return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  }
  /// @return whether a rank is in it
  [[nodiscard]] bool has(int rank) const noexcept {
    return zbpp::detail::index(number_of(rank)) < ranks.size();
  }
};

/// Maps channels to communicators.
struct communicator_map {
  static constexpr int none = -1;

  std::vector<communicator_members> communicators;  ///< in the order in which all ranks make them
  /// By channel: the number of its communicator; none where something else carries it.
  std::vector<int> of_channel;

  /// @return how many communicators a rank is in
  [[nodiscard]] int count_of(int rank) const noexcept {
    return static_cast<int>(
        std::ranges::count_if(communicators, [=](auto const& one) { return one.has(rank); }));
  }
};

/// @return the communicators for channels of a run, in one order for all its ranks
[[nodiscard]] inline communicator_map map_communicators(
    std::span<channel const> channels, int ranks, channel_layout layout) {
  communicator_map result;
  if (layout == channel_layout::one_per_rank) {
    communicator_members all{std::vector<int>(zbpp::detail::index(ranks)), "zbpp"};
    std::iota(all.ranks.begin(), all.ranks.end(), 0);
    result.communicators.push_back(std::move(all));
    result.of_channel.assign(channels.size(), 0);
    return result;
  }
  for (auto const& c : channels) {
    std::vector<int> ends{c.from, c.to};
    auto separator = ">";
    if (layout == channel_layout::one_per_pair) {
      std::ranges::sort(ends);
      separator = "-";
    }
    auto const known = std::ranges::find(result.communicators, ends, &communicator_members::ranks);
    result.of_channel.push_back(static_cast<int>(known - result.communicators.begin()));
    if (known == result.communicators.end())
      result.communicators.push_back(
          {ends, "zbpp:" + std::to_string(ends[0]) + separator + std::to_string(ends[1])});
  }
  return result;
}

/// @return the same for those channels that nothing else carries, among the ranks that have some
/// @param is_carried  whether something else carries a channel, by its number
template <class IsCarried>
[[nodiscard]] communicator_map map_rest(
    std::span<channel const> channels,
    int ranks,
    channel_layout layout,
    IsCarried const& is_carried) {
  std::vector<channel> rest;
  for (std::size_t c = 0; c < channels.size(); ++c)
    if (!is_carried(static_cast<int>(c))) rest.push_back(channels[c]);
  if (rest.empty()) return {{}, std::vector<int>(channels.size(), communicator_map::none)};
  auto how = map_communicators(rest, ranks, layout);
  for (auto& one : how.communicators)
    std::erase_if(one.ranks, [&](int rank) {
      return std::ranges::none_of(
          rest, [=](channel const& c) { return c.from == rank || c.to == rank; });
    });
  for (std::size_t c = 0; c < channels.size(); ++c)
    if (is_carried(static_cast<int>(c)))
      how.of_channel.insert(
          how.of_channel.begin() + static_cast<std::ptrdiff_t>(c), communicator_map::none);
  return how;
}

/// @return the channels between the ranks of a placement, as deep as one message needs
[[nodiscard]] inline std::vector<channel> channels_of(placement const& placement) {
  channel_map const map(placement);
  std::vector<channel> result;
  for (int c = 0; c < map.size(); ++c)
    result.push_back({.from = map.ends(c).first, .to = map.ends(c).second, .in_flight = 1});
  return result;
}

/// @return the communicators for any program of a placement
[[nodiscard]] inline communicator_map map_communicators(
    placement const& placement, channel_layout layout) {
  return map_communicators(channels_of(placement), placement.ranks(), layout);
}

}  // namespace zbpp::nccl::detail
