// SPDX-License-Identifier: Apache-2.0
//
// Carries states of gradients between processes: connections of their own, so that they never wait
// behind an activation.
#pragma once

#include <zbpp/asio/detail/channel_links.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace zbpp::asio::detail {

/// Moves the states of the rank of this process.
class tcp_states final : public state_link {
 public:
  /// @param wake  notified when a state arrives or a connection is lost
  /// @param tied  gradients of the tied weights, once
  tcp_states(
      state_map const& map,
      control& run,
      data_connector& connector,
      wakeup& wake,
      bytes tied,
      tcp_settings settings);

  /// Connects the rank with those that it tells of gradients, and that tell it; blocks until they
  /// have come.
  /// @throws error, the failure of the run
  void connect() { links_.connect(*transport_); }

  void send(int channel, std::span<std::byte const> state, ticks arrival) override;
  [[nodiscard]] ticks arrival(int channel) const noexcept override;
  void take(int channel, std::vector<std::byte>& state) override;
  [[nodiscard]] bool begin_step(int rank) override { return transport_->begin_step(rank); }
  void drain() override { transport_->drain(); }

  /// Reports a lost connection, if something has not left by it, or a state is awaited there. Call
  /// only on the I/O thread.
  /// @param awaited  the channel, or none
  void report_needed(int awaited);
  /// @return what moves the states
  [[nodiscard]] tcp_transport& transport() noexcept { return *transport_; }

 private:
  int rank_;
  arena memory_;
  channel_links links_;
  std::unique_ptr<tcp_transport> transport_;
};

}  // namespace zbpp::asio::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/tcp_states.ipp>
#endif
