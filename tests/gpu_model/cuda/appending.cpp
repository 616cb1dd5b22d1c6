// SPDX-License-Identifier: Apache-2.0
//
// How operations get into streams, or into a capture.
#include "machine.hpp"

#include <algorithm>
#include <utility>

namespace zbpp::cuda_model {

std::size_t capture::place_of(stream const& on) const {
  return static_cast<std::size_t>(std::find(streams.begin(), streams.end(), &on) - streams.begin());
}

void capture::order(stream const& later, std::vector<std::uint32_t> const& covered) {
  std::vector<std::uint32_t>& own = clocks[place_of(later)];
  for (std::size_t i = 0; i < covered.size(); ++i) own[i] = std::max(own[i], covered[i]);
}

void machine::enter(stream& on, capture& into) {
  if (on.capturing != nullptr) return;
  on.capturing = &into;
  into.streams.push_back(&on);
  into.clocks.emplace_back();
  for (std::vector<std::uint32_t>& clock : into.clocks) clock.resize(into.streams.size(), 0);
}

operation& machine::make(kind type, name label, stream& on) {
  operation* one = nullptr;
  if (free_operations_.empty()) {
    one = &operations_.emplace_back();
  } else {
    one = free_operations_.back();
    free_operations_.pop_back();
  }
  one->type = type;
  one->label = label;
  one->on = &on;
  return *one;
}

void machine::discard(operation& one) {
  std::vector<byte_access> kept = std::move(one.accesses);
  kept.clear();
  one = operation{};
  one.accesses = std::move(kept);
  free_operations_.push_back(&one);
}

bool machine::touches(operation& of, void const* data, std::size_t bytes, bool write) {
  if (bytes == 0) return true;
  byte_access found;
  std::string const wrong = memory_.find(data, bytes, write, found);
  char const* const verb = write ? " writes " : " reads ";
  if (!wrong.empty()) {
    fault(
        "memory: " + text_of(of.label) + verb + std::to_string(bytes) + " bytes whose memory " +
        wrong);
    return false;
  }
  int const device = memory_[found.allocation].device;
  bool const direct = of.type == kind::kernel || of.type == kind::group;
  if (direct && device == pinned && !memory_[found.allocation].mapped) {
    fault(
        "memory: " + text_of(of.label) + verb +
        "memory of the host that is not mapped: give "
        "cudaHostAlloc cudaHostAllocMapped");
  }
  if (direct && device != pinned && device != of.on->device && !has_access(of.on->device, device)) {
    fault(
        "memory: " + text_of(of.label) + " runs on device " + std::to_string(of.on->device) +
        " and" + verb + "memory of device " + std::to_string(device) +
        " without cudaDeviceEnablePeerAccess");
  }
  of.accesses.push_back(found);
  return true;
}

void machine::check_not_deferred(stream const& on, name const& by) {
  if (on.deferred > 0) {
    fault(
        "nccl: " + text_of(by) + " comes to stream " + std::to_string(on.index) +
        " while a group for it is still ncclInProgress");
  }
}

cudaError_t machine::append(operation& one) {
  stream& on = *one.on;
  if (by_nccl_ == nullptr) check_not_deferred(on, one.label);
  if (on.capturing != nullptr) {
    capture& into = *on.capturing;
    std::size_t const at = into.place_of(on);
    if (!into.invalid) {
      ++into.clocks[at][at];
      into.body.nodes.push_back({one, at});
    }
    discard(one);
    return into.invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  }
  cudaError_t error = sticky_[static_cast<std::size_t>(on.device)];
  if (error == cudaSuccess && !has_room(on))
    error = wait_until(on.device, [&] { return has_room(on); });
  if (error != cudaSuccess) {
    if (one.mark != nullptr) hold(one.mark, nullptr);
    discard(one);
    return error;
  }
  one.host_snapshot = by_nccl_ != nullptr ? by_nccl_->host_snapshot : snapshot();
  one.issued_ns = host_ns_;
  for (byte_access const& each : one.accesses) ++memory_[each.allocation].pending;
  ++on.issued;
  ++on.queue->pending;
  ++pending_;
  one.queued = true;
  (on.head == nullptr ? on.head : on.tail->next) = &one;
  on.tail = &one;
  hardware_queue& queue = *on.queue;
  (queue.head == nullptr ? queue.head : queue.tail->next_in_queue) = &one;
  queue.tail = &one;
  progressed();
  consider(&on);
  return cudaSuccess;
}

bool machine::has_room(stream const& on) const {
  return on.queue->pending < static_cast<std::uint32_t>(options_.launch_depth);
}

std::uint32_t machine::snapshot() {
  if (host_moved_) {
    snapshots_.push_back(host_clock_);
    host_moved_ = false;
  }
  return static_cast<std::uint32_t>(snapshots_.size());
}

record* machine::new_record() {
  record* one = nullptr;
  if (free_records_.empty()) {
    one = &records_.emplace_back();
  } else {
    one = free_records_.back();
    free_records_.pop_back();
  }
  one->done = false;
  one->event = no_event;
  one->waiting.clear();
  return one;
}

void machine::hold(record*& slot, record* entry) {
  if (entry != nullptr) ++entry->holders;
  if (slot != nullptr && --slot->holders == 0) free_records_.push_back(slot);
  slot = entry;
}

cudaError_t machine::drain(int device) {
  if (!options_.drains) return cudaSuccess;
  std::vector<std::pair<stream*, std::uint32_t>> given;
  for (stream& on : streams_)
    if (on.device == device) given.emplace_back(&on, on.issued);
  return wait_until(device, [&] {
    return std::all_of(given.begin(), given.end(), [](auto const& each) {
      return each.first->done >= each.second;
    });
  });
}

cudaError_t machine::load(name const& kernel, int device) {
  bool const is_first = options_.drains && loaded_.emplace(device, kernel.text).second;
  return is_first ? drain(device) : cudaSuccess;
}

cudaError_t machine::record_event(stream& on, event& of) {
  if (on.capturing != nullptr) {
    capture& into = *on.capturing;
    operation& one = make(kind::record, {"record of event", static_cast<int>(of.index)}, on);
    one.value = into.body.records++;
    int const number = one.value;
    cudaError_t const error = append(one);
    of.captured = {&into, into.clocks[into.place_of(on)], number};
    hold(of.last, nullptr);
    return error;
  }
  record* made = new_record();
  made->event = of.index;
  cudaError_t const error =
      append_record(on, {"record of event", static_cast<int>(of.index)}, *made);
  if (error == cudaSuccess) {
    of.captured = {};
    hold(of.last, made);
  }
  return error;
}

cudaError_t machine::wait_for_event(stream& on, event& of) {
  if (of.captured.in != nullptr) {
    capture& into = *of.captured.in;
    if (into.invalid) return cudaErrorStreamCaptureInvalidated;
    enter(on, into);
    if (on.capturing != &into) {
      on.capturing->invalid = into.invalid = true;
      return cudaErrorStreamCaptureMerge;
    }
    into.order(on, of.captured.clock);
    operation& one = make(kind::wait, {"wait for event", static_cast<int>(of.index)}, on);
    one.value = of.captured.number;
    return append(one);
  }
  cudaError_t const dead = sticky_[static_cast<std::size_t>(on.device)];
  if (dead != cudaSuccess)  // then the record may have failed too
    return dead;
  if (of.last == nullptr) {
    fault(
        "unrecorded: stream " + std::to_string(on.index) + " waits for event " +
        std::to_string(of.index) + ", which was never recorded: CUDA does not wait");
    return cudaSuccess;
  }
  if (on.capturing != nullptr) {
    on.capturing->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  cudaError_t const error =
      append_wait(on, {"wait for event", static_cast<int>(of.index)}, *of.last);
  of.waits += error == cudaSuccess ? 1 : 0;
  return error;
}

cudaError_t machine::append_record(stream& on, name label, record& made) {
  made.stream_index = on.index;
  made.slot = on.slot;
  made.epoch = on.issued + 1;
  operation& one = make(kind::record, label, on);
  hold(one.mark, &made);
  return append(one);
}

cudaError_t machine::append_wait(stream& on, name label, record& entry) {
  operation& one = make(kind::wait, label, on);
  hold(one.mark, &entry);
  return append(one);
}

cudaError_t machine::append_node(
    graph_body::node const& node, stream& to, std::vector<record*>& records) {
  operation const& from = node.work;
  if (from.type == kind::record) {
    record*& made = records[static_cast<std::size_t>(from.value)];
    hold(made, new_record());
    return append_record(to, from.label, *made);
  }
  if (from.type == kind::wait)
    return append_wait(to, from.label, *records[static_cast<std::size_t>(from.value)]);
  operation& one = make(from.type, from.label, to);
  one = from;
  one.on = &to;
  if (one.type != kind::group) return append(one);
  message_group& again = groups_.emplace_back(*one.messages);
  return put_in_line(again, one) ? cudaSuccess : sticky_[static_cast<std::size_t>(to.device)];
}

/// Appends nodes in an order drawn from the seed, any that their dependences allow: CUDA does not
/// say which it takes.
cudaError_t machine::append_nodes(graph_object& graph, stream& on) {
  graph_body const& body = *graph.body;
  std::vector<std::deque<graph_body::node const*>> left(body.lanes.size());
  for (graph_body::node const& node : body.nodes) left[node.lane].push_back(&node);
  std::vector<record*> records(static_cast<std::size_t>(body.records), nullptr);
  auto const is_ready = [&](std::size_t lane) {
    return !left[lane].empty() &&
           (left[lane].front()->work.type != kind::wait ||
            records[static_cast<std::size_t>(left[lane].front()->work.value)] != nullptr);
  };
  cudaError_t error = cudaSuccess;
  for (std::size_t count = body.nodes.size(); count > 0 && error == cudaSuccess; --count) {
    std::vector<std::size_t> ready;
    for (std::size_t lane = 0; lane < left.size(); ++lane)
      if (is_ready(lane)) ready.push_back(lane);
    std::size_t const lane = ready[ready.size() == 1 ? 0 : random() % ready.size()];
    error = append_node(*left[lane].front(), lane == 0 ? on : *graph.lanes[lane - 1], records);
    left[lane].pop_front();
  }
  for (record*& each : records) hold(each, nullptr);
  return error;
}

cudaError_t machine::launch_graph(graph_object& graph, stream& on) {
  name const label{"graph", static_cast<int>(on.issued)};
  cudaError_t error = graph.end == nullptr ? cudaSuccess : append_wait(on, label, *graph.end);
  auto const for_nccl = [&](auto const& append_to) {
    for (std::size_t lane = 1; lane < graph.body->lanes.size() && error == cudaSuccess; ++lane)
      if (graph.body->lanes[lane].of != nullptr)
        error = append_to(*graph.body->lanes[lane].of, *graph.lanes[lane - 1]);
  };
  // What NCCL captures on its own streams begins with the graph, behind what it was given before.
  record* begin = nullptr;
  hold(begin, new_record());
  if (error == cudaSuccess) error = append_record(on, label, *begin);
  for_nccl([&](communicator& of, stream& lane) {
    cudaError_t const begun = append_wait(lane, label, *begin);
    record_by_nccl earlier;
    record_for_nccl(*of.launches, earlier);
    wait_for_nccl(lane, earlier);
    return begun;
  });
  hold(begin, nullptr);
  if (error == cudaSuccess) error = append_nodes(graph, on);
  for_nccl([&](communicator& of, stream& lane) {
    hold(of.graphs, new_record());
    cudaError_t const ended = append_record(lane, {"record by NCCL"}, *of.graphs);
    return ended == cudaSuccess ? append_wait(on, {"wait by NCCL"}, *of.graphs) : ended;
  });
  if (error == cudaSuccess) {
    hold(graph.end, new_record());
    error = append_record(on, label, *graph.end);
  }
  return error;
}

bool machine::is_in_graphs(communicator const& one) const {
  auto const has = [&one](graph_object const& graph) {
    return std::any_of(
        graph.body->lanes.begin(), graph.body->lanes.end(), [&one](graph_body::lane const& lane) {
          return lane.of == &one;
        });
  };
  return one.launches->capturing != nullptr ||
         std::any_of(
             graphs_.begin(),
             graphs_.end(),
             [&](graph_object const& graph) { return graph.alive && has(graph); }) ||
         std::any_of(execs_.begin(), execs_.end(), [&](graph_object const& graph) {
           // One that is destroyed while it runs goes when it ends.
           return (graph.alive || (graph.end != nullptr && !graph.end->done)) && has(graph);
         });
}

bool machine::is_captured_by_nccl(std::uint32_t allocation) const {
  auto const touches = [allocation](graph_body::node const& node) {
    return node.work.type == kind::group &&
           std::any_of(
               node.work.accesses.begin(),
               node.work.accesses.end(),
               [allocation](byte_access const& each) { return each.allocation == allocation; });
  };
  return std::any_of(execs_.begin(), execs_.end(), [&touches](graph_object const& graph) {
    return graph.alive && std::any_of(graph.body->nodes.begin(), graph.body->nodes.end(), touches);
  });
}

}  // namespace zbpp::cuda_model
