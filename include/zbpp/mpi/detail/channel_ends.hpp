// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a channel of MPI. One buffer as large as the plan declares is a message of MPI of
// its own, which comes into memory that the receiver has set aside. For any other message a header
// says which buffers it has. Small ones come with it, and others into memory that the receiver
// allocates once it knows their sizes. Headers and declared buffers have one tag, so MPI keeps
// their order; a receiver tells them apart by their sizes.
//
// There are as many receives for them as the receiver has slots. Sent synchronously, they tell a
// sender by MPI alone when there is room.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/detail/call.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mpi.h>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp::mpi::detail {

/// Says how the bytes of a message come.
enum class payload_way : std::uint8_t {
  in_header,  ///< after the header, in the same message of MPI
  stated,     ///< buffers of the sizes in the header: the receiver allocates them first
  declared,   ///< one buffer of the declared size, without a header
};

/// What a message begins with that is no buffer of the declared size. Where a step begins with
/// one of these, a header that says `declared` goes before it, and is no message.
struct message_header {
  /// The size of a part that is an empty handle rather than a buffer.
  static constexpr std::uint64_t no_buffer = ~std::uint64_t{0};

  /// How many steps the sender's channel went through before; holds until the next header.
  std::uint32_t step = 0;
  payload_way way = payload_way::in_header;
  std::uint8_t parts = 0;
  std::array<std::uint64_t, message::max_buffers> sizes{};  ///< of the parts, in bytes
};
static_assert(std::is_trivially_copyable_v<message_header>);

/// A message as small as this comes with its header.
inline constexpr std::size_t most_in_header = 256;
/// Has room for a header, and a small message after it.
using header_bytes = std::array<std::byte, sizeof(message_header) + most_in_header>;

/// Says where the messages of a channel go: two tags of a communicator.
struct channel_place {
  MPI_Comm among = MPI_COMM_NULL;
  int peer = 0;        ///< its rank there
  int tag = 0;         ///< of headers and declared buffers
  int stated_tag = 0;  ///< of stated buffers
};

/// MPI counts as many bytes at once.
inline constexpr std::size_t most_at_once = std::size_t{1} << 30;

/// Calls `move(at, count)` for pieces that MPI can count.
template <class Move>
void for_each_piece(std::byte* data, std::size_t size, Move const& move) {
  for (std::size_t at = 0; at < size; at += most_at_once)
    move(data + at, static_cast<int>(std::min(most_at_once, size - at)));
}

/// @return the declared size, above any header's, of buffers that come without a header; else 0
[[nodiscard]] constexpr std::size_t bare_size(bytes declared) noexcept {
  auto const size = static_cast<std::size_t>(declared);
  return size > sizeof(header_bytes) && size <= most_at_once ? size : 0;
}

/// Says when a message counts as delivered.
enum class send_mode : std::uint8_t {
  plain,        ///< when MPI needs its memory no longer: where what comes back bounds the messages
  synchronous,  ///< when the receiver has a slot for it: where nothing comes back
};

