// SPDX-License-Identifier: Apache-2.0
//
// What ranks and rank 0 send each other beside messages, as values and as bytes, and the
// connections that carry it.
#pragma once

#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

// What ranks tell rank 0 and rank 0 tells them, as values and as bytes: who is there, what went
// wrong, what they collect. Readers check every value and bound every size before they take memory.

/// Says what a frame of a control connection holds.
enum class control_kind : std::uint8_t {
  join,          ///< to rank 0: join_request, the first frame
  welcome,       ///< roster: all ranks are there
  heartbeat,     ///< to rank 0: progress_report; to others: nothing
  note,          ///< to rank 0: rank_call of a pipeline that begins to run, or is destroyed
  call,          ///< to rank 0: collective_call
  outcome,       ///< collective_outcome: what a collective call gives
  report,        ///< to rank 0: rank_failure
  stop,          ///< rank_failure: the first that rank 0 has heard of; or why no run begins
  stopping,      ///< to rank 0: how far this rank is, as stop_progress
  all_informed,  ///< nothing; every rank knows of the failure, as far as it can be reached
  verdict,       ///< failures: all of the run, the one that ended it first
  bye,  ///< to rank 0: nothing; to others: how many calls rank 0 made (64 bits); the sender
        ///< leaves, which is no failure
};
inline constexpr auto last_control_kind = control_kind::bye;

/// Says how far a rank is with the end of a run that has failed.
enum class stop_progress : std::uint8_t {
  informed,  ///< what runs there knows of the failure, and ends
  ended,     ///< nothing runs there any more
};

[[nodiscard]] inline error wrong_kind(control_kind kind, char const* why) {
  return error(errc::bad_format) + "a frame of kind " + static_cast<int>(kind) + ", which " + why;
}

/// Asks rank 0 to take a rank in.
struct join_request {
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::uint32_t version = ZBPP_VERSION;
  roster_entry data;  ///< host empty: where the connection comes from

  friend bool operator==(join_request const&, join_request const&) = default;
};

/// One rank's part of a collective.
struct collective_call {
  std::uint64_t sequence = 0;  ///< how many calls the rank made before
  collective kind = collective::barrier;
  std::int32_t root = 0;  ///< 0 unless it is a broadcast
  blob part;
  rank_call by = {};  ///< the call of the user that makes this one

  [[nodiscard]] std::string name() const { return by.name(); }
};

/// What all ranks get from a collective.
struct collective_outcome {
  std::uint64_t sequence = 0;
  std::vector<blob> parts;

  friend bool operator==(collective_outcome const&, collective_outcome const&) = default;
};

inline constexpr std::size_t most_text = 64 * 1024;  // of a failure; more is cut off
inline constexpr std::size_t most_failures = 4;      // of a rank that a verdict tells, on average
inline constexpr std::size_t most_host = 255;        // of a name in the DNS
inline constexpr std::size_t most_join = 1024;       // bytes of a join_request are fewer

/// @return the most bytes of a frame that one of `ranks` ranks gives
[[nodiscard]] inline std::size_t most_frame(std::size_t ranks, std::size_t largest_blob) {
  constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
  auto const each = std::max(largest_blob, most_failures * most_text) + 128 + most_call;
  return std::min(most, ranks * each);
}

}  // namespace zbpp::asio::detail

namespace zbpp::asio {

template <class Wire>
void fields(Wire& wire, wire_value<Wire, rank_failure>& f) {
  wire.number(f.location.rank)
      .number(f.location.position)
      .number(f.location.stage)
      .number(f.location.microbatch);
  fields(wire, f.instruction);
  wire.choice(f.code, static_cast<int>(errc::pass_failed) + 1, "the error code is")
      .text(f.text, detail::most_text);
}

template <class Wire>
void fields(Wire& wire, wire_value<Wire, std::vector<rank_failure>>& all) {
  wire.list(all, [&](auto& failure) { fields(wire, failure); });
}

template <class Wire>
void fields(Wire& wire, wire_value<Wire, roster_entry>& entry) {
  wire.text(entry.host, detail::most_host).number(entry.port);
}

template <class Wire>
void fields(Wire& wire, wire_value<Wire, detail::join_request>& request) {
  wire.number(request.rank).number(request.ranks).number(request.version);
  fields(wire, request.data);
}

template <class Wire>
void fields(Wire& wire, wire_value<Wire, roster>& all) {
  wire.plain(all.run_id).list(all.ranks, [&](auto& entry) { fields(wire, entry); });
}

/// @param largest  bytes of a part, where it is read
template <class Wire>
void fields(Wire& wire, wire_value<Wire, detail::collective_call>& call, std::size_t largest = 0) {
  wire.number(call.sequence)
      .choice(call.kind, 4, "the kind of a collective is")
      .number(call.root)
      .part(call.part, largest);
  fields(wire, call.by);
}

template <class Wire>
void fields(
    Wire& wire, wire_value<Wire, detail::collective_outcome>& outcome, std::size_t largest = 0) {
  wire.number(outcome.sequence).list(outcome.parts, [&](auto& part) { wire.part(part, largest); });
}

template <class Wire>
void fields(Wire& wire, wire_value<Wire, after_step>& next) {
  wire.choice(next, static_cast<int>(after_step::stop) + 1, "what comes after a step is");
}

template <class Wire>
void fields(Wire& wire, wire_value<Wire, detail::stop_progress>& reached) {
  wire.choice(reached, 2, "how far a rank has stopped is");
}

}  // namespace zbpp::asio

