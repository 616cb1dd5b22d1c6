// SPDX-License-Identifier: Apache-2.0
//
// Stream capture and graphs of the model's CUDA runtime. A launched graph runs as captured: each
// captured stream is a lane, and what was recorded and waited for orders the lanes, nothing else.
#include "entry.hpp"

#include <utility>

using namespace zbpp::cuda_model;

namespace zbpp::cuda_model {

cudaError_t machine::unsafe_in_capture(host_state const& self) {
  for (capture& one : captures_) {
    bool const in_scope = one.mode == cudaStreamCaptureModeGlobal ||
                          (one.mode == cudaStreamCaptureModeThreadLocal && one.host == &self);
    if (one.origin != nullptr && in_scope) {
      one.invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  return cudaSuccess;
}

}  // namespace zbpp::cuda_model

namespace {

/// True if everything that was captured is ordered before the end of the origin.
bool all_joined(capture const& one) {
  for (std::size_t at = 0; at < one.streams.size(); ++at) {
    // NCCL takes what it has on its own streams out of what must be joined.
    if (one.streams[at]->of == nullptr && one.clocks[0][at] < one.clocks[at][at]) return false;
  }
  return true;
}

template <class Handle, class Objects>
auto* find_graph(machine& in, Objects& all, unsigned tag, Handle handle, char const* by) {
  auto* one = in.find_in(all, tag, handle);
  if (one == nullptr || !one->alive) {
    in.fault("handle: " + std::string(by) + " of what is no graph, or a destroyed one");
    one = nullptr;
  }
  return one;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return enter(function::cudaStreamBeginCapture, [&](machine& in, host_state& self) {
    stream* on = in.find(handle, "cudaStreamBeginCapture");
    if (on == nullptr) return in.error_of(handle);
    if (on->capturing != nullptr) return cudaErrorIllegalState;
    capture& one = in.captures_.emplace_back();
    one.origin = on;
    one.mode = mode;
    one.host = &self;
    one.streams = {on};
    one.clocks = {{0}};
    on->capturing = &one;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return enter(function::cudaStreamEndCapture, [&](machine& in, host_state& self) {
    *graph = nullptr;
    stream* on = in.find(handle, "cudaStreamEndCapture");
    if (on == nullptr) return in.error_of(handle);
    if (on->capturing == nullptr) return cudaErrorIllegalState;
    capture& one = *on->capturing;
    if (one.origin != on) return cudaErrorStreamCaptureUnmatched;
    if (one.host != &self && one.mode != cudaStreamCaptureModeRelaxed)
      return cudaErrorStreamCaptureWrongThread;
    for (stream* each : one.streams) {
      one.invalid = one.invalid || each->deferred > 0;  // what NCCL is at work on comes too late
      each->capturing = nullptr;
    }
    for (event& each : in.events_)
      if (each.captured.in == &one) each.captured = {};
    one.origin = nullptr;
    in.wake_hosts();  // an abort may wait for the end of the capture
    if (one.invalid) return cudaErrorStreamCaptureInvalidated;
    if (!all_joined(one)) return cudaErrorStreamCaptureUnjoined;
    for (stream const* each : one.streams) one.body.lanes.push_back({each->device, each->of});
    in.graphs_.push_back({.body = std::make_shared<graph_body const>(std::move(one.body))});
    *graph = static_cast<cudaGraph_t>(in.handle_for(graph_tag, in.graphs_.size() - 1));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return enter(function::cudaStreamIsCapturing, [&](machine& in, host_state&) {
    stream* on = in.find(handle, "cudaStreamIsCapturing");
    if (on == nullptr) return in.error_of(handle);
    *status = on->capturing == nullptr ? cudaStreamCaptureStatusNone
              : on->capturing->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  return enter(function::cudaGraphInstantiate, [&](machine& in, host_state&) {
    graph_object* from = find_graph(in, in.graphs_, graph_tag, graph, "cudaGraphInstantiate");
    if (from == nullptr) return cudaErrorInvalidValue;
    graph_object made_one{.body = from->body};
    if (!in.make_lanes(made_one)) return cudaErrorMemoryAllocation;
    in.execs_.push_back(std::move(made_one));
    *made = static_cast<cudaGraphExec_t>(in.handle_for(exec_tag, in.execs_.size() - 1));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  return enter(function::cudaGraphLaunch, [&](machine& in, host_state&) {
    graph_object* object = find_graph(in, in.execs_, exec_tag, exec, "cudaGraphLaunch");
    stream* on = in.find(handle, "cudaGraphLaunch");
    if (on == nullptr) return in.error_of(handle);
    if (object == nullptr) return cudaErrorInvalidResourceHandle;
    if (on->capturing != nullptr) {
      in.fault("capture: the model captures no launches of graphs");
      return cudaErrorStreamCaptureUnsupported;
    }
    for (graph_body::lane const& lane : object->body->lanes) {
      if (lane.of != nullptr && !lane.of->alive && !lane.of->aborted) {
        in.fault("nccl: a graph is launched whose communicator was destroyed");
        return cudaErrorInvalidValue;
      }
    }
    // Its nodes touch memory that must still be there.
    for (graph_body::node const& node : object->body->nodes) {
      for (byte_access const& each : node.work.accesses) {
        if (in.memory_[each.allocation].freed) {
          in.fault(
              "memory: " + text_of(node.work.label) + " in a launched graph touches allocation " +
              std::to_string(each.allocation) + ", which has been freed");
          return cudaErrorInvalidValue;
        }
      }
    }
    return in.launch_graph(*object, *on);
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return enter(function::cudaGraphDestroy, [&](machine& in, host_state&) {
    graph_object* one = find_graph(in, in.graphs_, graph_tag, graph, "cudaGraphDestroy");
    if (one == nullptr) return cudaErrorInvalidValue;
    one->alive = false;
    in.wake_hosts();  // an abort may wait for this
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return enter(function::cudaGraphExecDestroy, [&](machine& in, host_state&) {
    graph_object* one = find_graph(in, in.execs_, exec_tag, exec, "cudaGraphExecDestroy");
    if (one == nullptr) return cudaErrorInvalidValue;
    one->alive = false;
    in.wake_hosts();  // an abort may wait for this
    return cudaSuccess;
  });
}

}  // extern "C"
