// SPDX-License-Identifier: Apache-2.0
//
// Two ranks that send each other messages by MPI, both in this process.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/detail/transport.hpp>
#include <zbpp/mpi/rendezvous.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/transport.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Is both ends of the transports of two ranks; models `transport` for both.
class mpi_pair {
 public:
  static constexpr ticks not_yet = mpi::detail::transport::not_yet;
  static constexpr bool is_polled = true;

  mpi_pair(std::vector<channel> const& channels, bytes largest, mpi::ranks_settings settings = {})
      : channels_(channels), sent_(channels.size()) {
    for (int rank : {0, 1})
      ends_[detail::index(rank)] = std::make_unique<mpi::detail::transport>(
          own_.get(),
          0,
          rank,
          std::array{0, 0},
          channels,
          std::vector<bytes>(channels.size(), largest),
          settings);
  }

  void bind(int rank, arena& memory, wakeup* wake) { end(rank).bind(rank, memory, wake); }
  void post_receive(int channel, bytes most) { receiver(channel).post_receive(channel, most); }
  void send(int channel, message&& msg, ticks arrival) {
    ++sent_[detail::index(channel)];
    sender(channel).send(channel, std::move(msg), arrival);
  }
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const {
    auto& end = *ends_[detail::index(channels_[detail::index(channel)].to)];
    end.poll();
    return end.arrival(channel, sequence);
  }
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most) {
    return receiver(channel).take(channel, sequence, most);
  }
  void retire(int channel, std::int32_t count) { sender(channel).retire(channel, count); }
  void abort() {
    for (auto const& one : ends_) one->abort();
  }
  /// Waits until all that was sent is there, as a step that succeeds does.
  void drain() {
    auto const is_quiet = [this] {
      for (auto const& one : ends_) one->poll();
      for (std::size_t c = 0; c < channels_.size(); ++c)
        if (sent_[c] > 0 && arrival(static_cast<int>(c), sent_[c] - 1) == not_yet) return false;
      return ends_[0]->is_flushed() && ends_[1]->is_flushed();
    };
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_quiet()) {
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error("messages were sent and did not arrive");
      std::this_thread::yield();
    }
    for (auto const& one : ends_) one->drain();
    sent_.assign(sent_.size(), 0);
  }

  [[nodiscard]] mpi::detail::transport& end(int rank) { return *ends_[detail::index(rank)]; }

 private:
  [[nodiscard]] mpi::detail::transport& sender(int channel) {
    return end(channels_[detail::index(channel)].from);
  }
  [[nodiscard]] mpi::detail::transport& receiver(int channel) {
    return end(channels_[detail::index(channel)].to);
  }

  mpi::detail::own_communicator own_{MPI_COMM_SELF};
  std::vector<channel> channels_;
  std::vector<std::int32_t> sent_;
  std::array<std::unique_ptr<mpi::detail::transport>, 2> ends_;
};

}  // namespace zbpp::test
