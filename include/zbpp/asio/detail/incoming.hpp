// SPDX-License-Identifier: Apache-2.0
//
// The receiving end of a channel. A message of one buffer whose size the plan declares is read into
// the arena block that the flow gets. Others are read into a staging block and copied in `take`.
// Every header is checked before it is used.
#pragma once

#include <zbpp/asio/detail/channel_socket.hpp>
#include <zbpp/asio/detail/credit.hpp>
#include <zbpp/asio/detail/message_frame.hpp>
#include <zbpp/asio/detail/outgoing.hpp>
#include <zbpp/asio/detail/receive_buffer.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/transport.hpp>

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

/// Receives the messages of one channel.
class incoming {
 public:
  /// @param largest  message in bytes, as the plan declares it; 0 when it does not
  /// @param most     bytes of a message whose size is not declared
  incoming(channel_name const& name, std::uint64_t largest, std::uint64_t most)
      : socket_(name, *this),
        largest_(largest),
        blocks_(static_cast<std::uint32_t>(name.ends.slots) + 1),
        given_(blocks_),
        boxes_(blocks_),
        ring_(std::bit_ceil(zbpp::detail::index(name.ends.in_flight) + blocks_ + 1)) {
    rule_.most = largest > 0 ? largest : most;
  }

  /// @return the room that this end gives, for messages of the channel the other way to tell
  [[nodiscard]] credit_given* given() noexcept { return &given_; }
  /// Says which channel the messages of this one give credit to; it has to outlive this.
  void set_reverse(outgoing* reverse) noexcept { reverse_ = reverse; }

  // For the engine.

  /// Sets the first blocks aside; once, in `io_loop::exclusively`.
  /// @throws std::bad_alloc
  void supply_first(arena& memory, wakeup* wake) {
    std::vector<receive_buffer> first(blocks_);
    if (largest_ > 0)
      for (auto& box : first) box = receive_buffer(memory.allocate(largest_, purpose::receive));
    for (auto& box : first) boxes_.push(std::move(box));
    wake_ = wake;
    is_bound_ = true;
  }
  /// @return whether a message of this step is there
  [[nodiscard]] bool has_arrived(std::int32_t sequence) const noexcept {
    auto const number = first_ + static_cast<std::uint32_t>(sequence);
    // Acquire: pairs with the release in `finish`.
    return number < arrived_.load(std::memory_order_acquire) && at(number).step == step_;
  }
  /// Gives a message that has arrived, in memory of the arena.
  /// @param is_urgent  set when the sender has to be told that there is room
  /// @throws std::bad_alloc
  [[nodiscard]] message take(std::int32_t sequence, arena& memory, bool& is_urgent) {
    auto& place = at(first_ + static_cast<std::uint32_t>(sequence));
    message msg;
    if (place.parts == 1 && place.box.is_of_arena() && place.sizes[0] != message_frame::no_buffer) {
      auto own = place.box.exchange(memory.allocate(largest_, purpose::receive));
      own.truncate(place.sizes[0]);
      own.retag(purpose::edge);
      msg.push_back(std::move(own));
    } else {
      auto const* from = place.box.data();
      for (std::size_t i = 0; i < place.parts; ++i) {
        bool const is_buffer = place.sizes[i] != message_frame::no_buffer;
        auto own = is_buffer ? memory.allocate(place.sizes[i], purpose::edge) : buffer{};
        if (own.size() > 0) std::memcpy(own.data(), from, own.size());
        from += own.size();
        msg.push_back(std::move(own));
      }
    }
    is_urgent = let_go(place);
    return msg;
  }
  /// Releases messages that were not taken and begins the next step. Messages of later steps
  /// stay. Call it in `io_loop::exclusively`, too.
  void drain() noexcept {
    ++step_;
    auto const end = arrived_.load(std::memory_order_acquire);
    // The places of older messages hold others by now, so those were taken.
    first_ = std::max(first_, end - std::min<std::uint64_t>(end, ring_.size()));
    for (; first_ < end; ++first_) {
      auto& place = at(first_);
      if (place.step >= step_) break;
      if (place.is_full.load(std::memory_order_relaxed)) let_go(place);
    }
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

  struct entry {
    receive_buffer box;
    std::array<std::uint64_t, message::max_buffers> sizes{};
    std::uint32_t step = 0;
    std::uint8_t parts = 0;
    std::atomic<bool> is_full{false};
  };

  [[nodiscard]] entry& at(std::uint64_t number) noexcept {
    return ring_[number & (ring_.size() - 1)];
  }
  [[nodiscard]] entry const& at(std::uint64_t number) const noexcept {
    return ring_[number & (ring_.size() - 1)];
  }

  // Gives a block back to the I/O thread. Returns whether the sender has to be told.
  bool let_go(entry& place) noexcept {
    boxes_.push(std::move(place.box));
    // Release: the I/O thread that sees that there is room fills the entry anew.
    place.is_full.store(false, std::memory_order_release);
    return given_.supply();
  }

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
      reverse_->hear(next_.credit);
    }
    auto const number = arrived_.load(std::memory_order_relaxed);
    // Acquire: pairs with the release in `let_go`.
    if (!given_.use() || at(number).is_full.load(std::memory_order_acquire))
      return socket_.lose(
          "found message " + std::to_string(next_.sequence) + " of step " +
          std::to_string(next_.step) + " before there was room; the receiver had allowed " +
          std::to_string(blocks_) + " at a time");
    if (!has_box_) box_ = boxes_.pop();
    has_box_ = true;
    auto const size = next_.payload();
    if (!box_.grow(size))
      return socket_.lose("no memory for a message of " + std::to_string(size) + " bytes");
    fill_ = box_.data();
    missing_ = static_cast<std::size_t>(size);
    is_in_message_ = true;
  }

  // Hands a complete message to the engine, unless it is of a step that is over.
  void finish() noexcept {
    is_in_message_ = false;
    if (next_.step < step_) return given_.discard();
    auto const number = arrived_.load(std::memory_order_relaxed);
    auto& place = at(number);
    place.box = std::move(box_);
    has_box_ = false;
    place.sizes = next_.sizes;
    place.parts = next_.parts;
    place.step = next_.step;
    place.is_full.store(true, std::memory_order_relaxed);
    // Release: the engine that sees the number sees the message.
    arrived_.store(number + 1, std::memory_order_release);
    notify(wake_);
  }

  // The engine writes these. The I/O thread reads the step, which changes in `exclusively` only.
  std::uint64_t first_ = 0;  // of this step
  std::uint32_t step_ = 0;
  bool is_bound_ = false;
  wakeup* wake_ = nullptr;
  // The I/O thread writes this, the engine reads it.
  alignas(64) std::atomic<std::uint64_t> arrived_{0};
  channel_socket<incoming> socket_;
  std::uint64_t largest_;
  std::uint32_t blocks_;
  credit_given given_;
  receive_buffer_ring boxes_;
  std::vector<entry> ring_;  // its length is a power of two
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
