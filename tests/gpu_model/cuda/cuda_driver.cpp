// SPDX-License-Identifier: Apache-2.0
//
// The driver's entry points that green contexts need, as a GPU with SMs in groups of 8 has them.
#include "entry.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <string_view>

// Descriptors of the driver are opaque to its callers.
struct CUdevResourceDesc_st {
  unsigned first_sm;
  unsigned sms;
};

using namespace zbpp::cuda_model;

namespace {

constexpr unsigned granularity = 8;  // of an SM partition, on compute capability 9.x

/// What the model keeps in the padding of a resource.
struct origin {
  unsigned first_sm = 0;
  unsigned split = 0;  // which split made it; 0: the whole device
};

origin origin_of(CUdevResource const& one) {
  origin from;
  std::memcpy(&from, one._internal_padding, sizeof from);
  return from;
}

CUdevResource resource(unsigned first_sm, unsigned sms, unsigned split) {
  CUdevResource made;
  std::memset(&made, 0, sizeof made);
  made.type = CU_DEV_RESOURCE_TYPE_SM;
  made.sm.smCount = sms;
  made.sm.minSmPartitionSize = granularity;
  made.sm.smCoscheduledAlignment = granularity;
  origin const from{first_sm, split};
  std::memcpy(made._internal_padding, &from, sizeof from);
  return made;
}

/// Enters a function of the driver; CUresult and cudaError_t share their numbers.
template <class Body>
CUresult enter_driver(zbpp::cuda_model::function call, Body&& body) {
  return static_cast<CUresult>(enter(call, [&](machine& in, host_state& self) {
    return static_cast<cudaError_t>(body(in, self));
  }));
}

CUresult CUDAAPI device_get(CUdevice* device, int ordinal) {
  return enter_driver(function::cuDeviceGet, [&](machine& in, host_state&) {
    if (ordinal < 0 || ordinal >= in.options_.devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI device_resource(CUdevice device, CUdevResource* result, CUdevResourceType type) {
  return enter_driver(function::cuDeviceGetDevResource, [&](machine& in, host_state&) {
    if (device < 0 || device >= in.options_.devices) return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *result = resource(0, static_cast<unsigned>(in.options_.sm_count), 0);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI split_by_count(
    CUdevResource* result,
    unsigned* groups,
    CUdevResource const* input,
    CUdevResource* remaining,
    unsigned flags,
    unsigned least) {
  return enter_driver(function::cuDevSmResourceSplitByCount, [&](machine& in, host_state&) {
    unsigned const known = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                           CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    if (groups == nullptr || input == nullptr || (flags & ~known) != 0)
      return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (origin_of(*input).split != 0 || least > input->sm.smCount)
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned const size =
        std::max(granularity, (least + granularity - 1) / granularity * granularity);
    unsigned const most = input->sm.smCount / size;
    if (result == nullptr) {  // a question: how many would it be
      *groups = most;
      return CUDA_SUCCESS;
    }
    unsigned const split = ++in.splits_;
    *groups = std::min(*groups, most);
    for (unsigned group = 0; group < *groups; ++group)
      result[group] = resource(group * size, size, split);
    if (remaining != nullptr)
      *remaining = resource(*groups * size, input->sm.smCount - *groups * size, split);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI generate_desc(CUdevResourceDesc* made, CUdevResource* resources, unsigned count) {
  return enter_driver(function::cuDevResourceGenerateDesc, [&](machine& in, host_state&) {
    if (made == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    unsigned first = origin_of(resources[0]).first_sm;
    unsigned sms = 0;
    for (unsigned at = 0; at < count; ++at) {
      if (resources[at].type != CU_DEV_RESOURCE_TYPE_SM || resources[at].sm.smCount == 0)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
      if (origin_of(resources[at]).split != origin_of(resources[0]).split)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
      first = std::min(first, origin_of(resources[at]).first_sm);
      sms += resources[at].sm.smCount;
    }
    in.descriptors_.push_back(
        std::make_shared<CUdevResourceDesc_st>(CUdevResourceDesc_st{first, sms}));
    *made = static_cast<CUdevResourceDesc>(in.descriptors_.back().get());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI
green_create(CUgreenCtx* made, CUdevResourceDesc desc, CUdevice device, unsigned flags) {
  return enter_driver(function::cuGreenCtxCreate, [&](machine& in, host_state&) {
    if (device < 0 || device >= in.options_.devices) return CUDA_ERROR_INVALID_DEVICE;
    if (made == nullptr || desc == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM)
      return CUDA_ERROR_INVALID_VALUE;
    for (green_context const& other : in.greens_) {
      if (other.alive && other.device == device && other.first_sm < desc->first_sm + desc->sms &&
          desc->first_sm < other.first_sm + other.sms) {
        in.fault("green: two live green contexts share SMs; one split gives disjoint ones");
      }
    }
    in.greens_.push_back(
        {true, static_cast<int>(in.greens_.size()), device, desc->first_sm, desc->sms});
    *made = static_cast<CUgreenCtx>(in.handle_for(green_tag, in.greens_.size() - 1));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI green_stream(CUstream* made, CUgreenCtx context, unsigned flags, int priority) {
  return enter_driver(function::cuGreenCtxStreamCreate, [&](machine& in, host_state&) {
    green_context* from = in.find_in(in.greens_, green_tag, context);
    if (from == nullptr || !from->alive) {
      in.fault("handle: cuGreenCtxStreamCreate of what is no live green context");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (made == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    return static_cast<CUresult>(
        in.new_stream(made, cudaStreamNonBlocking, priority, from->device, from->index));
  });
}

CUresult CUDAAPI green_of_stream(CUstream handle, CUgreenCtx* home) {
  return enter_driver(function::cuStreamGetGreenCtx, [&](machine& in, host_state&) {
    stream const* on = in.find(handle, "cuStreamGetGreenCtx");
    if (on == nullptr || home == nullptr)
      return on == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *home = on->green < 0 ? nullptr
                          : static_cast<CUgreenCtx>(
                                in.handle_for(green_tag, static_cast<std::size_t>(on->green)));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI green_destroy(CUgreenCtx context) {
  return enter_driver(function::cuGreenCtxDestroy, [&](machine& in, host_state&) {
    green_context* one = in.find_in(in.greens_, green_tag, context);
    if (one == nullptr || !one->alive) {
      in.fault("handle: cuGreenCtxDestroy of what is no live green context");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    for (stream const& each : in.streams_) {
      if (each.alive && each.green >= 0 &&
          &in.greens_[static_cast<std::size_t>(each.green)] == one) {
        in.fault(
            "handle: a green context is destroyed before its stream " + std::to_string(each.index));
      }
    }
    one->alive = false;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI error_name(CUresult error, char const** text) {
  switch (error) {
    case CUDA_SUCCESS: *text = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_INVALID_DEVICE: *text = "CUDA_ERROR_INVALID_DEVICE"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *text = "CUDA_ERROR_NOT_SUPPORTED"; break;
    case CUDA_ERROR_INVALID_RESOURCE_TYPE: *text = "CUDA_ERROR_INVALID_RESOURCE_TYPE"; break;
    case CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION:
      *text = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION";
      break;
    default: *text = nullptr; return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

struct entry_point {
  std::string_view name;
  unsigned since;  // the version of CUDA that brought it
  void* address;
};

template <class Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(
    char const* symbol,
    void** address,
    unsigned int version,
    unsigned long long,
    cudaDriverEntryPointQueryResult* status) {
  return enter(function::cudaGetDriverEntryPointByVersion, [&](machine& in, host_state&) {
    if (symbol == nullptr || address == nullptr) return cudaErrorInvalidValue;
    entry_point const known[] = {
        {"cuDeviceGet", 2000, address_of(device_get)},
        {"cuGetErrorName", 6000, address_of(error_name)},
        {"cuDeviceGetDevResource", 12040, address_of(device_resource)},
        {"cuDevSmResourceSplitByCount", 12040, address_of(split_by_count)},
        {"cuDevResourceGenerateDesc", 12040, address_of(generate_desc)},
        {"cuGreenCtxCreate", 12040, address_of(green_create)},
        {"cuGreenCtxDestroy", 12040, address_of(green_destroy)},
        {"cuGreenCtxStreamCreate", 12050, address_of(green_stream)},
        {"cuStreamGetGreenCtx", 12040, address_of(green_of_stream)},
    };
    *address = nullptr;
    auto result = cudaDriverEntryPointSymbolNotFound;
    for (entry_point const& one : known) {
      if (one.name == symbol && (in.options_.green_contexts || one.since < 12040)) {
        bool const enough = version >= one.since;
        result = enough ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
        *address = enough ? one.address : nullptr;
      }
    }
    if (status != nullptr) *status = result;
    return cudaSuccess;
  });
}
