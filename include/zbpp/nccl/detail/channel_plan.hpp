// SPDX-License-Identifier: Apache-2.0
//
// What carries the channels of a program, known from the program alone and without CUDA: how they
// share communicators, and how many slots those need that copies between processes carry.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/runtime/arena.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
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

/// States how many thread blocks a message, and a sum over replicas, may use.
struct cta_limits {
  int of_message = 1;
  int of_sum = 1;
};

/// @return the limits that settings state. NCCL would round those of messages up to a power of two,
///         so they are rounded down.
/// @param sum_ctas  of a sum; 0: as many as a message
/// @source NCCL, ncclTopoComputeP2pChannels in src/graph/paths.cc
[[nodiscard]] constexpr cta_limits limits_of(int most_ctas, int sum_ctas) noexcept {
  auto const of_message =
      static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(most_ctas, 0))));
  return {of_message, sum_ctas == 0 ? of_message : sum_ctas};
}

/// Maps channels to communicators.
struct communicator_map {
  static constexpr int none = -1;

  std::vector<communicator_members> communicators;  ///< in the order in which all ranks make them
  /// By channel: the number of its communicator; none where something else carries it.
  std::vector<int> of_channel;
  /// How many of them, the first ones, are of replicas, that add gradients up.
  std::size_t of_sums = 0;

  [[nodiscard]] int count_of(int rank) const noexcept {
    return static_cast<int>(
        std::ranges::count_if(communicators, [=](auto const& one) { return one.has(rank); }));
  }
  [[nodiscard]] int sums_of(int rank) const noexcept {
    int count = 0;
    for (std::size_t k = 0; k < of_sums; ++k) count += communicators[k].has(rank) ? 1 : 0;
    return count;
  }
  /// @return how many thread blocks a communicator may use, which runs one kernel at a time
  [[nodiscard]] int most_ctas(std::size_t number, cta_limits const& limits) const noexcept {
    return number < of_sums ? limits.of_sum : limits.of_message;
  }
  /// @return how many all communicators of a rank may use at one time
  [[nodiscard]] int most_ctas_of(int rank, cta_limits const& limits) const noexcept {
    int all = 0;
    for (std::size_t k = 0; k < communicators.size(); ++k)
      all += communicators[k].has(rank) ? most_ctas(k, limits) : 0;
    return all;
  }
};

/// Maps channels to communicators: one per channel, one per pair of ranks, or one for all. Every
/// rank computes the same list in the same order, so ranks agree on which id belongs to which.
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
          {ends, zbpp::detail::joined("zbpp:", ends[0], separator, ends[1])});
  }
  return result;
}

/// @return the same for those channels that nothing else carries, among the ranks that have some
/// @param is_carried  whether something else carries a channel, by its number
template <class IsCarried>
[[nodiscard]] communicator_map map_remaining(
    std::span<channel const> channels,
    int ranks,
    channel_layout layout,
    IsCarried const& is_carried) {
  std::vector<channel> rest;
  for (std::size_t c = 0; c < channels.size(); ++c)
    if (!is_carried(static_cast<int>(c))) rest.push_back(channels[c]);
  if (rest.empty()) return {{}, std::vector<int>(channels.size(), communicator_map::none)};
  auto map = map_communicators(rest, ranks, layout);
  for (auto& one : map.communicators)
    std::erase_if(one.ranks, [&](int rank) {
      return std::ranges::none_of(
          rest, [=](channel const& c) { return c.from == rank || c.to == rank; });
    });
  for (std::size_t c = 0; c < channels.size(); ++c)
    if (is_carried(static_cast<int>(c)))
      map.of_channel.insert(
          map.of_channel.begin() + static_cast<std::ptrdiff_t>(c), communicator_map::none);
  return map;
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
  for (auto& number : map.of_channel)
    if (number != communicator_map::none) number += static_cast<int>(sums.size());
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
  return map_communicators(channels_of(placement), placement.ranks(), layout);
}

/// @return how many streams the device of a rank has in a run of a program: that of its passes, a
///         second one where it has pairs, for each of its communicators three, and one more where
///         there are any, and one for each channel on which it sends by copies
[[nodiscard]] inline int streams_of_rank(
    program const& code, int rank, int communicators, int copying = 0) noexcept {
  auto const of_passes = zbpp::detail::has_pairs(code.instructions(rank)) ? 2 : 1;
  return of_passes + (communicators == 0 ? 0 : 1 + 3 * communicators) + copying;
}

/// @return how many events order the sums of a rank: one before them, and one after each
[[nodiscard]] inline int events_of_sums(program const& code, int rank) {
  if (!reduces_gradients(code)) return 0;
  return 1 + static_cast<int>(code.placement().stages_of(rank).size());
}

/// @return by channel, most messages that flows of its receiver keep, each to the end of its flow
[[nodiscard]] inline std::vector<std::size_t> held_in_step(
    program const& code, traffic const& messages) {
  std::vector<std::size_t> most(messages.channels().size(), 0);
  std::vector<std::vector<std::size_t>> last_use(most.size());  // by message
  auto const m = zbpp::detail::index(code.microbatches());
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    std::vector<std::size_t> last_pass(zbpp::detail::index(code.placement().stages()) * m, 0);
    auto const flow_of = [m](instruction const& i) {
      return zbpp::detail::index(i.stage) * m + zbpp::detail::index(i.microbatch);
    };
    for (std::size_t i = 0; i < row.size(); ++i)
      if (row[i].is_pass()) last_pass[flow_of(row[i])] = i;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].is_receive()) continue;
      auto const c = zbpp::detail::index(messages.notes(rank)[i].channel);
      auto& uses = last_use[c];
      uses.push_back(last_pass[flow_of(row[i])]);
      auto const oldest = std::ranges::find_if(uses, [i](std::size_t last) { return last > i; });
      most[c] = std::max(most[c], static_cast<std::size_t>(uses.end() - oldest));
    }
  }
  return most;
}

/// @return the same in a step or an evaluation of a program, whichever holds more
[[nodiscard]] inline std::vector<std::size_t> held_messages(
    program const& code, traffic const& messages) {
  auto most = held_in_step(code, messages);
  auto const evaluation = forward_only(code);
  auto const forwards = held_in_step(evaluation, traffic(evaluation));
  for (std::size_t c = 0; c < most.size(); ++c) most[c] = std::max(most[c], forwards[c]);
  return most;
}

/// @return sizes that no message of a channel exceeds, buffer by buffer
[[nodiscard]] inline cuda::message_shape largest_of(cuda::channel_needs const& needs) {
  cuda::message_shape largest;
  for (auto const edge : needs.edges) {
    auto const& shape = (*needs.shapes)[zbpp::detail::index(edge)];
    largest.resize(std::max(largest.size(), shape.size()), 0);
    for (std::size_t k = 0; k < shape.size(); ++k) largest[k] = std::max(largest[k], shape[k]);
  }
  return largest;
}

/// @return whether two ranks are on one host, where so many are on each, by number
[[nodiscard]] inline bool are_on_one_host(int a, int b, int ranks_per_host) noexcept {
  return a / ranks_per_host == b / ranks_per_host;
}

/// @return how many bytes of pieces the slots of a channel are
/// @param largest  of its messages
[[nodiscard]] inline bytes size_of_slots(
    std::size_t slots, cuda::message_shape const& largest) noexcept {
  bytes one = 0;
  for (auto const size : largest) one += size + 256;  // pieces of a device begin at such multiples
  return one * static_cast<bytes>(slots);
}

}  // namespace zbpp::nccl::detail
