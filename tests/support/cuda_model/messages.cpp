// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <algorithm>

namespace zbpp::cuda_model {

namespace {

/// The first message of the group that is still to meet this peer, in this direction.
message* next_to(message_group& of, int peer, bool send) {
  for (message& each : of.messages)
    if (!each.matched && each.send == send && each.peer == peer) return &each;
  return nullptr;
}

message_group* active(communicator& of) {
  bool const some = !of.fifo.empty() && of.fifo.front()->started && !of.fifo.front()->cancelled;
  return some ? of.fifo.front() : nullptr;
}

bool complete(message_group const& one) {
  return std::all_of(
      one.messages.begin(), one.messages.end(), [](message const& each) { return each.matched; });
}

}  // namespace

void machine::start_group(operation& one) {
  message_group& group = *one.messages;
  stream& on = *one.on;
  one.started = group.started = true;
  group.clock = on.clock;
  group.started_ns = on.ns;
  group.held = group.over->ctas;
  held_[static_cast<std::size_t>(on.device)] += group.held;
  leave_queue(one);  // its kernel runs, so the queue goes on; its stream does not
  // A receive may write from its start on, whenever the message comes.
  std::vector<byte_access> all;
  for (message const& each : group.messages)
    if (each.bytes > 0) all.push_back(each.touched);
  touch(one, on, all);
  progressed();
  match(*group.over);
}

void machine::match(communicator& of) {
  message_group* group = active(of);
  std::vector<message_group*> met{group};
  for (std::size_t at = 0; at < group->messages.size(); ++at) {
    message& own = group->messages[at];
    if (own.matched || next_to(*group, own.peer, own.send) != &own) continue;
    communicator* peer = of.of->members[static_cast<std::size_t>(own.peer)];
    message_group* peer_group = peer == nullptr ? nullptr : active(*peer);
    message* other = peer_group == nullptr ? nullptr : next_to(*peer_group, of.rank, !own.send);
    if (other == nullptr) continue;
    own.matched = other->matched = true;
    message& sent = own.send ? own : *other;
    message& received = own.send ? *other : own;
    message_group& receiver = own.send ? *peer_group : *group;
    message_group const& sender = own.send ? *group : *peer_group;
    if (sent.captured != received.captured) {
      fault(
          "nccl: " + text_of(sender.launch->label) + " and " + text_of(receiver.launch->label) +
          " meet, and " +
          (std::min(sent.captured, received.captured) == message::not_captured
               ? "only one of them was captured"
               : "they were not captured together"));
    }
    if (sent.count != received.count || sent.type != received.type) {
      fault(
          "nccl: " + text_of(sender.launch->label) + " sends " + std::to_string(sent.count) +
          " of type " + std::to_string(sent.type) + " and " + text_of(receiver.launch->label) +
          " receives " + std::to_string(received.count) + " of type " +
          std::to_string(received.type));
    }
    // What the sender did before is known to the receiver, not the other way round: a send may
    // end, in NCCL's buffers, before anyone has taken the message.
    stream& on = *receiver.launch->on;
    on.clock.join(sender.clock);
    std::size_t const bytes = std::min(sent.bytes, received.bytes);
    if (received.bytes > 0) {
      std::copy_n(static_cast<char const*>(sent.data), bytes, static_cast<char*>(received.data));
      touch(*receiver.launch, on, {received.touched});
    }
    std::int64_t const end = std::max(sender.started_ns, receiver.started_ns) +
                             options_.message_ns +
                             options_.message_ns_per_byte * static_cast<std::int64_t>(bytes);
    on.ns = std::max(on.ns, end);
    stream& from = *sender.launch->on;
    from.ns = std::max(from.ns, end);
    if (peer_group != group) met.push_back(peer_group);
  }
  for (std::size_t at = 0; at < met.size(); ++at) {
    bool const again =
        std::find(met.begin(), met.begin() + static_cast<std::ptrdiff_t>(at), met[at]) !=
        met.begin() + static_cast<std::ptrdiff_t>(at);
    if (!again && complete(*met[at])) finish_group(*met[at]);
  }
}

void machine::finish_group(message_group& one) {
  std::erase(one.over->fifo, &one);
  finish(*one.launch);
}

void machine::cancel_all(communicator& of) {
  // What waits for a peer ends; a launch that is under way does not.
  group_launch* const late = of.launching;
  if (late != nullptr && !late->has_begun && (!of.aborted || !can_go_on(*late)))
    end_launch(*late);
  else if (late != nullptr)
    for (message_group* each : late->groups) each->cancelled = each->cancelled || each->over == &of;
  of.polls_left = 0;
  while (!of.fifo.empty()) {
    message_group& group = *of.fifo.front();
    group.cancelled = true;
    if (group.started) {
      finish_group(group);
      continue;
    }
    of.fifo.pop_front();
    group.launch->cancelled = true;
    consider(group.launch->on);
  }
  progressed();
}

}  // namespace zbpp::cuda_model
