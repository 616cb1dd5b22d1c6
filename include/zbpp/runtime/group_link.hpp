// SPDX-License-Identifier: Apache-2.0
//
// Carries bytes between the members of a group of ranks, for authors of backends; members use a
// `group`, which makes collective calls of them.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

/// Says where in its program a rank makes a collective call.
struct call_place {
  std::int32_t kind = -1;  ///< of the instruction; -1 between steps
  std::int32_t stage = 0;
  std::int32_t microbatch = 0;

  friend bool operator==(call_place const&, call_place const&) = default;
};

/// Names what members of a group do together.
enum class call_of_group : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  barrier,
  exchange,
  comparison,
  end_of_step,
};

[[nodiscard]] constexpr std::string_view to_string(call_of_group kind) noexcept {
  switch (kind) {
    case call_of_group::all_reduce: return "all_reduce";
    case call_of_group::reduce_scatter: return "reduce_scatter";
    case call_of_group::all_gather: return "all_gather";
    case call_of_group::broadcast: return "broadcast";
    case call_of_group::all_to_all: return "all_to_all";
    case call_of_group::barrier: return "barrier";
    case call_of_group::exchange: return "exchange";
    case call_of_group::comparison: return "the comparison of steps";
    case call_of_group::end_of_step: return "the end of the step";
  }
  return "what is no collective call";
}

/// Describes a collective call of a member. It stands in front of what the member sends, so that
/// members that make different calls find out.
struct group_call {
  call_of_group kind = call_of_group::barrier;
  std::uint32_t number = 0;  ///< of the calls of this member, from 1
  std::int64_t count = 0;    ///< of numbers that it is about; -1 where members may differ
  call_place place{};

  friend bool operator==(group_call const&, group_call const&) = default;
};

/// @return what a member does, as in `makes all_reduce of 8 numbers in 1F2 as its call 3`
[[nodiscard]] std::string to_string(group_call const& made);

/// Connects one member of a group with the others. Between two members bytes arrive in the order in
/// which they were sent. One thread at a time uses it, that of the rank; `fail` is for any thread.
class group_link {
 public:
  /// @param name     of the group, such as `tensor group`
  /// @param members  by place, what to call each of them in an error
  group_link(int place, std::string name, std::vector<std::string> members) noexcept
      : place_(place), name_(std::move(name)), members_(std::move(members)) {}
  group_link(group_link const&) = delete;
  group_link& operator=(group_link const&) = delete;
  virtual ~group_link() = default;

  /// @return which member this is, from 0
  [[nodiscard]] int place() const noexcept { return place_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// @return what to call a member in an error: `rank 3 (pipeline 1, replica 1)`
  [[nodiscard]] std::string const& name_of(int member) const noexcept {
    return members_[detail::index(member)];
  }

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
  /// Blocks until the next bytes of another member are here.
  /// @param made  the call that needs them, to be named where they cannot come
  /// @throws the failure of the run
  virtual void wait(int from, group_call const& made) = 0;
  /// Notes that the rank needs these bytes, and does something else meanwhile.
  virtual void note_wait(int /*from*/, group_call const& /*made*/) {}

 private:
  int place_;
  std::string name_;
  std::vector<std::string> members_;
};

}  // namespace zbpp
