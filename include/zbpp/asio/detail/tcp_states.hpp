// SPDX-License-Identifier: Apache-2.0
//
// Carries states of gradients between processes: connections of their own to the ranks before and
// after, so that they never wait behind an activation.
#pragma once

#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace zbpp::asio::detail {

/// @return the channels of states between `ranks` ranks: from each to the next and back, in turn
[[nodiscard]] std::vector<channel> state_channels(int ranks);

/// @return the number of the channel from a rank to the one before or after
[[nodiscard]] constexpr int state_channel(int from, int to) noexcept {
  return from < to ? 2 * from : 2 * to + 1;
}

/// Moves the states of one rank over a transport made for `state_channels`.
class tcp_states final : public state_link {
 public:
  /// @param wake  notified when a state arrives
  tcp_states(tcp_transport& transport, int rank, wakeup* wake);

  void send(int from, int to, std::span<std::byte const> state, ticks arrival) override;
  [[nodiscard]] ticks arrival(int from, int to) const noexcept override;
  void take(int from, int to, std::vector<std::byte>& state) override;

 private:
  tcp_transport* transport_;
  arena memory_;
};

}  // namespace zbpp::asio::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/tcp_states.ipp>
#endif
