// SPDX-License-Identifier: Apache-2.0
//
// What a message refuses.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/message.hpp>

namespace zbpp {

ZBPP_INLINE void message::refuse_more() {
  throw error(errc::wrong_size, "a message carries at most 8 buffers");
}

}  // namespace zbpp
