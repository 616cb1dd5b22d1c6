// SPDX-License-Identifier: Apache-2.0
//
// How states travel as messages of a step.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/tcp_states.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/message.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// @return the channels of a map, as a program would list them
ZBPP_INLINE std::vector<channel> channels_of(state_map const& map) {
  std::vector<channel> all;
  for (int c = 0; c < map.size(); ++c)
    all.push_back({map.ends(c).first, map.ends(c).second, map.depth(c), map.depth(c)});
  return all;
}

ZBPP_INLINE tcp_states::tcp_states(
    state_map const& map,
    control& run,
    data_connector& connector,
    wakeup& wake,
    bytes tied,
    tcp_settings settings)
    : rank_(run.rank()), links_(run, connector, wake, channels_of(map)) {
  // No size is declared: what goes to the next rank grows with the layers of the model, and a stage
  // may have a few tied ones.
  constexpr bytes most_tied_layers = 16;
  settings.most = std::max(settings.most, most_tied_layers * tied);
  std::vector<bytes> const largest(zbpp::detail::index(map.size()), 0);
  transport_ = links_.make_transport(largest, settings);
  transport_->bind(rank_, memory_, &wake);
}

ZBPP_INLINE void tcp_states::send(
    int channel, std::span<std::byte const> state, ticks /*arrival*/) {
  auto copy = memory_.allocate(state.size(), purpose::edge);
  std::memcpy(copy.data(), state.data(), state.size());
  transport_->send(channel, message(std::move(copy)), 0);
}

ZBPP_INLINE ticks tcp_states::arrival(int channel) const noexcept {
  return transport_->arrival(channel, transport_->taken(channel));
}

ZBPP_INLINE void tcp_states::take(int channel, std::vector<std::byte>& state) {
  auto const received = transport_->take(channel, transport_->taken(channel), 0);
  auto const& bytes = received[0];
  state.assign(bytes.data(), bytes.data() + bytes.size());
}

ZBPP_INLINE void tcp_states::report_needed(int awaited) { links_.report_needed(awaited); }

}  // namespace zbpp::asio::detail
