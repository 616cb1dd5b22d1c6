// SPDX-License-Identifier: Apache-2.0
//
// Where a pass runs: the place its compute goes to, and the memory it may take.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/object.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace zbpp {

/// Says what the native handle of a `pass_context` is.
enum class backend_kind : std::uint8_t {
  host,  ///< the calling thread; the native handle is null
  cuda,  ///< a CUDA stream; the native handle belongs to `zbpp::cuda`
};

/// Tells a pass where it runs; valid while the pass runs.
class pass_context {
 public:
  /// Names a place by its native handle and the arena of its rank.
  pass_context(
      arena& memory, backend_kind kind = backend_kind::host, void* native = nullptr) noexcept
      : memory_(&memory), native_(native), kind_(kind) {}

  /// Gives memory that the pass or later ones keep; not initialised, aligned to 64 bytes or more.
  /// It is memory of the place: of the device, where the place is on one.
  /// @throws std::bad_alloc when the arena has to grow and cannot
  [[nodiscard]] buffer allocate(std::size_t size) const {
    return memory_->allocate(size, purpose::activation);
  }
  /// Gives memory for what will be sent; counted among the edges.
  /// @throws std::bad_alloc when the arena has to grow and cannot
  [[nodiscard]] buffer allocate_edge(std::size_t size) const {
    return memory_->allocate(size, purpose::edge);
  }
  /// Makes an object that will be sent as it is, such as a tensor; counted among the edges. Inside
  /// a process the receiver gets the object itself, moved. To another process it goes by the
  /// `serializer` of its type.
  /// @param size  how many bytes it counts as; at least what the serializer states, if it has one
  /// @throws error (bad_argument) when `size` is negative, or this is a device; std::bad_alloc
  template <edge_object Value>
  [[nodiscard]] object make_edge(Value value, bytes size) const {
    return {*memory_, std::move(value), size, purpose::edge};
  }

  /// Counts memory that the pass has from elsewhere among that of its rank, while the result lives:
  /// keep it as long as the memory, in the flow for example. So `pipeline::memory` tells what a
  /// plan says, also where a library has an allocator of its own.
  /// @throws error (bad_argument) when `size` is negative
  [[nodiscard]] external_memory count_external(
      bytes size, purpose use = purpose::activation) const {
    return memory_->count_external(size, use);
  }

  [[nodiscard]] backend_kind kind() const noexcept { return kind_; }
  /// @return the backend's own handle; null on the host
  [[nodiscard]] void* native() const noexcept { return native_; }

 private:
  arena* memory_;
  void* native_;
  backend_kind kind_;
};

}  // namespace zbpp
