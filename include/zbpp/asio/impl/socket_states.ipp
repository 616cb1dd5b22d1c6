// SPDX-License-Identifier: Apache-2.0
//
// States travel as messages of one buffer, on channels of their own.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/message.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::asio {

namespace detail {

[[nodiscard]] ZBPP_INLINE std::vector<channel> channels_of(state_map const& map) {
  std::vector<channel> all;
  for (int c = 0; c < map.size(); ++c)
    all.push_back({map.ends(c).first, map.ends(c).second, map.depth(c), map.depth(c)});
  return all;
}

}  // namespace detail

ZBPP_INLINE socket_states::socket_states(
    rendezvous& run,
    program const& program,
    problem const& problem,
    wakeup& wake,
    tcp_settings settings,
    pipeline_ranks const& ranks) {
  auto channels = detail::channels_of(state_map(program));
  // No size is declared: what goes to the next rank grows with the layers of the model, and a stage
  // may have a few tied ones.
  constexpr bytes most_tied_layers = 16;
  settings.largest_undeclared_message = std::max(
      {settings.largest_undeclared_message,
       tcp_settings().largest_undeclared_message,
       most_tied_layers * problem.tied_size()});
  settings.records_messages = false;  // states are no messages of the program
  std::vector<bytes> const largest(channels.size(), 0);
  transport_ = std::make_unique<detail::run_transport>(
      run, std::move(channels), largest, wake, settings, ranks);
  transport_->bind(ranks.in_pipeline(run.rank()), memory_, &wake);
}

ZBPP_INLINE socket_states::~socket_states() = default;

ZBPP_INLINE void socket_states::connect() { transport_->connect(); }

ZBPP_INLINE void socket_states::close() { transport_->close(); }

ZBPP_INLINE void socket_states::send(
    int channel, std::span<std::byte const> state, ticks /*arrival*/) {
  auto copy = memory_.allocate(state.size(), purpose::edge);
  std::memcpy(copy.data(), state.data(), state.size());
  transport_->send(channel, message(std::move(copy)), 0);
}

ZBPP_INLINE ticks socket_states::arrival(int channel) const noexcept {
  return transport_->arrival(channel, transport_->taken(channel));
}

ZBPP_INLINE void socket_states::take(int channel, std::vector<std::byte>& state) {
  auto const received = transport_->take(channel, transport_->taken(channel), 0);
  auto const& bytes = received[0];
  state.assign(bytes.data(), bytes.data() + bytes.size());
}

ZBPP_INLINE bool socket_states::begin_step(int rank) { return transport_->begin_step(rank); }

ZBPP_INLINE void socket_states::drain() { transport_->drain(); }

ZBPP_INLINE void socket_states::flush() { transport_->flush(); }

ZBPP_INLINE bool socket_states::is_flushed() const noexcept { return transport_->is_flushed(); }

// A last state and the end of its connection may arrive together: the state goes first.
ZBPP_INLINE void socket_states::report_needed(int awaited) {
  bool const is_here = awaited != state_map::none && arrival(awaited) != not_yet;
  transport_->report_needed(is_here ? state_map::none : awaited);
}

ZBPP_INLINE void socket_states::poll(int awaited) {
  flush();
  transport_->loop().exclusively([&] { report_needed(awaited); });
}

}  // namespace zbpp::asio
