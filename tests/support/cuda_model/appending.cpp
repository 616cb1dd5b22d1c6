// SPDX-License-Identifier: Apache-2.0
//
// How operations get into streams, or into a capture.
#include "machine.hpp"

#include <algorithm>
#include <utility>

namespace zbpp::cuda_model {

namespace {

std::size_t place_in(capture const& one, stream const& on) {
  return static_cast<std::size_t>(
      std::find(one.streams.begin(), one.streams.end(), &on) - one.streams.begin());
}

}  // namespace

operation& machine::make(kind what, name label, stream& on) {
  operation* one = nullptr;
  if (free_operations_.empty()) {
    one = &operations_.emplace_back();
  } else {
    one = free_operations_.back();
    free_operations_.pop_back();
  }
  one->what = what;
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
  if (bytes == 0) {
    return true;
  }
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
  bool const direct = of.what == kind::kernel || of.what == kind::group;
  if (direct && device == pinned && !memory_[found.allocation].mapped) {
    fault(
        "memory: " + text_of(of.label) + verb +
        "memory of the host that is not mapped: give "
        "cudaHostAlloc cudaHostAllocMapped");
  }
  if (direct && device != pinned && device != of.on->device &&
      !peers_[static_cast<std::size_t>(of.on->device)][static_cast<std::size_t>(device)]) {
    fault(
        "memory: " + text_of(of.label) + " runs on device " + std::to_string(of.on->device) +
        " and" + verb + "memory of device " + std::to_string(device) +
        " without cudaDeviceEnablePeerAccess");
  }
  of.accesses.push_back(found);
  return true;
}

cudaError_t machine::append(operation& one) {
  stream& on = *one.on;
  if (on.capturing != nullptr) {
    capture& into = *on.capturing;
    std::size_t const at = place_in(into, on);
    if (!into.invalid) {
      ++into.clocks[at][at];
      into.body.nodes.push_back({one, at});
    }
    discard(one);
    return into.invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  }
  bool const by_nccl =
      one.what == kind::group || (one.mark != nullptr && one.mark->event == no_event);
  if (on.deferred > 0 && !by_nccl) {
    fault(
        "nccl: " + text_of(one.label) + " is put into stream " + std::to_string(on.index) +
        " while a group for it is still ncclInProgress");
  }
  auto const depth = static_cast<std::uint32_t>(options_.launch_depth);
  cudaError_t error = sticky_[static_cast<std::size_t>(on.device)];
  if (error == cudaSuccess && on.issued - on.done >= depth) {
    error = wait_until(on.device, [&] { return on.issued - on.done < depth; });
  }
  if (error != cudaSuccess) {
    if (one.mark != nullptr) {
      hold(one.mark, nullptr);
    }
    discard(one);
    return error;
  }
  if (host_moved_) {
    snapshots_.push_back(host_clock_);
    host_moved_ = false;
  }
  one.host_snapshot = static_cast<std::uint32_t>(snapshots_.size());
  one.issued_ns = host_ns_;
  for (byte_access const& each : one.accesses) {
    ++memory_[each.allocation].pending;
  }
  ++on.issued;
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

void machine::hold(record*& where, record* what) {
  if (what != nullptr) {
    ++what->holders;
  }
  if (where != nullptr && --where->holders == 0) {
    free_records_.push_back(where);
  }
  where = what;
}

cudaError_t machine::drain(int device) {
  if (!options_.drains) {
    return cudaSuccess;
  }
  std::vector<std::pair<stream*, std::uint32_t>> given;
  for (stream& on : streams_) {
    if (on.device == device) {
      given.emplace_back(&on, on.issued);
    }
  }
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
    of.captured = {&into, into.clocks[place_in(into, on)], number};
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
    if (into.invalid) {
      return cudaErrorStreamCaptureInvalidated;
    }
    if (on.capturing == nullptr) {
      on.capturing = &into;
      into.streams.push_back(&on);
      into.clocks.emplace_back();
      for (std::vector<std::uint32_t>& clock : into.clocks) {
        clock.resize(into.streams.size(), 0);
      }
    }
    if (on.capturing != &into) {
      on.capturing->invalid = into.invalid = true;
      return cudaErrorStreamCaptureMerge;
    }
    std::size_t const at = place_in(into, on);
    for (std::size_t i = 0; i < of.captured.clock.size(); ++i) {
      into.clocks[at][i] = std::max(into.clocks[at][i], of.captured.clock[i]);
    }
    operation& one = make(kind::wait, {"wait for event", static_cast<int>(of.index)}, on);
    one.value = of.captured.number;
    return append(one);
  }
  cudaError_t const dead = sticky_[static_cast<std::size_t>(on.device)];
  if (dead != cudaSuccess) {  // then the record may have failed too
    return dead;
  }
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

cudaError_t machine::append_wait(stream& on, name label, record& what) {
  operation& one = make(kind::wait, label, on);
  hold(one.mark, &what);
  return append(one);
}

cudaError_t machine::launch_graph(graph_object& what, stream& on) {
  std::vector<record*> records(static_cast<std::size_t>(what.body->records), nullptr);
  name const label{"graph", static_cast<int>(on.issued)};
  cudaError_t error = what.end == nullptr ? cudaSuccess : append_wait(on, label, *what.end);
  for (graph_body::node const& node : what.body->nodes) {
    if (error != cudaSuccess) {
      break;
    }
    operation const& from = node.what;
    stream& to = node.lane == 0 ? on : *what.lanes[node.lane - 1];
    if (from.what == kind::record) {
      record*& made = records[static_cast<std::size_t>(from.value)];
      hold(made, new_record());
      error = append_record(to, from.label, *made);
    } else if (from.what == kind::wait) {
      error = append_wait(to, from.label, *records[static_cast<std::size_t>(from.value)]);
    } else {
      operation& one = make(from.what, from.label, to);
      one = from;
      one.on = &to;
      error = append(one);
    }
  }
  for (record*& each : records) {
    hold(each, nullptr);
  }
  if (error == cudaSuccess) {
    hold(what.end, new_record());
    error = append_record(on, label, *what.end);
  }
  return error;
}

}  // namespace zbpp::cuda_model
