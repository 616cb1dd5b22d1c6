// SPDX-License-Identifier: Apache-2.0
//
// The connection of two members of a group: bytes both ways, in pieces of any size. Steps do not
// count here, so members may use it in passes and between steps.
#pragma once

#include <zbpp/asio/detail/channel_ends.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/socket_fwd.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/byte_queue.hpp>
#include <zbpp/runtime/transport.hpp>

#include <boost/asio/buffer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// Stands in front of a piece.
struct piece_frame {
  // Bytes that no text protocol begins with, then the version of this format.
  static constexpr std::array<std::uint8_t, 4> mark_of_piece{0xb0, 'z', 'g', 1};

  std::array<std::uint8_t, 4> mark = mark_of_piece;
  std::uint32_t number = 0;  ///< of the pieces that came before, modulo 2^32
  std::uint64_t size = 0;    ///< of the piece, in bytes
};
static_assert(sizeof(piece_frame) == 16);

/// The end of one member of such a connection.
///
/// What is sent waits here until the kernel takes it. As many pieces as `most_waiting` arrive ahead
/// of `take`; then the kernel holds back the other member. Memory is used again, and that of a size
/// is set aside for all pieces that may wait, so that more of them allocate nothing.
class group_stream {
 public:
  /// @param name     of the connection; its `on_lost` is called once, when it is lost
  /// @param most     bytes of a piece
  /// @param wake     notified when a piece arrives
  group_stream(io_loop& loop, channel_name const& name, std::uint64_t most, wakeup& wake)
      : loop_(&loop), wake_(&wake), most_(most), socket_(name, *this) {}
  group_stream(group_stream const&) = delete;
  group_stream& operator=(group_stream const&) = delete;

  // For the thread of the rank.

