// SPDX-License-Identifier: Apache-2.0
//
// What arenas and transports can do with an object whose type they do not know.
#pragma once

#include <cstddef>
#include <span>

namespace zbpp::detail {

/// Lists the operations of one type.
struct object_type {
  std::size_t size;
  void (*move)(void* to, void* from) noexcept;  // makes one; what is left is still to be destroyed
  void (*destroy)(void* value) noexcept;
  std::size_t (*wire_size)(void const* value);  // null where the type has no serializer
  void (*write)(void const* value, std::span<std::byte> to);
};

}  // namespace zbpp::detail
