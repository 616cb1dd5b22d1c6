// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between ranks by NCCL. The host only issues: on the device a transfer waits until
// its slot is free and its message is made, and a pass until its message has arrived. A step can be
// one graph.
#pragma once

#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/detail/step_graph.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/replica_sums.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/gradient_sums.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

using cuda::detail::step_way;

/// Keeps the graph of a rank's steps, one for each of those at once.
///
/// In the graph the messages of the rank stand one after the other, in the order of the program,
/// beside its passes. CUDA may take the nodes of a graph in any order that their dependences allow,
/// and put them into any hardware queues, so only what they depend on keeps ranks from waiting for
/// one another in turn.
class step_replay : public cuda::detail::step_graph {
 public:
  /// @param context  of the rank; it outlives this
  /// @param at_once  how many steps may be under way
  /// @throws cuda_error
  explicit step_replay(cuda::device_context& context, std::size_t at_once = 1)
      : step_graph({&context}, at_once),
        messages_(cuda::on_device(
            context.device(), [] { return cuda::stream(cuda::stream_priority::highest); })),
        is_settled_(at_once, 0) {}

  [[nodiscard]] cuda::stream_ref messages() const { return messages_; }

  /// @param turn  of the step among those at once
  /// @return whether all ranks replay the next training step, and each knows it. Otherwise they
  ///         agree first, since both ends of a message are captured together or not at all.
  [[nodiscard]] bool is_settled(std::size_t turn) const noexcept { return is_settled_[turn] != 0; }
  /// Notes what ranks have agreed on: the least of what they can do.
  void settle(step_way agreed, std::size_t turn) noexcept {
    if (agreed == step_way::issue)
      unsettle();
    else
      is_settled_[turn] = 1;
  }
  /// Has ranks agree again: something else ran, which may have left memory in use.
  void unsettle() noexcept { std::ranges::fill(is_settled_, char{0}); }

 private:
  cuda::stream messages_;
  std::vector<char>
      is_settled_;  // by turn: whether all ranks have captured its graph, and replay it
};

/// Holds what a transport has of a channel whose sender or receiver, or both, are in this process.
struct channel_state {
  static constexpr int not_here = -1;

  /// Makes events and slots for a channel.
  /// @param from  the sender's device; `not_here` when it is in another process
  /// @param to    the receiver's, likewise
  /// @throws cuda_error
  channel_state(
      communicator_set const& communicators,
      int channel,
      cuda::channel_needs needs,
      int from,
      int to)
      : sender(communicators.sender_of(channel)),
        receiver(communicators.receiver_of(channel)),
        messages(needs.places()) {
    auto const& ends_in_run = communicators.channels()[zbpp::detail::index(channel)];
    sender_number = communicators.number_in(channel, ends_in_run.from);
    receiver_number = communicators.number_in(channel, ends_in_run.to);
    if (from != not_here)
      made = cuda::on_device(from, [] { return cuda::event(cuda::event_kind::order); });
    if (to == not_here) needs.window = 0;
    slots = cuda::on_device(to != not_here ? to : from, [&] {
      return std::make_unique<cuda::slot_ring>(std::move(needs));
    });
  }

  /// Releases what was sent in a step.
  void release_sent() noexcept {
    while (retired < sent) at(retired++).clear();
    sent = retired = 0;
  }
  [[nodiscard]] message& at(std::uint32_t number) noexcept {
    return messages[number & (messages.size() - 1)];
  }

  // Null in another process.
  endpoint* sender;
  endpoint* receiver;
  int sender_number;
  int receiver_number;
  std::unique_ptr<cuda::slot_ring> slots;
  // Touched by the sender alone.
  alignas(64) cuda::event made;  // on the sender's compute stream
  std::vector<message> messages;
  std::uint32_t sent = 0;
  std::uint32_t retired = 0;
};

