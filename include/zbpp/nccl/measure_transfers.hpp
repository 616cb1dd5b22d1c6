// SPDX-License-Identifier: Apache-2.0
//
// Measures what messages take before there is a plan, so that it is made for the links there are:
// `problem planned{where, m, costs, nccl::measure_transfers(meeting, problem{where, m, costs})}`.
// And chooses how messages are to be sent, from what was measured.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/agreement.hpp>
#include <zbpp/nccl/detail/communicator_map.hpp>
#include <zbpp/nccl/detail/link_probe.hpp>
#include <zbpp/nccl/detail/make_communicators.hpp>
#include <zbpp/nccl/detail/make_peers.hpp>
#include <zbpp/nccl/detail/peer_set.hpp>
#include <zbpp/nccl/detail/peer_slots.hpp>
#include <zbpp/nccl/settings.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::nccl {

/// Measures what messages between the ranks of a problem take, on GPUs that do nothing else. A
/// collective call: it finds out what carries messages and makes it, as `ranks` does with these
/// settings, and frees it. Settings of steps mean nothing here, so that both may take the same:
/// run_ahead, traces, synchronizes, steps_at_once, on_thread_start, share_losses, and all of the
/// device but its number.
///
/// Two neighbouring ranks after the other send the largest of their edges, and a quarter of it, to
/// and fro; half a round trip is the time of a message, and the median of some counts. It includes
/// the host's calls where those take longer. Ranks that are no neighbours get the slowest times.
/// @return the same on all ranks: a latency and a time per byte for every pair
/// @throws error (bad_argument) when an edge has no size, the run has another number of ranks, or
///         NCCL is to carry messages between ranks on one GPU; (no_agreement) when ranks measure
///         something else; cuda_error; nccl_error; the failure of the run
[[nodiscard]] inline transfer_costs measure_transfers(
    asio::rendezvous& run, problem const& problem, ranks_settings const& settings = {});

/// Holds what messages take that may use so many thread blocks.
struct measured_transfers {
  int most_ctas = 1;
  transfer_costs costs;
};

/// Says how messages are to be sent.
struct transfer_choice {
  int most_ctas = 1;      ///< for `ranks_settings`
  int receive_ahead = 0;  ///< for `lower_options`
  double loss = 0;        ///< of a rank's time at most, as a fraction
};

/// Says what messages are sent with.
struct transfer_conditions {
  int sm_count = 0;        ///< multiprocessors of a device
  int most_ahead = 1;      ///< 0 where the plan is lowered for one hardware queue, else 1
  int ranks_per_host = 1;  ///< as in `needs_settings`: copies between these hold no multiprocessors
};

/// Chooses how messages are to be sent: just in time, where a transfer adds its time to that of a
/// pass; or one pass ahead, where it hides behind a pass and its thread blocks hold multiprocessors
/// that the pass then lacks. What loses least, for the shortest pass and the worst edge, is best.
/// @param measured  by `measure_transfers`, with some numbers of thread blocks
/// @throws error (bad_argument) when nothing was measured, or a number is out of range
/// @source our own estimate: a pass slows down by the part of the multiprocessors that it lacks
[[nodiscard]] inline transfer_choice choose_transfers(
    problem const& problem,
    std::span<measured_transfers const> measured,
    transfer_conditions const& with);

namespace detail {

/// @return the largest edge between two ranks, either way; 0 when they have no neighbouring stages
[[nodiscard]] inline bytes largest_edge(problem const& problem, int a, int b) {
  auto const& where = problem.placement();
  bytes largest = 0;
  for (int s = 0; s + 1 < problem.stages(); ++s)
    if (std::minmax(where.rank_of(s), where.rank_of(s + 1)) == std::minmax(a, b))
      largest = std::max(largest, problem.costs(s).edge);
  return largest;
}

/// Makes what copies carry, with a slot of the largest edge in each channel.
inline void make_peers_to_measure(
    asio::control& run,
    int device,
    problem const& problem,
    std::vector<channel> const& channels,
    ranks_settings const& settings,
    peer_set& made) {
  if (!uses_peer_copies(settings)) return;
  std::vector<cuda::message_shape> shapes;
  std::vector<cuda::channel_needs> needs(channels.size());
  for (std::size_t c = 0; c < channels.size(); ++c) {
    shapes.push_back({largest_edge(problem, channels[c].from, channels[c].to)});
    needs[c].ends = channels[c];
    needs[c].shapes = &shapes;
    needs[c].edges = {static_cast<std::int32_t>(c)};
  }
  make_peers(run, device, needs, std::vector<std::size_t>(channels.size(), 1), made);
}

/// Makes a table of all pairs from the links between neighbours, by their first and second rank.
[[nodiscard]] inline transfer_costs table_of(int ranks, std::span<measured_link const> links) {
  measured_link slowest;
  for (auto const& l : links) {
    slowest.latency = std::max(slowest.latency, l.latency);
    slowest.time_per_byte = std::max(slowest.time_per_byte, l.time_per_byte);
  }
  auto const pairs = zbpp::detail::index(ranks) * zbpp::detail::index(ranks);
  std::vector<ticks> latency(pairs, slowest.latency);
  std::vector<double> rate(pairs, slowest.time_per_byte);
  for (auto const& l : links)
    for (auto const& [from, to] : {std::pair(l.first, l.second), {l.second, l.first}}) {
      auto const pair = zbpp::detail::index(from * ranks + to);
      latency[pair] = l.latency;
      rate[pair] = l.time_per_byte;
    }
  return {ranks, std::move(latency), std::move(rate)};
}

}  // namespace detail

