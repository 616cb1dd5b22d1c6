// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <algorithm>

namespace zbpp::cuda_model {

namespace {

/// The first sum of the group that is still to meet those of others.
message* next_sum(message_group& of) {
  for (message& each : of.messages)
    if (!each.matched && each.is_sum()) return &each;
  return nullptr;
}

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
  for (message const& each : group.messages) {
    if (each.bytes == 0) continue;
    if (each.is_sum()) {  // it reads before it writes
      byte_access read = each.touched;
      read.write = false;
      all.push_back(read);
    }
    all.push_back(each.touched);
  }
  touch(one, on, all);
  progressed();
  match(*group.over);
}

bool machine::match_sum(communicator& of) {
  struct part {
    message_group* group;
    message* sum;
  };
  std::vector<part> parts;
  for (communicator* member : of.of->members) {
    message_group* const group = member == nullptr ? nullptr : active(*member);
    message* const sum = group == nullptr ? nullptr : next_sum(*group);
    if (sum == nullptr) return false;
    parts.push_back({group, sum});
  }
  message const& first = *parts.front().sum;
  for (part const& each : parts)
    if (each.sum->count != first.count) return false;  // NCCL checks no size: they hang
  vector_clock together;
  std::int64_t begun_ns = 0;
  bool is_whole = true;
  for (part const& each : parts) {
    together.join(each.group->clock);
    begun_ns = std::max(begun_ns, each.group->started_ns);
    is_whole = is_whole && each.sum->bytes > 0;
  }
  for (std::size_t i = 0; is_whole && i < first.count; ++i) {
    auto const at = [&](std::size_t rank) -> float& {
      return static_cast<float*>(parts[rank % parts.size()].sum->data)[i];
    };
    auto const begin = first_in_sum(i, first.count, parts.size());
    float sum = at(begin);
    for (std::size_t next = 1; next < parts.size(); ++next) sum += at(begin + next);
    for (std::size_t rank = 0; rank < parts.size(); ++rank) at(rank) = sum;
  }
  for (part const& each : parts) {
    each.sum->matched = true;
    stream& on = *each.group->launch->on;
    on.clock.join(together);
    if (is_whole) touch(*each.group->launch, on, {each.sum->touched});
    on.ns = std::max(
        on.ns,
        begun_ns + options_.message_ns +
            options_.message_ns_per_byte * static_cast<std::int64_t>(first.bytes));
  }
  return true;
}

void machine::match(communicator& of) {
  message_group* group = active(of);
  std::vector<message_group*> met{group};
  while (match_sum(of))
    for (communicator* member : of.of->members) met.push_back(active(*member));
  for (std::size_t at = 0; at < group->messages.size(); ++at) {
    message& own = group->messages[at];
    if (own.is_sum() || own.matched || next_to(*group, own.peer, own.send) != &own) continue;
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
