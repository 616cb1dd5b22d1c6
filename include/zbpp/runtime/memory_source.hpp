// SPDX-License-Identifier: Apache-2.0
//
// Where the memory of an arena comes from, and how its use is counted.
#pragma once

#include <zbpp/model/costs.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

namespace zbpp {

/// What a buffer counts as: kept by passes, on an edge, set aside for a message to come, or a
/// message in the arena of its sender, where it counts as an edge.
enum class purpose : std::uint8_t { activation, edge, receive, borrowed };

/// How many purposes there are.
inline constexpr std::size_t purposes = 4;

/// Tells how much of an arena is used, in bytes as asked for.
struct arena_usage {
  std::array<bytes, purposes> in_use{};  ///< by `purpose`
  std::array<bytes, purposes> peak{};    ///< by `purpose`, since the last `reset_peak`
  /// The most bytes of activations and edges at one time, since the last `reset_peak`. It is
  /// `memory_peak::total` where the costs declare neither static memory nor workspace, of which an
  /// arena knows nothing.
  bytes peak_total = 0;
  bytes reserved = 0;  ///< taken from the system so far
  int growths = 0;     ///< how often more was taken than `reserve` had set aside

  /// @return bytes in use now, for one purpose
  [[nodiscard]] bytes now(purpose use) const noexcept {
    return in_use[static_cast<std::size_t>(use)];
  }
  /// @return bytes of activations and edges in use now
  [[nodiscard]] bytes total() const noexcept {
    return now(purpose::activation) + now(purpose::edge);
  }
  /// @return the most bytes in use at one time, for one purpose
  [[nodiscard]] bytes most(purpose use) const noexcept {
    return peak[static_cast<std::size_t>(use)];
  }
};

/// Gives an arena its memory; from the heap by default.
struct memory_source {
  /// Gives `size` bytes, aligned to `alignment`. @throws std::bad_alloc
  void* (*take)(std::size_t size, std::uintptr_t context) = [](std::size_t size, std::uintptr_t) {
    return ::operator new(size, std::align_val_t{64});
  };
  /// Takes them back.
  void (*give_back)(void* memory, std::size_t size, std::uintptr_t context) noexcept =
      [](void* memory, std::size_t, std::uintptr_t) noexcept {
        ::operator delete(memory, std::align_val_t{64});
      };
  std::uintptr_t context = 0;  ///< handed to both; what it names outlives all buffers
  std::size_t alignment = 64;  ///< of every buffer, in bytes; a multiple of 64
  bool is_host = true;         ///< whether the host may touch the memory
};

}  // namespace zbpp
