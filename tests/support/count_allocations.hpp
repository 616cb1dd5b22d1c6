// SPDX-License-Identifier: Apache-2.0
//
// Replaces the global operator new by one that counts, and aligned_alloc, which Asio calls instead,
// for tests and benchmarks that claim to allocate nothing. Include it in exactly one source file of
// an executable.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace zbpp::test {

inline std::atomic<std::int64_t> allocations{0};
inline std::atomic<std::int64_t> allocated_bytes{0};

/// @return how often `act` took memory from the heap, on whatever thread
template <class Act>
[[nodiscard]] std::int64_t count_allocations(Act act) {
  auto const before = allocations.load();
  act();
  return allocations.load() - before;
}

/// @return how many bytes `act` took from the heap, on whatever thread
template <class Act>
[[nodiscard]] std::int64_t count_bytes(Act act) {
  auto const before = allocated_bytes.load();
  act();
  return allocated_bytes.load() - before;
}

[[nodiscard]] inline void* allocate_or_null(std::size_t size, std::size_t alignment) noexcept {
  ++allocations;
  allocated_bytes += static_cast<std::int64_t>(size);
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, std::max(size, std::size_t{1})) == 0 ? memory
                                                                                   : nullptr;
}

[[nodiscard]] inline void* allocate(std::size_t size, std::size_t alignment) {
  if (auto* memory = allocate_or_null(size, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace zbpp::test

// All forms are here, since those of a sanitizer do not call one another. They stay out of line:
// g++ 12 would take the pair that it sees inlined for a mistake.

// NOLINTBEGIN(misc-definitions-in-headers)
#define ZBPP_COUNTED [[gnu::noinline]] void
ZBPP_COUNTED* operator new(std::size_t size) {
  return zbpp::test::allocate(size, alignof(std::max_align_t));
}
ZBPP_COUNTED* operator new[](std::size_t size) {
  return zbpp::test::allocate(size, alignof(std::max_align_t));
}
ZBPP_COUNTED* operator new(std::size_t size, std::nothrow_t const&) noexcept {
  return zbpp::test::allocate_or_null(size, alignof(std::max_align_t));
}
ZBPP_COUNTED* operator new[](std::size_t size, std::nothrow_t const&) noexcept {
  return zbpp::test::allocate_or_null(size, alignof(std::max_align_t));
}
ZBPP_COUNTED* operator new(std::size_t size, std::align_val_t alignment) {
  return zbpp::test::allocate(size, static_cast<std::size_t>(alignment));
}
ZBPP_COUNTED* operator new[](std::size_t size, std::align_val_t alignment) {
  return zbpp::test::allocate(size, static_cast<std::size_t>(alignment));
}
ZBPP_COUNTED operator delete(void* memory) noexcept { std::free(memory); }
ZBPP_COUNTED operator delete[](void* memory) noexcept { std::free(memory); }
ZBPP_COUNTED operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
ZBPP_COUNTED operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
ZBPP_COUNTED operator delete(void* memory, std::nothrow_t const&) noexcept { std::free(memory); }
ZBPP_COUNTED operator delete[](void* memory, std::nothrow_t const&) noexcept { std::free(memory); }
ZBPP_COUNTED operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
ZBPP_COUNTED operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
ZBPP_COUNTED operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
ZBPP_COUNTED operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#undef ZBPP_COUNTED
extern "C" [[gnu::noinline]] void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  return zbpp::test::allocate_or_null(size, alignment);
}
// NOLINTEND(misc-definitions-in-headers)
