// SPDX-License-Identifier: Apache-2.0
//
// Measures what messages take before there is a plan, so that it is made for the links there are:
// `problem planned{where, m, costs, nccl::measure_transfers(meeting, problem{where, m, costs})}`.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/cuda/detail/timing.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/channel_plan.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/connect.hpp>
#include <zbpp/nccl/settings.hpp>
#include <zbpp/runtime/agreement.hpp>
#include <zbpp/runtime/arena.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::nccl {

/// Measures what messages between the ranks of a problem take, on GPUs that do nothing else. A
/// collective call: it makes communicators, as `ranks` does with these settings, and frees them.
/// Settings of steps mean nothing here, so that both may take the same: traces, synchronizes,
/// steps_at_once, share_losses, and all of the device but its number.
///
/// Two neighbouring ranks after the other send the largest of their edges, and a quarter of it, to
/// and fro; half a round trip is the time of a message, and the median of some counts. It includes
/// the host's calls where those take longer. Ranks that are no neighbours get the slowest times.
/// @return the same on all ranks: a latency and a time per byte for every pair
/// @throws error (bad_argument) when an edge has no size, the run has another number of ranks, or
///         two ranks that are neighbours share a GPU; (no_agreement) when ranks measure
///         something else; cuda_error; nccl_error; the failure of the run
[[nodiscard]] inline transfer_costs measure_transfers(
    asio::rendezvous& run, problem const& problem, ranks_settings const& settings = {});

namespace detail {

/// Says what messages take between two ranks, either way; a plain value, as ranks exchange it.
struct measured_link {
  int first = 0;
  int second = 0;
  ticks latency = 0;
  double time_per_byte = 0;  ///< nanoseconds
};

/// Appends the links that another rank has sent.
inline void append_links(asio::blob const& part, std::vector<measured_link>& links) {
  for (std::size_t at = 0; at + sizeof(measured_link) <= part.size(); at += sizeof(measured_link))
    std::memcpy(&links.emplace_back(), part.data() + at, sizeof(measured_link));
}

/// Names two ranks and their channels.
struct link_ends {
  int first;
  int second;
  int there;  ///< channel from the first to the second
  int back;
};

/// An end of a channel whose messages are timed.
struct timed_end {
  endpoint& at;
  int other;  ///< the rank at the other end, by its number in the communicator

  timed_end(communicator_set const& all, int channel, int rank, int other_rank)
      : at(*all.endpoint_of(channel, rank)), other(all.number_in(channel, other_rank)) {}

  [[nodiscard]] cuda::stream_ref on() const { return at.messages; }
  /// Enqueues what `call` starts. @throws cuda_error; nccl_error; what the pause throws
  template <class Call>
  void start(pause_call const& pause, Call const& call) const {
    group together;
    check_started(call());
    together.end();
    at.comm.wait(pause);  // only then what follows on the stream is after it
  }
};

/// Sends messages to and fro. Both ranks of a link make one and call the same functions.
class link_probe {
 public:
  /// @param largest  bytes of the larger message that is sent, more than 0
  /// @param pause    called while the devices are waited for; throws to give up
  /// @throws std::bad_alloc; cuda_error
  link_probe(
      communicator_set& all,
      link_ends ends,
      int rank,
      memory_source memory,
      bytes largest,
      pause_call pause)
      : all_(all),
        ends_(ends),
        is_first_(rank == ends.first),
        out_(all, is_first_ ? ends.there : ends.back, rank, is_first_ ? ends.second : ends.first),
        in_(all, is_first_ ? ends.back : ends.there, rank, is_first_ ? ends.second : ends.first),
        largest_(largest),
        data_(arena(memory).allocate(static_cast<std::size_t>(largest), purpose::edge)),
        pause_(std::move(pause)) {
    auto const by = out_.on();
    cuda::check(cudaMemsetAsync(data_.data(), 0, data_.size(), by));
    by.record(sent_);
    by.record(received_);
  }

  /// @return what messages take; a number only on the first rank
  /// @throws cuda_error; nccl_error; what the pause throws
  [[nodiscard]] measured_link measure() {
    try {
      auto const link = fit();
      poll([this] { return sent_.view().is_complete(); }, pause_);
      poll([this] { return received_.view().is_complete(); }, pause_);
      return link;
    } catch (...) {
      all_.abort();  // memory goes once nothing uses it
      for (auto const* end : {&out_, &in_}) cudaStreamSynchronize(end->on());
      throw;
    }
  }

 private:
  static constexpr int turns = 5;
  static constexpr int rounds = 4;  // of a turn; the host gets ahead of the devices meanwhile

