// SPDX-License-Identifier: Apache-2.0
//
// The sending end of a channel: messages go to the kernel straight from the memory of the passes
// that made them, in order, as far as the receiver has room for them.
#pragma once

#include <zbpp/asio/detail/channel_socket.hpp>
#include <zbpp/asio/detail/credit.hpp>
#include <zbpp/asio/detail/message_frame.hpp>
#include <zbpp/runtime/message.hpp>

#include <boost/asio/buffer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// Sends the messages of one channel.
class outgoing {
 public:
  /// @param most     bytes of a message
  /// @param reverse  room of the channel the other way, which messages of this one tell about; may
  ///                 be null
  outgoing(channel_name const& name, std::uint64_t most, credit_given* reverse)
      : socket_(name, *this),
        ring_(std::bit_ceil(zbpp::detail::index(name.ends.in_flight) + 1)),
        most_(most),
        blocks_(static_cast<std::uint32_t>(name.ends.slots) + 1),
        allowed_(blocks_),
        reverse_(reverse) {}

  // For the engine.

  /// Takes a message, which `pump` is going to write.
  /// @throws error (wrong_size) when it is larger than it may be; (bad_argument) when more of them
  ///         are not retired than the channel was made for
  void push(message&& msg) {
    if (static_cast<std::uint64_t>(msg.total_size()) > most_)
      throw error(
          errc::wrong_size,
          "a message of " + std::to_string(msg.total_size()) +
              " bytes; its channel carries at most " + std::to_string(most_) + " at once");
    auto const number = published_.load(std::memory_order_relaxed);
    zbpp::detail::require(
        number - retired_ < ring_.size(),
        "a channel has at most channel.in_flight messages that are not retired");
    auto& place = at(number);
    place.msg = std::move(msg);
    place.step = step_;
    place.sequence = static_cast<std::uint32_t>(number - first_);
    // Release: the I/O thread that sees the number sees the message, and what the pass wrote into
    // it.
    published_.store(number + 1, std::memory_order_release);
  }
  /// @return whether all that was sent is in the kernel
  [[nodiscard]] bool is_flushed() const noexcept {
    return written_.load(std::memory_order_acquire) == published_.load(std::memory_order_relaxed);
  }
  /// @return whether the first `count` messages of this step are in the kernel
  [[nodiscard]] bool has_written(std::int32_t count) const noexcept {
    return written_.load(std::memory_order_acquire) >= first_ + static_cast<std::uint32_t>(count);
  }
  /// Releases the messages of this step before number `count`, which were consumed.
  void retire(std::int32_t count) noexcept {
    retire_before(first_ + static_cast<std::uint32_t>(count));
  }
  /// Releases all messages and begins the next step. Call it in `io_loop::exclusively`, too.
  void drain() noexcept {
    first_ = published_.load(std::memory_order_relaxed);
    retire_before(first_);
    ++step_;
  }

  // For the I/O thread.

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
      if (!left_.empty()) continue;
      // Release: whoever sees the count may release what was written.
      written_.store(begun_.load(std::memory_order_relaxed), std::memory_order_release);
    }
  }
  /// Takes a new credit: how many messages the receiver has had room for.
  void hear(std::uint32_t allowed) {
    auto const more = static_cast<std::int32_t>(allowed - allowed_);
    if (more <= 0) return;  // older than the one known: it came by the slower route
    auto const written = static_cast<std::uint32_t>(written_.load(std::memory_order_relaxed));
    if (allowed - written > blocks_)
      return socket_.lose(
          "the receiver allows message " + std::to_string(allowed) + ", counted from 1; after " +
          std::to_string(written) + " messages it has room for at most " + std::to_string(blocks_) +
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
      hear(next.credit);
    }
    std::copy(left.begin(), left.end(), input_.begin());
    input_size_ = left.size();
    socket_.await_readable();
  }
  void on_writable() { pump(); }

 private:
  // A message as small as this is put behind its header rather than written from where it is.
  static constexpr std::size_t most_copied = 256;

  struct entry {
    message msg;
    std::uint32_t step = 0;
    std::uint32_t sequence = 0;
  };

  [[nodiscard]] entry& at(std::uint64_t number) noexcept {
    return ring_[number & (ring_.size() - 1)];
  }

  void retire_before(std::uint64_t end) noexcept {
    // Acquire: pairs with the release in `begin`, which read the entry before. What was consumed
    // was begun, so it is seen here; a drain runs in `exclusively`.
    static_cast<void>(begun_.load(std::memory_order_acquire));
    for (; retired_ < end; ++retired_) at(retired_).msg.clear();
  }

  // Gets the next message ready to be written. Returns false when there is none, or no room for it.
  bool begin() {
    auto const number = begun_.load(std::memory_order_relaxed);
    // Acquire: pairs with the release in `push`.
    if (number == published_.load(std::memory_order_acquire)) return false;
    if (static_cast<std::uint32_t>(number) == allowed_) return false;
    auto const& next = at(number);
    message_frame header;
    header.step = next.step;
    header.sequence = next.sequence;
    if (reverse_ != nullptr) {
      header.has_credit = true;
      header.credit = reverse_->report();
    }
    std::size_t count = 1;
    for (auto const& part : next.msg.buffers()) {
      header.sizes[header.parts++] = part ? part.size() : message_frame::no_buffer;
      if (part.size() > 0) pieces_[count++] = {part.data(), part.size()};
    }
    auto size = encode(header, header_.data());
    if (header.payload() <= most_copied) {
      for (auto const& piece : std::span(pieces_).first(count).subspan(1)) {
        std::memcpy(header_.data() + size, piece.data(), piece.size());
        size += piece.size();
      }
      count = 1;
    }
    pieces_[0] = {header_.data(), size};
    left_ = std::span(pieces_).first(count);
    // Release: from here on the entry is not touched. Once the bytes are in the kernel the receiver
    // may consume them, and the engine learn of it, before the write has returned.
    begun_.store(number + 1, std::memory_order_release);
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

  // The engine writes these, the I/O thread reads the first.
  alignas(64) std::atomic<std::uint64_t> published_{0};
  std::uint64_t retired_ = 0;
  std::uint64_t first_ = 0;  // of this step
  std::uint32_t step_ = 0;
  // The I/O thread writes these, the engine reads the first two.
  alignas(64) std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> written_{0};
  channel_socket<outgoing> socket_;
  std::span<::boost::asio::const_buffer> left_;  // of the message that is being written
  std::array<::boost::asio::const_buffer, message::max_buffers + 1> pieces_;
  std::array<::boost::asio::const_buffer, message::max_buffers + 1> now_;
  std::array<std::byte, message_frame::most_size + most_copied> header_;  // and a small message
  std::vector<entry> ring_;  // its length is a power of two
  std::uint64_t most_;
  std::uint32_t blocks_;   // that the receiver has
  std::uint32_t allowed_;  // messages, from the first on
  credit_given* reverse_;
  std::size_t input_size_ = 0;
  std::array<std::byte, 16 * message_frame::base_size> input_;
};

}  // namespace zbpp::asio::detail
