// SPDX-License-Identifier: Apache-2.0
//
// Measures a link between two ranks: messages go to and fro, ordered by the devices alone, and half
// a round trip is the time of one.
#pragma once

#include <zbpp/asio/wire.hpp>
#include <zbpp/cuda/detail/timing.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/runtime/arena.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

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
        there_(*all.endpoint_of(ends.there, rank)),
        back_(*all.endpoint_of(ends.back, rank)),
        largest_(largest),
        data_(arena(memory).allocate(static_cast<std::size_t>(largest), purpose::edge)),
        pause_(std::move(pause)) {
    auto const by = out().messages.view();
    cuda::check(cudaMemsetAsync(data_.data(), 0, data_.size(), by));
    by.record(sent_);
    by.record(received_);
  }

  /// @return what messages take; a number only on the first rank
  /// @throws cuda_error; nccl_error; what the pause throws
  [[nodiscard]] measured_link measure() {
    try {
      return fit();
    } catch (...) {
      all_.abort();  // memory goes once nothing uses it
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

  // Where this rank's messages leave, and where it gets those of the other.
  [[nodiscard]] endpoint& out() const noexcept { return is_first_ ? there_ : back_; }
  [[nodiscard]] endpoint& in() const noexcept { return is_first_ ? back_ : there_; }

  // The median of some turns, in nanoseconds, on the first rank.
  [[nodiscard]] double one_way(bytes size) {
    round(size);  // what is slow the first time
    std::array<double, turns> times{};
    for (auto& time : times) {
      // Where a round ends here; what the second rank measures counts for nothing.
      auto const& clock = (is_first_ ? in() : out()).messages;
      clock.view().record(begin_);
      for (int i = 0; i < rounds; ++i) round(size);
      clock.view().record(end_);
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
    out().messages.view().wait(received_);
    start(out(), [&] {
      return ncclSend(
          data_.data(),
          static_cast<std::size_t>(size),
          ncclInt8,
          peer_in(is_first_ ? ends_.there : ends_.back),
          out().comm.get(),
          out().messages.view());
    });
    out().messages.view().record(sent_);
  }
  void receive(bytes size) {
    in().messages.view().wait(sent_);
    start(in(), [&] {
      return ncclRecv(
          data_.data(),
          static_cast<std::size_t>(size),
          ncclInt8,
          peer_in(is_first_ ? ends_.back : ends_.there),
          in().comm.get(),
          in().messages.view());
    });
    in().messages.view().record(received_);
  }
  template <class Call>
  void start(endpoint const& by, Call const& call) {
    group together;
    check_started(call());
    together.end();
    by.comm.wait(pause_);  // only then what follows on the stream is behind it
  }

  [[nodiscard]] int peer_in(int channel) const noexcept {
    return all_.number_in(channel, is_first_ ? ends_.second : ends_.first);
  }

  communicator_set& all_;
  link_ends ends_;
  bool is_first_;
  endpoint& there_;
  endpoint& back_;
  bytes largest_;
  buffer data_;
  pause_call pause_;
  cuda::event sent_{cuda::event_kind::order};
  cuda::event received_{cuda::event_kind::order};
  cuda::event begin_{cuda::event_kind::timing};
  cuda::event end_{cuda::event_kind::timing};
};

}  // namespace zbpp::nccl::detail
