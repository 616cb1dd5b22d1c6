// SPDX-License-Identifier: Apache-2.0
//
// What processes share in the model: memory of devices by handles, pages of the host, and words
// that streams wait for. A process is whoever has the same device current, or says that it is.
#include "entry.hpp"

#include <cuda.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

// The model knows functions of the driver by the names that programs ask for.
#undef cuStreamWaitValue32
#undef cuStreamWriteValue32

using namespace zbpp::cuda_model;

namespace zbpp::cuda_model {

namespace {

std::uint32_t value_at(void const* word) {
  return __atomic_load_n(static_cast<std::uint32_t const*>(word), __ATOMIC_ACQUIRE);
}

/// The comparison of CUDA: cyclic, so that counters may wrap around.
bool reaches(std::uint32_t value, std::uint32_t wanted) {
  return static_cast<std::int32_t>(value - wanted) >= 0;
}

/// What the kernel says of the file that is mapped at an address: two views of a page have one
/// text.
std::string file_at(std::byte const* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::uintptr_t offset = 0;
    char device[16];
    std::uint64_t inode = 0;
    if (std::sscanf(
            line.c_str(),
            "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNxPTR " %15s %" SCNu64,
            &begin,
            &end,
            &offset,
            device,
            &inode) != 5) {
      continue;
    }
    auto const at = reinterpret_cast<std::uintptr_t>(address);
    if (begin <= at && at < end && inode != 0) {
      return std::string(device) + " " + std::to_string(inode) + " " +
             std::to_string(offset + (at - begin));
    }
  }
  return "memory at " + std::to_string(reinterpret_cast<std::uintptr_t>(address));
}

/// A handle as the model writes it.
struct exported {
  std::uint32_t generation;
  std::uint32_t allocation;
  int process;
};

template <class Append>
CUresult on_word(
    zbpp::cuda_model::function call, CUstream handle, CUdeviceptr address, Append&& append) {
  return static_cast<CUresult>(enter(call, [&](machine& in, host_state&) {
    char const* const name = fact_of(call).name.data();
    stream* on = in.find(handle, name);
    if (on == nullptr) return in.error_of(handle);
    auto* const word = reinterpret_cast<void*>(address);
    if (on->capturing != nullptr || in.find_word(word, name) == nullptr)
      return cudaErrorInvalidValue;
    return append(in, *on, word);
  }));
}

}  // namespace

shared_word* machine::find_word(void const* address, char const* by) {
  auto const* const at = static_cast<std::byte const*>(address);
  for (registration const& one : registrations_)
    if (one.alive && one.begin <= at && at + sizeof(std::uint32_t) <= one.begin + one.bytes)
      return &words_[{one.page, static_cast<std::size_t>(at - one.begin)}];
  fault("memory: " + std::string(by) + " names a word that is not in registered memory");
  return nullptr;
}

bool machine::has_value(operation const& one) const {
  return reaches(value_at(one.to), static_cast<std::uint32_t>(one.value));
}

void machine::write_value(operation& one, stream& on) {
  if (shared_word* const word = find_word(one.to, "cuStreamWriteValue32"); word != nullptr) {
    auto const value = static_cast<std::uint32_t>(one.value);
    word->writes.push_back({value, on.clock, on.ns});
    __atomic_store_n(static_cast<std::uint32_t*>(one.to), value, __ATOMIC_RELEASE);
  }
  look_at_words();
}

void machine::wait_for_value(operation& one, stream& on) {
  shared_word* const word = find_word(one.to, "cuStreamWaitValue32");
  if (word == nullptr) return;
  // Only the first write that is enough is sure to have run, whatever has by now. Where there is
  // none, a host has written the value, and orders nothing.
  auto const enough = std::find_if(word->writes.begin(), word->writes.end(), [&](auto const& each) {
    return reaches(each.value, static_cast<std::uint32_t>(one.value));
  });
  if (enough != word->writes.end()) {
    on.clock.join(enough->clock);
    on.ns = on.queue->ns = std::max(on.ns, enough->ns);
  }
}

void machine::look_at_words() {
  auto const has_all = [this](stream* one) {
    if (!has_value(*one->head)) return false;
    one->head->parked = false;
    return true;
  };
  for (std::size_t i = 0; i < at_words_.size();) {
    stream* const one = at_words_[i];
    if (has_all(one)) {
      at_words_.erase(at_words_.begin() + static_cast<std::ptrdiff_t>(i));
      consider(one);
    } else {
      ++i;
    }
  }
}

CUresult CUDAAPI
stream_write_value(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return on_word(
      function::cuStreamWriteValue32, handle, address, [&](machine& in, stream& on, void* word) {
        if (flags != CU_STREAM_WRITE_VALUE_DEFAULT) {
          in.fault("memory: cuStreamWriteValue32 takes no flags in the second version of its API");
          return cudaErrorInvalidValue;
        }
        operation& one =
            in.make(kind::write_value, {"write of a value", static_cast<int>(value)}, on);
        one.to = word;
        one.value = static_cast<int>(value);
        return in.append(one);
      });
}

