// SPDX-License-Identifier: Apache-2.0
//
// Makes and connects the transports of a rank.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/detail/tcp_states.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
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
    : control_(by.control_),
      connector_(by.connector_),
      settings_(by.settings_),
      part_(
          *by.control_,
          planned,
          {.told = [this] { notify(&wakeup_); }},
          {make_item("share_losses", by.settings_.share_losses ? "true" : "false")}) {}

ZBPP_INLINE tcp::executor::~executor() {
  for (auto const& mine : links_) control_->unwatch(&mine);
}

ZBPP_INLINE std::unique_ptr<detail::tcp_transport> tcp::executor::make_transport(
    program const& program, traffic const& messages, problem const& problem) {
  auto& mine = links_.emplace_back(*this, program, messages.channels());
  auto made =
      mine.connections.make_transport(detail::largest_messages(messages, problem), settings_);
  if (exchanges_states(program)) {
    mine.states = std::make_unique<detail::tcp_states>(
        state_map(program), *control_, *connector_, wakeup_, problem.tied_size(), settings_);
    made->link_states(*mine.states, mine.states->transport());
  }
  return made;
}

ZBPP_INLINE void tcp::executor::connect(detail::tcp_transport& transport) {
  auto& mine = links_.back();
  call_name const named(*control_, part_.connecting(links_.size() == 1));
  mine.connections.connect(transport);
  if (mine.states != nullptr) mine.states->connect();
}

ZBPP_INLINE void tcp::executor::settle(std::vector<failure>& failures) {
  part_.settle(failures);
  for (auto const& each : links_)
    if (each.connections.transport() != nullptr) each.connections.transport()->close();
}

ZBPP_INLINE tcp::executor::links& tcp::executor::links_of(detail::tcp_transport const& transport) {
  return *std::ranges::find(
      links_, &transport, [](links const& each) { return each.connections.transport(); });
}

}  // namespace zbpp::asio
