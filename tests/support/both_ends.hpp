// SPDX-License-Identifier: Apache-2.0
//
// Two ranks of one process that are joined by transports of their own, as one transport.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
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

/// Looks until something holds. @return whether it did in time
template <class Predicate>
[[nodiscard]] bool holds_soon(Predicate holds) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Is both ends of the transports of two ranks; models `transport` for both. One that has `poll` is
/// polled by who looks for a message.
template <class Transport>
class both_ends {
 public:
  static constexpr ticks not_yet = Transport::not_yet;

  explicit both_ends(std::vector<channel> const& channels)
      : channels_(channels), sent_(channels.size()) {}

  void bind(int rank, arena& memory, wakeup* wake) { end(rank).bind(rank, memory, wake); }
  void post_receive(int channel, bytes most) { receiver(channel).post_receive(channel, most); }
  void send(int channel, message&& msg, ticks arrival) {
    ++sent_[detail::index(channel)];
    sender(channel).send(channel, std::move(msg), arrival);
  }
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const {
    auto& end = *ends_[detail::index(channels_[detail::index(channel)].to)];
    poll(end);
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
    bool const is_quiet = holds_soon([this] {
      for (auto const& one : ends_) poll(*one);
      for (std::size_t c = 0; c < channels_.size(); ++c)
        if (sent_[c] > 0 && arrival(static_cast<int>(c), sent_[c] - 1) == not_yet) return false;
      return ends_[0]->is_flushed() && ends_[1]->is_flushed();
    });
    if (!is_quiet) throw std::runtime_error("messages were sent and did not arrive");
    for (auto const& one : ends_) one->drain();
    sent_.assign(sent_.size(), 0);
  }

  [[nodiscard]] Transport& end(int rank) { return *ends_[detail::index(rank)]; }

 protected:
  ~both_ends() = default;
  void set_end(int rank, std::unique_ptr<Transport> made) {
    ends_[detail::index(rank)] = std::move(made);
  }
  void clear_ends() { ends_ = {}; }

 private:
  static void poll(Transport& end) {
    if constexpr (requires { end.poll(); }) end.poll();
  }
  [[nodiscard]] Transport& sender(int channel) {
    return end(channels_[detail::index(channel)].from);
  }
  [[nodiscard]] Transport& receiver(int channel) {
    return end(channels_[detail::index(channel)].to);
  }

  std::vector<channel> channels_;
  std::vector<std::int32_t> sent_;
  std::array<std::unique_ptr<Transport>, 2> ends_;
};

}  // namespace zbpp::test
