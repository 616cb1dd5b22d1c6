// SPDX-License-Identifier: Apache-2.0
//
// The channels of this process that copies between devices carry, and how their waits end when a
// run fails.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/abort_thread.hpp>
#include <zbpp/nccl/detail/communicator_map.hpp>
#include <zbpp/nccl/detail/peer_channel.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Owns the ends of channels that are here. Any number of transports may use them, one at a time.
///
/// Keep the ends here as soon as another process may know of them, until the other ranks have
/// learnt of a failure: they let go of slots only then.
class peer_set {
 public:
  /// @param channels  how many the run has
  /// @throws std::system_error when the system has no more threads
  explicit peer_set(std::size_t channels) : channels_(channels) {}
  peer_set(peer_set const&) = delete;
  peer_set& operator=(peer_set const&) = delete;
  /// Waits up to two seconds until other processes have let go of slots here.
  ~peer_set() {
    is_ended_.store(true, std::memory_order_relaxed);
    ends_waits_.finish();
    for (auto& each : channels_) each.sender.reset();
    // For other processes, which do the same.
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    auto const is_free = [](auto const& each) {
      return each.receiver == nullptr || each.receiver->take_back();
    };
    while (!std::ranges::all_of(channels_, is_free) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  /// Keeps an end of a channel; both, where both are here.
  void keep(int channel, std::unique_ptr<peer_sender> end) { at(channel).sender = std::move(end); }
  void keep(int channel, std::unique_ptr<peer_receiver> end) {
    at(channel).receiver = std::move(end);
  }
  /// Notes whether copies carry a channel, whose ends may be in other processes. Where they do not,
  /// an end that is here goes.
  void settle(int channel, bool is_carried) noexcept {
    auto& both = at(channel);
    both.is_carried = is_carried;
    if (!is_carried) both.receiver.reset();
    if (both.receiver != nullptr) both.receiver->accept();
  }

  /// @return whether copies carry a channel
  [[nodiscard]] bool carries(int channel) const noexcept { return at(channel).is_carried; }
  /// @return the end of the sender; null when it is in another process
  [[nodiscard]] peer_sender* sender_of(int channel) const noexcept {
    return at(channel).sender.get();
  }
  /// @return the end of the receiver; null when it is in another process
  [[nodiscard]] peer_receiver* receiver_of(int channel) const noexcept {
    return at(channel).receiver.get();
  }
  /// @return how many channels of the run there are
  [[nodiscard]] int channels() const noexcept { return static_cast<int>(channels_.size()); }
  /// @return of how many channels the senders are here, each with a stream
  [[nodiscard]] int senders() const noexcept {
    return static_cast<int>(
        std::ranges::count_if(channels_, [](auto const& each) { return each.sender != nullptr; }));
  }

  /// Ends all waits, for good. Any thread may call this; it does not block, and calls no CUDA.
  void abort() noexcept {
    is_aborted_.store(true, std::memory_order_release);
    ends_waits_.start();
  }
  /// @return whether `abort` was called
  [[nodiscard]] bool is_aborted() const noexcept {
    return is_aborted_.load(std::memory_order_acquire);
  }

 private:
  struct ends {
    bool is_carried = false;
    std::unique_ptr<peer_sender> sender;
    std::unique_ptr<peer_receiver> receiver;
  };

  [[nodiscard]] ends& at(int channel) noexcept { return channels_[zbpp::detail::index(channel)]; }
  [[nodiscard]] ends const& at(int channel) const noexcept {
    return channels_[zbpp::detail::index(channel)];
  }

  // Devices go on writing counters until they are done, and nobody knows when those of other
  // processes are.
  void end_waits() noexcept {
    while (!is_ended_.load(std::memory_order_relaxed)) {
      for (auto const& each : channels_) {
        if (each.sender != nullptr) each.sender->end_waits();
        if (each.receiver != nullptr) each.receiver->end_waits();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::vector<ends> channels_;
  std::atomic<bool> is_aborted_{false};
  std::atomic<bool> is_ended_{false};
  abort_thread ends_waits_{[this] { end_waits(); }};  // last: it uses the others
};

/// @return by channel, how slots are filled
[[nodiscard]] inline std::vector<cuda::slot_filling> filling_of(peer_set const& peers) {
  std::vector<cuda::slot_filling> filling;
  for (int c = 0; c < peers.channels(); ++c)
    filling.push_back(
        peers.carries(c) ? cuda::slot_filling::by_sends : cuda::slot_filling::by_receives);
  return filling;
}

/// @return the communicators for the channels that copies do not carry
[[nodiscard]] inline communicator_map map_rest(
    std::span<channel const> channels, int ranks, channel_layout layout, peer_set const& peers) {
  std::vector<channel> rest;
  for (int c = 0; c < peers.channels(); ++c)
    if (!peers.carries(c)) rest.push_back(channels[zbpp::detail::index(c)]);
  if (rest.empty()) return {{}, std::vector<int>(channels.size(), communicator_map::none)};
  auto how = map_communicators(rest, ranks, layout);
  for (int c = 0; c < peers.channels(); ++c)
    if (peers.carries(c)) how.of_channel.insert(how.of_channel.begin() + c, communicator_map::none);
  return how;
}

/// @return by channel, how many messages its receiver holds at one time in a step, where flows keep
///         them until the last pass of their microbatches
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

}  // namespace zbpp::nccl::detail
