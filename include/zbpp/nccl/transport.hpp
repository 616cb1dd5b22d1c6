// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between ranks on NCCL. The host only issues: a receive waits, on the device, until
// its slot is free, a send until its message is made, and a pass until its message is there.
#pragma once

#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/links.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/transport.hpp>

#include <nccl.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::nccl {

/// Sends and receives for the ranks of this process.
///
/// A message has exactly the shape of its edge, since sizes do not travel: the receive is issued
/// before anybody knows of the message. Each end of a communicator is one queue, in the order of
/// the program, which is what `verify` proves for a layout. A sender's memory is free again once a
/// message that came back tells that this one was consumed.
class transport {
 public:
  static constexpr ticks not_yet = -1;

  /// Makes events for the channels of a program.
  /// @param over    serves these channels; not bound to this transport alone
  /// @param contexts  by rank, null where the rank is not in this process; they outlive the
  /// transport
  /// @param needs   of each channel
  /// @throws cuda_error
  transport(
      std::shared_ptr<links> over,
      std::vector<cuda::device_context*> contexts,
      std::vector<cuda::detail::channel_needs> needs)
      : over_(std::move(over)), ends_(contexts.size()) {
    for (std::size_t r = 0; r < contexts.size(); ++r) ends_[r].at = contexts[r];
    for (auto& each : needs) {
      auto const channel = static_cast<int>(lanes_.size());
      bool const is_here = over_->end_of(channel, each.ends.from) != nullptr ||
                           over_->end_of(channel, each.ends.to) != nullptr;
      lanes_.push_back(
          is_here ? std::make_unique<lane>(*over_, channel, std::move(each)) : nullptr);
    }
    for (std::size_t i = 0; i < over_->ends().size(); ++i) {
      auto const device = over_->ends()[i]->device;
      last_.push_back(cuda::on_device(device, [] { return cuda::event(cuda::event_kind::order); }));
    }
  }

  /// Says where what a rank receives goes, and which wakeup `abort` rings for it.
  void bind(int rank, arena& memory, wakeup* wake) noexcept {
    ends_[zbpp::detail::index(rank)].memory = &memory;
    ends_[zbpp::detail::index(rank)].wake = wake;
  }

  /// Opens the slot of the next message and enqueues its data_connector.
  /// @throws std::bad_alloc; cuda_error; nccl_error
  void post_receive(int channel, bytes) {
    auto& l = at(channel);
    auto const& to = at_rank(l.slots->ends().to);
    cuda::stream_ref const by = l.receiver->messages;
    // A data_connector may write from its start on, so it waits for whoever used the memory.
    auto const waits = l.slots->waits(l.slots->opened());
    auto& slot = l.slots->open(*to.memory, to.at->compute());
    if (over_->is_aborted()) return;
    if (waits.for_slot) by.wait(slot.freed);
    transfer(*l.receiver, slot.parts, [&](buffer const& part) {
      return ncclRecv(
          part.data(), part.size(), ncclInt8, l.sender_number, l.receiver->comm.get(), by);
    });
    if (waits.by_receiver && !over_->is_aborted()) by.record(slot.arrived);
  }

  /// Enqueues the shipment of what the sender's passes have made so far. Never blocks.
  /// @throws error (wrong_size) unless the message has the shape of its edge; cuda_error;
  ///         nccl_error
  void send(int channel, message&& msg, ticks) {
    auto& l = at(channel);
    l.slots->check_equals(static_cast<std::int32_t>(l.sent), msg);
    cuda::stream_ref const by = l.sender->messages;
    if (!over_->is_aborted()) {
      // One event is enough: a wait takes what was recorded last before it.
      at_rank(l.slots->ends().from).at->compute().record(l.made);
      by.wait(l.made);
      transfer(*l.sender, msg, [&](buffer const& part) {
        return ncclSend(
            part.data(), part.size(), ncclInt8, l.receiver_number, l.sender->comm.get(), by);
      });
    }
    l.at(l.sent++) = std::move(msg);
  }

  /// @return 0: the host never waits for a message
  [[nodiscard]] static constexpr ticks arrival(int, std::int32_t) noexcept { return 0; }