  /// Refuses a piece that is larger than it may be.
  /// @throws error (wrong_size)
  void check(std::size_t size) const {
    if (size > most_)
      throw error(errc::wrong_size) + "a collective call sends another member " + size +
          " bytes at once; largest_undeclared_message of the settings allows " + most_;
  }
  /// Sends a piece whose size is right; never blocks.
  void send(std::span<std::byte const> head, std::span<std::byte const> body) {
    {
      std::scoped_lock const lock(guard_);
      queue_.push(head, body);
    }
    sent_.store(sent_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (!loop_->try_exclusively([this] { pump(); })) loop_->notify();
  }
  [[nodiscard]] bool has_arrived() const noexcept {
    // Acquire: pairs with the release in `finish_piece`.
    return arrived_.load(std::memory_order_acquire) != taken_.load(std::memory_order_relaxed);
  }
  /// Takes the oldest piece, which is there.
  void take(std::vector<std::byte>& bytes) {
    auto const number = taken_.load(std::memory_order_relaxed);
    std::swap(bytes, place_of(number));
    // Sequentially consistent, as in `has_room`: either this sees that the I/O thread has stopped
    // reading, or that sees that there is room again.
    taken_.store(number + 1);
    if (!is_full_.load()) return;
    if (!loop_->try_exclusively([this] { progress(); })) loop_->notify();
  }
  [[nodiscard]] bool is_flushed() const noexcept {
    return written_.load(std::memory_order_acquire) == sent_.load(std::memory_order_relaxed);
  }

  // For the I/O thread.

  /// Begins to use a connection.
  void connect(tcp_socket&& connected) {
    socket_.open(std::move(connected));
    socket_.await_readable();
  }
  /// Writes what there is, and reads on, as far as possible without blocking.
  void progress() {
    pump();
    if (is_full_.load() && has_room()) on_readable();
    if (!is_full_.load()) socket_.await_readable();
  }
  /// Says that nothing more will be sent; what comes from now on is dropped.
  void finish() noexcept {
    is_finished_ = true;
    is_full_.store(false);
    socket_.finish();
    socket_.await_readable();
  }
  [[nodiscard]] bool is_open() const noexcept { return socket_.is_open(); }
  void shut() noexcept { socket_.shut(); }
  [[nodiscard]] bool is_pending() const noexcept { return socket_.is_pending(); }

  /// Sets memory aside, as `group_link::reserve` says.
  void reserve(std::size_t messages, std::size_t most) {
    {
      std::scoped_lock const lock(guard_);
      queue_.reserve(messages, most);
    }
    room_ = std::max(room_, messages + 1);
    set_aside(arrived_.load(std::memory_order_relaxed) + std::uint64_t{is_reading_}, most);
  }

  void on_readable() {
    if (!is_finished_ && !parse()) return;
    for (int reads = 0; reads < most_reads && socket_.is_open(); ++reads) {
      if (is_finished_) {
        if (socket_.read(::boost::asio::buffer(input_)) == 0) break;
        continue;
      }
      auto const part = std::min(missing_, most_moved);
      // What follows the piece comes with its last part.
      auto const room = part < missing_ ? 0 : input_.size() - input_size_;
      std::array<::boost::asio::mutable_buffer, 2> const to{
          {{fill_, part}, {input_.data() + input_size_, room}}};
      auto const count = part == 0 ? socket_.read(to[1]) : socket_.read(to);
      auto const filled = std::min(count, missing_);
      fill_ += filled;
      missing_ -= filled;
      input_size_ += count - filled;
      if (!parse() || count < part + room) break;
    }
    if (!is_full_.load()) socket_.await_readable();
  }
  void on_writable() { pump(); }

 private:
  static constexpr std::size_t most_waiting = 8;
  // The I/O thread lets others have a turn after so many.
  static constexpr int most_reads = 16;

  [[nodiscard]] std::vector<std::byte>& place_of(std::uint64_t number) noexcept {
    return places_[number % most_waiting];
  }

  // Writes what there is.
  void pump() {
    if (socket_.awaits_writable()) return;
    while (socket_.is_open() && (is_writing_ || begin_writing())) {
      std::size_t const in_head = sizeof(head_) - std::min(sizeof(head_), done_);
      std::size_t const at = done_ - (sizeof(head_) - in_head);
      auto const part = std::min(most_moved, writing_.size() - at);
      std::array<::boost::asio::const_buffer, 2> const from{
          {{reinterpret_cast<std::byte const*>(&head_) + sizeof(head_) - in_head, in_head},
           {writing_.data() + at, part}}};
      auto const count = in_head == 0 ? socket_.write(from[1]) : socket_.write(from);
      done_ += count;
      if (count < in_head + part) return socket_.await_writable();
      if (done_ < sizeof(head_) + writing_.size()) continue;
      is_writing_ = false;
      written_.store(written_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
  }
  bool begin_writing() {
    if (is_flushed()) return false;
    {
      std::scoped_lock const lock(guard_);
      if (queue_.empty()) return false;
      queue_.pop(writing_);
    }
    head_.number = static_cast<std::uint32_t>(written_.load(std::memory_order_relaxed));
    head_.size = writing_.size();
    done_ = 0;
    return is_writing_ = true;
  }

  // Says whether the next piece has a place; else notes that reading stops.
  bool has_room() noexcept {
    auto const is_free = [&] {
      return arrived_.load(std::memory_order_relaxed) - taken_.load() < most_waiting;
    };
    if (!is_free()) {
      is_full_.store(true);
      if (!is_free()) return false;
    }
    is_full_.store(false);
    return true;
  }
  // Makes pieces of what was read. Returns false when nothing more may be read at the moment.
  bool parse() {
    std::span<std::byte const> left(input_.data(), input_size_);
    bool goes_on = true;
    while (goes_on && socket_.is_open()) {
      if (is_reading_) {
        auto const count = std::min(missing_, left.size());
        if (count > 0) std::memcpy(fill_, left.data(), count);
        fill_ += count;
        missing_ -= count;
        left = left.subspan(count);
        if (missing_ > 0) break;
        finish_piece();
      }
      goes_on = has_room();
      if (!goes_on || left.size() < sizeof(piece_frame)) break;
      begin_piece(left);
      left = left.subspan(sizeof(piece_frame));
    }
    if (!left.empty()) std::memmove(input_.data(), left.data(), left.size());
    input_size_ = left.size();
    return goes_on && socket_.is_open();
  }
  void begin_piece(std::span<std::byte const> from) {
    piece_frame next;
    std::memcpy(&next, from.data(), sizeof(next));
    auto const number = arrived_.load(std::memory_order_relaxed);
    if (next.mark != piece_frame::mark_of_piece || next.size > most_ ||
        next.number != static_cast<std::uint32_t>(number))
      return socket_.lose(
          zbpp::detail::joined("found what is no piece of at most ") + most_ +
          " bytes with the number " + number +
          "; is largest_undeclared_message the same on all ranks?");
    auto& place = place_of(number);
    try {
      find_memory(number, static_cast<std::size_t>(next.size));
      place.resize(static_cast<std::size_t>(next.size));
    } catch (std::exception const&) {
      return socket_.lose(zbpp::detail::joined("no memory for a piece of ", next.size, " bytes"));
    }
    fill_ = place.data();
    missing_ = place.size();
    is_reading_ = true;
  }
  // Gives a piece memory of one that was taken, the last first, so that as much is touched as there
  // are pieces at once.
  void find_memory(std::uint64_t number, std::size_t size) {
    if (size > largest_) set_aside(number, size);
    for (auto before = waiting(number) + 1; before < most_waiting; ++before)
      if (place_of(number - before).capacity() >= size)
        return std::swap(place_of(number), place_of(number - before));
  }
  void set_aside(std::uint64_t number, std::size_t size) {
    auto const count = std::min(most_waiting - waiting(number), room_);
    for (std::size_t ahead = 0; ahead < count; ++ahead) place_of(number + ahead).reserve(size);
    largest_ = size;
  }
  // How many pieces before this one are not taken.
  [[nodiscard]] std::uint64_t waiting(std::uint64_t number) const noexcept {
    // Acquire: what was taken is not touched any more.
    return number - taken_.load(std::memory_order_acquire);
  }
  void finish_piece() noexcept {
    is_reading_ = false;
    // Release: the thread of the rank that sees the number sees the piece.
    arrived_.store(arrived_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    notify(wake_);
  }

  io_loop* loop_;
  wakeup* wake_;
  std::uint64_t most_;
  // What is sent.
  std::mutex guard_;                       // of the queue
  zbpp::detail::byte_queue queue_;         // of pieces that nobody has begun to write
  std::atomic<std::uint64_t> sent_{0};     // written by the thread of the rank
  std::atomic<std::uint64_t> written_{0};  // written on the I/O thread, as all below
  std::vector<std::byte> writing_;
  piece_frame head_;
  std::size_t done_ = 0;  // bytes of the frame and the piece
  bool is_writing_ = false;
  // What arrives.
  std::array<std::vector<std::byte>, most_waiting> places_;
  std::atomic<std::uint64_t> arrived_{0};
  std::atomic<std::uint64_t> taken_{0};  // written by the thread of the rank
  std::atomic<bool> is_full_{false};     // nothing is read until a piece is taken
  bool is_reading_ = false;
  bool is_finished_ = false;
  std::byte* fill_ = nullptr;  // where the next byte of a piece goes
  std::size_t missing_ = 0;
  std::size_t largest_ = 0;                                 // piece for which memory is set aside
  std::size_t room_ = zbpp::detail::byte_queue::usual + 1;  // places for it; one is with the taker
  std::size_t input_size_ = 0;
  std::array<std::byte, 4096> input_;
  channel_socket<group_stream> socket_;  // last: its handlers use all of the above
};

}  // namespace zbpp::asio::detail