/// Holds the calls of MPI that are under way for one buffer or message.
class request_list {
 public:
  /// Has room for those of a message whose buffers are small enough to be counted at once.
  request_list() { requests_.reserve(message::max_buffers + 1); }
  [[nodiscard]] MPI_Request* add() {
    requests_.push_back(MPI_REQUEST_NULL);
    return &requests_.back();
  }
  /// @return whether all are done; then forgets them
  [[nodiscard]] bool are_done() {
    if (requests_.empty()) return true;
    int all = 0;
    check(MPI_Testall(size(), requests_.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (all != 0) requests_.clear();
    return all != 0;
  }
  /// Waits until all are done.
  void wait() {
    check(MPI_Waitall(size(), requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    requests_.clear();
  }
  /// Takes back receives that nothing has come for; `are_done` says when the others are.
  void cancel() noexcept {
    for (auto& each : requests_)
      if (each != MPI_REQUEST_NULL) MPI_Cancel(&each);
  }

 private:
  [[nodiscard]] int size() const noexcept { return static_cast<int>(requests_.size()); }

  std::vector<MPI_Request> requests_;
};

/// Sends the messages of one channel.
class outgoing {
 public:
  /// @param declared  the size that the plan declares, in bytes; 0 when it does not
  /// @param most      bytes of a message
  outgoing(channel_place place, channel const& ends, bytes declared, bytes most, send_mode mode)
      : place_(place),
        ring_(std::bit_ceil(zbpp::detail::index(ends.in_flight) + 1)),
        bare_size_(bare_size(declared)),
        most_(most),
        mode_(mode) {}

  /// Takes a message.
  /// @throws error (wrong_size) when it is larger than it may be; (bad_argument) when more of them
  ///         are not retired than the channel was made for; (io_failed)
  void push(message&& msg) {
    auto const size = msg.total_size();
    if (size > most_)
      throw error(errc::wrong_size) + "a message of " + size +
          " bytes; its channel carries at most " + most_ + " at once";
    zbpp::detail::require(
        pushed_ - retired_ < ring_.size(),
        "a channel has at most channel.in_flight messages that are not retired");
    auto& next = at(pushed_);
    next.msg = std::move(msg);
    // Before anything is handed to MPI, so that the buffers stay where a call fails.
    ++pushed_;
    begin(next);
  }
  /// Looks which messages MPI has delivered. @return whether more than before
  bool progress() {
    auto const before = delivered_.load(std::memory_order_relaxed);
    auto now = before;
    while (now < pushed_ && at(now).requests.are_done()) ++now;
    // Release: whoever sees the count may release what was sent.
    delivered_.store(now, std::memory_order_release);
    return now != before;
  }
  [[nodiscard]] bool is_flushed() const noexcept {
    return delivered_.load(std::memory_order_acquire) == pushed_;
  }
  [[nodiscard]] bool has_delivered(std::int32_t count) const noexcept {
    return delivered_.load(std::memory_order_acquire) >= first_ + static_cast<std::uint32_t>(count);
  }
  /// Releases the messages of this step before number `count`, which were consumed.
  void retire(std::int32_t count) { retire_before(first_ + static_cast<std::uint32_t>(count)); }
  /// Releases all messages, which MPI has delivered, and begins the next step.
  void drain() {
    retire_before(pushed_);
    first_ = pushed_;
    ++step_;
  }

 private:
  struct entry {
    message msg;
    request_list requests;
    header_bytes head;
  };

  [[nodiscard]] entry& at(std::uint64_t number) noexcept {
    return ring_[number & (ring_.size() - 1)];
  }

  void begin(entry& next) {
    auto const parts = next.msg.buffers();
    bool const is_bare = parts.size() == 1 && bare_size_ > 0 && parts[0].size() == bare_size_;
    if (!is_bare || announced_step_ != step_) send_header(next, is_bare);
    if (is_bare) send_first(parts[0].data(), bare_size_, next.requests);
  }
  void send_header(entry& next, bool is_bare) {
    message_header header{.step = step_};
    announced_step_ = step_;
    auto size = sizeof(header);
    if (is_bare) {
      header.way = payload_way::declared;
      std::memcpy(next.head.data(), &header, size);
      return send_first(next.head.data(), size, next.requests);
    }
    auto const parts = next.msg.buffers();
    std::size_t total = 0;
    for (auto const& part : parts) {
      header.sizes[header.parts++] = part ? part.size() : message_header::no_buffer;
      total += part.size();
    }
    if (total > most_in_header) header.way = payload_way::stated;
    std::memcpy(next.head.data(), &header, size);
    if (header.way == payload_way::in_header)
      for (auto const& part : parts) {
        if (part.size() > 0) std::memcpy(next.head.data() + size, part.data(), part.size());
        size += part.size();
      }
    send_first(next.head.data(), size, next.requests);
    if (header.way == payload_way::in_header) return;
    for (auto const& part : parts)
      for_each_piece(part.data(), part.size(), [&](std::byte* from, int count) {
        check(
            MPI_Isend(
                from,
                count,
                MPI_BYTE,
                place_.peer,
                place_.stated_tag,
                place_.among,
                next.requests.add()),
            "MPI_Isend");
      });
  }
  // Sends a header or a declared buffer.
  void send_first(std::byte const* from, std::size_t size, request_list& requests) {
    auto const count = static_cast<int>(size);
    auto* const request = requests.add();
    if (mode_ == send_mode::plain)
      check(
          MPI_Isend(from, count, MPI_BYTE, place_.peer, place_.tag, place_.among, request),
          "MPI_Isend");
    else
      check(
          MPI_Issend(from, count, MPI_BYTE, place_.peer, place_.tag, place_.among, request),
          "MPI_Issend");
  }
  // A message that was consumed has been delivered, which MPI may only not have told yet.
  void retire_before(std::uint64_t end) {
    for (; retired_ < end; ++retired_) {
      at(retired_).requests.wait();
      at(retired_).msg.clear();
    }
    if (delivered_.load(std::memory_order_relaxed) < retired_)
      delivered_.store(retired_, std::memory_order_release);
  }

  channel_place place_;
  std::vector<entry> ring_;  // its length is a power of two
  std::size_t bare_size_;
  bytes most_;
  send_mode mode_;
  std::uint64_t pushed_ = 0;
  std::uint64_t retired_ = 0;
  std::uint64_t first_ = 0;  // of this step
  std::uint32_t step_ = 0;
  std::uint32_t announced_step_ = 0;  // that of the last header
  std::atomic<std::uint64_t> delivered_{0};
};

/// Receives the messages of one channel.
class incoming {
 public:
  /// @param declared  the size that the plan declares, in bytes; 0 when it does not
  /// @param notes_arrivals  whether `arrived_at` is going to be asked
  incoming(channel_place place, channel const& ends, bytes declared, bool notes_arrivals)
      : place_(place),
        bare_size_(bare_size(declared)),
        notes_arrivals_(notes_arrivals),
        slots_(zbpp::detail::index(ends.slots) + 1),
        numbers_(std::bit_ceil(zbpp::detail::index(ends.in_flight) + slots_.size() + 1)) {}
  incoming(incoming const&) = delete;
  incoming& operator=(incoming const&) = delete;
  ~incoming() = default;

  /// Opens the first receives; once.
  /// @throws error (io_failed), std::bad_alloc
  void open(arena& memory) {
    waiting_.reserve(slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      open_block(slots_[i], memory);
      open_slot(i);
    }
  }
  /// Looks what has arrived.
  /// @param memory  null: leaves alone what needs some, or takes some back
  /// @return whether a message has arrived
  /// @throws error (io_failed), std::bad_alloc
  bool progress(arena* memory) {
    while (read_first()) {
    }
    auto const before = arrived_.load(std::memory_order_relaxed);
    auto now = before;
    for (; now < read_; ++now) {
      auto& slot = slot_of(now);
      if (slot.is_to_allocate) {
        if (memory == nullptr) break;
        allocate(slot, *memory);
      }
      if (!slot.payload.are_done()) break;
      if (notes_arrivals_) entry_of(now).arrived_at = std::chrono::steady_clock::now();
    }
    // Release: who sees the count sees what MPI wrote.
    arrived_.store(now, std::memory_order_release);
    if (memory != nullptr) discard_old(*memory);
    return now != before;
  }
  [[nodiscard]] bool has_arrived(std::int32_t sequence) const noexcept {
    auto const number = first_ + static_cast<std::uint32_t>(sequence);
    return number < arrived_.load(std::memory_order_acquire) && entry_of(number).step == step_;
  }
  /// @return when a message of this step was found here; one that has arrived and is not taken
  [[nodiscard]] std::chrono::steady_clock::time_point arrived_at(
      std::int32_t sequence) const noexcept {
    return entry_of(first_ + static_cast<std::uint32_t>(sequence)).arrived_at;
  }
  /// Gives a message that has arrived, and opens the next receive.
  /// @throws error (io_failed), std::bad_alloc
  [[nodiscard]] message take(std::int32_t sequence, arena& memory) {
    auto const number = first_ + static_cast<std::uint32_t>(sequence);
    auto& slot = slot_of(number);
    message msg;
    if (slot.way == payload_way::declared) {
      slot.block.retag(purpose::edge);
      msg.push_back(std::move(slot.block));
      release(number, memory);
      return msg;
    }
    auto const header = slot.header();
    auto const* from = slot.first() + sizeof(header);
    for (std::size_t i = 0; i < header.parts; ++i) {
      auto const size = header.sizes[i];
      if (size == message_header::no_buffer) {
        msg.push_back(buffer{});
      } else if (slot.way == payload_way::stated) {
        slot.parts[i].retag(purpose::edge);
        msg.push_back(std::move(slot.parts[i]));
      } else {
        auto own = memory.allocate(size, purpose::edge);
        if (size > 0) std::memcpy(own.data(), from, size);
        from += size;
        msg.push_back(std::move(own));
      }
    }
    release(number, memory);
    return msg;
  }
  /// Begins the next step; messages of older ones that were not taken are given up as they arrive.
  void drain(arena& memory) {
    ++step_;
    // The places of older messages hold others by now, so those were taken.
    first_ = std::max(first_, read_ - std::min<std::uint64_t>(read_, numbers_.size()));
    discard_old(memory);
  }
  /// Takes back the receives that nothing has come for. @return whether MPI is done with all
  [[nodiscard]] bool close() {
    if (!std::exchange(is_closed_, true))
      for (auto i : waiting_) MPI_Cancel(&slots_[i].request);
    std::erase_if(waiting_, [&](std::size_t i) {
      int is_done = 0;
      return MPI_Test(&slots_[i].request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
             is_done != 0;
    });
    bool are_done = waiting_.empty();
    for (auto& each : slots_) are_done = each.payload.are_done() && are_done;
    return are_done;
  }

 private:
  // Where a message arrives: its header or the declared buffer, and stated buffers.
  struct slot_state {
    buffer block;  // of the declared size; empty where none comes without a header
    header_bytes head;
    MPI_Request request = MPI_REQUEST_NULL;
    payload_way way = payload_way::in_header;
    bool is_to_allocate = false;
    std::array<buffer, message::max_buffers> parts;
    request_list payload;

    [[nodiscard]] std::byte* first() noexcept { return block ? block.data() : head.data(); }
    [[nodiscard]] message_header header() noexcept {
      message_header read;
      std::memcpy(&read, first(), sizeof(read));
      return read;
    }
  };
  struct number_entry {
    std::size_t slot = 0;
    std::uint32_t step = 0;
    bool is_full = false;
    std::chrono::steady_clock::time_point arrived_at{};
  };

  [[nodiscard]] number_entry& entry_of(std::uint64_t number) noexcept {
    return numbers_[number & (numbers_.size() - 1)];
  }
  [[nodiscard]] number_entry const& entry_of(std::uint64_t number) const noexcept {
    return numbers_[number & (numbers_.size() - 1)];
  }
  [[nodiscard]] slot_state& slot_of(std::uint64_t number) noexcept {
    return slots_[entry_of(number).slot];
  }

  void open_block(slot_state& slot, arena& memory) {
    if (bare_size_ > 0 && !slot.block) slot.block = memory.allocate(bare_size_, purpose::receive);
  }
  void open_slot(std::size_t i) {
    auto& slot = slots_[i];
    check(
        MPI_Irecv(
            slot.first(),
            static_cast<int>(bare_size_ > 0 ? bare_size_ : slot.head.size()),
            MPI_BYTE,
            place_.peer,
            place_.tag,
            place_.among,
            &slot.request),
        "MPI_Irecv");
    waiting_.push_back(i);
  }
  void allocate(slot_state& slot, arena& memory) {
    auto const header = slot.header();
    for (std::size_t p = 0; p < header.parts; ++p) {
      auto const size = header.sizes[p];
      if (size == message_header::no_buffer) continue;
      slot.parts[p] = memory.allocate(size, purpose::receive);
      for_each_piece(slot.parts[p].data(), size, [&](std::byte* at, int count) {
        check(
            MPI_Irecv(
                at,
                count,
                MPI_BYTE,
                place_.peer,
                place_.stated_tag,
                place_.among,
                slot.payload.add()),
            "MPI_Irecv");
      });
    }
    slot.is_to_allocate = false;
  }

  // Reads the next header or declared buffer. Returns false when it is not there.
  bool read_first() {
    if (waiting_.empty()) return false;
    auto const i = waiting_.front();
    auto& slot = slots_[i];
    int is_here = 0;
    MPI_Status status;
    check(MPI_Test(&slot.request, &is_here, &status), "MPI_Test");
    if (is_here == 0) return false;
    int size = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    waiting_.erase(waiting_.begin());
    if (bare_size_ > 0 && static_cast<std::size_t>(size) == bare_size_) {
      slot.way = payload_way::declared;
    } else {
      auto const header = slot.header();
      read_step_ = header.step;
      slot.way = header.way;
      slot.is_to_allocate = header.way == payload_way::stated;
      if (header.way == payload_way::declared) {  // a step begins, and this is no message
        open_slot(i);
        return true;
      }
    }
    entry_of(read_++) = {.slot = i, .step = read_step_, .is_full = true};
    return true;
  }
  void release(std::uint64_t number, arena& memory) {
    auto& entry = entry_of(number);
    entry.is_full = false;
    auto& slot = slots_[entry.slot];
    for (auto& part : slot.parts) part = {};
    open_block(slot, memory);
    open_slot(entry.slot);
  }
  void discard_old(arena& memory) {
    auto const end = arrived_.load(std::memory_order_relaxed);
    for (; first_ < end && entry_of(first_).step < step_; ++first_)
      if (entry_of(first_).is_full) release(first_, memory);
  }

  channel_place place_;
  std::size_t bare_size_;
  bool notes_arrivals_;
  std::vector<slot_state> slots_;
  std::vector<number_entry> numbers_;  // its length is a power of two
  std::vector<std::size_t> waiting_;   // slots whose receive is open, as they were opened
  std::uint64_t read_ = 0;             // messages whose header or declared buffer is there
  std::uint64_t first_ = 0;            // of this step
  std::uint32_t step_ = 0;
  std::uint32_t read_step_ = 0;  // that of the last header
  bool is_closed_ = false;
  std::atomic<std::uint64_t> arrived_{0};
};

}  // namespace zbpp::mpi::detail
