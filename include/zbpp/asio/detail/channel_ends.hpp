// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a channel on a socket: what is sent, what has arrived, and how much the receiver
// has room for.
#pragma once

#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/socket_fwd.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/message_rings.hpp>
#include <zbpp/runtime/transport.hpp>

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

// What travels on the socket of a channel, byte by byte: messages one way, credits the other. The
// reader checks a header in full before anything is done with it.

/// Says what a frame is.
enum class message_frame_kind : std::uint8_t {
  message = 1,  ///< a message; the bytes of its parts follow the header
  credit = 2,   ///< how many messages of the channel the receiver has had room for so far
};

/// Holds the header of a frame.
struct message_frame {
  static constexpr std::uint64_t no_buffer = message::no_buffer;
  static constexpr std::size_t base_size = 16;  ///< of a header without part sizes, in bytes
  static constexpr std::size_t most_size = base_size + message::max_buffers * sizeof(std::uint64_t);

  message_frame_kind kind = message_frame_kind::message;
  std::uint8_t parts = 0;
  bool has_credit = false;     ///< whether `credit` means something
  std::uint32_t step = 0;      ///< how many steps the sender's channel went through before
  std::uint32_t sequence = 0;  ///< of the message in its step
  std::uint32_t credit = 0;    ///< of a message: for the channel the other way
  std::array<std::uint64_t, message::max_buffers> sizes{};  ///< of the parts, in bytes

  [[nodiscard]] std::uint64_t payload() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < parts; ++i) sum += sizes[i] == no_buffer ? 0 : sizes[i];
    return sum;
  }
};

/// Says which frames a reader takes.
struct message_frame_rule {
  message_frame_kind kind = message_frame_kind::message;
  std::uint32_t step = 0;      ///< of the last message
  std::uint32_t sequence = 0;  ///< of the next message, if it is of the same step
  std::uint64_t most = 0;      ///< bytes of a message
};

/// Tells what a reader made of some bytes.
struct message_frame_reading {
  std::size_t size =
      0;              ///< of the header in bytes; 0 when more bytes are needed, or `wrong` is set
  std::string wrong;  ///< what is wrong and what is expected; empty when nothing is
};

// A byte that no text protocol begins with, then the version of this format.
inline constexpr std::uint8_t frame_mark = 0xb0;
inline constexpr std::uint8_t frame_version = 1;
inline constexpr std::uint8_t credit_flag = 0x80;  // beside the number of parts

