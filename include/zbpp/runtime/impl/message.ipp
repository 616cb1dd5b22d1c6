// SPDX-License-Identifier: Apache-2.0
//
// What a message is made of, and what it refuses.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/message.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace zbpp {

[[nodiscard]] ZBPP_INLINE message
message::copy_of(std::span<std::uint64_t const> sizes, std::byte const* from, arena& memory) {
  message made;
  for (auto const size : sizes) {
    auto own = size == no_buffer ? buffer{} : memory.allocate(size, purpose::edge);
    if (own.size() > 0) std::memcpy(own.data(), from, own.size());
    from += own.size();
    made.append(std::move(own));
  }
  return made;
}

ZBPP_INLINE void message::refuse_more() {
  throw error(errc::wrong_size, "a message carries at most 8 buffers, or one object");
}

ZBPP_INLINE void message::refuse_object() const {
  throw error(
      errc::bad_argument,
      has_object()
          ? "a message holds an object of another type than it is asked for; ask for the type "
            "that make_edge was given"
      : size_ == 0
          ? "a message holds nothing, as on a stage that nobody sends to; ask it for no object"
          : "a message holds memory and no object; make it with make_edge, and specialize "
            "zbpp::serializer for its type if it comes from another process");
}

}  // namespace zbpp
