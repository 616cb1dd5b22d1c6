// SPDX-License-Identifier: Apache-2.0
//
// Devices, errors and memory of the model's CUDA runtime.
#include "entry.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

using namespace zbpp::cuda_model;

namespace {

bool is_device(machine const& in, int device) {
  return device >= 0 && device < in.options_.devices;
}

cudaError_t answer(int* into, int value) {
  if (into == nullptr) return cudaErrorInvalidValue;
  *into = value;
  return cudaSuccess;
}

cudaError_t new_memory(
    machine& in, void** made, std::size_t bytes, int device, host_state const& by) {
  if (made == nullptr) return cudaErrorInvalidValue;
  *made = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (cudaError_t const error = in.drain(by.device); error != cudaSuccess) return error;
  std::size_t const limit = in.options_.device_bytes;
  if (device != pinned && limit > 0 && in.memory_.bytes_on(device) + bytes > limit)
    return cudaErrorMemoryAllocation;
  *made = in.memory_.allocate(bytes, device);
  return cudaSuccess;
}

cudaError_t free_memory(
    machine& in, void* data, bool host, char const* by, host_state const& self) {
  if (data == nullptr) return cudaSuccess;
  allocation* one = in.memory_.beginning_at(data);
  if (one == nullptr || one->freed || (one->device == pinned) != host) {
    in.fault(
        "memory: " + std::string(by) +
        (one != nullptr && one->freed ? " of what was freed before"
                                      : " of what is no such allocation"));
    return cudaErrorInvalidValue;
  }
  std::string const name = "allocation " + std::to_string(in.memory_.index_of(*one));
  if (in.is_captured_by_nccl(in.memory_.index_of(*one))) {
    in.fault(
        "nccl: " + std::string(by) + " of " + name +
        ", which a graph has messages in, and NCCL may have mapped it into other processes");
  }
  if (one->pending > 0) {
    in.fault(
        "memory: " + std::string(by) + " of " + name + ", which " + std::to_string(one->pending) +
        " pending operations touch");
  } else {
    // What has run in this interleaving may not have in another: the host must know.
    auto const unknown = [&](note const& author) { return !in.is_over(author); };
    for (allocation::segment const& part : one->segments) {
      bool const reader = std::any_of(part.readers.begin(), part.readers.end(), unknown);
      if (reader || unknown(part.writer)) {
        in.fault(
            "race: " + std::string(by) + " of " + name + " while the host does not know that " +
            text_of(
                reader ? std::find_if(part.readers.begin(), part.readers.end(), unknown)->label
                       : part.writer.label) +
            " has ended");
        break;
      }
    }
  }
  one->freed = true;
  in.drain(one->device == pinned ? self.device : one->device);
  return cudaSuccess;
}

char const* name_of(cudaError_t error) {
  switch (error) {
#define ZBPP_CUDA_MODEL_NAME(error)                                                                \
  case error: return #error
    ZBPP_CUDA_MODEL_NAME(cudaSuccess);
    ZBPP_CUDA_MODEL_NAME(cudaErrorInvalidValue);
    ZBPP_CUDA_MODEL_NAME(cudaErrorMemoryAllocation);
    ZBPP_CUDA_MODEL_NAME(cudaErrorInitializationError);
    ZBPP_CUDA_MODEL_NAME(cudaErrorNoDevice);
    ZBPP_CUDA_MODEL_NAME(cudaErrorInvalidDevice);
    ZBPP_CUDA_MODEL_NAME(cudaErrorInsufficientDriver);
    ZBPP_CUDA_MODEL_NAME(cudaErrorInvalidResourceHandle);
    ZBPP_CUDA_MODEL_NAME(cudaErrorContextIsDestroyed);
    ZBPP_CUDA_MODEL_NAME(cudaErrorNotReady);
    ZBPP_CUDA_MODEL_NAME(cudaErrorIllegalAddress);
    ZBPP_CUDA_MODEL_NAME(cudaErrorLaunchFailure);
    ZBPP_CUDA_MODEL_NAME(cudaErrorLaunchTimeout);
    ZBPP_CUDA_MODEL_NAME(cudaErrorLaunchOutOfResources);
    ZBPP_CUDA_MODEL_NAME(cudaErrorECCUncorrectable);
    ZBPP_CUDA_MODEL_NAME(cudaErrorMisalignedAddress);
    ZBPP_CUDA_MODEL_NAME(cudaErrorPeerAccessAlreadyEnabled);
    ZBPP_CUDA_MODEL_NAME(cudaErrorPeerAccessNotEnabled);
    ZBPP_CUDA_MODEL_NAME(cudaErrorPeerAccessUnsupported);
    ZBPP_CUDA_MODEL_NAME(cudaErrorTooManyPeers);
    ZBPP_CUDA_MODEL_NAME(cudaErrorDeviceUninitialized);
    ZBPP_CUDA_MODEL_NAME(cudaErrorMapBufferObjectFailed);
    ZBPP_CUDA_MODEL_NAME(cudaErrorHostMemoryAlreadyRegistered);
    ZBPP_CUDA_MODEL_NAME(cudaErrorHostMemoryNotRegistered);
    ZBPP_CUDA_MODEL_NAME(cudaErrorNotSupported);
    ZBPP_CUDA_MODEL_NAME(cudaErrorNotPermitted);
    ZBPP_CUDA_MODEL_NAME(cudaErrorStreamCaptureUnsupported);
    ZBPP_CUDA_MODEL_NAME(cudaErrorStreamCaptureInvalidated);
    ZBPP_CUDA_MODEL_NAME(cudaErrorStreamCaptureMerge);
    ZBPP_CUDA_MODEL_NAME(cudaErrorStreamCaptureUnmatched);
    ZBPP_CUDA_MODEL_NAME(cudaErrorStreamCaptureUnjoined);
    ZBPP_CUDA_MODEL_NAME(cudaErrorStreamCaptureIsolation);
    ZBPP_CUDA_MODEL_NAME(cudaErrorCapturedEvent);
#undef ZBPP_CUDA_MODEL_NAME
    default: return "unrecognized error code";
  }
}

cudaError_t append_copy(
    machine& in,
    void* to,
    void const* from,
    std::size_t bytes,
    cudaStream_t stream_handle,
    char const* label,
    byte_access* target,
    byte_access* source) {
  stream* on = in.find(stream_handle, label);
  if (on == nullptr) return in.error_of(stream_handle);
  operation& one = in.make(kind::copy, {label, static_cast<int>(on->issued)}, *on);
  if (!in.touches(one, from, bytes, false) || !in.touches(one, to, bytes, true)) {
    in.discard(one);
    return cudaErrorInvalidValue;
  }
  if (bytes == 0) {
    in.discard(one);
    return cudaSuccess;
  }
  *source = one.accesses[0];
  *target = one.accesses[1];
  if (source->allocation == target->allocation && source->begin < target->end &&
      target->begin < source->end) {
    in.fault("memory: " + text_of(one.label) + " copies bytes onto themselves");
    in.discard(one);
    return cudaErrorInvalidValue;
  }
  one.to = to;
  one.from = from;
  one.bytes = bytes;
  one.ns = in.options_.copy_ns + in.options_.copy_ns_per_byte * static_cast<std::int64_t>(bytes);
  return in.append(one);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return enter(function::cudaGetDeviceCount, [&](machine& in, host_state&) {
    return answer(count, in.options_.devices);
  });
}

cudaError_t cudaGetDevice(int* device) {
  return enter(function::cudaGetDevice, [&](machine&, host_state& self) {
    return answer(device, self.device);
  });
}

cudaError_t cudaSetDevice(int device) {
  return enter(function::cudaSetDevice, [&](machine& in, host_state& self) {
    if (!is_device(in, device)) return cudaErrorInvalidDevice;
    self.device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return enter(function::cudaDeviceGetAttribute, [&](machine& in, host_state&) {
    if (!is_device(in, device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount: return answer(value, in.options_.sm_count);
      case cudaDevAttrComputeCapabilityMajor: return answer(value, 9);
      case cudaDevAttrComputeCapabilityMinor: return answer(value, 0);
      case cudaDevAttrWarpSize: return answer(value, 32);
      case cudaDevAttrMaxThreadsPerBlock: return answer(value, 1024);
      case cudaDevAttrAsyncEngineCount: return answer(value, 3);
      case cudaDevAttrConcurrentKernels:
      case cudaDevAttrStreamPrioritiesSupported:
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrMemoryPoolsSupported: return answer(value, 1);
      default: return answer(value, 0);
    }
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return enter(function::cudaDeviceGetPCIBusId, [&](machine& in, host_state&) {
    if (id == nullptr || length < 13) return cudaErrorInvalidValue;
    if (!is_device(in, device)) return cudaErrorInvalidDevice;
    auto const bus = static_cast<unsigned>(device / in.options_.instances_of_gpu + 1) & 0xffU;
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", bus);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return enter(function::cudaDeviceGetStreamPriorityRange, [&](machine&, host_state&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return enter(function::cudaDeviceCanAccessPeer, [&](machine& in, host_state&) {
    if (!is_device(in, device) || !is_device(in, peer)) return cudaErrorInvalidDevice;
    return answer(can, device != peer && in.options_.peer_access ? 1 : 0);
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return enter(function::cudaDeviceEnablePeerAccess, [&](machine& in, host_state& self) {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!is_device(in, peer) || peer == self.device) return cudaErrorInvalidDevice;
    if (!in.options_.peer_access) return cudaErrorPeerAccessUnsupported;
    if (in.has_access(self.device, peer)) return cudaErrorPeerAccessAlreadyEnabled;
    in.peers_[static_cast<std::size_t>(self.device)][static_cast<std::size_t>(peer)] = true;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return enter(function::cudaDeviceDisablePeerAccess, [&](machine& in, host_state& self) {
    if (!is_device(in, peer)) return cudaErrorInvalidDevice;
    if (!in.has_access(self.device, peer)) return cudaErrorPeerAccessNotEnabled;
    in.peers_[static_cast<std::size_t>(self.device)][static_cast<std::size_t>(peer)] = false;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return enter(function::cudaRuntimeGetVersion, [&](machine&, host_state&) {
    return answer(version, CUDART_VERSION);
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return enter(function::cudaDriverGetVersion, [&](machine& in, host_state&) {
    return answer(version, in.options_.green_contexts ? CUDART_VERSION : 12030);
  });
}

cudaError_t cudaGetLastError() {
  return enter(
      function::cudaGetLastError,
      [](machine&, host_state& self) { return std::exchange(self.last_error, cudaSuccess); },
      error_report{});
}

cudaError_t cudaPeekAtLastError() {
  return enter(
      function::cudaPeekAtLastError,
      [](machine&, host_state& self) { return self.last_error; },
      error_report{});
}

char const* cudaGetErrorName(cudaError_t error) { return name_of(error); }

char const* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : name_of(error);
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return enter(function::cudaMalloc, [&](machine& in, host_state& self) {
    cudaError_t const captured = in.unsafe_in_capture(self);
    return captured != cudaSuccess ? captured : new_memory(in, data, bytes, self.device, self);
  });
}

cudaError_t cudaFree(void* data) {
  return enter(function::cudaFree, [&](machine& in, host_state& self) {
    cudaError_t const captured = in.unsafe_in_capture(self);
    return captured != cudaSuccess ? captured : free_memory(in, data, false, "cudaFree", self);
  });
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned int flags) {
  return enter(function::cudaHostAlloc, [&](machine& in, host_state& self) {
    cudaError_t error = in.unsafe_in_capture(self);
    if (error == cudaSuccess) error = new_memory(in, data, bytes, pinned, self);
    if (error == cudaSuccess && bytes > 0)
      in.memory_.beginning_at(*data)->mapped = (flags & cudaHostAllocMapped) != 0;
    return error;
  });
}

cudaError_t cudaHostGetDevicePointer(void** on_device, void* data, unsigned int flags) {
  return enter(function::cudaHostGetDevicePointer, [&](machine& in, host_state&) {
    allocation const* one = in.memory_.beginning_at(data);
    if (on_device == nullptr || flags != 0 || one == nullptr || one->freed || !one->mapped)
      return cudaErrorInvalidValue;
    *on_device = data;  // one address space
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* data) {
  return enter(function::cudaFreeHost, [&](machine& in, host_state& self) {
    cudaError_t const captured = in.unsafe_in_capture(self);
    return captured != cudaSuccess ? captured : free_memory(in, data, true, "cudaFreeHost", self);
  });
}

cudaError_t cudaMemcpyAsync(
    void* to, void const* from, std::size_t bytes, cudaMemcpyKind direction, cudaStream_t stream) {
  return enter(function::cudaMemcpyAsync, [&](machine& in, host_state&) {
    byte_access target;
    byte_access source;
    cudaError_t const error =
        append_copy(in, to, from, bytes, stream, "cudaMemcpyAsync", &target, &source);
    if (error != cudaSuccess || bytes == 0 || direction == cudaMemcpyDefault) return error;
    bool const from_host = in.memory_[source.allocation].device == pinned;
    bool const to_host = in.memory_[target.allocation].device == pinned;
    bool const says_from_host =
        direction == cudaMemcpyHostToDevice || direction == cudaMemcpyHostToHost;
    bool const says_to_host =
        direction == cudaMemcpyDeviceToHost || direction == cudaMemcpyHostToHost;
    if (from_host != says_from_host || to_host != says_to_host)
      in.fault("memory: cudaMemcpyAsync is told another direction than its memory has");
    return error;
  });
}

cudaError_t cudaMemcpyPeerAsync(
    void* to,
    int to_device,
    void const* from,
    int from_device,
    std::size_t bytes,
    cudaStream_t stream) {
  return enter(function::cudaMemcpyPeerAsync, [&](machine& in, host_state&) {
    byte_access target;
    byte_access source;
    cudaError_t const error =
        append_copy(in, to, from, bytes, stream, "cudaMemcpyPeerAsync", &target, &source);
    if (error == cudaSuccess && bytes > 0 &&
        (in.memory_[target.allocation].device != to_device ||
         in.memory_[source.allocation].device != from_device)) {
      in.fault("memory: cudaMemcpyPeerAsync is told other devices than its memory has");
    }
    return error;
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t handle) {
  return enter(function::cudaMemsetAsync, [&](machine& in, host_state&) {
    stream* on = in.find(handle, "cudaMemsetAsync");
    if (on == nullptr) return in.error_of(handle);
    operation& one = in.make(kind::set, {"cudaMemsetAsync", static_cast<int>(on->issued)}, *on);
    if (bytes == 0 || !in.touches(one, data, bytes, true)) {
      in.discard(one);
      return bytes == 0 ? cudaSuccess : cudaErrorInvalidValue;
    }
    one.to = data;
    one.value = value;
    one.bytes = bytes;
    one.ns = in.options_.copy_ns;
    return in.append(one);
  });
}

}  // extern "C"