template <class Number>
[[nodiscard]] Number number_at(std::span<std::byte const> bytes, std::size_t at) noexcept {
  Number value{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

[[nodiscard]] inline std::string_view to_string(message_frame_kind kind) noexcept {
  return kind == message_frame_kind::message ? "a message" : "a credit";
}

[[nodiscard]] inline std::string check_order(
    message_frame const& f, message_frame_rule const& rule) {
  bool const is_next = f.step == rule.step && f.sequence == rule.sequence;
  bool const begins_step = f.step > rule.step && f.sequence == 0;
  if (is_next || begins_step) return {};
  return zbpp::detail::joined("found message ") + f.sequence + " of step " + f.step +
         "; expected message " + rule.sequence + " of step " + rule.step +
         ", or message 0 of a later one";
}

[[nodiscard]] inline std::string check_sizes(
    message_frame const& f, message_frame_rule const& rule) {
  std::uint64_t left = rule.most;
  for (std::size_t i = 0; i < f.parts; ++i) {
    if (f.sizes[i] == message_frame::no_buffer) continue;
    if (f.sizes[i] > left)
      return zbpp::detail::joined("part ") + i + " of message " + f.sequence + " has " +
             f.sizes[i] + " bytes; the whole message has at most " + rule.most;
    left -= f.sizes[i];
  }
  return {};
}

/// Writes a header to where there is room for `message_frame::most_size` bytes.
/// @return its size in bytes
inline std::size_t encode(message_frame const& f, std::byte* to) noexcept {
  std::array<std::uint8_t, 4> const head{
      frame_mark,
      frame_version,
      static_cast<std::uint8_t>(f.kind),
      static_cast<std::uint8_t>(f.parts | (f.has_credit ? credit_flag : 0))};
  std::array<std::uint32_t, 3> const numbers{f.step, f.sequence, f.credit};
  std::memcpy(to, head.data(), sizeof(head));
  std::memcpy(to + sizeof(head), numbers.data(), sizeof(numbers));
  std::memcpy(to + message_frame::base_size, f.sizes.data(), f.parts * sizeof(std::uint64_t));
  return message_frame::base_size + f.parts * sizeof(std::uint64_t);
}

/// Reads the header that some bytes begin with. Trusts none of them, and refuses as early as it
/// can; allocates only to say what is wrong.
/// @param to  gets the header; unspecified unless the result has a size
[[nodiscard]] inline message_frame_reading decode(
    std::span<std::byte const> bytes, message_frame_rule const& rule, message_frame& to) {
  if (bytes.size() < message_frame::base_size) return {};
  auto const head = number_at<std::array<std::uint8_t, 4>>(bytes, 0);
  if (head[0] != frame_mark || head[1] != frame_version)
    return {
        .wrong = zbpp::detail::joined("found the bytes ") + int{head[0]} + ", " + int{head[1]} +
                 " where a frame begins with " + int{frame_mark} + ", " + int{frame_version} +
                 " (mark, version)"};
  if (head[2] != static_cast<std::uint8_t>(rule.kind))
    return {
        .wrong = zbpp::detail::joined("found a frame of kind ") + int{head[2]} +
                 "; this end takes kind " + static_cast<int>(rule.kind) + ", " +
                 to_string(rule.kind)};
  to.kind = rule.kind;
  to.has_credit = (head[3] & credit_flag) != 0;
  to.parts = head[3] & static_cast<std::uint8_t>(~credit_flag);
  to.step = number_at<std::uint32_t>(bytes, 4);
  to.sequence = number_at<std::uint32_t>(bytes, 8);
  to.credit = number_at<std::uint32_t>(bytes, 12);
  if (rule.kind == message_frame_kind::credit) {
    if (to.parts != 0 || !to.has_credit || to.step != 0 || to.sequence != 0)
      return {.wrong = "found a credit with parts, without a number, or of a step; it has none"};
    return {.size = message_frame::base_size, .wrong = {}};
  }
  if (to.parts > message::max_buffers)
    return {
        .wrong = zbpp::detail::joined("found a message of ") + int{to.parts} +
                 " parts; it has at most " + message::max_buffers};
  if (auto wrong = check_order(to, rule); !wrong.empty()) return {.wrong = std::move(wrong)};
  auto const size = message_frame::base_size + to.parts * sizeof(std::uint64_t);
  if (bytes.size() < size) return {};
  std::memcpy(
      to.sizes.data(), bytes.data() + message_frame::base_size, to.parts * sizeof(std::uint64_t));
  if (auto wrong = check_sizes(to, rule); !wrong.empty()) return {.wrong = std::move(wrong)};
  return {.size = size, .wrong = {}};
}

// One end of a channel's connection: a socket that never blocks, and at most one wait for each
// direction, in memory that is there from the start.

namespace net = ::boost::asio;
using ::boost::system::error_code;

/// A socket without the costs of a type-erased executor.
using tcp_socket = net::basic_stream_socket<net::ip::tcp, net::io_context::executor_type>;

/// Takes a connection from its type-erased executor, and sets it up. Only on the I/O thread.
[[nodiscard]] tcp_socket own_socket(
    accepted_socket connected, io_loop& loop, tcp_settings const& settings, error_code& failure);

/// At most so many bytes are moved by a system call: few enough to be in the cache still when the
/// other process copies them on (bench/bench_asio.cpp, stream).
inline constexpr std::size_t most_moved = std::size_t{64} << 10;

/// Holds what both ends of a channel know of it.
struct channel_name {
  int number;
  channel ends;
  lost_handler const* on_lost;
  std::string_view axis = {};  ///< of the group that it connects members of; else none

  [[nodiscard]] std::string text() const {
    std::string const between = zbpp::detail::joined("rank ") + ends.from +
                                (axis.empty() ? " to rank " : " and rank ") + ends.to;
    if (axis.empty()) return zbpp::detail::joined("channel ", number, " from ", between);
    return zbpp::detail::joined("the connection of the ", axis, " group between ", between);
  }
};

/// Carries an end of a channel. All of it is for the I/O thread.
/// @tparam Owner  has `on_readable()` and `on_writable()`
template <class Owner>
class channel_socket {
 public:
  channel_socket(channel_name const& name, Owner& owner) noexcept : name_(name), owner_(&owner) {}
  channel_socket(channel_socket const&) = delete;
  channel_socket& operator=(channel_socket const&) = delete;

  void open(tcp_socket&& connected) { socket_.emplace(std::move(connected)); }
  [[nodiscard]] bool was_opened() const noexcept { return socket_.has_value(); }
  [[nodiscard]] bool is_open() const noexcept {
    return socket_ && socket_->is_open() && !is_parked_;
  }
  /// Leaves the socket alone from now on without closing it, so that the peer notices nothing.
  void park() noexcept {
    error_code ignored;
    if (is_open()) socket_->cancel(ignored);
    is_parked_ = true;
  }
  /// Closes the socket; a wait that is under way ends soon, without a call.
  void shut() noexcept {
    error_code ignored;
    if (socket_) socket_->close(ignored);
  }
  /// Says that nothing more will be written. The peer closes once it has read everything, and then
  /// nobody is told that the connection was lost.
  void finish() noexcept {
    error_code ignored;
    if (is_open()) socket_->shutdown(net::socket_base::shutdown_send, ignored);
    is_finished_ = true;
  }
  /// Closes the socket and says why. Nobody calls the owner from then on.
  void lose(std::string const& why) {
    if (!is_open()) return;
    shut();
    if (is_finished_) return;
    (*name_.on_lost)(name_.number, name_.text() + ": " + why);
  }

  /// Writes some of the bytes, without waiting.
  /// @return how many; none when the kernel has no room or the connection was lost
  template <class Buffers>
  [[nodiscard]] std::size_t write(Buffers const& from) {
    error_code failure;
    auto const count = socket_->write_some(from, failure);
    if (failure && failure != net::error::would_block)
      lose("writing failed: " + reason_of(failure));
    return count;
  }
  /// Reads some bytes, without waiting.
  /// @return how many; none when there are none or the connection was lost
  template <class Buffers>
  [[nodiscard]] std::size_t read(Buffers const& to) {
    error_code failure;
    auto const count = socket_->read_some(to, failure);
    if (failure == net::error::eof)
      lose("the peer closed the connection before the run ended");
    else if (failure && failure != net::error::would_block)
      lose("reading failed: " + reason_of(failure));
    return count;
  }

  /// Calls the owner once there is something to read; it may ask again at any time.
  void await_readable() { await<&Owner::on_readable>(net::socket_base::wait_read, reading_); }
  /// Calls the owner once there is room to write; it may ask again at any time.
  void await_writable() { await<&Owner::on_writable>(net::socket_base::wait_write, writing_); }
  [[nodiscard]] bool awaits_writable() const noexcept { return writing_.is_pending; }
  /// @return whether a wait is under way; this object has to live until it is over
  [[nodiscard]] bool is_pending() const noexcept {
    return reading_.is_pending || writing_.is_pending;
  }

 private:
  struct wait_state {
    handler_memory memory;
    bool is_pending = false;
  };
  template <void (Owner::*call)()>
  struct wait_handler {
    channel_socket* self;
    wait_state* state;
    // What went wrong, if anything, shows when the owner reads or writes.
    void operator()(error_code const&) const {
      state->is_pending = false;
      if (!self->is_open()) return;
      try {
        (self->owner_->*call)();
      } catch (std::exception const& e) {
        self->lose(reason_of(e));
      }
    }
  };

  template <void (Owner::*call)()>
  void await(net::socket_base::wait_type event, wait_state& state) {
    if (state.is_pending || !is_open()) return;
    state.is_pending = true;
    socket_->async_wait(
        event,
        net::bind_allocator(
            handler_allocator<void>(state.memory), wait_handler<call>{this, &state}));
  }

  channel_name name_;
  Owner* owner_;
  std::optional<tcp_socket> socket_;
  bool is_parked_ = false;
  bool is_finished_ = false;
  wait_state reading_;
  wait_state writing_;
};

// How many messages a sender may write: as many as the receiver has set blocks aside for, counted
// from the first on, so that a count which comes twice or late does no harm.

/// Counts, at the receiving end of a channel, what it has room for and what its sender knows.
///
/// Whoever takes the last message that the sender was allowed, and whoever learns that it has come,
/// may be two threads; at least one of them sees that the sender has to be told.
class credit_given {
 public:
  /// Begins with what both ends know without being told.
  explicit credit_given(std::uint32_t blocks) noexcept
      : supplied_(blocks), reported_(blocks), left_(blocks) {}

  /// Adds room for a message; for the engine.
  // Sequentially consistent, as are all of these two: this and `is_used_up` are the store and load
  // of the one side, `use` and `is_owed` are those of the other.
  void supply() noexcept { supplied_.fetch_add(1); }
  /// @return whether the sender has, as far as it knows, no room left; for the engine
  [[nodiscard]] bool is_used_up() const noexcept { return left_.load() == 0; }

  /// Counts a message that begins to arrive; for the I/O thread, as all below.
  /// @return false when the sender was not allowed to write it
  [[nodiscard]] bool use() noexcept {
    auto const left = left_.load(std::memory_order_relaxed);
    if (left == 0) return false;
    left_.store(left - 1);
    return true;
  }
  /// Takes back the room of a message that was not kept.
  void discard() noexcept { ++discarded_; }

  /// @return whether there is room that the sender does not know of
  [[nodiscard]] bool is_owed() const noexcept { return total() != reported_; }
  /// @return how many messages more the sender may write, as far as it knows
  [[nodiscard]] std::uint32_t left() const noexcept {
    return left_.load(std::memory_order_relaxed);
  }
  /// @return the count to tell the sender, who now counts as told
  [[nodiscard]] std::uint32_t report() noexcept {
    auto const now = total();
    left_.store(left_.load(std::memory_order_relaxed) + (now - reported_));
    reported_ = now;
    return now;
  }

 private:
  [[nodiscard]] std::uint32_t total() const noexcept { return supplied_.load() + discarded_; }

  std::atomic<std::uint32_t> supplied_;  // written by the engine
  std::uint32_t reported_;
  std::uint32_t discarded_ = 0;
  std::atomic<std::uint32_t> left_;  // written on the I/O thread
};

// The blocks that messages arrive in. The engine supplies them, the I/O thread uses them up, and
// a ring with one end for each goes between.

/// Holds the bytes of one message that arrives: memory of the arena, which the message may keep,
/// where its size was declared; else memory of its own that grows.
class receive_buffer {
 public:
  receive_buffer() = default;
  explicit receive_buffer(buffer block) noexcept : block_(std::move(block)) {}

  [[nodiscard]] std::byte* data() const noexcept { return block_ ? block_.data() : area_.get(); }
  [[nodiscard]] bool is_of_arena() const noexcept { return static_cast<bool>(block_); }
  /// Makes room for a message, unless the block is of the arena.
  /// @return false when there is no memory
  [[nodiscard]] bool grow(std::uint64_t size) noexcept {
    if (block_ || size <= capacity_) return true;
    auto const wanted = std::max<std::size_t>(std::bit_ceil(static_cast<std::size_t>(size)), 256);
    area_.reset();  // before, for its bytes are not needed
    area_.reset(new (std::nothrow) std::byte[wanted]);
    capacity_ = area_ ? wanted : 0;
    return area_ != nullptr;
  }
  /// @return the block of the arena, in whose place `other` is from now on
  [[nodiscard]] buffer exchange(buffer other) noexcept {
    return std::exchange(block_, std::move(other));
  }

 private:
  buffer block_;
  std::unique_ptr<std::byte[]> area_;
  std::size_t capacity_ = 0;
};

/// Passes blocks from the engine to the I/O thread. The two agree through a `credit_given` on how
/// many there are; at most as many as the ring is long are in it at a time.
class receive_buffer_ring {
 public:
  explicit receive_buffer_ring(std::size_t length) : ring_(std::bit_ceil(length)) {}

  /// Adds a block; for the engine, before it counts it.
  void push(receive_buffer block) noexcept {
    ring_[pushed_++ & (ring_.size() - 1)] = std::move(block);
  }
  /// Gives the oldest block, which has to be there; for the I/O thread.
  [[nodiscard]] receive_buffer pop() noexcept {
    return std::move(ring_[popped_++ & (ring_.size() - 1)]);
  }

 private:
  std::vector<receive_buffer> ring_;
  std::size_t pushed_ = 0;
  alignas(64) std::size_t popped_ = 0;
};

// The sending end of a channel: messages go to the kernel straight from the memory of the passes
// that made them, in order, as far as the receiver has room for them.

/// Sends the messages of one channel; for the I/O thread.
class outgoing {
 public:
  /// @param ring     what the engine has sent; outlives this
  /// @param reverse  room of the channel the other way, which messages tell about; may be null
  outgoing(channel_name const& name, sent_ring& ring, credit_given* reverse)
      : ring_(&ring),
        socket_(name, *this),
        blocks_(static_cast<std::uint32_t>(name.ends.slots) + 1),
        allowed_(blocks_),
        reverse_(reverse) {}

  /// Begins to use a connection.
  void connect(tcp_socket&& connected) {
    socket_.open(std::move(connected));
    socket_.await_readable();
    pump();
  }
  /// Writes what there is and may be written.
  void pump() {
    if (socket_.awaits_writable()) return;
    while (socket_.is_open() && (!left_.empty() || begin())) {
      std::size_t wanted = 0;
      auto const now = next_pieces(wanted);
      // A single piece takes a cheaper system call.
      auto const count = now.size() == 1 ? socket_.write(now.front()) : socket_.write(now);
      consume(count);
      if (count < wanted) return socket_.await_writable();
      if (left_.empty()) ring_->deliver();
    }
  }
  /// Takes a new credit: how many messages the receiver has had room for.
  void on_credit(std::uint32_t allowed) {
    auto const more = static_cast<std::int32_t>(allowed - allowed_);
    if (more <= 0) return;  // older than the one known: it came by the slower route
    auto const written = static_cast<std::uint32_t>(ring_->delivered());
    if (allowed - written > blocks_)
      return socket_.lose(
          zbpp::detail::joined("the receiver allows message ") + allowed +
          ", counted from 1; after " + written + " messages it has room for at most " + blocks_ +
          " more");
    allowed_ = allowed;
    pump();
  }
  [[nodiscard]] bool was_connected() const noexcept { return socket_.was_opened(); }
  void finish() noexcept { socket_.finish(); }
  [[nodiscard]] bool is_open() const noexcept { return socket_.is_open(); }
  void park() noexcept { socket_.park(); }
  void shut() noexcept { socket_.shut(); }
  [[nodiscard]] bool is_pending() const noexcept { return socket_.is_pending(); }

  void on_readable() {
    auto const room = std::span(input_).subspan(input_size_);
    input_size_ += socket_.read(::boost::asio::buffer(room.data(), room.size()));
    std::span<std::byte const> left(input_.data(), input_size_);
    while (socket_.is_open()) {
      message_frame next;
      auto const reading = decode(left, {.kind = message_frame_kind::credit}, next);
      if (!reading.wrong.empty()) return socket_.lose(reading.wrong);
      if (reading.size == 0) break;
      left = left.subspan(reading.size);
      on_credit(next.credit);
    }
    std::copy(left.begin(), left.end(), input_.begin());
    input_size_ = left.size();
    socket_.await_readable();
  }
  void on_writable() { pump(); }

 private:
  // A message as small as this is put after its header rather than written from where it is.
  static constexpr std::size_t most_copied = 256;

  // Gets the next message ready to be written. Returns false when there is none, or no room for it.
  bool begin() {
    auto const place = ring_->next();
    if (!place || static_cast<std::uint32_t>(ring_->begun()) == allowed_) return false;
    auto const& next = ring_->at(*place);
    message_frame header;
    header.step = next.step;
    header.sequence = next.sequence;
    if (reverse_ != nullptr) {
      header.has_credit = true;
      header.credit = reverse_->report();
    }
    header.parts = static_cast<std::uint8_t>(next.msg.size());
    header.sizes = next.msg.sizes();
    auto size = encode(header, header_.data());
    std::size_t count = 1;
    if (header.payload() <= most_copied) {
      size += next.msg.copy_to(header_.data() + size);
    } else {
      for (auto const& part : next.msg.buffers())
        if (part.size() > 0) pieces_[count++] = {part.data(), part.size()};
    }
    pieces_[0] = {header_.data(), size};
    left_ = std::span(pieces_).first(count);
    ring_->begin();
    return true;
  }

  // What is to be written at once, and how many bytes that is.
  [[nodiscard]] std::span<::boost::asio::const_buffer const> next_pieces(
      std::size_t& size) noexcept {
    std::size_t count = 0;
    for (auto const& piece : left_) {
      now_[count] = ::boost::asio::buffer(piece, most_moved - size);
      size += now_[count++].size();
      if (size == most_moved) break;
    }
    return std::span(now_).first(count);
  }

  void consume(std::size_t written) noexcept {
    while (!left_.empty() && written >= left_.front().size()) {
      written -= left_.front().size();
      left_ = left_.subspan(1);
    }
    if (!left_.empty()) left_.front() += written;
  }

  sent_ring* ring_;
  channel_socket<outgoing> socket_;
  std::span<::boost::asio::const_buffer> left_;  // of the message that is being written
  std::array<::boost::asio::const_buffer, message::max_buffers + 1> pieces_;
  std::array<::boost::asio::const_buffer, message::max_buffers + 1> now_;
  std::array<std::byte, message_frame::most_size + most_copied> header_;  // and a small message
  std::uint32_t blocks_;                                                  // that the receiver has
  std::uint32_t allowed_;  // messages, from the first on
  credit_given* reverse_;
  std::size_t input_size_ = 0;
  std::array<std::byte, 16 * message_frame::base_size> input_;
};

// The receiving end of a channel. A message of one buffer whose size the plan declares is read into
// the arena block that the flow gets. Others are read into a staging block and copied in `take`.
// Every header is checked before it is used.

/// Receives the messages of one channel.
class incoming {
 public:
  /// @param ring     what is known of its messages; outlives this
  /// @param largest  message in bytes, as the plan declares it; 0 when it does not
  /// @param most     bytes of a message whose size is not declared
  incoming(channel_name const& name, received_ring& ring, std::uint64_t largest, std::uint64_t most)
      : ring_(&ring),
        arrived_(ring.size()),
        socket_(name, *this),
        largest_(largest),
        blocks_(static_cast<std::uint32_t>(name.ends.slots) + 1),
        given_(blocks_),
        boxes_(blocks_) {
    rule_.most = largest > 0 ? largest : most;
  }

  /// @return the room that this end gives, for messages of the channel the other way to tell
  [[nodiscard]] credit_given* given() noexcept { return &given_; }
  /// Says which channel the messages of this one give credit to; it has to outlive this.
  void set_reverse(outgoing* reverse) noexcept { reverse_ = reverse; }

  // For the engine.

  /// Sets the first blocks aside; once, in `io_loop::exclusively`. @throws std::bad_alloc
  void supply_first(arena& memory, wakeup* wake) {
    std::vector<receive_buffer> first(blocks_);
    if (largest_ > 0)
      for (auto& box : first) box = receive_buffer(memory.allocate(largest_, purpose::receive));
    for (auto& box : first) boxes_.push(std::move(box));
    wake_ = wake;
    is_bound_ = true;
  }
  /// Gives a message that has arrived, in memory of the arena. Then its sender may have to be told
  /// that there is room: see `given()`.
  /// @throws std::bad_alloc
  [[nodiscard]] message take(std::size_t place, arena& memory) {
    auto& here = arrived_[place];
    message msg;
    if (here.parts == 1 && here.box.is_of_arena() && here.sizes[0] != message_frame::no_buffer) {
      auto own = here.box.exchange(memory.allocate(largest_, purpose::receive));
      own.truncate(here.sizes[0]);
      own.retag(purpose::edge);
      msg.push_back(std::move(own));
    } else {
      msg = message::copy_of(std::span(here.sizes).first(here.parts), here.box.data(), memory);
    }
    recycle(place);
    return msg;
  }
  /// Gives the block of a message back to the I/O thread.
  void recycle(std::size_t place) noexcept {
    boxes_.push(std::move(arrived_[place].box));
    ring_->free(place);
    given_.supply();
  }

  // For the I/O thread.

  /// Begins to use a connection.
  void connect(tcp_socket&& connected) { socket_.open(std::move(connected)); }
  /// Tells the sender of room it does not know of, if it has `left` messages or fewer to write.
  void give_credit(std::uint32_t left) {
    if (!socket_.is_open() || credit_left_ > 0 || given_.left() > left || !given_.is_owed()) return;
    credit_left_ = encode(
        {.kind = message_frame_kind::credit, .has_credit = true, .credit = given_.report()},
        credit_.data());
    on_writable();
  }
  /// Does deferred work: waits for more to read, and sends a credit if the sender may soon run out,
  /// which is less often than once per message. Called when the I/O thread is otherwise idle, and
  /// before the engine waits.
  void progress() {
    if (!is_bound_) return;
    give_credit(blocks_ / 2);
    socket_.await_readable();
  }
  [[nodiscard]] bool was_connected() const noexcept { return socket_.was_opened(); }
  void park() noexcept { socket_.park(); }
  void shut() noexcept { socket_.shut(); }
  [[nodiscard]] bool is_pending() const noexcept { return socket_.is_pending(); }

  void on_readable() {
    for (int reads = 0; reads < most_reads && socket_.is_open(); ++reads) {
      auto const room = input_.size() - input_size_;
      auto const part = std::min(missing_, most_moved);
      // What follows the message comes with its last part.
      auto const behind = part < missing_
                              ? ::boost::asio::mutable_buffer{}
                              : ::boost::asio::buffer(input_.data() + input_size_, room);
      std::array<::boost::asio::mutable_buffer, 2> const to{{{fill_, part}, behind}};
      auto const wanted = part + behind.size();
      auto const count = missing_ == 0 ? socket_.read(behind) : socket_.read(to);
      auto const filled = std::min(count, missing_);
      fill_ += filled;
      missing_ -= filled;
      input_size_ += count - filled;
      if (!parse()) return;
      if (count < wanted) break;  // there was no more
    }
    give_credit(0);
  }
  void on_writable() {
    auto const* rest = credit_.data() + message_frame::base_size - credit_left_;
    credit_left_ -= socket_.write(::boost::asio::buffer(rest, credit_left_));
    if (credit_left_ > 0) socket_.await_writable();
  }

 private:
  // The I/O thread lets others have a turn after so many.
  static constexpr int most_reads = 16;

  struct arrived_message {
    receive_buffer box;
    std::array<std::uint64_t, message::max_buffers> sizes{};
    std::uint8_t parts = 0;
  };

  // Makes messages of what was read. Returns false when the connection was lost.
  bool parse() {
    std::span<std::byte const> left(input_.data(), input_size_);
    while (socket_.is_open()) {
      if (is_in_message_) {
        auto const count = std::min(missing_, left.size());
        if (count > 0) std::memcpy(fill_, left.data(), count);
        fill_ += count;
        missing_ -= count;
        left = left.subspan(count);
        if (missing_ > 0) break;
        finish();
      }
      auto const reading = decode(left, rule_, next_);
      if (!reading.wrong.empty()) socket_.lose(reading.wrong);
      if (reading.size == 0) break;
      left = left.subspan(reading.size);
      begin();
    }
    if (!left.empty()) std::memmove(input_.data(), left.data(), left.size());
    input_size_ = left.size();
    return socket_.is_open();
  }

  // Finds room for a message whose header has come.
  void begin() {
    rule_.step = next_.step;
    rule_.sequence = next_.sequence + 1;
    if (next_.has_credit) {
      if (reverse_ == nullptr)
        return socket_.lose("found a credit; there is no channel the other way");
      reverse_->on_credit(next_.credit);
    }
    if (!given_.use() || !ring_->has_room())
      return socket_.lose(
          zbpp::detail::joined("found message ") + next_.sequence + " of step " + next_.step +
          " before there was room; the receiver had allowed " + blocks_ + " at a time");
    if (!has_box_) box_ = boxes_.pop();
    has_box_ = true;
    auto const size = next_.payload();
    if (!box_.grow(size))
      return socket_.lose(zbpp::detail::joined("no memory for a message of ", size, " bytes"));
    fill_ = box_.data();
    missing_ = static_cast<std::size_t>(size);
    is_in_message_ = true;
  }

  // Hands a complete message to the engine, unless it is of a step that is over.
  void finish() noexcept {
    is_in_message_ = false;
    if (ring_->is_over(next_.step)) return given_.discard();
    auto& here = arrived_[ring_->add(next_.step)];
    here.box = std::move(box_);
    has_box_ = false;
    here.sizes = next_.sizes;
    here.parts = next_.parts;
    ring_->arrive();
    notify(wake_);
  }

  received_ring* ring_;
  std::vector<arrived_message> arrived_;  // by place
  bool is_bound_ = false;
  wakeup* wake_ = nullptr;
  channel_socket<incoming> socket_;
  std::uint64_t largest_;
  std::uint32_t blocks_;
  credit_given given_;
  receive_buffer_ring boxes_;
  outgoing* reverse_ = nullptr;
  message_frame_rule rule_;
  message_frame next_;  // the message that is being read
  receive_buffer box_;  // where it goes
  bool has_box_ = false;
  bool is_in_message_ = false;
  std::byte* fill_ = nullptr;  // where its next byte goes
  std::size_t missing_ = 0;
  std::size_t credit_left_ = 0;
  std::array<std::byte, message_frame::most_size> credit_;
  std::size_t input_size_ = 0;
  std::array<std::byte, 4096> input_;
};

}  // namespace zbpp::asio::detail