inline transfer_costs measure_transfers(
    asio::rendezvous& run, problem const& problem, ranks_settings const& settings) {
  auto const ranks = problem.ranks();
  zbpp::detail::require(
      run.ranks() == ranks,
      "the run has another number of processes than the problem has ranks; start one for each");
  detail::check_deadline(settings);
  static_cast<void>(cuda::shapes_of(problem, settings.edges));  // refuses edges without a size
  channel_map const map(problem.placement());
  auto const channels = detail::channels_of(problem.placement());
  std::string sizes;
  for (auto const& c : channels)
    sizes += std::to_string(c.from) + ">" + std::to_string(c.to) + " " +
             std::to_string(detail::largest_edge(problem, c.from, c.to)) + " ";
  run.agree(std::vector{
      asio::make_item("transfers to measure", sizes),
      asio::make_item("most_ctas", std::to_string(settings.most_ctas)),
      detail::peer_copies_item(settings)});
  auto& control = run.control_channel();
  int device = 0;
  cuda::check(cudaGetDevice(&device));
  if (settings.device) device = settings.device->device;
  cuda::device_guard const here(device);
  std::vector<detail::measured_link> mine;
  detail::peer_set peers(channels.size());  // outlives the report of a failure
  try {
    detail::make_peers_to_measure(control, device, problem, channels, settings, peers);
    auto const all = detail::make_communicators(
        control,
        device,
        channels,
        detail::map_rest(channels, ranks, settings.layout, [&](int c) { return peers.carries(c); }),
        settings);
    for (int c = 0; c < map.size(); ++c) {
      auto const [from, to] = map.ends(c);
      if (from > to) continue;  // measured with the channel that runs the other way
      if (run.rank() == from || run.rank() == to) {
        detail::link_probe probe(
            *all,
            peers,
            {from, to, c, map.reverse(c)},
            run.rank(),
            settings.memory(device),
            detail::largest_edge(problem, from, to),
            detail::pause_in_run(
                control,
                settings.init_deadline,
                "the messages between ranks " + std::to_string(from) + " and " +
                    std::to_string(to) +
                    " do not end within ranks_settings::init_deadline; set NCCL_DEBUG=INFO to see "
                    "what NCCL waits for"));
        auto const link = probe.measure();
        if (run.rank() == from) mine.push_back(link);
      }
      run.barrier();  // one pair at a time
    }
  } catch (std::exception const& failed) {
    run.fail(failed.what());
    throw;
  }
  std::vector<detail::measured_link> links;
  for (auto const& part : run.all_gather(std::as_bytes(std::span(mine))))
    detail::append_links(part, links);
  return detail::table_of(ranks, links);
}

inline transfer_choice choose_transfers(
    problem const& problem,
    std::span<measured_transfers const> measured,
    transfer_conditions const& with) {
  zbpp::detail::require(
      !measured.empty() && with.sm_count > 0 && with.most_ahead >= 0 && with.ranks_per_host > 0,
      "choosing how to send needs transfers that were measured, multiprocessors of the device, 0 "
      "or 1 receives ahead, and ranks on each host; give all of them");
  auto shortest = std::numeric_limits<ticks>::max();
  for (auto const& c : problem.all_costs())
    shortest = std::min({shortest, c.forward, c.backward_input});
  auto const pass = static_cast<double>(std::max<ticks>(shortest, 1));
  transfer_choice best{.loss = std::numeric_limits<double>::infinity()};
  auto const consider = [&](transfer_choice const& other) {
    if (other.loss < best.loss) best = other;
  };
  auto const& where = problem.placement();
  for (auto const& one : measured) {
    double just_in_time = 0;
    double ahead = 0;
    for (int s = 0; s + 1 < problem.stages(); ++s)
      for (auto const& [from, to] : {std::pair(s, s + 1), {s + 1, s}}) {
        auto const sender = where.rank_of(from);
        auto const receiver = where.rank_of(to);
        if (sender == receiver) continue;
        bool const holds = !detail::are_on_one_host(sender, receiver, with.ranks_per_host);
        auto const held = holds ? static_cast<double>(one.most_ctas) / with.sm_count : 0.0;
        auto const time =
            static_cast<double>(one.costs(sender, receiver, problem.costs(s).edge)) / pass;
        just_in_time = std::max(just_in_time, time);
        ahead = std::max(ahead, held + std::max(0.0, time - 1));
      }
    consider({one.most_ctas, 0, just_in_time});
    if (with.most_ahead > 0) consider({one.most_ctas, 1, ahead});
  }
  return best;
}

}  // namespace zbpp::nccl
