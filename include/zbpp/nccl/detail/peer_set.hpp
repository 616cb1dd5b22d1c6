// SPDX-License-Identifier: Apache-2.0
//
// The channels of this process that copies between devices carry, and how their waits end when a
// run fails.
#pragma once

#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/detail/abort_thread.hpp>
#include <zbpp/nccl/detail/peer_channel.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
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
  explicit peer_set(std::size_t channels) : channels_(channels) {}
  peer_set(peer_set const&) = delete;
  peer_set& operator=(peer_set const&) = delete;
  /// Waits up to two seconds until other processes have let go of slots here.
  ~peer_set() {
    is_ended_.store(true, std::memory_order_relaxed);
    ends_waits_.reset();
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
  /// @throws std::system_error when the system has no more threads
  void keep(int channel, std::unique_ptr<peer_sender> end) {
    if (end != nullptr) get_ready();
    at(channel).sender = std::move(end);
  }
  void keep(int channel, std::unique_ptr<peer_receiver> end) {
    if (end != nullptr) get_ready();
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

  /// Ends all waits, for good. Any thread may call this once all ends are kept; it does not block,
  /// and calls no CUDA.
  void abort() noexcept {
    is_aborted_.store(true, std::memory_order_release);
    if (ends_waits_) ends_waits_->start();
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

  // Where copies carry nothing, nothing waits for them.
  void get_ready() {
    if (!ends_waits_) ends_waits_.emplace([this] { end_waits(); });
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
  std::optional<abort_thread> ends_waits_;  // last: it uses the others
};

/// @return by channel, how slots are filled
[[nodiscard]] inline std::vector<cuda::slot_filling> filling_of(peer_set const& peers) {
  std::vector<cuda::slot_filling> filling;
  for (int c = 0; c < peers.channels(); ++c)
    filling.push_back(
        peers.carries(c) ? cuda::slot_filling::by_sends : cuda::slot_filling::by_receives);
  return filling;
}

}  // namespace zbpp::nccl::detail
