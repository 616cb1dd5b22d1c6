// SPDX-License-Identifier: Apache-2.0
//
// What a rank knows of the grid that it belongs to: where it is, and the groups that it can make
// collective calls with. A flow reaches it by `mb.grid()`.
#pragma once

#include <zbpp/model/grid.hpp>
#include <zbpp/runtime/group.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <utility>

namespace zbpp {

/// Holds the groups of one rank. A rank without a grid has groups of one, in which every call
/// returns at once, so a stage that is written for a grid runs without one, too.
class rank_grid {
 public:
  /// The grid of a run of one rank.
  rank_grid() = default;
  /// A place in a grid whose groups are given one by one, by `along`; for authors of backends.
  /// @param fail  called with the reason when the rank fails, to wake those that wait for it; none
  ///              where they learn of it in another way
  explicit rank_grid(
      grid_coordinates const& at, std::function<void(std::exception_ptr)> fail = {}) noexcept
      : at_(at), fail_(std::move(fail)) {}
  [[nodiscard]] grid_coordinates const& at() const noexcept { return at_; }

  /// @return the ranks that share the passes of a stage
  [[nodiscard]] group& tensor() noexcept { return along(grid_axis::tensor); }
  /// @return the replicas of the stages of this rank; those of gradients use it in a step, so a
  ///         stage makes calls with it between steps alone
  [[nodiscard]] group& data() noexcept { return along(grid_axis::data); }
  /// @return the replicas that have one set of experts together
  [[nodiscard]] group& expert() noexcept { return along(grid_axis::expert); }
  /// @return the replicas with the same experts
  [[nodiscard]] group& expert_data() noexcept { return along(grid_axis::expert_data); }
  /// @return the group along an axis; one alone along the pipeline, whose ranks exchange messages
  [[nodiscard]] group& along(grid_axis axis) noexcept {
    auto& found = groups_[static_cast<std::size_t>(axis)];
    if (found.size() > 1) found.place_ = &place_;  // those of one are everybody's
    return found;
  }
  [[nodiscard]] bool has_members() const noexcept {
    return std::ranges::any_of(groups_, [](group const& each) { return each.size() > 1; });
  }
  /// Says at which instruction the rank is, for the calls that it makes there; for engines.
  void set_place(call_place const& at) noexcept { place_ = at; }
  /// Wakes the ranks that wait for this one, which has failed; for engines.
  void fail(std::exception_ptr const& why) const {
    if (fail_) fail_(why);
  }

 private:
  grid_coordinates at_;
  std::function<void(std::exception_ptr)> fail_;
  std::array<group, 5> groups_;  // by axis
  call_place place_;
};

}  // namespace zbpp
