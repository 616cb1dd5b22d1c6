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
#include <optional>
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

ZBPP_INLINE tcp_transport::tcp_transport(
    io_loop& sockets,
    int rank,
    std::vector<channel> const& channels,
    std::vector<bytes> const& largest,
    lost_handler on_lost,
    tcp_settings settings,
    std::optional<int> bound_as)
    : loop_(&sockets),
      rank_(bound_as.value_or(rank)),
      settings_(settings),
      on_lost_(std::move(on_lost)) {
  check(channels, largest);
  out_.resize(channels.size());
  in_.resize(channels.size());
  open_.resize(channels.size());
  taken_.resize(channels.size());
  for (std::size_t c = 0; c < channels.size(); ++c) {
    if (channels[c].to != rank) continue;
    in_[c] = std::make_unique<incoming>(
        name(c, channels[c]),
        size_of(largest[c]),
        size_of(settings.largest_undeclared_message),
        settings.records_messages);
  }
  for (std::size_t c = 0; c < channels.size(); ++c) {
    if (channels[c].from != rank) continue;
    auto* reverse = reverse_of(channels, c);
    out_[c] = std::make_unique<outgoing>(
        name(c, channels[c]),
        size_of(largest[c] > 0 ? largest[c] : settings.largest_undeclared_message),
        reverse == nullptr ? nullptr : reverse->given());
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
  zbpp::detail::require(
      rank == rank_ && memory_ == nullptr, "a tcp_transport is bound once, at its own rank");
  memory_ = &memory;
  wake_ = wake;
  loop_->exclusively([&] {
    for (auto const& in : in_)
      if (in) in->supply_first(memory, wake);
  });
}

ZBPP_INLINE void tcp_transport::send(int channel, message&& msg, ticks) {
  auto& out = *out_[zbpp::detail::index(channel)];
  if (msg.has_object() && msg.size() == 0) msg = msg.held_object().to_bytes();
  out.push(std::move(msg));
  run_or_notify(*loop_, [&out] { out.pump(); });
}

ZBPP_INLINE ticks tcp_transport::arrival(int channel, std::int32_t sequence) const noexcept {
  return in_[zbpp::detail::index(channel)]->has_arrived(sequence) ? 0 : not_yet;
}

ZBPP_INLINE std::chrono::steady_clock::time_point tcp_transport::arrived_at(
    int channel, std::int32_t sequence) const noexcept {
  return in_[zbpp::detail::index(channel)]->arrived_at(sequence);
}

ZBPP_INLINE message tcp_transport::take(int channel, std::int32_t sequence, bytes most) {
  open(channel, -most);
  auto& in = *in_[zbpp::detail::index(channel)];
  bool is_urgent = false;
  auto msg = in.take(sequence, *memory_, is_urgent);
  ++taken_[zbpp::detail::index(channel)];
  if (is_urgent) run_or_notify(*loop_, [&in] { in.give_credit(0); });
  return msg;
}

ZBPP_INLINE void tcp_transport::retire(int channel, std::int32_t count) noexcept {
  out_[zbpp::detail::index(channel)]->retire(count);
}

ZBPP_INLINE bool tcp_transport::is_released(int channel, std::int32_t count) const noexcept {
  return out_[zbpp::detail::index(channel)]->has_written(count);
}

ZBPP_INLINE void tcp_transport::flush() {
  run_or_notify(*loop_, [this] { progress(); });
  if (states_transport_ != nullptr) states_transport_->flush();
}

ZBPP_INLINE bool tcp_transport::is_flushed() const noexcept {
  for (auto const& out : out_)
    if (out && !out->is_flushed()) return false;
  return states_transport_ == nullptr || states_transport_->is_flushed();
}

ZBPP_INLINE bool tcp_transport::begin_step(int /*rank*/) {
  if (!is_flushed()) return false;
  drain();
  return true;
}

ZBPP_INLINE bool tcp_transport::is_flushed(int channel) const noexcept {
  return out_[zbpp::detail::index(channel)]->is_flushed();
}

ZBPP_INLINE void tcp_transport::drain() {
  loop_->exclusively([this] {
    if (!is_flushed()) park();
    for (std::size_t c = 0; c < out_.size(); ++c) {
      if (out_[c]) out_[c]->drain();
      if (in_[c]) in_[c]->drain();
      if (open_[c] != 0) open(static_cast<int>(c), -open_[c]);
      taken_[c] = 0;
    }
  });
  if (states_transport_ != nullptr) states_transport_->drain();
}

ZBPP_INLINE void tcp_transport::close() {
  loop_->exclusively([this] { shut(); });
  if (states_transport_ != nullptr) states_transport_->close();
}

ZBPP_INLINE void tcp_transport::shut() noexcept {
  for (auto const& out : out_)
    if (out) out->shut();
  for (auto const& in : in_)
    if (in) in->shut();
}

ZBPP_INLINE void tcp_transport::check(
    std::vector<channel> const& channels, std::vector<bytes> const& largest) const {
  zbpp::detail::require(
      channels.size() == largest.size(), "a tcp_transport gets one largest size per channel");
  zbpp::detail::require(
      settings_.largest_undeclared_message > 0,
      "tcp_settings::largest_undeclared_message is 0 bytes or less; set it above 0");
  zbpp::detail::require(
      settings_.send_buffer >= 0,
      "tcp_settings::send_buffer is below 0 bytes; give a size, or 0 to leave it to the kernel");
  zbpp::detail::require(
      settings_.receive_buffer >= 0,
      "tcp_settings::receive_buffer is below 0 bytes; give a size, or 0 to leave it to the kernel");
  for (auto size : largest)
    zbpp::detail::require(size >= 0, "the largest message of a channel has at least 0 bytes");
  for (auto const& c : channels)
    zbpp::detail::require(
        c.slots >= 0 && c.in_flight >= 0, "the depths of a channel are at least 0");
}

ZBPP_INLINE channel_name
tcp_transport::name(std::size_t number, channel const& ends) const noexcept {
  return {static_cast<int>(number), ends, &on_lost_, {}};
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

ZBPP_INLINE channel_links::channel_links(
    rendezvous& run, wakeup& wake, std::vector<channel> channels, pipeline_ranks const& ranks)
    : control_(&run.control_channel()),
      connector_(run.connector_.get()),
      wake_(&wake),
      rank_(ranks.in_pipeline(run.rank())),
      channels_(ranks.in_run(std::move(channels))),
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
      settings,
      rank_);
}

ZBPP_INLINE io_loop& channel_links::loop() const noexcept { return control_->loop(); }

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