CUresult CUDAAPI
stream_wait_value(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return on_word(
      function::cuStreamWaitValue32, handle, address, [&](machine& in, stream& on, void* word) {
        if ((flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH)) !=
            CU_STREAM_WAIT_VALUE_GEQ) {
          in.fault("memory: the model knows waits for a value that is reached only");
          return cudaErrorInvalidValue;
        }
        operation& one = in.make(kind::wait_value, {"wait for value", static_cast<int>(value)}, on);
        one.to = word;
        one.value = static_cast<int>(value);
        return in.append(one);
      });
}

}  // namespace zbpp::cuda_model

extern "C" {

cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned int flags) {
  return enter(function::cudaHostRegister, [&](machine& in, host_state&) {
    if (data == nullptr || bytes == 0 ||
        (flags & ~static_cast<unsigned>(cudaHostRegisterPortable)) != cudaHostRegisterMapped) {
      return cudaErrorInvalidValue;
    }
    auto* const begin = static_cast<std::byte*>(data);
    for (registration const& one : in.registrations_)
      if (one.alive && begin < one.begin + one.bytes && one.begin < begin + bytes)
        return cudaErrorHostMemoryAlreadyRegistered;
    in.memory_.adopt(data, bytes, pinned).mapped = true;
    in.registrations_.push_back({true, begin, bytes, file_at(begin)});
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* data) {
  return enter(function::cudaHostUnregister, [&](machine& in, host_state&) {
    auto const found = std::find_if(
        in.registrations_.begin(), in.registrations_.end(), [&](registration const& one) {
          return one.alive && one.begin == data;
        });
    if (found == in.registrations_.end()) return cudaErrorHostMemoryNotRegistered;
    auto const is_in = [&](void const* word) {
      auto const* const at = static_cast<std::byte const*>(word);
      return found->begin <= at && at < found->begin + found->bytes;
    };
    for (stream const& on : in.streams_) {
      for (operation const* each = on.head; each != nullptr; each = each->next) {
        if ((each->type == kind::write_value || each->type == kind::wait_value) &&
            is_in(each->to)) {
          in.fault("memory: cudaHostUnregister of what " + text_of(each->label) + " still needs");
          return cudaErrorInvalidValue;
        }
      }
    }
    found->alive = false;
    in.memory_.disown(data);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  return enter(function::cudaIpcGetMemHandle, [&](machine& in, host_state& self) {
    allocation const* const one = in.memory_.beginning_at(data);
    if (handle == nullptr || one == nullptr || one->freed || one->device == pinned)
      return cudaErrorInvalidValue;
    if (!in.options_.shares_memory) return cudaErrorNotSupported;
    exported const shared{in.generation_, in.memory_.index_of(*one), self.process()};
    std::memset(handle, 0, sizeof(*handle));
    std::memcpy(handle, &shared, sizeof(shared));
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned int flags) {
  return enter(function::cudaIpcOpenMemHandle, [&](machine& in, host_state& self) {
    exported opened{};
    std::memcpy(&opened, &handle, sizeof(opened));
    if (data == nullptr || flags != cudaIpcMemLazyEnablePeerAccess ||
        opened.generation != in.generation_ || opened.allocation >= in.memory_.all().size()) {
      return cudaErrorInvalidValue;
    }
    allocation& one = in.memory_[opened.allocation];
    if (one.freed) return cudaErrorMapBufferObjectFailed;
    if (opened.process == self.process())
      return cudaErrorDeviceUninitialized;  // as CUDA has it for its own handles
    if (!in.options_.peer_access && one.device != self.device)
      return cudaErrorPeerAccessUnsupported;
    if (one.device / in.options_.devices_of_host != self.device / in.options_.devices_of_host)
      return cudaErrorMapBufferObjectFailed;
    ++one.imports;
    *data = one.storage.get();  // one address space
    return cudaSuccess;
  });
}

cudaError_t cudaIpcCloseMemHandle(void* data) {
  return enter(function::cudaIpcCloseMemHandle, [&](machine& in, host_state& self) {
    allocation* const one = in.memory_.beginning_at(data);
    if (one == nullptr || one->imports == 0) {
      in.fault("memory: cudaIpcCloseMemHandle of what is not open");
      return cudaErrorInvalidValue;
    }
    std::uint32_t const index = in.memory_.index_of(*one);
    for (stream const& on : in.streams_) {
      for (operation const* each = on.process == self.process() ? on.head : nullptr;
           each != nullptr;
           each = each->next) {
        for (byte_access const& touched : each->accesses) {
          if (touched.allocation == index) {
            in.fault(
                "memory: cudaIpcCloseMemHandle of allocation " + std::to_string(index) +
                ", which " + text_of(each->label) + " still needs");
          }
        }
      }
    }
    --one->imports;
    return cudaSuccess;
  });
}

}  // extern "C"