  // A line through the times of two sizes.
  [[nodiscard]] measured_link fit() {
    auto const small = std::max<bytes>(largest_ / 4, 1);
    auto const time = one_way(largest_);
    auto const time_of_small = one_way(small);
    measured_link link{ends_.first, ends_.second, std::llround(time), 0};
    if (largest_ > small && time > time_of_small) {
      link.time_per_byte = (time - time_of_small) / static_cast<double>(largest_ - small);
      auto const moving = link.time_per_byte * static_cast<double>(largest_);
      link.latency = std::max<ticks>(0, std::llround(time) - std::llround(moving));
    }
    return link;
  }

  // The median of some turns, in nanoseconds, on the first rank.
  [[nodiscard]] double one_way(bytes size) {
    round(size);  // what is slow the first time
    std::array<double, turns> times{};
    for (auto& time : times) {
      // Where a round ends here; what the second rank measures counts for nothing.
      auto const clock = (is_first_ ? in_ : out_).on();
      clock.record(begin_);
      for (int i = 0; i < rounds; ++i) round(size);
      clock.record(end_);
      poll([this] { return end_.view().is_complete(); }, pause_);
      time = static_cast<double>(cuda::detail::time_between(begin_, end_)) / (2 * rounds);
    }
    std::ranges::nth_element(times, times.begin() + turns / 2);
    return times[turns / 2];
  }

  // There and back. Each message waits for the one before it, on the device.
  void round(bytes size) {
    if (is_first_) send(size);
    receive(size);
    if (!is_first_) send(size);
  }
  void send(bytes size) {
    out_.on().wait(received_);
    out_.start(pause_, [&] {
      return ncclSend(
          data_.data(),
          static_cast<std::size_t>(size),
          ncclInt8,
          out_.other,
          out_.at.comm.get(),
          out_.on());
    });
    out_.on().record(sent_);
  }
  void receive(bytes size) {
    in_.on().wait(sent_);
    in_.start(pause_, [&] {
      return ncclRecv(
          data_.data(),
          static_cast<std::size_t>(size),
          ncclInt8,
          in_.other,
          in_.at.comm.get(),
          in_.on());
    });
    in_.on().record(received_);
  }

  communicator_set& all_;
  link_ends ends_;
  bool is_first_;
  timed_end out_;  // where this rank's messages leave
  timed_end in_;   // where it gets those of the other
  bytes largest_;
  buffer data_;
  pause_call pause_;
  cuda::event sent_{cuda::event_kind::order};
  cuda::event received_{cuda::event_kind::order};
  cuda::event begin_{cuda::event_kind::timing};
  cuda::event end_{cuda::event_kind::timing};
};

/// @return the largest edge between two ranks, either way; 0 when they have no neighbouring stages
[[nodiscard]] inline bytes largest_edge(problem const& problem, int a, int b) {
  auto const& placement = problem.placement();
  bytes largest = 0;
  for (int s = 0; s + 1 < problem.stages(); ++s)
    if (std::minmax(placement.rank_of(s), placement.rank_of(s + 1)) == std::minmax(a, b))
      largest = std::max(largest, problem.costs(s).edge);
  return largest;
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
    sizes += zbpp::detail::joined(c.from) + ">" + c.to + " " +
             detail::largest_edge(problem, c.from, c.to) + " ";
  run.agree(std::vector{
      make_item("transfers to measure", sizes),
      make_item("most_ctas", std::to_string(settings.most_ctas))});
  auto& control = run.control_channel();
  int device = 0;
  cuda::check(cudaGetDevice(&device));
  if (settings.device) device = settings.device->device;
  cuda::device_guard const here(device);
  std::vector<detail::measured_link> measured;
  try {
    auto const all = detail::make_communicators(
        control, device, channels, detail::map_communicators(channels, settings.layout), settings);
    for (int c = 0; c < map.size(); ++c) {
      auto const [from, to] = map.ends(c);
      if (from > to) continue;  // measured with the channel that runs the other way
      if (run.rank() == from || run.rank() == to) {
        detail::link_probe probe(
            *all,
            {from, to, c, map.reverse(c)},
            run.rank(),
            settings.memory(device),
            detail::largest_edge(problem, from, to),
            detail::pause_in_run(
                control,
                settings.init_deadline,
                zbpp::detail::joined("the messages between ranks ") + from + " and " + to +
                    " do not end within ranks_settings::init_deadline; set NCCL_DEBUG=INFO to see "
                    "what NCCL waits for"));
        auto const link = probe.measure();
        if (run.rank() == from) measured.push_back(link);
      }
      run.barrier();  // one pair at a time
    }
  } catch (std::exception const& failed) {
    run.fail(failed.what());
    throw;
  }
  std::vector<detail::measured_link> links;
  for (auto const& part : run.all_gather(std::as_bytes(std::span(measured))))
    detail::append_links(part, links);
  return detail::table_of(ranks, links);
}

}  // namespace zbpp::nccl
