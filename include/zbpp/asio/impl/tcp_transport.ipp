// SPDX-License-Identifier: Apache-2.0
//
// Gives the calls of an engine to the ends of its channels, which it connects.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/channel_ends.hpp>
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/socket_base.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

// Runs `work` now if this thread can be the I/O thread, else notifies that thread.
template <class Work>
void run_or_notify(io_loop& loop, Work work) {
  if (!loop.try_exclusively(work)) loop.notify();
}

/// Refuses settings out of range.
/// @throws error (bad_argument)
ZBPP_INLINE void check_settings(tcp_settings const& settings) {
  zbpp::detail::require(
      settings.largest_undeclared_message > 0,
      "tcp_settings::largest_undeclared_message is 0 bytes or less; set it above 0");
  zbpp::detail::require(
      settings.send_buffer >= 0,
      "tcp_settings::send_buffer is below 0 bytes; give a size, or 0 to leave it to the kernel");
  zbpp::detail::require(
      settings.receive_buffer >= 0,
      "tcp_settings::receive_buffer is below 0 bytes; give a size, or 0 to leave it to the kernel");
}

ZBPP_INLINE tcp_transport::tcp_transport(
    io_loop& sockets,
    int rank,
    std::vector<channel> const& channels,
    std::vector<bytes> const& largest,
    lost_handler on_lost,
    tcp_settings const& settings,
    pipeline_ranks const& ranks)
    : rank_transport(
          rank, channels, largest, settings.largest_undeclared_message, settings.records_messages),
      loop_(&sockets),
      settings_(settings),
      on_lost_(std::move(on_lost)),
      out_(channels.size()),
      in_(channels.size()) {
  check_settings(settings);
  auto const in_run = ranks.in_run(channels);
  auto const name = [&](std::size_t c) {
    return channel_name{static_cast<int>(c), in_run[c], &on_lost_, {}};
  };
  for (std::size_t c = 0; c < channels.size(); ++c)
    if (auto* const ring = received(static_cast<int>(c)); ring != nullptr)
      in_[c] = std::make_unique<incoming>(
          name(c),
          *ring,
          static_cast<std::uint64_t>(largest[c]),
          static_cast<std::uint64_t>(settings.largest_undeclared_message));
  for (std::size_t c = 0; c < channels.size(); ++c) {
    auto* const ring = sent(static_cast<int>(c));
    if (ring == nullptr) continue;
    auto* reverse = reverse_of(channels, c);
    out_[c] =
        std::make_unique<outgoing>(name(c), *ring, reverse == nullptr ? nullptr : reverse->given());
    if (reverse != nullptr) reverse->set_reverse(out_[c].get());
  }
  loop_->exclusively([this] {
    loop_->on_notify([](void* self) { static_cast<tcp_transport*>(self)->progress(); }, this);
  });
}

ZBPP_INLINE tcp_transport::~tcp_transport() {
  linger();
  loop_->exclusively([this] {
    shut();
    loop_->forget(this);
  });
  loop_->run_until([this] { return !is_pending(); });
}

[[nodiscard]] ZBPP_INLINE tcp_socket own_socket(
    accepted_socket connected, io_loop& loop, tcp_settings const& settings, error_code& failure) {
  tcp_socket own(loop.io().get_executor());
  auto const end = connected.local_endpoint(failure);
  if (failure) return own;
  auto const handle = connected.release(failure);
  if (failure) return own;
  own.assign(end.protocol(), handle, failure);
  if (failure) {
    ::close(handle);
    return own;
  }
  own.non_blocking(true, failure);
  if (!failure) own.set_option(net::ip::tcp::no_delay(true), failure);
  // Messages go one way only, so nothing carries the acknowledgements; those that the kernel sends
  // at once would delay the reader of each message. A kernel that refuses is as good, but slower.
  int const off = 0;
  if (!failure) ::setsockopt(own.native_handle(), IPPROTO_TCP, TCP_QUICKACK, &off, sizeof(off));
  if (!failure && settings.send_buffer > 0)
    own.set_option(net::socket_base::send_buffer_size(settings.send_buffer), failure);
  if (!failure && settings.receive_buffer > 0)
    own.set_option(net::socket_base::receive_buffer_size(settings.receive_buffer), failure);
  return own;
}

ZBPP_INLINE void tcp_transport::connect(int channel, accepted_socket connected) {
  auto const c = zbpp::detail::index(channel);
  zbpp::detail::require(
      channel >= 0 && c < out_.size() &&
          (out_[c] ? !out_[c]->was_connected() : in_[c] && !in_[c]->was_connected()),
      "a connection is the first one for a channel that begins or ends at this rank");
  error_code failure;
  loop_->exclusively([&] {
    auto own = own_socket(std::move(connected), *loop_, settings_, failure);
    if (failure) return;
    if (out_[c])
      out_[c]->connect(std::move(own));
    else
      in_[c]->connect(std::move(own));
  });
  if (failure)
    throw error(errc::io_failed) + "channel " + channel +
        ": the connection cannot be used: " + reason_of(failure);
}

