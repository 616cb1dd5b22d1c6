// SPDX-License-Identifier: Apache-2.0
//
// Collective calls of the ranks of a group: those that share the passes of a stage, or the replicas
// of it. Sums are added in the order of the members, so they have the same bits on every member,
// on every backend and in every run.
#pragma once

#include <zbpp/runtime/group_link.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

/// Makes the collective calls of one member of a group.
///
/// All members make the same calls in the same order, from passes of the same place in the program
/// or between steps; each call blocks until what it needs of the others is here. One thread at a
/// time uses it, that of the rank. What lies in the spans is memory of the host. Once calls of a
/// size have been made, further ones allocate nothing; but the root of broadcasts waits for nobody,
/// and may allocate where it is further ahead than before. A group of one sends nothing.
/// @throws (all calls) error (no_agreement) when another member makes another call; (bad_argument)
///         when spans do not fit each other; the failure of the run
class group {
 public:
  /// A group of one.
  group() = default;
  /// @param link  connects this member with the others; for authors of backends
  explicit group(std::unique_ptr<group_link> link) noexcept : link_(std::move(link)) {}

  /// @return which member this is, from 0
  [[nodiscard]] int place() const noexcept { return link_ == nullptr ? 0 : link_->place(); }
  [[nodiscard]] int size() const noexcept { return link_ == nullptr ? 1 : link_->size(); }

  /// Replaces values by their sums over all members.
  void all_reduce(std::span<float> values);
  void all_reduce(std::span<double> values);
  /// Gives a member its share of the sums over all members: of as many equal parts of `values` as
  /// there are members, the one of its place.
  /// @param share  as large as `values` over `size()`; may be that part of `values` itself
  void reduce_scatter(std::span<float const> values, std::span<float> share);
  /// Gives all members the shares of all, in the order of their places.
  /// @param all  as large as `size()` shares; `share` may be the part of it at this place
  void all_gather(std::span<float const> share, std::span<float> all);
  /// Gives all members what the root has.
  void broadcast(std::span<float> values, int root);
  /// Gives each member what the others have for it; parts may differ in size and be empty.
  /// @param sent      by member, what it gets
  /// @param received  by member, what came from it
  void all_to_all(
      std::span<std::span<float const> const> sent, std::vector<std::vector<float>>& received);
  /// Waits until all members are here.
  void barrier();
  /// Gives all members the bytes of all; they may differ in size and be empty.
  /// @param all  by member, what came from it
  void exchange(std::span<std::byte const> own, std::vector<std::vector<std::byte>>& all);

  /// Does the same for what pipelines compare besides the calls of their stages.
  void compare(std::span<std::byte const> own, std::vector<std::vector<std::byte>>& all);
  /// Tells the other members that this one makes no more calls in its step; does not block.
  void end_step();
  /// @return whether all others have told so, once this one has
  /// @throws error (no_agreement) when one of them makes another call
  [[nodiscard]] bool has_ended_step();

  /// @return what to call a member in an error: `rank 3 (pipeline 1, replica 1)`
  [[nodiscard]] std::string name_of(int member) const {
    return link_ == nullptr ? "this rank" : link_->name_of(member);
  }
  /// @return what connects this member with the others; null in a group of one
  [[nodiscard]] group_link* link() const noexcept { return link_.get(); }

 private:
  friend class rank_grid;
  void begin(call_of_group kind, std::size_t count);
  void send(int to, std::span<std::byte const> body);
  void send_to_all(std::span<std::byte const> body);
  // Blocks for the part of another member in the call that was begun; it is there until the next.
  [[nodiscard]] std::span<std::byte const> receive(int from);
  void receive(int from, std::span<std::byte> part);
  template <class Number>
  void reduce(std::span<Number> values);
  template <class Number>
  void add_up(std::span<Number const> own, std::span<Number> sums);

  void exchange(
      call_of_group kind, std::span<std::byte const> own, std::vector<std::vector<std::byte>>& all);

  std::unique_ptr<group_link> link_;
  call_place const* place_ = nullptr;  // of its rank now; null where nobody says
  group_call call_;                    // that was begun last
  std::vector<std::byte> own_;         // of this member, while its place is taken by the sums
  std::vector<std::vector<std::byte>>
      bytes_;      // by member, received last; so links keep what they have
  int ended_ = 0;  // the first member that has not told the end of its step
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/group.ipp>
#endif
