// SPDX-License-Identifier: Apache-2.0
//
// What the machine says about faults: races, deadlocks, wrong handles.
#include "machine.hpp"

namespace zbpp::cuda_model {

namespace {

constexpr std::size_t most_faults = 200;

std::string numbered(char const* text, std::size_t number) {
  return std::string(text) + " " + std::to_string(number);
}

}  // namespace

std::string text_of(name const& label) {
  std::string text = label.text;
  bool first = true;
  for (int number : label.numbers) {
    if (number >= 0) {
      text += (first ? "(" : ", ") + std::to_string(number);
      first = false;
    }
  }
  return first ? text : text + ")";
}

void machine::fault(std::string text) {
  if (faults_.size() < most_faults)
    faults_.push_back(std::move(text));
  else
    ++unreported_;
}

std::string machine::text(note const& one) const {
  if (one.slot == 0) return text_of(one.label) + " on the host";
  stream const& on = streams_[one.slot - 1];
  return text_of(one.label) + " on stream " + std::to_string(on.index) + " of device " +
         std::to_string(on.device);
}

void machine::touch(operation const& by, stream const& on, std::vector<byte_access> const& access) {
  note const author{on.slot, on.clock[on.slot], by.label};
  for (byte_access const& each : access) {
    memory_.touch(each, author, on.clock, [&](conflict const& with) {
      allocation const& of = memory_[each.allocation];
      std::string const place =
          "bytes [" + std::to_string(std::max(with.begin, each.begin)) + ", " +
          std::to_string(std::min(with.end, each.end)) + ") of " +
          numbered("allocation", each.allocation) + " (" + std::to_string(of.bytes) + " bytes, " +
          (of.device == pinned ? "pinned"
                               : numbered("device", static_cast<std::size_t>(of.device))) +
          ")";
      if (with.first.epoch == 0) {
        if (options_.check_uninitialised)
          fault("uninitialised: " + text(author) + " reads " + place + ", which nobody wrote");
        return;
      }
      fault(
          "race: " + text(with.first) + (with.first_writes ? " writes" : " reads") + " and " +
          text(author) + (each.write ? " writes " : " reads ") + place +
          ", and nothing orders the two");
    });
  }
}

void machine::host_touches(byte_access const& access, char const* label) {
  host_clock_.set(0, host_clock_[0] + 1);
  host_moved_ = true;
  note const author{0, host_clock_[0], label};
  memory_.touch(access, author, host_clock_, [&](conflict const& with) {
    std::string const place = "bytes [" + std::to_string(access.begin) + ", " +
                              std::to_string(access.end) + ") of " +
                              numbered("allocation", access.allocation);
    if (with.first.epoch == 0) {
      if (options_.check_uninitialised)
        fault("uninitialised: the host reads " + place + ", which nobody wrote");
      return;
    }
    fault(
        "race: " + text(with.first) + (with.first_writes ? " writes" : " reads") + " and the host" +
        (access.write ? " writes " : " reads ") + place + ", and nothing orders the two");
  });
}

bool machine::host_knows_done(stream const& one) { return host_clock_[one.slot] >= one.issued; }

bool machine::is_over(note const& one) const {
  return one.before(host_clock_) ||
         sticky_[static_cast<std::size_t>(streams_[one.slot - 1].device)] != cudaSuccess;
}

std::string machine::why_blocked(stream const& one) const {
  operation const& next = *one.head;
  if (next.queued && one.queue->head != &next) {
    operation const& before = *one.queue->head;
    return "stands behind " + text_of(before.label) + " of stream " +
           std::to_string(before.on->index) + " in their hardware queue";
  }
  if (next.type == kind::wait)
    return "waits for the record on stream " + std::to_string(next.mark->stream_index);
  if (!next.started && !has_multiprocessors(next)) {
    return "waits for multiprocessors, of which messages that wait hold " +
           std::to_string(held_[static_cast<std::size_t>(one.device)]);
  }
  if (next.type != kind::group) return "is ready";
  communicator const& over = *next.messages->over;
  std::string const comm =
      numbered("communicator", over.index) + " (rank " + std::to_string(over.rank) + ")";
  if (over.broken) return "waits for " + comm + ", which has failed";
  std::string missing;
  for (message const& each : next.messages->messages) {
    if (!each.matched && each.is_sum()) {
      missing += (missing.empty() ? "" : ", ") + std::string("the sums of all others, of ") +
                 std::to_string(each.count);
    } else if (!each.matched) {
      missing += (missing.empty() ? "" : ", ") +
                 std::string(each.send ? "the receive of " : "the send of ") +
                 numbered("rank", static_cast<std::size_t>(each.peer));
    }
  }
  return "waits over " + comm + " for " + missing;
}

std::string machine::why_blocked(group_launch const& one) const {
  if (can_go_on(one)) return "its launch is ready";
  if (!one.has_begun) return "its first message waits for the peer to connect";
  return "its launch waits for room in the hardware queue of stream " +
         std::to_string(one.calls[one.next].on->index);
}

std::string machine::wait_graph() const {
  std::string lines;
  for (stream const& one : streams_) {
    if (one.head != nullptr) {
      lines += "  stream " + std::to_string(one.index) + " of device " +
               std::to_string(one.device) + ": " + text_of(one.head->label) + " " +
               why_blocked(one) + "; " + std::to_string(one.issued - one.done) + " pending\n";
    }
  }
  for (communicator const& one : communicators_) {
    if (one.alive && one.of->joined < one.of->ranks) {
      lines += "  communicator " + std::to_string(one.index) + ": " +
               std::to_string(one.of->joined) + " of " + std::to_string(one.of->ranks) +
               " ranks have joined\n";
    }
    if (one.alive && one.launching != nullptr) {
      lines += "  communicator " + std::to_string(one.index) + " (rank " +
               std::to_string(one.rank) + "): " + why_blocked(*one.launching) + "\n";
    }
  }
  return lines.empty() ? "  nothing is pending\n" : lines;
}

void* machine::handle_for(unsigned tag, std::size_t index) const {
  // The generation is part of it: a handle from before reset is never taken for a new one.
  return reinterpret_cast<void*>(
      static_cast<std::uintptr_t>(generation_) << 36 | static_cast<std::uintptr_t>(tag) << 32 |
      (index + 1) << 4);
}

cudaStream_t machine::handle_of(stream const& one) {
  return static_cast<cudaStream_t>(handle_for(stream_tag, static_cast<std::size_t>(one.index)));
}

cudaEvent_t machine::handle_of(event const& one) {
  return static_cast<cudaEvent_t>(handle_for(event_tag, one.index));
}

stream* machine::find(cudaStream_t handle, char const* by) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    fault("handle: " + std::string(by) + " on a default stream, which the library never uses");
    return nullptr;
  }
  stream* one = find_in(streams_, stream_tag, handle);
  if (one == nullptr || !one->alive) {
    fault(
        "handle: " + std::string(by) +
        (one == nullptr ? " on what is no stream" : " on a destroyed stream"));
    return nullptr;
  }
  if (has_lost_context(*one)) {
    fault("handle: " + std::string(by) + " on a stream whose green context is destroyed");
    return nullptr;
  }
  return one;
}