namespace zbpp::asio::detail {

/// Reads at least one failure.
/// @throws error (bad_format)
[[nodiscard]] inline std::vector<rank_failure> read_failures(std::span<std::byte const> bytes) {
  auto failures = read<std::vector<rank_failure>>(bytes);
  if (failures.empty()) throw error(errc::bad_format, "a verdict without a failure");
  return failures;
}

/// Reads a frame that is one number.
/// @throws error (bad_format)
template <class Number>
[[nodiscard]] Number read_number(std::span<std::byte const> bytes) {
  wire_reader from(bytes);
  auto const number = from.get<Number>();
  from.expect_end();
  return number;
}

// A control connection: frames of a length (32 bits, bounded), a kind and a payload, both ways, and
// an end that loses nothing that was sent.

class control_connection;

/// Hears what a control connection receives. Neither call may throw anything but `error`, which
/// ends the connection.
class connection_owner {
 public:
  /// A whole frame came.
  virtual void on_frame(
      control_connection& from, control_kind kind, std::span<std::byte const> payload) = 0;
  /// The connection is at its end, for good, without `close` having been called.
  virtual void on_lost(control_connection& from, std::string const& reason) = 0;

 protected:
  ~connection_owner() = default;
};

/// Sends and receives frames on an authenticated socket. Used on the I/O thread alone.
class control_connection : public std::enable_shared_from_this<control_connection> {
 public:
  using shared_bytes = std::shared_ptr<blob const>;

  /// @param most  the largest payload that is received; `expect` changes it
  control_connection(tcp::socket socket, connection_owner& owner, std::size_t most)
      : socket_(std::move(socket)),
        linger_(socket_.get_executor()),
        owner_(&owner),
        most_(most),
        name_(name_of_peer(socket_)) {
    boost::system::error_code ignored;
    address_ = plain_address(socket_.remote_endpoint(ignored).address());
  }

  /// Begins to receive.
  void start() { receive_header(); }

  /// Changes the largest payload that is received from the next frame on.
  void expect(std::size_t most) noexcept { most_ = most; }

  /// Sends a frame, after those sent before.
  void send(control_kind kind, shared_bytes payload) {
    if (is_ending_ || !socket_.is_open()) return;
    push(kind).payload = std::move(payload);
    if (outgoing_.size() == 1) write_first();
  }
  /// Sends a frame of at most `most_call` bytes; allocates nothing once as many were on their way.
  void send_small(control_kind kind, std::span<std::byte const> payload) {
    if (is_ending_ || !socket_.is_open()) return;
    auto& frame = push(kind);
    frame.small_size = std::min(payload.size(), frame.small.size());
    std::copy_n(payload.begin(), frame.small_size, frame.small.begin());
    if (outgoing_.size() == 1) write_first();
  }
  /// Sends a frame of its own.
  void send(control_kind kind, blob payload = {}) {
    send(kind, std::make_shared<blob const>(std::move(payload)));
  }
  /// @return whether frames wait to be written, so that another heartbeat would be of no use
  [[nodiscard]] bool is_behind() const noexcept { return !outgoing_.empty(); }

  /// Ends politely: the owner gets no further calls, what was sent is delivered if the other side
  /// still reads. A socket that is closed with unread input would take back what is under way, so
  /// this one is closed when the other side has closed, or after `linger`.
  void finish(std::chrono::milliseconds linger) {
    owner_ = nullptr;
    if (is_ending_ || !socket_.is_open()) return;
    is_ending_ = true;
    if (outgoing_.empty()) shut_down();
    linger_.expires_after(linger);
    linger_.async_wait(
        [self = shared_from_this()](boost::system::error_code const&) { self->close(); });
  }
  /// Has `finish` close when all is sent, where the other side does not read at present.
  void expect_no_reader() noexcept { has_reader_ = false; }
  /// Ends at once.
  void close() {
    owner_ = nullptr;
    boost::system::error_code ignored;
    socket_.close(ignored);
    linger_.cancel();
  }

  [[nodiscard]] bool is_open() const noexcept { return socket_.is_open(); }
  /// @return when a frame, or a piece of one, came last; at first when it was made
  [[nodiscard]] steady::time_point heard() const noexcept { return heard_; }
  /// Counts as heard now, when it was this side that did not listen.
  void reset_silence(steady::time_point now) noexcept { heard_ = now; }
  [[nodiscard]] net::ip::address const& address() const noexcept { return address_; }
  /// @return address and port at the other end, for people
  [[nodiscard]] std::string const& name() const noexcept { return name_; }

