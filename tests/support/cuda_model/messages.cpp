// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <algorithm>

namespace zbpp::cuda_model {

namespace {

/// The first message of the group that is still to meet this peer, in this direction.
message* next_to(message_group& of, int peer, bool send) {
  for (message& each : of.messages) {
    if (!each.matched && each.send == send && each.peer == peer) {
      return &each;
    }
  }
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
    if (each.bytes > 0) {
      all.push_back(each.touched);
    }
  }
  touch(one, on, all);
  progressed();
  match(*group.over);
}

void machine::match(communicator& of) {
  message_group* mine = active(of);
  std::vector<message_group*> met{mine};
  for (std::size_t at = 0; at < mine->messages.size(); ++at) {
    message& own = mine->messages[at];
    if (own.matched || next_to(*mine, own.peer, own.send) != &own) {
      continue;
    }
    communicator* peer = of.of->members[static_cast<std::size_t>(own.peer)];
    message_group* theirs = peer == nullptr ? nullptr : active(*peer);
    message* other = theirs == nullptr ? nullptr : next_to(*theirs, of.rank, !own.send);
    if (other == nullptr) {
      continue;
    }
    own.matched = other->matched = true;
    message& sent = own.send ? own : *other;
    message& received = own.send ? *other : own;
    message_group& receiver = own.send ? *theirs : *mine;
    message_group const& sender = own.send ? *mine : *theirs;
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
    if (theirs != mine) {
      met.push_back(theirs);
    }
  }
  for (std::size_t at = 0; at < met.size(); ++at) {
    bool const again =
        std::find(met.begin(), met.begin() + static_cast<std::ptrdiff_t>(at), met[at]) !=
        met.begin() + static_cast<std::ptrdiff_t>(at);
    if (!again && complete(*met[at])) {
      finish_group(*met[at]);
    }
  }
}

void machine::finish_group(message_group& one) {
  std::erase(one.over->fifo, &one);
  finish(*one.launch);
}

void machine::join_by_nccl(stream& later, stream& earlier) {
  if (earlier.capturing != nullptr) {
    int const number = earlier.capturing->body.records++;
    operation& mark = make(kind::record, {"record by NCCL"}, earlier);
    mark.value = number;
    append(mark);
    capture& into = *earlier.capturing;
    into.order(later, std::vector(into.clocks[into.place_of(earlier)]));
    operation& wait = make(kind::wait, {"wait by NCCL"}, later);
    wait.value = number;
    append(wait);
    return;
  }
  record* made = new_record();
  record* kept = nullptr;  // between its record and its wait
  made->stream_index = earlier.index;
  operation& mark = make(kind::record, {"record by NCCL"}, earlier);
  hold(mark.mark, made);
  hold(kept, made);
  append(mark);
  append_wait(later, {"wait by NCCL"}, *made);
  hold(kept, nullptr);
}

bool machine::put_in_line(message_group& one, operation& launch) {
  communicator& over = *one.over;
  one.launch = &launch;
  launch.messages = &one;
  launch.cancelled = one.cancelled = over.aborted;
  if (!one.cancelled) {
    over.fifo.push_back(&one);
  }
  ++over.launched;
  bool const is_in = append(launch) == cudaSuccess;
  if (!is_in) {
    --over.launched;
    std::erase(over.fifo, &one);
  }
  return is_in;
}

bool machine::capture_group(message_group& one, operation& launch) {
  communicator& over = *one.over;
  for (message& each : one.messages) {
    auto const peer = static_cast<std::size_t>(each.peer);
    each.captured = (each.send ? over.captured_sends : over.captured_receives)[peer]++;
  }
  launch.messages = &one;
  return append(launch) == cudaSuccess;
}

void machine::launch_group(message_group& one) {
  communicator& over = *one.over;
  stream& on = *one.streams.front();
  bool const is_captured = on.capturing != nullptr;
  if (is_captured) {
    enter(*over.launches, *on.capturing);
  } else if (over.launches->capturing != nullptr) {
    fault("nccl: a communicator is used outside of the capture that it is part of");
    return;
  } else if (over.graphs != nullptr && !over.graphs->done) {
    append_wait(*over.launches, {"wait by NCCL"}, *over.graphs);
  }
  over.is_launching = true;
  operation& launch = make(
      kind::group, {"group of communicator, rank", static_cast<int>(over.index), over.rank}, on);
  for (message& each : one.messages) {
    if (touches(launch, each.data, each.bytes, !each.send) && each.bytes > 0) {
      each.touched = launch.accesses.back();
    } else {
      each.bytes = 0;  // the fault is noted; the message still meets its peer
    }
  }
  for (std::size_t other = 1; other < one.streams.size(); ++other) {
    join_by_nccl(on, *one.streams[other]);
  }
  join_by_nccl(on, *over.launches);
  if (is_captured ? capture_group(one, launch) : put_in_line(one, launch)) {
    // This record holds up what stands behind it in its queue until the group is done.
    join_by_nccl(*over.launches, on);
    for (std::size_t other = 1; other < one.streams.size(); ++other) {
      join_by_nccl(*one.streams[other], on);
    }
  }
  over.is_launching = false;
}

bool machine::connected(message_group const& one) const {
  communicator const& mine = *one.over;
  return std::all_of(one.messages.begin(), one.messages.end(), [&](message const& each) {
    if (each.peer == mine.rank || !options_.lazy_connect) {
      return true;
    }
    communicator const* peer = mine.of->members[static_cast<std::size_t>(each.peer)];
    auto const me = static_cast<std::size_t>(mine.rank);
    return peer != nullptr && (each.send ? peer->receives_from[me] : peer->sends_to[me]);
  });
}

/// Whether the launch fits into its streams: the thread that NCCL launches from waits for that. A
/// blocking communicator launches from the caller's.
bool machine::has_room(message_group const& one) const {
  auto const depth = static_cast<std::uint32_t>(options_.launch_depth);
  auto const has = [depth](stream const& on, std::uint32_t needed) {
    return depth - (on.issued - on.done) >= std::min(needed, depth);
  };
  // A record and a wait of each stream that is joined, NCCL's own among them, and the kernel.
  auto const joined = static_cast<std::uint32_t>(one.streams.size());
  return one.over->blocking || one.streams.front()->capturing != nullptr ||
         (has(*one.over->launches, 2) &&
          std::all_of(one.streams.begin(), one.streams.end(), [&](stream const* on) {
            return has(*on, on == one.streams.front() ? 1 + 2 * joined : 2);
          }));
}

void machine::try_deferred(communicator& of) {
  message_group* const group = of.deferred;
  if (group == nullptr || of.polls_left > 0 || holds_groups_ || !connected(*group) ||
      !has_room(*group)) {
    return;
  }
  of.deferred = nullptr;
  for (stream* on : group->streams) {
    --on->deferred;
  }
  launch_group(*group);
}

void machine::cancel_all(communicator& of) {
  // What waits for a peer ends; a launch that is under way does not.
  message_group* const late = of.deferred;
  if (late != nullptr && (!of.aborted || holds_groups_ || !connected(*late))) {
    of.deferred = nullptr;
    for (stream* on : late->streams) {
      --on->deferred;
    }
  }
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
