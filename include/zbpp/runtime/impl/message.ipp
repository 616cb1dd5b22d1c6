// SPDX-License-Identifier: Apache-2.0
//
// What a message refuses.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/message.hpp>

namespace zbpp {

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
