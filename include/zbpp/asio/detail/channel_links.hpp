// SPDX-License-Identifier: Apache-2.0
//
// The connections of one rank for a set of channels: makes what moves their messages, connects it
// with the neighbours, and reports a lost connection once a step needs it.
#pragma once

#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/transport.hpp>

#include <memory>
#include <string>
#include <vector>

namespace zbpp::asio {

class control;

namespace detail {

class data_connector;

/// Keeps the connections of a rank. It must not move once a transport is made.
class channel_links {
 public:
  /// @param wake  notified when a connection is lost
  channel_links(
      control& run, data_connector& connector, wakeup& wake, std::vector<channel> channels);
  channel_links(channel_links const&) = delete;
  channel_links& operator=(channel_links const&) = delete;
  ~channel_links() = default;

  /// @return what moves the messages; not connected yet
  [[nodiscard]] std::unique_ptr<tcp_transport> make_transport(
      std::vector<bytes> const& largest, tcp_settings const& settings);
  /// Connects it with those of the neighbours; blocks until they have come.
  /// @throws error, the failure of the run
  void connect(tcp_transport& transport);
  /// Reports a lost connection, if something has not left by it, or it is awaited; a rank that has
  /// all it needs may end before the others. Call only on the I/O thread.
  /// @param awaited  the channel whose message this rank waits for; none where it does not
  void report_needed(int awaited);
  /// @return what was connected; null before
  [[nodiscard]] tcp_transport* transport() const noexcept { return transport_; }

 private:
  control* control_;
  data_connector* connector_;
  wakeup* wake_;
  std::vector<channel> channels_;
  std::vector<std::string> lost_;  // by channel: why it is; touched on the I/O thread
  tcp_transport* transport_ = nullptr;
};

}  // namespace detail
}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/channel_links.ipp>
#endif