ZBPP_INLINE void tcp_transport::bind(int rank, arena& memory, wakeup* wake) {
  rank_transport::bind(rank, memory, wake);
  loop_->exclusively([&] {
    for (auto const& in : in_)
      if (in) in->supply_first(memory, wake);
  });
}

ZBPP_INLINE void tcp_transport::send(int channel, message&& msg, ticks) {
  push(channel, std::move(msg));
  run_or_notify(*loop_, [&out = *out_[zbpp::detail::index(channel)]] { out.pump(); });
}

ZBPP_INLINE message tcp_transport::take(int channel, std::int32_t sequence, bytes most) {
  auto& in = *in_[zbpp::detail::index(channel)];
  auto msg = in.take(close_slot(channel, sequence, most), memory());
  if (in.given()->is_used_up()) run_or_notify(*loop_, [&in] { in.give_credit(0); });
  return msg;
}

ZBPP_INLINE void tcp_transport::flush() {
  run_or_notify(*loop_, [this] { progress(); });
}

ZBPP_INLINE void tcp_transport::release_all() {
  loop_->exclusively([this] {
    if (!is_flushed()) park();
    rank_transport::release_all();
  });
}

ZBPP_INLINE void tcp_transport::give_up(int channel, std::size_t place) {
  in_[zbpp::detail::index(channel)]->recycle(place);
}

ZBPP_INLINE void tcp_transport::close() {
  loop_->exclusively([this] { shut(); });
}

ZBPP_INLINE void tcp_transport::shut() noexcept {
  for (auto const& out : out_)
    if (out) out->shut();
  for (auto const& in : in_)
    if (in) in->shut();
}

ZBPP_INLINE incoming* tcp_transport::reverse_of(
    std::vector<channel> const& channels, std::size_t c) const noexcept {
  for (std::size_t other = 0; other < channels.size(); ++other)
    if (channels[other].from == channels[c].to && channels[other].to == channels[c].from)
      return in_[other].get();
  return nullptr;
}

// A connection that is closed while something unread is there, such as a credit, takes back what
// the peer has not read yet.
ZBPP_INLINE void tcp_transport::linger() {
  loop_->exclusively([&] {
    for (auto const& out : out_) {
      if (!out) continue;
      out->pump();  // what was sent, and nobody has had the time to write
      out->finish();
    }
  });
  run_for(*loop_, std::chrono::milliseconds(250), [&] {
    auto const is_open = [](auto const& out) { return out && out->is_open(); };
    return std::none_of(out_.begin(), out_.end(), is_open);
  });
}

ZBPP_INLINE void tcp_transport::park() noexcept {
  for (auto const& out : out_)
    if (out) out->park();
  for (auto const& in : in_)
    if (in) in->park();
}

// Called on the I/O thread, after a notify.
ZBPP_INLINE void tcp_transport::progress() {
  for (auto const& out : out_)
    if (out) out->pump();
  for (auto const& in : in_)
    if (in) in->progress();
}

ZBPP_INLINE bool tcp_transport::is_pending() const noexcept {
  for (auto const& out : out_)
    if (out && out->is_pending()) return true;
  for (auto const& in : in_)
    if (in && in->is_pending()) return true;
  return false;
}

ZBPP_INLINE run_transport::run_transport(
    rendezvous& run,
    std::vector<channel> channels,
    std::vector<bytes> const& largest,
    wakeup& wake,
    tcp_settings const& settings,
    pipeline_ranks const& ranks)
    : lost_channels{std::vector<std::string>(channels.size())},
      tcp_transport(
          run.control_channel().loop(),
          ranks.in_pipeline(run.rank()),
          channels,
          largest,
          [this, &wake](int channel, std::string reason) {
            reasons[zbpp::detail::index(channel)] = std::move(reason);
            notify(&wake);
          },
          settings,
          ranks),
      control_(&run.control_channel()),
      connector_(run.connector_.get()),
      channels_(ranks.in_run(std::move(channels))) {}

ZBPP_INLINE void run_transport::connect() {
  auto sockets = connector_->connect(channels_);
  for (std::size_t c = 0; c < sockets.size(); ++c)
    if (sockets[c].is_open()) tcp_transport::connect(static_cast<int>(c), std::move(sockets[c]));
}

ZBPP_INLINE void run_transport::report_needed(int awaited) {
  for (std::size_t c = 0; c < reasons.size(); ++c) {
    if (reasons[c].empty()) continue;
    auto const channel = static_cast<int>(c);
    bool const sends = channels_[c].from == control_->rank();
    if (sends ? is_flushed(channel) : awaited != channel) continue;
    auto const peer = sends ? channels_[c].to : channels_[c].from;
    control_->report({{peer, -1, -1, -1}, {}, errc::peer_failed, std::exchange(reasons[c], {})});
  }
}

}  // namespace zbpp::asio::detail
