// SPDX-License-Identifier: Apache-2.0
//
// How channels are connected, and which lost connection fails a step.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/channel_links.hpp>
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

ZBPP_INLINE channel_links::channel_links(
    control& run, data_connector& connector, wakeup& wake, std::vector<channel> channels)
    : control_(&run),
      connector_(&connector),
      wake_(&wake),
      channels_(std::move(channels)),
      lost_(channels_.size()) {}

ZBPP_INLINE std::unique_ptr<tcp_transport> channel_links::make_transport(
    std::vector<bytes> const& largest, tcp_settings const& settings) {
  return std::make_unique<tcp_transport>(
      control_->loop(),
      control_->rank(),
      channels_,
      largest,
      [this](int channel, std::string why) {
        lost_[zbpp::detail::index(channel)] = std::move(why);
        notify(wake_);
      },
      settings);
}

ZBPP_INLINE void channel_links::connect(tcp_transport& transport) {
  auto sockets = connector_->connect(channels_);
  for (std::size_t c = 0; c < sockets.size(); ++c)
    if (sockets[c].is_open()) transport.connect(static_cast<int>(c), std::move(sockets[c]));
  transport_ = &transport;  // last: a transport that is not connected does not stay
}

ZBPP_INLINE void channel_links::report_needed(int awaited) {
  for (std::size_t c = 0; c < lost_.size(); ++c) {
    if (lost_[c].empty()) continue;
    auto const channel = static_cast<int>(c);
    bool const sends = channels_[c].from == control_->rank();
    if (sends ? transport_->is_flushed(channel) : awaited != channel) continue;
    auto const peer = sends ? channels_[c].to : channels_[c].from;
    control_->report({{peer, -1, -1, -1}, {}, errc::peer_failed, std::exchange(lost_[c], {})});
  }
}

}  // namespace zbpp::asio::detail
