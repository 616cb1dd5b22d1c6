// SPDX-License-Identifier: Apache-2.0
//
// How states travel as messages of a step.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/tcp_states.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/message.hpp>

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

ZBPP_INLINE std::vector<channel> state_channels(int ranks) {
  constexpr int depth = 2;  // of a step: the verdict on the step before, and its own
  std::vector<channel> all;
  for (int r = 0; r + 1 < ranks; ++r) {
    all.push_back({r, r + 1, depth, depth});
    all.push_back({r + 1, r, depth, depth});
  }
  return all;
}

ZBPP_INLINE tcp_states::tcp_states(
    control& run, data_connector& connector, wakeup& wake, tcp_settings const& settings)
    : rank_(run.rank()), links_(run, connector, wake, state_channels(run.ranks())) {
  // No size is declared: what goes to the next rank grows with the layers of the model.
  std::vector<bytes> const largest(zbpp::detail::index(2 * (run.ranks() - 1)), 0);
  transport_ = links_.make_transport(largest, settings);
  transport_->bind(rank_, memory_, &wake);
}

ZBPP_INLINE void tcp_states::send(
    int from, int to, std::span<std::byte const> state, ticks /*arrival*/) {
  auto copy = memory_.allocate(state.size(), purpose::edge);
  std::memcpy(copy.data(), state.data(), state.size());
  transport_->send(state_channel(from, to), message(std::move(copy)), 0);
}

ZBPP_INLINE ticks tcp_states::arrival(int from, int to) const noexcept {
  auto const channel = state_channel(from, to);
  return transport_->arrival(channel, transport_->taken(channel));
}

ZBPP_INLINE void tcp_states::take(int from, int to, std::vector<std::byte>& state) {
  auto const channel = state_channel(from, to);
  auto const received = transport_->take(channel, transport_->taken(channel), 0);
  auto const& bytes = received[0];
  state.assign(bytes.data(), bytes.data() + bytes.size());
}

ZBPP_INLINE void tcp_states::report_needed(int awaited) {
  links_.report_needed(awaited < 0 ? channel_map::none : state_channel(awaited, rank_));
}

}  // namespace zbpp::asio::detail
