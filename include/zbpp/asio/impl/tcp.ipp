// SPDX-License-Identifier: Apache-2.0
//
// Makes and connects the transports of a rank, and tells which lost connection fails a step.
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
#include <string>
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
      part_(*by.control_, planned, [this] { notify(&wakeup_); }) {}

ZBPP_INLINE tcp::executor::~executor() {
  for (auto const& mine : links_) control_->unwatch(&mine);
}

ZBPP_INLINE std::unique_ptr<detail::tcp_transport> tcp::executor::make_transport(
    program const& program, traffic const& messages, problem const& problem) {
  links* states = nullptr;
  if (agrees_on_steps(program)) {
    states = &links_.emplace_back();
    states->channels = detail::state_channels(problem.ranks());
    // No size is declared: what goes to the next rank grows with the layers of the model.
    std::vector<bytes> const largest(states->channels.size(), 0);
    auto& carried = state_transports_.emplace_back();
    carried.transport = make_transport(*states, program, largest);
    carried.states =
        std::make_unique<detail::tcp_states>(*carried.transport, part_.rank(), &wakeup_);
  }
  auto& mine = links_.emplace_back();
  mine.channels = messages.channels();
  mine.states = states;
  auto made = make_transport(mine, program, detail::largest_messages(messages, problem));
  if (states != nullptr)
    made->link_states(*state_transports_.back().states, *state_transports_.back().transport);
  return made;
}

ZBPP_INLINE std::unique_ptr<detail::tcp_transport> tcp::executor::make_transport(
    links& mine, program const& program, std::vector<bytes> const& largest) {
  mine.program = &program;
  mine.lost.resize(mine.channels.size());
  return std::make_unique<detail::tcp_transport>(
      control_->loop(),
      part_.rank(),
      mine.channels,
      largest,
      [this, &mine](int channel, std::string why) {
        mine.lost[zbpp::detail::index(channel)] = std::move(why);
        notify(&wakeup_);
      },
      settings_);
}

ZBPP_INLINE int tcp::executor::state_channel_to(int rank) const noexcept {
  return rank < 0 ? channel_map::none : detail::state_channel(rank, part_.rank());
}

ZBPP_INLINE void tcp::executor::connect(detail::tcp_transport& transport) {
  auto& mine = links_.back();
  connect(mine, transport);
  if (mine.states != nullptr) connect(*mine.states, *state_transports_.back().transport);
}

ZBPP_INLINE void tcp::executor::connect(links& mine, detail::tcp_transport& transport) {
  auto sockets = connector_->connect(mine.channels);
  for (std::size_t c = 0; c < sockets.size(); ++c)
    if (sockets[c].is_open()) transport.connect(static_cast<int>(c), std::move(sockets[c]));
  mine.transport = &transport;  // last: a transport that is not connected does not stay
}

ZBPP_INLINE void tcp::executor::settle(std::vector<failure>& failures) {
  part_.settle(failures);
  for (auto const& each : links_)
    if (each.transport != nullptr) each.transport->close();
}

ZBPP_INLINE tcp::executor::links& tcp::executor::links_of(detail::tcp_transport const& transport) {
  return *std::ranges::find(links_, &transport, &links::transport);
}

// A lost connection is a failure once something is needed of it; a rank that has all it needs may
// end before the others.
ZBPP_INLINE void tcp::executor::report_needed(links& mine, int awaited) {
  for (std::size_t c = 0; c < mine.lost.size(); ++c) {
    if (mine.lost[c].empty()) continue;
    auto const channel = static_cast<int>(c);
    auto const& ends = mine.channels[c];
    bool const is_needed =
        ends.from == part_.rank() ? !mine.transport->is_flushed(channel) : awaited == channel;
    if (!is_needed) continue;
    auto const peer = ends.from == part_.rank() ? ends.to : ends.from;
    control_->report({{peer, -1, -1, -1}, {}, errc::peer_failed, std::exchange(mine.lost[c], {})});
  }
}

}  // namespace zbpp::asio
