// SPDX-License-Identifier: Apache-2.0
//
// Carries bytes between the members of a group of ranks, for authors of backends; members use a
// `group`, which makes collective calls of them.
#pragma once

#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace zbpp {

/// Names the collective calls of a group.
enum class group_call : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  barrier,
  exchange,
};

/// @return the name of the member of `group` that makes a call
[[nodiscard]] constexpr std::string_view to_string(group_call call) noexcept {
  switch (call) {
    case group_call::all_reduce: return "all_reduce";
    case group_call::reduce_scatter: return "reduce_scatter";
    case group_call::all_gather: return "all_gather";
    case group_call::broadcast: return "broadcast";
    case group_call::all_to_all: return "all_to_all";
    case group_call::barrier: return "barrier";
    case group_call::exchange: return "exchange";
  }
  return "what is no collective call";
}

/// Connects one member of a group with the others. Between two members bytes arrive in the order in
/// which they were sent. One thread at a time uses it, that of the rank; `fail` is for any thread.
class group_link {
 public:
  group_link(int place, int size) noexcept : place_(place), size_(size) {}
  group_link(group_link const&) = delete;
  group_link& operator=(group_link const&) = delete;
  virtual ~group_link() = default;

  /// @return which member this is, from 0
  [[nodiscard]] int place() const noexcept { return place_; }
  /// @return how many members there are
  [[nodiscard]] int size() const noexcept { return size_; }

  /// Sends a copy of some bytes, `head` in front of `body`, to another member. Never blocks.
  virtual void send(int to, std::span<std::byte const> head, std::span<std::byte const> body) = 0;
  /// @return whether the next bytes of another member are here
  /// @throws the failure of the run, if it has failed and they are not
  [[nodiscard]] virtual bool has_arrived(int from) = 0;
  /// Takes the next bytes of another member, which have arrived.
  virtual void take(int from, std::vector<std::byte>& bytes) = 0;
  /// Sets memory aside for what arrives, so that later messages allocate nothing; where a link
  /// takes that from elsewhere, nothing.
  /// @param messages  of each other member that are here at a time
  /// @param most      bytes of each
  virtual void reserve(std::size_t /*messages*/, std::size_t /*most*/) {}
  /// Blocks until the next bytes of another member are here, which belong to a call.
  /// @throws the failure of the run
  virtual void wait(int from, group_call in) = 0;

 private:
  int place_;
  int size_;
};

}  // namespace zbpp