  /// Lets the passes that the receiver issues from now on wait for a message, and gives it.
  /// @throws cuda_error
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes) {
    auto& l = at(channel);
    auto& slot = l.slots->at(sequence);
    if (l.slots->waits(sequence).by_receiver && !over_->is_aborted())
      at_rank(l.slots->ends().to).at->compute().wait(slot.arrived);
    return std::exchange(slot.parts, {});
  }

  /// Lets go of the messages of a channel before number `count`; for the sender, who knows that
  /// they were consumed.
  void retire(int channel, std::int32_t count) noexcept {
    auto& l = at(channel);
    for (auto const end = static_cast<std::uint32_t>(count); l.retired < end; ++l.retired)
      l.at(l.retired).clear();
  }

  /// Wakes everybody who waits; for a step that failed. What is on the devices goes on:
  /// `links::abort` ends it.
  void abort() noexcept {
    for (auto const& e : ends_) notify(e.wake);
  }

  /// Lets go of all messages and slots; only when no rank is running and the devices are done.
  void drain() noexcept {
    for (auto& l : lanes_) {
      if (l == nullptr) continue;
      while (l->retired < l->sent) l->at(l->retired++).clear();
      l->sent = l->retired = 0;
      l->slots->drain();
    }
  }

  /// Notes what was issued, for `is_done`. @throws cuda_error
  void mark_end() {
    if (over_->is_aborted()) return;
    for (std::size_t i = 0; i < last_.size(); ++i)
      over_->ends()[i]->messages.get().record(last_[i]);
  }
  /// @return whether all that was issued before `mark_end` is done
  /// @throws cuda_error
  [[nodiscard]] bool is_done() const {
    return std::ranges::all_of(last_, [](auto const& e) { return e.get().is_complete(); });
  }
  /// @return whether anything that was issued is still waiting or running
  [[nodiscard]] bool is_busy() const noexcept {
    return std::ranges::any_of(over_->ends(), [](auto const* end) {
      return cudaStreamQuery(end->messages.get()) == cudaErrorNotReady;
    });
  }

  /// @return what it sends over
  [[nodiscard]] links& over() const noexcept { return *over_; }

 private:
  // NCCL may split groups of many calls into several launches; both ends split alike.
  static constexpr std::size_t most_grouped = 4;

  // One channel of which this process has an end, or both.
  struct lane {
    lane(links const& over, int channel, cuda::detail::channel_needs needs)
        : sender(over.end_of(channel, needs.ends.from)),
          receiver(over.end_of(channel, needs.ends.to)),
          sender_number(over.number_in(channel, needs.ends.from)),
          receiver_number(over.number_in(channel, needs.ends.to)),
          msg(std::bit_ceil(std::max<std::size_t>(zbpp::detail::index(needs.ends.in_flight), 1))) {
      if (sender != nullptr)
        made = cuda::on_device(sender->device, [] { return cuda::event(cuda::event_kind::order); });
      if (receiver == nullptr) needs.window = 0;
      slots = cuda::on_device((receiver != nullptr ? receiver : sender)->device, [&] {
        return std::make_unique<cuda::detail::slot_ring>(std::move(needs));
      });
    }

    [[nodiscard]] message& at(std::uint32_t number) noexcept {
      return msg[number & (msg.size() - 1)];
    }

    link_end* sender;    // null where it is in another process
    link_end* receiver;  // the same
    int sender_number;
    int receiver_number;
    std::unique_ptr<cuda::detail::slot_ring> slots;
    // Touched by the sender alone.
    alignas(64) cuda::event made;  // on the sender's compute stream
    std::vector<message> msg;
    std::uint32_t sent = 0;
    std::uint32_t retired = 0;
  };
  struct rank_end {
    cuda::device_context* at = nullptr;
    arena* memory = nullptr;
    wakeup* wake = nullptr;
  };

  [[nodiscard]] lane& at(int channel) noexcept { return *lanes_[zbpp::detail::index(channel)]; }
  [[nodiscard]] rank_end& at_rank(int rank) noexcept { return ends_[zbpp::detail::index(rank)]; }

  // Issues a call for each buffer of a message. Once all is aborted nothing happens, NCCL may still
  // have a call in hand, and the stream is not to be touched any more.
  template <class Call>
  void transfer(link_end const& by, message const& msg, Call const& call) {
    over_->use([&] {
      for (std::size_t begin = 0; begin < msg.size() && !over_->is_aborted();
           begin += most_grouped) {
        detail::group together;
        auto const parts = msg.buffers().subspan(begin);
        for (auto const& part : parts.first(std::min(parts.size(), most_grouped)))
          if (part.size() > 0) detail::check_started(call(part));
        together.end();
        over_->await(by.comm);  // or what is recorded next would not be behind it
      }
    });
  }

  std::shared_ptr<links> over_;
  std::vector<rank_end> ends_;                // by rank
  std::vector<std::unique_ptr<lane>> lanes_;  // by channel; null where neither end is here
  std::vector<cuda::event> last_;             // one an end of a communicator
};

}  // namespace zbpp::nccl