/// Sends and receives for the ranks of this process.
///
/// A message has exactly the shape of its edge, since NCCL does not transmit sizes and the receive
/// is issued before the message exists. Each rank runs what it has on a communicator in the order
/// of the program; `verify` proves that this works for a layout. The sender's memory is free again
/// once a later message shows that the receiver has consumed this one; at the end of a step it
/// waits for the sends. Steps that follow one another keep to that order: of an amended one, all
/// that was sent is also received, since `verify` proves that it ends at a consistent cut.
class transport {
 public:
  static constexpr ticks not_yet = -1;

  /// Makes events for the channels of a program.
  /// @param communicators  made for these channels; other transports may use them, too
  /// @param contexts       by rank, null for ranks of other processes; they outlive the transport
  /// @param needs          of each channel
  /// @param host_waits     whether a pass is issued only when its message has arrived
  /// @throws cuda_error
  transport(
      std::shared_ptr<communicator_set> communicators,
      std::vector<cuda::device_context*> contexts,
      std::vector<cuda::channel_needs> needs,
      bool host_waits = false)
      : communicators_(std::move(communicators)), ranks_(contexts.size()), host_waits_(host_waits) {
    for (std::size_t r = 0; r < contexts.size(); ++r) ranks_[r].context = contexts[r];
    for (auto& each : needs) {
      auto const channel = static_cast<int>(channels_.size());
      auto const device_of = [&](int rank) {
        auto const* const context = contexts[zbpp::detail::index(rank)];
        return context == nullptr ? channel_state::not_here : context->device();
      };
      auto const from = device_of(each.ends.from);
      auto const to = device_of(each.ends.to);
      channels_.push_back(
          from == channel_state::not_here && to == channel_state::not_here
              ? nullptr
              : std::make_unique<channel_state>(
                    *communicators_, channel, std::move(each), from, to));
      if (channels_.back() != nullptr) note_streams(*channels_.back(), from, to);
    }
  }

  /// States the memory for what a rank receives, and the wakeup that `abort` notifies for it.
  void bind(int rank, arena& memory, wakeup* wake) noexcept {
    ranks_[zbpp::detail::index(rank)].memory = &memory;
    ranks_[zbpp::detail::index(rank)].wake = wake;
  }

  /// Keeps the graph of a rank's steps, which goes before the communicators that it uses.
  step_replay& replay_with(int rank, std::unique_ptr<step_replay> steps) noexcept {
    return *(ranks_[zbpp::detail::index(rank)].steps = std::move(steps));
  }

  /// Opens the slot of the next message, and enqueues the receive.
  /// @throws std::bad_alloc; cuda_error; nccl_error
  void post_receive(int channel, bytes) {
    auto& l = at(channel);
    auto const& to = at_rank(l.slots->ends().to);
    auto const by = to.stream_of(*l.receiver);
    // A receive may write from its start on, so it waits for the passes that used the memory.
    auto const waits = l.slots->waits(l.slots->opened());
    auto& slot = l.slots->open(*to.memory, to.context->compute());
    if (communicators_->is_aborted()) return;
    if (waits.for_slot) by.wait(slot.freed);
    transfer(*l.receiver, slot.parts, [&](buffer const& part) {
      return ncclRecv(
          part.data(), part.size(), ncclInt8, l.sender_number, l.receiver->comm.get(), by);
    });
    if ((waits.by_receiver || host_waits_) && !communicators_->is_aborted())
      by.record(slot.arrived);
  }

  /// Enqueues the send of what the sender's passes have made so far. Never blocks.
  /// @throws error (wrong_size) when its shape is not the edge's; cuda_error; nccl_error
  void send(int channel, message&& msg, ticks) {
    auto& l = at(channel);
    auto const sequence = static_cast<std::int32_t>(l.sent);
    l.slots->check_equals(sequence, msg);
    auto const& from = at_rank(l.slots->ends().from);
    auto const by = from.stream_of(*l.sender);
    if (!communicators_->is_aborted()) {
      // One event is enough: a wait refers to its latest record.
      if (l.slots->waits(sequence).for_sender) {
        from.context->compute().record(l.made);
        by.wait(l.made);
      }
      transfer(*l.sender, msg, [&](buffer const& part) {
        return ncclSend(
            part.data(), part.size(), ncclInt8, l.receiver_number, l.sender->comm.get(), by);
      });
    }
    l.at(l.sent++) = std::move(msg);
  }

