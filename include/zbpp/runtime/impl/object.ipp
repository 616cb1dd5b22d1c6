// SPDX-License-Identifier: Apache-2.0
//
// How an object becomes bytes.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/object.hpp>

#include <cstddef>

namespace zbpp {

ZBPP_INLINE buffer object::to_bytes() const {
  auto* const piece = place_.piece_;
  auto const& type = *piece->object;
  if (type.wire_size == nullptr)
    throw error(errc::bad_argument) + "an object of a type without zbpp::serializer cannot go to "
                                      "another process; specialize zbpp::serializer for the type";
  auto const size = type.wire_size(piece->data);
  if (size > piece->size)
    throw error(errc::wrong_size) + "an object that counts as " + piece->size + " bytes takes " +
        size + " to send; make it with the size that its serializer states";
  piece->owner->recount(piece, 0);
  buffer written(piece->owner->allocate(size, piece->use));
  type.write(piece->data, {written.data(), size});
  return written;
}

}  // namespace zbpp
