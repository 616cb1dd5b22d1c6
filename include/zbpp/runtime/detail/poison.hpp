// SPDX-License-Identifier: Apache-2.0
//
// Marks pooled memory that nobody owns, so that AddressSanitizer catches a stale pointer at once.
// Without the sanitizer this is nothing.
#pragma once

#include <zbpp/config.hpp>

#include <cstddef>

#if defined(ZBPP_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace zbpp::detail {

/// Makes any use of some memory an error.
inline void poison([[maybe_unused]] void* at, [[maybe_unused]] std::size_t size) noexcept {
#if defined(ZBPP_ADDRESS_SANITIZER)
  __asan_poison_memory_region(at, size);
#endif
}

/// Makes memory fit for use.
inline void unpoison([[maybe_unused]] void* at, [[maybe_unused]] std::size_t size) noexcept {
#if defined(ZBPP_ADDRESS_SANITIZER)
  __asan_unpoison_memory_region(at, size);
#endif
}

}  // namespace zbpp::detail