  /// @return 0; `not_yet` where the host waits, until the message is here, and after an abort
  /// @throws cuda_error
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const {
    if (!host_waits_) return 0;
    auto const& l = *channels_[zbpp::detail::index(channel)];
    bool const is_here = l.slots->at(sequence).arrived.view().is_complete();
    // In this order, since what is given up seems to be here as well, after the abort began.
    return is_here && !communicators_->is_aborted() ? 0 : not_yet;
  }

  /// @return true: what is received is ordered by the device
  [[nodiscard]] static constexpr bool have_arrived(int, std::int32_t) noexcept { return true; }

  /// Returns a message, and makes the passes that the receiver issues from now on wait for it.
  /// @throws cuda_error
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes) {
    auto& l = at(channel);
    auto& slot = l.slots->at(sequence);
    if (l.slots->waits(sequence).by_receiver && !communicators_->is_aborted())
      at_rank(l.slots->ends().to).context->compute().wait(slot.arrived);
    return std::exchange(slot.parts, {});
  }

  /// Releases the messages of a channel before number `count`; the sender knows they are consumed.
  void retire(int channel, std::int32_t count) noexcept {
    auto& l = at(channel);
    for (auto const end = static_cast<std::uint32_t>(count); l.retired < end; ++l.retired)
      l.at(l.retired).clear();
  }

  /// Has another object carry the states of gradients; it must outlive this one's use.
  void link_states(state_link& states) noexcept { states_ = &states; }
  [[nodiscard]] state_link& states() noexcept { return *states_; }

  /// Has another object, which must outlive this one's use, add up gradients over replicas.
  /// @throws cuda_error
  void link_sums(int rank, replica_sums& sums) {
    sums_ = &sums;
    note(sums.stream(), rank, at_rank(rank).context->device());
  }
  [[nodiscard]] gradient_sums& sums() noexcept { return *sums_; }
  /// @return whether no pass has to wait for a sum that was begun
  /// @throws cuda_error
  [[nodiscard]] bool are_sums_done() const { return sums_ == nullptr || sums_->are_done(); }

  /// Does nothing: `begin_step` waits for receives whose messages were not taken.
  static void discard(int /*channel*/, std::int32_t /*count*/) noexcept {}
  /// Does nothing: no peer waits for it.
  static void end_step(int /*rank*/) noexcept {}
  /// Begins the next step of a rank, or the same one again: releases what it sent and received, for
  /// use after the transfers, and counts from 0.
  /// @return false while a state that the rank sent has not left; for messages the device waits
  /// @throws cuda_error
  [[nodiscard]] bool begin_step(int rank) {
    if (states_ != nullptr && !states_->begin_step(rank)) return false;
    // A step that is captured begins when all is over.
    if (!communicators_->is_aborted() && !at_rank(rank).context->is_captured())
      for (auto const& each : streams_)
        if (each.rank == rank) {
          each.on.record(each.last);
          at_rank(rank).context->compute().wait(each.last);
        }
    for (auto& l : channels_) {
      if (l == nullptr) continue;
      if (l->slots->ends().from == rank) l->release_sent();
      if (l->slots->ends().to == rank) l->slots->drain();
    }
    return true;
  }

  /// Wakes every waiting thread, when a step has failed. What is on the devices goes on:
  /// `communicator_set::abort` ends it.
  void abort() noexcept {
    for (auto const& rank : ranks_) notify(rank.wake);
  }

  /// Releases all messages and slots; only when no rank is running and the devices are done.
  void drain() {
    for (auto& l : channels_) {
      if (l == nullptr) continue;
      l->release_sent();
      l->slots->drain();
    }
    if (states_ != nullptr) states_->drain();
  }

  [[nodiscard]] std::vector<cuda::stream_ref> streams_of(int rank) const {
    std::vector<cuda::stream_ref> own;
    for (auto const& each : streams_)
      if (each.rank == rank) own.push_back(each.on);
    if (auto const& steps = ranks_[zbpp::detail::index(rank)].steps; steps != nullptr)
      own.push_back(steps->messages());
    return own;
  }

  /// Records events after all that was issued, for `is_done`. @throws cuda_error
  void mark_end() {
    if (communicators_->is_aborted()) return;
    for (auto const& each : streams_) each.on.record(each.last);
  }
  /// @return whether all that was issued before `mark_end` is done
  /// @throws cuda_error
  [[nodiscard]] bool is_done() const {
    return std::ranges::all_of(
        streams_, [](auto const& each) { return each.last.view().is_complete(); });
  }
  [[nodiscard]] bool is_busy() const noexcept {
    return std::ranges::any_of(
        streams_, [](auto const& each) { return cudaStreamQuery(each.on) == cudaErrorNotReady; });
  }

  [[nodiscard]] communicator_set& communicators() const noexcept { return *communicators_; }

 private:
  // NCCL may split large groups into several launches; small groups make both ranks split alike.
  static constexpr std::size_t most_grouped = 4;

  struct rank_state {
    cuda::device_context* context = nullptr;
    arena* memory = nullptr;
    wakeup* wake = nullptr;
    std::unique_ptr<step_replay> steps;  // null where none are replayed

    [[nodiscard]] cuda::stream_ref stream_of(endpoint const& end) const {
      return context->is_captured() ? steps->messages() : end.messages.view();
    }
  };
  // On which a rank's transfers run.
  struct transfer_stream {
    int rank;
    cuda::stream_ref on;
    cuda::event last;
  };

  [[nodiscard]] channel_state& at(int channel) noexcept {
    return *channels_[zbpp::detail::index(channel)];
  }
  [[nodiscard]] rank_state& at_rank(int rank) noexcept { return ranks_[zbpp::detail::index(rank)]; }

  void note(cuda::stream_ref on, int rank, int device) {
    auto const is_same = [&](auto const& each) { return each.on.get() == on.get(); };
    if (std::ranges::any_of(streams_, is_same)) return;
    streams_.push_back(
        {rank, on, cuda::on_device(device, [] { return cuda::event(cuda::event_kind::order); })});
  }
  void note_streams(channel_state const& l, int from, int to) {
    if (l.sender != nullptr) note(l.sender->messages, l.slots->ends().from, from);
    if (l.receiver != nullptr) note(l.receiver->messages, l.slots->ends().to, to);
  }

  // Issues a call for each buffer of a message. Does nothing after an abort, when NCCL may still be
  // at work on a call and the stream must not be used any more.
  template <class Call>
  void transfer(endpoint const& by, message const& msg, Call const& call) {
    communicators_->use([&] {
      for (std::size_t begin = 0; begin < msg.size() && !communicators_->is_aborted();
           begin += most_grouped) {
        group together;
        auto const parts = msg.buffers().subspan(begin);
        for (auto const& part : parts.first(std::min(parts.size(), most_grouped)))
          if (part.size() > 0) check_started(call(part));
        together.end();
        communicators_->await(by.comm);  // so that what is recorded next is after it
      }
    });
  }

  std::shared_ptr<communicator_set> communicators_;
  std::vector<rank_state> ranks_;  // by rank
  // By channel; null when neither end is in this process.
  std::vector<std::unique_ptr<channel_state>> channels_;
  std::vector<transfer_stream> streams_;
  state_link* states_ = nullptr;  // null where ranks exchange none
  replica_sums* sums_ = nullptr;  // null where there is nothing to add up
  bool host_waits_;
};

}  // namespace zbpp::nccl::detail
