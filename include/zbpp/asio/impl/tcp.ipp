// SPDX-License-Identifier: Apache-2.0
//
// Makes and connects the transports of a rank.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::asio {

namespace detail {

/// @return for each channel the largest message that the costs declare, in bytes; 0 where one of
///         its messages has no declared size
[[nodiscard]] ZBPP_INLINE std::vector<bytes> largest_messages(
    traffic const& messages, problem const& problem) {
  using zbpp::detail::index;
  auto const& map = messages.map();
  std::vector<bytes> largest(index(map.size()), 0);
  std::vector<bool> is_open(largest.size(), false);
  auto const note = [&](int channel, bytes size) {
    if (channel == channel_map::none) return;
    largest[index(channel)] = std::max(largest[index(channel)], size);
    if (size == 0) is_open[index(channel)] = true;
  };
  for (int s = 0; s + 1 < problem.stages(); ++s) {
    note(map.of_activation(s), problem.costs(s).edge);
    note(map.of_gradient(s + 1), problem.costs(s).edge);
  }
  for (std::size_t c = 0; c < largest.size(); ++c)
    if (is_open[c]) largest[c] = 0;
  return largest;
}

}  // namespace detail

ZBPP_INLINE tcp::executor::executor(tcp by, plan const& planned)
    : one_rank(
          *by.run_,
          planned,
          {.on_failure = [this](rank_failure const&) { notify(&wakeup_); }},
          by.settings_.share_losses),
      run_(by.run_),
      settings_(std::move(by.settings_)) {}

ZBPP_INLINE std::unique_ptr<detail::tcp_transport> tcp::executor::make_transport(
    program const& program, traffic const& messages, problem const& problem) {
  auto& own = links_.emplace_back(*this, program, messages.channels());
  auto made =
      own.connections.make_transport(detail::largest_messages(messages, problem), settings_);
  if (exchanges_states(program)) {
    own.states = std::make_unique<socket_states>(*run_, program, problem, wakeup_, settings_);
    own.states->link_to(*made);
  }
  return made;
}

ZBPP_INLINE void tcp::executor::connect(detail::tcp_transport& transport) {
  auto& own = links_.back();
  call_name const named(control_channel(), supervisor().connecting(links_.size() == 1));
  own.connections.connect(transport);
  if (own.states != nullptr) own.states->connect();
}

ZBPP_INLINE void tcp::executor::settle(std::vector<failure>& failures) {
  one_rank::settle(failures);
  for (auto const& each : links_)
    if (each.connections.transport() != nullptr) each.connections.transport()->close();
}

ZBPP_INLINE tcp::executor::links& tcp::executor::links_of(detail::tcp_transport const& transport) {
  return *std::ranges::find(
      links_, &transport, [](links const& each) { return each.connections.transport(); });
}

}  // namespace zbpp::asio
