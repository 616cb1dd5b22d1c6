// SPDX-License-Identifier: Apache-2.0
//
// The functions of NCCL 2.28.9 that the model defines.
#include "entry.hpp"

#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <utility>

using namespace zbpp::cuda_model;

namespace {

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

/// Finds a communicator, or notes the wrong handle.
communicator* find_communicator(machine& in, ncclComm_t handle, char const* by) {
  communicator* one = in.find_in(in.communicators_, communicator_tag, handle);
  if (one == nullptr || !one->alive) {
    in.fault(
        "handle: " + std::string(by) +
        (one == nullptr ? " of what is no communicator"
                        : " of a communicator that was destroyed or aborted"));
    one = nullptr;
  }
  return one;
}

template <class Body>
ncclResult_t with_communicator(function call, ncclComm_t handle, Body&& body) {
  return enter_nccl(call, [&](machine& in, host_state& self) {
    communicator* one = find_communicator(in, handle, fact_of(call).name.data());
    return one == nullptr ? ncclInvalidArgument : body(in, self, *one);
  });
}

ncclResult_t says(communicator& one, ncclResult_t result, char const* why) {
  one.last_error = why;
  return result;
}

bool joined(communicator const& one) { return one.of->joined == one.of->ranks; }

/// What ncclCommGetAsyncError would say now.
ncclResult_t state_of(communicator const& one) {
  if (one.failure != ncclSuccess) return one.failure;
  if (one.of->duplicate_gpu) return ncclInvalidUsage;
  bool const ends = one.finalizing || one.revoked;
  bool const busy = !joined(one) || one.launching != nullptr ||
                    (ends && (one.polls_left > 0 || !one.fifo.empty())) ||
                    (one.finalizing && machine::the().is_in_graphs(one));
  return busy ? ncclInProgress : ncclSuccess;
}

/// Waits, as a blocking communicator does.
template <class Reached>
ncclResult_t block(machine& in, communicator const& one, Reached&& reached) {
  cudaError_t const error = in.wait_until(
      one.device, [&] { return one.failure != ncclSuccess || one.of->duplicate_gpu || reached(); });
  if (error != cudaSuccess) return ncclUnhandledCudaError;
  ncclResult_t const state = state_of(one);
  return state == ncclInProgress ? ncclSuccess : state;
}

/// What a thread of NCCL does for a communicator that does not block may take some polls.
void take_time(machine& in, communicator& one) {
  if (!one.blocking && in.options_.order == mode::random && in.random() % 8 == 0)
    one.polls_left = 1 + static_cast<int>(in.random() % 3);
}

/// Launches a group, or leaves that to a thread of NCCL.
ncclResult_t issue(machine& in, std::vector<message_group*> const& groups) {
  for (message_group const* group : groups) {
    communicator& over = *group->over;
    for (message const& each : group->messages) {
      if (each.is_sum()) {
        in.connections_ +=
            over.sums.insert(class_of_sum(each.bytes, group->messages.size())).second ? 1U : 0U;
        continue;
      }
      auto& known = each.send ? over.sends_to : over.receives_from;
      auto const peer = static_cast<std::size_t>(each.peer);
      in.connections_ += known[peer] ? 0U : 1U;
      known[peer] = true;
    }
  }
  in.wake_hosts();  // this may be what a peer has waited for
  communicator const& first = *groups.front()->over;
  group_launch& made = in.launch(groups);
  in.go_on_with_launches();
  if (!first.blocking) return state_of(first);
  return block(in, first, [&] {
    while (first.launching != nullptr && in.can_go_on(made)) in.go_on(made);
    return first.launching == nullptr;
  });
}

/// Waits on a thread that aborts, which is none of those that issue.
template <class Reached>
void wait_to_abort(machine& in, communicator const& one, Reached&& reached) {
  ++in.registered_hosts_;
  in.wait_until(one.device, reached);
  --in.registered_hosts_;
  in.wake_hosts();
}

/// Ends an abort: NCCL waits until its kernels have left the device, and until the graphs that
/// hold some are destroyed.
void reclaim(machine& in, communicator& one) {
  wait_to_abort(in, one, [&] { return one.launched == 0 && !in.is_in_graphs(one); });
  one.alive = false;
  if (one.of->joined < one.of->ranks)
    *one.made = in.handle_for(communicator_tag, one.index);  // by the thread that was making it
}

// NCCL before 2.27 keeps what it does for a group in one place for each thread: where the thread
// ends another group meanwhile, calls of the first one are made twice. A device stands for a
// process here, since tests drive several from one thread.
void check_one_group_at_a_time(machine& in, host_state& self) {
  if (in.options_.duplicate_gpus) return;  // then it stands for several
  std::vector<communicator*> used = self.joining;
  for (host_state::grouped const& each : self.group) used.push_back(each.over);
  std::erase_if(used, [](communicator const* one) { return one->blocking; });
  auto const is_of_a_process_here = [&used](communicator const* one) {
    return std::any_of(used.begin(), used.end(), [=](communicator const* each) {
      return each->device == one->device;
    });
  };
  for (communicator const* one : self.at_work)
    if (one->alive && !one->aborted && state_of(*one) == ncclInProgress &&
        is_of_a_process_here(one))
      in.fault(
          "nccl: a thread ends a group while communicator " + std::to_string(one->index) +
          " of its last group is still ncclInProgress");
  std::erase_if(self.at_work, is_of_a_process_here);
  self.at_work.insert(self.at_work.end(), used.begin(), used.end());
}

ncclResult_t end_group(machine& in, host_state& self) {
  if (!self.joining.empty() || !self.group.empty()) check_one_group_at_a_time(in, self);
  std::vector<host_state::grouped> calls = std::move(self.group);
  std::vector<communicator*> joining = std::move(self.joining);
  std::vector<communicator*> aborting = std::move(self.aborting);
  self.group.clear();
  self.joining.clear();
  self.aborting.clear();
  for (communicator* one : aborting) reclaim(in, *one);
  ncclResult_t result = ncclSuccess;
  auto const worst = [&result](ncclResult_t next) {
    if (result == ncclSuccess || (result == ncclInProgress && next != ncclSuccess)) result = next;
  };
  for (communicator* one : joining)
    worst(one->blocking ? block(in, *one, [&] { return joined(*one); }) : state_of(*one));
  std::vector<message_group*> made;
  for (host_state::grouped& each : calls) {
    auto at = std::find_if(
        made.begin(), made.end(), [&](message_group const* one) { return one->over == each.over; });
    if (at == made.end()) {
      message_group& fresh = in.groups_.emplace_back();
      fresh.over = each.over;
      at = made.insert(made.end(), &fresh);
    }
    (*at)->messages.push_back(each.content);
    if (std::find((*at)->streams.begin(), (*at)->streams.end(), each.on) == (*at)->streams.end())
      (*at)->streams.push_back(each.on);
  }
  for (message_group* one : made) {  // a message to oneself has both ends in its group
    auto const to_self = [&](bool send) {
      return std::count_if(one->messages.begin(), one->messages.end(), [&](message const& each) {
        return each.peer == one->over->rank && each.send == send;
      });
    };
    if (to_self(true) != to_self(false)) {
      return says(
          *one->over,
          ncclInvalidUsage,
          "a send to oneself without a matching receive in the same group");
    }
  }
  auto const is_with_first = [&](host_state::grouped const& each) {
    return each.on->capturing == calls.front().on->capturing;
  };
  if (!std::all_of(calls.begin(), calls.end(), is_with_first))
    return says(*calls.front().over, ncclInvalidUsage, "all of a group is captured, or nothing");
  if (!made.empty()) worst(issue(in, made));
  return result;
}

ncclResult_t message_call(
    function call,
    bool send,
    void* data,
    std::size_t count,
    ncclDataType_t type,
    int peer,
    ncclComm_t handle,
    cudaStream_t stream_handle) {
  return with_communicator(call, handle, [&](machine& in, host_state& self, communicator& over) {
    char const* const text = fact_of(call).name.data();
    stream* on = in.find(stream_handle, text);
    if (on == nullptr || peer < message::all_ranks || peer >= over.of->ranks)
      return says(over, ncclInvalidArgument, "a wrong peer or stream");
    if (on->device != over.device) {
      in.fault("nccl: " + std::string(text) + " on a stream of another device");
      return says(over, ncclInvalidArgument, "a stream of another device");
    }
    if (over.failure != ncclSuccess) return says(over, over.failure, "the communicator has failed");
    if (over.revoked || over.finalizing)
      return says(over, ncclInvalidUsage, "the communicator is revoked or finalized");
    if (state_of(over) != ncclSuccess) {
      in.fault(
          "nccl: " + std::string(text) + " on communicator " + std::to_string(over.index) +
          " while it is still ncclInProgress");
      return says(over, ncclInvalidArgument, "the last call is still in progress");
    }
    self.group.push_back(
        {&over, on, {send, peer, data, count, type, count * bytes_of(type), {}, false}});
    return self.group_depth > 0 ? ncclSuccess : end_group(in, self);
  });
}

ncclResult_t finish_communicator(machine& in, communicator& one) {
  return block(in, one, [&] {
    return joined(one) && one.fifo.empty() && one.launching == nullptr && !in.is_in_graphs(one);
  });
}

ncclResult_t answer(int* into, int value) {
  if (into == nullptr) return ncclInvalidArgument;
  *into = value;
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  return enter_nccl(function::ncclGetVersion, [&](machine&, host_state&) {
    return answer(version, NCCL_VERSION_CODE);
  });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return enter_nccl(function::ncclGetUniqueId, [&](machine& in, host_state&) {
    std::memset(id->internal, 0, sizeof id->internal);
    std::uint64_t const words[] = {in.generation_, ++in.unique_ids_};
    std::memcpy(id->internal, words, sizeof words);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return enter_nccl(function::ncclCommInitRankConfig, [&](machine& in, host_state& self) {
    ncclConfig_t const standard = NCCL_CONFIG_INITIALIZER;
    bool const valid_config =
        config == nullptr || (config->size == standard.size && config->magic == standard.magic);
    std::uint64_t words[2];
    std::memcpy(words, id.internal, sizeof words);
    if (made == nullptr || ranks < 1 || rank < 0 || rank >= ranks || !valid_config ||
        words[0] != in.generation_) {
      return ncclInvalidArgument;
    }
    auto found = std::find_if(
        in.worlds_.begin(), in.worlds_.end(), [&](world const& one) { return one.id == words[1]; });
    if (found == in.worlds_.end()) {
      world& fresh = in.worlds_.emplace_back();
      fresh.id = words[1];
      fresh.ranks = ranks;
      fresh.members.assign(static_cast<std::size_t>(ranks), nullptr);
      found = in.worlds_.end() - 1;
    }
    communicator*& member = found->members[static_cast<std::size_t>(rank)];
    if (found->ranks != ranks || member != nullptr) return ncclInvalidArgument;
    communicator& one = in.communicators_.emplace_back();
    one.index = static_cast<std::uint32_t>(in.communicators_.size() - 1);
    one.of = &*found;
    one.rank = rank;
    one.device = self.device;
    if (!in.make_streams_of(one)) {
      in.communicators_.pop_back();
      return ncclSystemError;
    }
    one.blocking = config == nullptr || config->blocking != 0;  // undefined means 1
    if (config != nullptr && config->maxCTAs != NCCL_CONFIG_UNDEF_INT) one.ctas = config->maxCTAs;
    one.sends_to.assign(static_cast<std::size_t>(ranks), false);
    one.receives_from.assign(static_cast<std::size_t>(ranks), false);
    one.captured_sends.assign(static_cast<std::size_t>(ranks), 0);
    one.captured_receives.assign(static_cast<std::size_t>(ranks), 0);
    for (communicator const* other : found->members) {
      found->duplicate_gpu =
          found->duplicate_gpu ||
          (other != nullptr && !in.options_.duplicate_gpus && other->device == one.device);
    }
    member = &one;
    ++found->joined;
    *made = static_cast<ncclComm_t>(in.handle_for(communicator_tag, one.index));
    one.made = reinterpret_cast<void**>(made);
    in.wake_hosts();
    if (self.group_depth > 0) {
      self.joining.push_back(&one);
      return ncclSuccess;
    }
    return one.blocking ? block(in, one, [&] { return joined(one); }) : state_of(one);
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  return with_communicator(
      function::ncclCommGetAsyncError, handle, [&](machine& in, host_state&, communicator& one) {
        if (one.polls_left > 0) --one.polls_left;
        in.go_on_with_launches(&one);
        if (state_of(one) == ncclInProgress) in.polled_in_vain();
        *error = in.sticky_[static_cast<std::size_t>(one.device)] != cudaSuccess
                     ? ncclUnhandledCudaError
                     : state_of(one);
        return ncclSuccess;
      });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return with_communicator(
      function::ncclCommFinalize, handle, [](machine& in, host_state&, communicator& one) {
        if (one.finalizing) return ncclInvalidArgument;
        one.finalizing = true;
        take_time(in, one);
        return one.blocking ? finish_communicator(in, one) : state_of(one);
      });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return with_communicator(
      function::ncclCommDestroy, handle, [](machine& in, host_state&, communicator& one) {
        ncclResult_t const result = finish_communicator(in, one);
        in.cancel_all(one);
        one.alive = false;
        return result;
      });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return with_communicator(
      function::ncclCommAbort, handle, [](machine& in, host_state& self, communicator& one) {
        if (one.aborted) {
          in.fault("nccl: communicator " + std::to_string(one.index) + " is aborted twice");
          return ncclInvalidUsage;
        }
        one.aborted = true;
        in.cancel_all(one);
        // It joins the thread that launches, group or not; nothing but room in the stream ends
        // that.
        wait_to_abort(in, one, [&] { return one.launching == nullptr; });
        if (self.group_depth > 0)
          self.aborting.push_back(&one);
        else
          reclaim(in, one);
        return ncclSuccess;
      });
}

ncclResult_t ncclCommRevoke(ncclComm_t handle, int flags) {
  return with_communicator(
      function::ncclCommRevoke, handle, [&](machine& in, host_state&, communicator& one) {
        if (flags != NCCL_REVOKE_DEFAULT) return ncclInvalidArgument;
        in.cancel_all(one);
        one.revoked = true;
        take_time(in, one);
        return state_of(one);
      });
}

ncclResult_t ncclCommCount(ncclComm_t const handle, int* count) {
  return with_communicator(
      function::ncclCommCount, handle, [&](machine&, host_state&, communicator& one) {
        return answer(count, one.of->ranks);
      });
}

ncclResult_t ncclCommUserRank(ncclComm_t const handle, int* rank) {
  return with_communicator(
      function::ncclCommUserRank, handle, [&](machine&, host_state&, communicator& one) {
        return answer(rank, one.rank);
      });
}

ncclResult_t ncclCommCuDevice(ncclComm_t const handle, int* device) {
  return with_communicator(
      function::ncclCommCuDevice, handle, [&](machine&, host_state&, communicator& one) {
        return answer(device, one.device);
      });
}

ncclResult_t ncclGroupStart() {
  return enter_nccl(function::ncclGroupStart, [](machine&, host_state& self) {
    ++self.group_depth;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd() {
  return enter_nccl(function::ncclGroupEnd, [](machine& in, host_state& self) {
    if (self.group_depth == 0) return ncclInvalidUsage;
    return --self.group_depth == 0 ? end_group(in, self) : ncclSuccess;
  });
}

ncclResult_t ncclAllReduce(
    void const* from,
    void* data,
    std::size_t count,
    ncclDataType_t type,
    ncclRedOp_t operation,
    ncclComm_t comm,
    cudaStream_t stream) {
  // The model adds up floats in place, which is all that zbpp asks for.
  if (from != data || type != ncclFloat32 || operation != ncclSum) return ncclInvalidArgument;
  return message_call(
      function::ncclAllReduce, true, data, count, type, message::all_ranks, comm, stream);
}

ncclResult_t ncclSend(
    void const* data,
    std::size_t count,
    ncclDataType_t type,
    int peer,
    ncclComm_t comm,
    cudaStream_t stream) {
  return message_call(
      function::ncclSend, true, const_cast<void*>(data), count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(
    void* data,
    std::size_t count,
    ncclDataType_t type,
    int peer,
    ncclComm_t comm,
    cudaStream_t stream) {
  return message_call(function::ncclRecv, false, data, count, type, peer, comm, stream);
}

char const* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

char const* ncclGetLastError(ncclComm_t handle) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  communicator const* one = in.find_in(in.communicators_, communicator_tag, handle);
  return one == nullptr ? "" : one->last_error.c_str();
}

}  // extern "C"