bool machine::has_lost_context(stream const& one) const {
  return one.green >= 0 && !greens_[static_cast<std::size_t>(one.green)].alive;
}

cudaError_t machine::error_of(cudaStream_t handle) {
  stream const* const one = find_in(streams_, stream_tag, handle);
  bool const is_left = one != nullptr && one->alive && has_lost_context(*one);
  return is_left ? cudaErrorContextIsDestroyed : cudaErrorInvalidResourceHandle;
}

event* machine::find(cudaEvent_t handle, char const* by) {
  event* one = find_in(events_, event_tag, handle);
  if (one == nullptr || !one->alive) {
    fault(
        "handle: " + std::string(by) +
        (one == nullptr ? " of what is no event" : " of a destroyed event"));
    return nullptr;
  }
  return one;
}

hardware_queue& machine::take_queue(int device) {
  auto const on = static_cast<std::size_t>(device);
  std::vector<hardware_queue>& all = queues_[on];
  switch (options_.mapping) {
    case queue_mapping::in_turn: return all[next_queue_[on]++ % all.size()];
    case queue_mapping::random: return all[static_cast<std::size_t>(random() % all.size())];
    case queue_mapping::one: break;
  }
  return all.front();
}

stream* machine::add_stream(int device) {
  if (streams_.size() + 1 >= max_slots) {
    fault(
        "handle: the model holds " + std::to_string(max_slots - 1) + " streams between two resets");
    return nullptr;
  }
  stream& one = streams_.emplace_back();
  one.index = static_cast<int>(streams_.size()) - 1;
  one.slot = static_cast<std::uint32_t>(streams_.size());
  one.device = device;
  one.queue = &take_queue(device);
  return &one;
}

cudaError_t machine::new_stream(
    cudaStream_t* made, unsigned flags, int priority, int device, int green) {
  stream* const one = add_stream(device);
  if (one == nullptr) return cudaErrorMemoryAllocation;
  one->flags = flags;
  one->priority = priority;
  one->green = green;
  *made = handle_of(*one);
  return cudaSuccess;
}

bool machine::make_lanes(graph_object& of) {
  for (std::size_t lane = 1; lane < of.body->lanes.size(); ++lane) {
    stream* const one = add_stream(of.body->lanes[lane].device);
    if (one == nullptr) return false;
    one->alive = false;  // no caller has its handle, and none destroys it
    of.lanes.push_back(one);
  }
  return true;
}

bool machine::make_streams_of(communicator& one) {
  auto const on = static_cast<std::size_t>(one.device);
  if (!has_nccl_[on]) take_queue(one.device);  // for the order of launches; idle, as by default
  has_nccl_[on] = true;
  one.launches = add_stream(one.device);
  if (one.launches == nullptr) return false;
  one.launches->alive = false;  // no caller has its handle, and none destroys it
  one.launches->of = &one;
  take_queue(one.device);  // for calls of the host; idle outside of graphs
  return true;
}

}  // namespace zbpp::cuda_model
