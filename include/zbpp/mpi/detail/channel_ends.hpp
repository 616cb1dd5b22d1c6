// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a channel of MPI. One buffer as large as the plan declares is a message of MPI of
// its own, which comes into memory that the receiver has set aside. For any other message a header
// says which buffers it has: small ones come with it, and others into memory that the receiver
// allocates then. Headers and declared buffers have one tag, so MPI keeps their order, and differ
// in their sizes. There are as many receives for them as the receiver has slots. Sent
// synchronously, they tell a sender by MPI alone when there is room.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/detail/call.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/message_rings.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mpi.h>
#include <span>
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

/// Says when a message counts as delivered.
enum class send_mode : std::uint8_t {
  plain,        ///< when MPI needs its memory no longer: where what comes back bounds the messages
  synchronous,  ///< when the receiver has a slot for it: where nothing comes back
};

/// MPI counts as many bytes at once.
inline constexpr std::size_t most_at_once = std::size_t{1} << 30;

/// Holds the calls of MPI that are under way for one buffer or message.
class request_list {
 public:
  /// Has room for those of a message whose buffers are small enough to be counted at once.
  request_list() { requests_.reserve(message::max_buffers + 1); }
  [[nodiscard]] MPI_Request* add() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
  /// @return whether all are done; then forgets them
  [[nodiscard]] bool are_done() {
    if (requests_.empty()) return true;
    auto const count = static_cast<int>(requests_.size());
    int all = 0;
    check(MPI_Testall(count, requests_.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (all != 0) requests_.clear();
    return all != 0;
  }
  /// Waits until all are done.
  void wait() {
    auto const count = static_cast<int>(requests_.size());
    check(MPI_Waitall(count, requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    requests_.clear();
  }

 private:
  std::vector<MPI_Request> requests_;
};

/// Says where the messages of a channel go: two tags of a communicator.
struct channel_place {
  MPI_Comm among = MPI_COMM_NULL;
  int peer = 0;        ///< its rank there
  int tag = 0;         ///< of headers and declared buffers
  int stated_tag = 0;  ///< of stated buffers

  /// Begins to send a header or a declared buffer.
  void send_first(
      std::byte const* from, std::size_t size, send_mode mode, request_list& requests) const {
    bool const is_plain = mode == send_mode::plain;
    auto* const call = is_plain ? &MPI_Isend : &MPI_Issend;
    auto const count = static_cast<int>(size);
    check(
        call(from, count, MPI_BYTE, peer, tag, among, requests.add()),
        is_plain ? "MPI_Isend" : "MPI_Issend");
  }
  /// Begins to move a stated buffer, in pieces that MPI can count.
  /// @param call  MPI_Isend or MPI_Irecv
  template <class Call>
  void move_stated(buffer const& all, Call call, char const* name, request_list& requests) const {
    for (std::size_t at = 0; at < all.size(); at += most_at_once) {
      auto const count = static_cast<int>(std::min(most_at_once, all.size() - at));
      check(call(all.data() + at, count, MPI_BYTE, peer, stated_tag, among, requests.add()), name);
    }
  }
};

/// @return the declared size, above any header's, of buffers that come without a header; else 0
[[nodiscard]] constexpr std::size_t bare_size(bytes declared) noexcept {
  auto const size = static_cast<std::size_t>(declared);
  return size > sizeof(header_bytes) && size <= most_at_once ? size : 0;
}

/// Sends the messages of one channel. One thread at a time uses it.
class outgoing {
 public:
  /// @param ring      what the engine has sent; outlives this
  /// @param declared  the size that the plan declares, in bytes; 0 when it does not
  outgoing(channel_place const& place, sent_ring& ring, bytes declared, send_mode mode)
      : place_(place),
        ring_(&ring),
        sends_(ring.size()),
        bare_size_(bare_size(declared)),
        mode_(mode) {}

  /// Hands MPI what the engine has sent.
  /// @throws error (io_failed)
  void begin() {
    while (auto const next = ring_->next()) {
      // Before anything is handed to MPI, so that the buffers stay where a call fails.
      ring_->begin();
      begin(ring_->at(*next), sends_[*next]);
    }
  }
  /// Looks which messages MPI has delivered. @return whether more than before
  bool progress() {
    auto const before = ring_->delivered();
    while (auto const first = ring_->under_way()) {
      if (!sends_[*first].requests.are_done()) break;
      ring_->deliver();
    }
    return ring_->delivered() != before;
  }
  /// Waits for the first `count` messages of this step, which were consumed: MPI has delivered
  /// them, and may only not have told yet.
  void await(std::int32_t count) {
    while (!ring_->has_delivered(count)) {
      sends_[*ring_->under_way()].requests.wait();
      ring_->deliver();
    }
  }

 private:
  struct send_state {
    request_list requests;
    header_bytes head;
  };

  void begin(sent_ring::entry const& next, send_state& by) {
    auto const parts = next.msg.buffers();
    bool const is_bare = parts.size() == 1 && bare_size_ > 0 && parts[0].size() == bare_size_;
    if (!is_bare || announced_step_ != next.step) send_header(next, is_bare, by);
    if (is_bare) place_.send_first(parts[0].data(), bare_size_, mode_, by.requests);
  }
  void send_header(sent_ring::entry const& next, bool is_bare, send_state& by) {
    message_header header{.step = next.step, .way = payload_way::declared};
    announced_step_ = next.step;
    auto size = sizeof(header);
    if (!is_bare) {
      header.way = next.msg.total_size() <= static_cast<bytes>(most_in_header)
                       ? payload_way::in_header
                       : payload_way::stated;
      header.parts = static_cast<std::uint8_t>(next.msg.size());
      header.sizes = next.msg.sizes();
    }
    std::memcpy(by.head.data(), &header, size);
    if (header.way == payload_way::in_header) size += next.msg.copy_to(by.head.data() + size);
    place_.send_first(by.head.data(), size, mode_, by.requests);
    if (header.way == payload_way::stated)
      for (auto const& part : next.msg.buffers())
        place_.move_stated(part, &MPI_Isend, "MPI_Isend", by.requests);
  }

  channel_place place_;
  sent_ring* ring_;
  std::vector<send_state> sends_;  // by place
  std::size_t bare_size_;
  send_mode mode_;
  std::uint32_t announced_step_ = 0;  // that of the last header
};

/// Receives the messages of one channel. One thread at a time uses it.
class incoming {
 public:
  /// @param ring      what is known of its messages; outlives this
  /// @param declared  the size that the plan declares, in bytes; 0 when it does not
  incoming(channel_place const& place, received_ring& ring, channel const& ends, bytes declared)
      : place_(place),
        ring_(&ring),
        bare_size_(bare_size(declared)),
        slots_(zbpp::detail::index(ends.slots) + 1),
        arrived_(ring.size()) {
    waiting_.reserve(slots_.size());
  }
  incoming(incoming const&) = delete;
  incoming& operator=(incoming const&) = delete;

  /// Opens the first receives; once.
  /// @throws error (io_failed), std::bad_alloc
  void open(arena& memory) {
    for (auto& slot : slots_) open(slot, &memory);
  }
  /// Looks what has arrived.
  /// @param memory  null: leaves alone what needs some, or takes some back
  /// @return whether a message has arrived
  /// @throws error (io_failed), std::bad_alloc
  bool progress(arena* memory) {
    while (read_first()) {
    }
    bool has_arrived = false;
    while (auto const next = ring_->arriving()) {
      auto& slot = *arrived_[*next];
      if (slot.is_to_allocate && memory == nullptr) break;
      if (slot.is_to_allocate) allocate(slot, *memory);
      if (!slot.payload.are_done()) break;
      ring_->arrive();
      has_arrived = true;
    }
    if (memory != nullptr) ring_->give_up_old([&](std::size_t place) { release(place, *memory); });
    return has_arrived;
  }
  /// Gives a message that has arrived, and opens the next receive.
  /// @throws error (io_failed), std::bad_alloc
  [[nodiscard]] message take(std::size_t place, arena& memory) {
    auto& slot = *arrived_[place];
    message msg;
    if (slot.way == payload_way::in_header) {
      auto const header = slot.header();
      msg = message::copy_of(
          std::span(header.sizes).first(header.parts), slot.first() + sizeof(header), memory);
    } else {
      auto const count = slot.way == payload_way::declared ? 1 : slot.header().parts;
      auto* const from = slot.way == payload_way::declared ? &slot.block : slot.parts.data();
      for (auto& part : std::span(from, static_cast<std::size_t>(count))) {
        part.retag(purpose::edge);
        msg.push_back(std::move(part));
      }
    }
    release(place, memory);
    return msg;
  }
  /// Lets go of a message, and opens the next receive.
  /// @throws error (io_failed), std::bad_alloc
  void release(std::size_t place, arena& memory) {
    auto& slot = *arrived_[place];
    slot.parts = {};
    open(slot, &memory);
    ring_->free(place);
  }
  /// Takes back the receives that nothing has come for. @return whether MPI is done with all
  [[nodiscard]] bool close() {
    if (!std::exchange(is_closed_, true))
      for (auto* each : waiting_) MPI_Cancel(&each->request);
    std::erase_if(waiting_, [](slot_state* each) {
      int is_done = 0;
      return MPI_Test(&each->request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS && is_done != 0;
    });
    return waiting_.empty() &&
           std::ranges::all_of(slots_, [](auto& each) { return each.payload.are_done(); });
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

  // Needs no memory where the slot has its block.
  void open(slot_state& slot, arena* memory) {
    if (bare_size_ > 0 && !slot.block) slot.block = memory->allocate(bare_size_, purpose::receive);
    auto const count = static_cast<int>(bare_size_ > 0 ? bare_size_ : slot.head.size());
    check(
        MPI_Irecv(
            slot.first(), count, MPI_BYTE, place_.peer, place_.tag, place_.among, &slot.request),
        "MPI_Irecv");
    waiting_.push_back(&slot);
  }
  void allocate(slot_state& slot, arena& memory) {
    auto const header = slot.header();
    for (std::size_t p = 0; p < header.parts; ++p) {
      if (header.sizes[p] == message::no_buffer) continue;
      slot.parts[p] = memory.allocate(header.sizes[p], purpose::receive);
      place_.move_stated(slot.parts[p], &MPI_Irecv, "MPI_Irecv", slot.payload);
    }
    slot.is_to_allocate = false;
  }
  // Reads the next header or declared buffer. Returns false when it is not there.
  bool read_first() {
    if (waiting_.empty()) return false;
    auto& slot = *waiting_.front();
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
      step_ = header.step;
      slot.way = header.way;
      slot.is_to_allocate = header.way == payload_way::stated;
      if (header.way == payload_way::declared) {  // a step begins, and this is no message
        open(slot, nullptr);
        return true;
      }
    }
    arrived_[ring_->add(step_)] = &slot;
    return true;
  }

  channel_place place_;
  received_ring* ring_;
  std::size_t bare_size_;
  std::vector<slot_state> slots_;
  std::vector<slot_state*> arrived_;  // by place
  std::vector<slot_state*> waiting_;  // those whose receive is open, as they were opened
  std::uint32_t step_ = 0;            // that of the last header
  bool is_closed_ = false;
};

}  // namespace zbpp::mpi::detail
