// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the model's CUDA runtime.
#include "entry.hpp"

using namespace zbpp::cuda_model;

namespace {

cudaError_t make_stream(
    machine& in, host_state const& self, cudaStream_t* made, unsigned flags, int priority) {
  if (made == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
  return in.new_stream(made, flags, priority, self.device, -1);
}

/// Finds the stream, or says why a call may not have it.
template <class Body>
cudaError_t with_stream(function call, cudaStream_t handle, Body&& body) {
  return enter(call, [&](machine& in, host_state& self) {
    stream* on = in.find(handle, fact_of(call).name.data());
    if (on == nullptr) return in.error_of(handle);
    cudaError_t const error = body(in, self, *on);
    cudaError_t const sticky = in.sticky_[static_cast<std::size_t>(on->device)];
    return sticky != cudaSuccess ? sticky : error;
  });
}

template <class Body>
cudaError_t with_event(function call, cudaEvent_t handle, Body&& body) {
  return enter(call, [&](machine& in, host_state& self) {
    event* one = in.find(handle, fact_of(call).name.data());
    if (one == nullptr) return cudaErrorInvalidResourceHandle;
    cudaError_t const error = body(in, self, *one);
    cudaError_t const sticky = in.sticky_[static_cast<std::size_t>(one->device)];
    return sticky != cudaSuccess ? sticky : error;
  });
}

/// What waiting for (or asking about) an event or a stream in a capture gives.
cudaError_t captured(machine& in, host_state& self, capture* in_capture, cudaError_t otherwise) {
  if (in_capture != nullptr) {
    in_capture->invalid = true;
    return otherwise;
  }
  return in.unsafe_in_capture(self);
}

std::string text_of(event const& one) {
  return "event " + std::to_string(one.index) + " of device " + std::to_string(one.device);
}

/// @return why there is no time between two events; empty where there is one
std::string untimed(event const& first, event const& second) {
  for (event const* one : {&first, &second}) {
    if ((one->flags & cudaEventDisableTiming) != 0)
      return text_of(*one) + ", which was made with cudaEventDisableTiming";
    if (one->last == nullptr) return text_of(*one) + ", which was never recorded";
  }
  bool const is_one_clock = first.device == second.device;
  return is_one_clock ? "" : text_of(first) + " and " + text_of(second);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned int flags) {
  return enter(function::cudaStreamCreateWithFlags, [&](machine& in, host_state& self) {
    return make_stream(in, self, made, flags, 0);
  });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned int flags, int priority) {
  return enter(function::cudaStreamCreateWithPriority, [&](machine& in, host_state& self) {
    return make_stream(in, self, made, flags, priority);
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return with_stream(function::cudaStreamDestroy, handle, [](machine& in, host_state&, stream& on) {
    bool const dead = in.sticky_[static_cast<std::size_t>(on.device)] != cudaSuccess;
    if (!dead && !in.host_knows_done(on)) {
      in.fault(
          "handle: stream " + std::to_string(on.index) +
          " is destroyed while the host does not know that its work has ended (" +
          std::to_string(on.issued - on.done) + " operations are pending)");
    }
    on.alive = false;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return with_stream(
      function::cudaStreamSynchronize, handle, [](machine& in, host_state& self, stream& on) {
        if (cudaError_t const error =
                captured(in, self, on.capturing, cudaErrorStreamCaptureUnsupported);
            error != cudaSuccess) {
          return error;
        }
        in.check_not_deferred(on, "cudaStreamSynchronize");
        std::uint32_t const target = on.issued;
        cudaError_t const error = in.wait_until(on.device, [&] { return on.done >= target; });
        if (error == cudaSuccess) in.host_saw(on);
        return error;
      });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return with_stream(
      function::cudaStreamQuery, handle, [](machine& in, host_state& self, stream& on) {
        if (cudaError_t const error =
                captured(in, self, on.capturing, cudaErrorStreamCaptureUnsupported);
            error != cudaSuccess) {
          return error;
        }
        in.check_not_deferred(on, "cudaStreamQuery");
        if (on.done < on.issued) in.polled_in_vain();
        if (on.done < on.issued) return cudaErrorNotReady;
        in.host_saw(on);
        return cudaSuccess;
      });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  return with_stream(
      function::cudaStreamWaitEvent, handle, [&](machine& in, host_state&, stream& on) {
        event* one = in.find(event_handle, "cudaStreamWaitEvent");
        if (one == nullptr) return cudaErrorInvalidResourceHandle;
        if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;
        return in.wait_for_event(on, *one);
      });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned int* flags) {
  return with_stream(function::cudaStreamGetFlags, handle, [&](machine&, host_state&, stream& on) {
    *flags = on.flags;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return with_stream(
      function::cudaStreamGetPriority, handle, [&](machine&, host_state&, stream& on) {
        *priority = on.priority;
        return cudaSuccess;
      });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return with_stream(function::cudaStreamGetDevice, handle, [&](machine&, host_state&, stream& on) {
    *device = on.device;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t call, void* data) {
  return with_stream(
      function::cudaLaunchHostFunc, handle, [&](machine& in, host_state&, stream& on) {
        if (call == nullptr) return cudaErrorInvalidValue;
        operation& one =
            in.make(kind::host_function, {"host function", static_cast<int>(on.issued)}, on);
        one.call = call;
        one.to = data;
        return in.append(one);
      });
}

cudaError_t cudaDeviceSynchronize() {
  return enter(function::cudaDeviceSynchronize, [](machine& in, host_state& self) {
    if (cudaError_t const error = in.unsafe_in_capture(self); error != cudaSuccess) return error;
    for (stream& on : in.streams_) {
      if (on.device != self.device) continue;
      std::uint32_t const target = on.issued;
      cudaError_t const error = in.wait_until(on.device, [&] { return on.done >= target; });
      if (error != cudaSuccess) return error;
      in.host_saw(on);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned int flags) {
  return enter(function::cudaEventCreateWithFlags, [&](machine& in, host_state& self) {
    unsigned const known = cudaEventBlockingSync | cudaEventDisableTiming;
    if (made == nullptr || (flags & ~known) != 0) return cudaErrorInvalidValue;
    event& one = in.events_.emplace_back();
    one.index = static_cast<std::uint32_t>(in.events_.size() - 1);
    one.device = self.device;
    one.flags = flags;
    *made = in.handle_of(one);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return with_event(function::cudaEventDestroy, handle, [](machine& in, host_state&, event& one) {
    bool const dead = in.sticky_[static_cast<std::size_t>(one.device)] != cudaSuccess;
    bool const known = one.last == nullptr || one.last->epoch <= in.host_clock_[one.last->slot];
    if (!dead && (!known || one.waits > 0)) {
      in.fault(
          "handle: event " + std::to_string(one.index) +
          (known ? " is destroyed while streams still wait for it"
                 : " is destroyed while the host does not know that its record ran"));
    }
    in.hold(one.last, nullptr);
    one.alive = false;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return with_stream(
      function::cudaEventRecord, stream_handle, [&](machine& in, host_state&, stream& on) {
        event* one = in.find(handle, "cudaEventRecord");
        if (one == nullptr) return cudaErrorInvalidResourceHandle;
        if (one->device != on.device) {
          in.fault(
              "handle: " + text_of(*one) + " is recorded on stream " + std::to_string(on.index) +
              " of device " + std::to_string(on.device));
          return cudaErrorInvalidResourceHandle;
        }
        if (on.green >= 0 && !in.options_.green_events) return cudaErrorInvalidResourceHandle;
        if (on.capturing == nullptr && (one->flags & cudaEventBlockingSync) != 0) ++in.interrupts_;
        return in.record_event(on, *one);
      });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return with_event(
      function::cudaEventQuery, handle, [](machine& in, host_state& self, event& one) {
        if (cudaError_t const error = captured(in, self, one.captured.in, cudaErrorCapturedEvent);
            error != cudaSuccess) {
          return error;
        }
        if (one.last == nullptr) return cudaSuccess;
        if (!one.last->done) in.polled_in_vain();
        if (!one.last->done) return cudaErrorNotReady;
        in.host_saw(*one.last);
        return cudaSuccess;
      });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return with_event(
      function::cudaEventSynchronize, handle, [](machine& in, host_state& self, event& one) {
        if (cudaError_t const error = captured(in, self, one.captured.in, cudaErrorCapturedEvent);
            error != cudaSuccess) {
          return error;
        }
        if ((one.flags & cudaEventBlockingSync) == 0) {
          in.fault(
              "handle: the host spins on event " + std::to_string(one.index) +
              ", which was made without cudaEventBlockingSync");
        }
        if (one.last == nullptr) return cudaSuccess;
        record* target = nullptr;  // what is recorded next is another matter
        in.hold(target, one.last);
        cudaError_t const error = in.wait_until(one.device, [&] { return target->done; });
        if (error == cudaSuccess) in.host_saw(*target);
        in.hold(target, nullptr);
        return error;
      });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return with_event(
      function::cudaEventElapsedTime, from, [&](machine& in, host_state&, event& first) {
        event* second = in.find(to, "cudaEventElapsedTime");
        if (second == nullptr) return cudaErrorInvalidResourceHandle;
        if (milliseconds == nullptr) return cudaErrorInvalidValue;
        for (event const* one : {&first, second}) {
          if (one->captured.in == nullptr) continue;
          one->captured.in->invalid = true;
          return cudaErrorCapturedEvent;
        }
        if (std::string const wrong = untimed(first, *second); !wrong.empty()) {
          in.fault("handle: cudaEventElapsedTime of " + wrong);
          return cudaErrorInvalidResourceHandle;
        }
        if (!first.last->done || !second->last->done) {
          in.polled_in_vain();
          return cudaErrorNotReady;
        }
        *milliseconds =
            static_cast<float>(static_cast<double>(second->last->ns - first.last->ns) / 1e6);
        return cudaSuccess;
      });
}

}  // extern "C"
