// SPDX-License-Identifier: Apache-2.0
//
// How NCCL launches a group of messages: by some calls of CUDA, which a thread of its own makes for
// communicators that do not block. So launches of different communicators may reach the device in
// another order than the calls, and one that waits for room holds up no host.
#include "machine.hpp"

#include <algorithm>
#include <utility>

namespace zbpp::cuda_model {

namespace {

bool is_connected(message_group const& one) {
  communicator const& end = *one.over;
  return std::all_of(one.messages.begin(), one.messages.end(), [&](message const& each) {
    auto const& all = end.of->members;
    if (each.is_sum())
      return std::all_of(all.begin(), all.end(), [&](communicator const* member) {
        return member != nullptr &&
               member->sums.count(class_of_sum(each.bytes, one.messages.size())) > 0;
      });
    if (each.peer == end.rank) return true;
    communicator const* peer = end.of->members[static_cast<std::size_t>(each.peer)];
    auto const me = static_cast<std::size_t>(end.rank);
    return peer != nullptr && (each.send ? peer->receives_from[me] : peer->sends_to[me]);
  });
}

}  // namespace

void machine::record_for_nccl(stream& on, record_by_nccl& made) {
  operation& one = make(kind::record, {"record by NCCL"}, on);
  if (on.capturing != nullptr) {
    capture& into = *on.capturing;
    int const number = one.value = into.body.records++;
    append(one);
    made.captured = {&into, into.clocks[into.place_of(on)], number};
    return;
  }
  hold(made.made, new_record());
  made.made->stream_index = on.index;
  hold(one.mark, made.made);
  append(one);
}

void machine::wait_for_nccl(stream& on, record_by_nccl& made) {
  name const label{"wait by NCCL"};
  if (made.captured.in == nullptr) {
    append_wait(on, label, *made.made);
    hold(made.made, nullptr);
    return;
  }
  made.captured.in->order(on, made.captured.clock);
  operation& one = make(kind::wait, label, on);
  one.value = made.captured.number;
  append(one);
}

bool machine::put_in_line(message_group& one, operation& launch) {
  communicator& over = *one.over;
  one.launch = &launch;
  launch.messages = &one;
  launch.cancelled = one.cancelled = one.cancelled || over.aborted;
  if (!one.cancelled) over.fifo.push_back(&one);
  ++over.launched;
  bool const is_in = append(launch) == cudaSuccess;
  if (!is_in) {
    --over.launched;
    std::erase(over.fifo, &one);
  }
  return is_in;
}

void machine::launch_now(message_group& one) {
  communicator& over = *one.over;
  operation& launch = make(
      kind::group,
      {"group of communicator, rank", static_cast<int>(over.index), over.rank},
      *one.streams.front());
  for (message& each : one.messages)
    if ((!each.is_sum() || touches(launch, each.data, each.bytes, false)) &&
        touches(launch, each.data, each.bytes, each.is_sum() || !each.send) && each.bytes > 0)
      each.touched = launch.accesses.back();
    else
      each.bytes = 0;  // the fault is noted; the message still meets its peer
  if (launch.on->capturing == nullptr) {
    put_in_line(one, launch);
    return;
  }
  for (message& each : one.messages) {
    if (each.is_sum()) fault("nccl: a sum is captured, which the model does not know");
    if (each.is_sum()) continue;
    auto const peer = static_cast<std::size_t>(each.peer);
    each.captured = (each.send ? over.captured_sends : over.captured_receives)[peer]++;
  }
  launch.messages = &one;
  append(launch);
}

void machine::plan_launch(group_launch& of, message_group& one) {
  using action = group_launch::call::action;
  communicator& over = *one.over;
  stream* const on = one.streams.front();
  of.into = on->capturing;
  if (of.into != nullptr) {
    enter(*over.launches, *of.into);
  } else if (over.launches->capturing != nullptr) {
    fault("nccl: a communicator is used outside of the capture that it is part of");
    return;
  } else if (over.graphs != nullptr && !over.graphs->done) {
    of.calls.push_back({action::wait_for_graphs, over.launches, &one});
  }
  auto const join = [&](stream* later, stream* earlier) {
    of.calls.push_back({action::record, earlier, &one, of.records.size()});
    of.calls.push_back({action::wait, later, &one, of.records.size()});
    of.records.emplace_back();
  };
  for (std::size_t other = 1; other < one.streams.size(); ++other) join(on, one.streams[other]);
  join(on, over.launches);
  of.calls.push_back({action::launch, on, &one});
  // This record holds up what stands behind it in its queue until the group is done.
  join(over.launches, on);
  for (std::size_t other = 1; other < one.streams.size(); ++other) join(one.streams[other], on);
}

group_launch& machine::launch(std::vector<message_group*> groups) {
  group_launch& made = launches_.emplace_back();
  made.groups = std::move(groups);
  // NCCL takes communicators in the order of their hashes.
  for (std::size_t left = made.groups.size(); left > 1; --left)
    std::swap(made.groups[left - 1], made.groups[random() % left]);
  made.is_slow = options_.order == mode::random && random() % 8 == 0;
  made.host_snapshot = snapshot();
  for (message_group* group : made.groups) {
    group->over->launching = &made;
    for (stream* on : group->streams) ++on->deferred;
  }
  return made;
}

bool machine::can_go_on(group_launch const& one) const {
  if (!one.has_begun) {
    return !holds_groups_ &&
           (!options_.lazy_connect ||
            std::all_of(one.groups.begin(), one.groups.end(), [](message_group const* each) {
              return is_connected(*each);
            }));
  }
  stream const& on = *one.calls[one.next].on;
  return on.capturing != nullptr || has_room(on) ||
         sticky_[static_cast<std::size_t>(on.device)] != cudaSuccess;
}

void machine::go_on(group_launch& one) {
  // What is left of a capture that has ended is lost; its end has said so. It may have ended before
  // this call, since others had the lock in between.
  auto const is_over = [&] {
    return one.next == one.calls.size() || one.calls[one.next].on->capturing != one.into;
  };
  if (!std::exchange(one.has_begun, true)) {
    for (message_group* group : one.groups) plan_launch(one, *group);
  } else if (!is_over()) {
    group_launch::call const& next = one.calls[one.next++];
    by_nccl_ = &one;
    switch (next.is) {
      using enum group_launch::call::action;
      case wait_for_graphs: append_wait(*next.on, {"wait by NCCL"}, *next.of->over->graphs); break;
      case record: record_for_nccl(*next.on, one.records[next.record]); break;
      case wait: wait_for_nccl(*next.on, one.records[next.record]); break;
      case launch: launch_now(*next.of); break;
    }
    by_nccl_ = nullptr;
  }
  if (is_over()) end_launch(one);
}

void machine::end_launch(group_launch& one) {
  for (message_group* group : one.groups) {
    group->over->launching = nullptr;
    for (stream* on : group->streams) --on->deferred;
  }
  for (record_by_nccl& each : one.records) hold(each.made, nullptr);
  launches_.remove_if([&one](group_launch const& each) { return &each == &one; });
  progressed();
}

void machine::go_on_with_launches(communicator const* polled) {
  for (auto each = launches_.begin(); each != launches_.end();) {
    group_launch& one = *each++;
    bool const may =
        options_.late_launches ? polled != nullptr && polled->launching == &one : !one.is_slow;
    std::size_t const before = launches_.size();
    while (may && launches_.size() == before && can_go_on(one)) go_on(one);
  }
}

}  // namespace zbpp::cuda_model