 private:
  static constexpr std::size_t header_size = 5;
  static constexpr std::size_t piece = 64 * 1024;
  struct control_frame {
    control_kind kind{};
    shared_bytes payload;  // null where it is small
    std::array<std::byte, most_call> small{};
    std::size_t small_size = 0;
    std::array<std::byte, header_size> header{};
  };

  control_frame& push(control_kind kind) {
    if (spare_.empty()) spare_.emplace_back();
    outgoing_.splice(outgoing_.end(), spare_, spare_.begin());
    outgoing_.back().kind = kind;
    return outgoing_.back();
  }

  // One read is under way at a time.
  template <class Handler>
  [[nodiscard]] auto reader(Handler handler) {
    return net::bind_allocator(handler_allocator<std::byte>(read_memory_), std::move(handler));
  }

  // The handlers hold the connection: one whose owner has gone lives until its socket is closed.
  void receive_header() {
    net::async_read(
        socket_,
        net::buffer(header_),
        reader([self = shared_from_this()](boost::system::error_code const& failed, std::size_t) {
          self->go_on(failed, [&] {
            self->expected_ = self->checked_size(self->header_);
            self->payload_.clear();
            self->receive_payload();
          });
        }));
  }

  // A length is only a promise: memory grows with what has come. A peer that sends less than a
  // piece within the deadline of a heartbeat counts as silent.
  void receive_payload() {
    auto const at = payload_.size();
    if (at == expected_) {
      if (owner_ != nullptr)
        owner_->on_frame(*this, static_cast<control_kind>(header_[4]), payload_);
      if (payload_.capacity() > piece) payload_ = {};
      return receive_header();
    }
    payload_.resize(std::min(expected_, at + piece));
    net::async_read(
        socket_,
        net::buffer(payload_.data() + at, payload_.size() - at),
        reader([self = shared_from_this()](boost::system::error_code const& failed, std::size_t) {
          self->go_on(failed, [&] { self->receive_payload(); });
        }));
  }

  template <class Next>
  void go_on(boost::system::error_code const& failed, Next next) {
    if (failed)
      return lose(failed == net::error::eof ? "it closed the connection" : reason_of(failed));
    heard_ = steady::now();
    try {
      next();
    } catch (std::exception const& wrong) {
      lose(zbpp::detail::joined("it sent an invalid frame: ", reason_of(wrong)));
    }
  }

  [[nodiscard]] std::size_t checked_size(std::span<std::byte const, header_size> header) const {
    wire_reader from(header);
    auto const size = from.get<std::uint32_t>();
    auto const kind = from.get<std::uint8_t>();
    if (size > most_)
      throw error(errc::bad_format) + "a frame of " + size + " bytes; at most " + most_ +
          " are expected there";
    if (kind > static_cast<std::uint8_t>(last_control_kind))
      throw error(errc::bad_format) + "a frame of kind " + int{kind};
    return size;
  }

  void write_first() {
    auto& first = outgoing_.front();
    net::const_buffer payload(first.small.data(), first.small_size);
    if (first.payload != nullptr) payload = net::buffer(*first.payload);
    auto const size = static_cast<std::uint32_t>(payload.size());
    std::memcpy(first.header.data(), &size, sizeof(size));
    first.header[4] = static_cast<std::byte>(first.kind);
    std::array<net::const_buffer, 2> const parts{net::buffer(first.header), payload};
    net::async_write(
        socket_,
        parts,
        net::bind_allocator(
            handler_allocator<std::byte>(write_memory_),
            [self = shared_from_this()](boost::system::error_code const& failed, std::size_t) {
              if (failed) return;  // whoever receives finds out
              self->outgoing_.front().payload = nullptr;
              self->spare_.splice(self->spare_.end(), self->outgoing_, self->outgoing_.begin());
              if (!self->outgoing_.empty())
                self->write_first();
              else if (self->is_ending_)
                self->shut_down();
            }));
  }

  void shut_down() {
    if (!has_reader_) return close();
    boost::system::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  void lose(std::string const& reason) {
    auto* const owner = std::exchange(owner_, nullptr);
    close();
    if (owner != nullptr) owner->on_lost(*this, reason);
  }

  tcp::socket socket_;
  net::steady_timer linger_;
  connection_owner* owner_;
  std::size_t most_;
  net::ip::address address_;
  std::string name_;
  std::array<std::byte, header_size> header_{};  // of what is being received
  std::size_t expected_ = 0;
  blob payload_;
  std::list<control_frame> outgoing_;  // the first one is being written
  std::list<control_frame> spare_;     // that were written
  handler_memory write_memory_;
  handler_memory read_memory_;
  steady::time_point heard_ = steady::now();
  bool is_ending_ = false;
  bool has_reader_ = true;
};

}  // namespace zbpp::asio::detail
