// SPDX-License-Identifier: Apache-2.0
//
// Which rank of a run is what in a grid of pipeline x data x tensor parallel ranks, and which ranks
// form a group: one pipeline, the replicas of a stage, the ranks that share a stage.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

/// States the sizes of a grid, and in which order ranks are numbered.
struct grid {
  int pipeline = 1;  ///< ranks of a pipeline
  int data = 0;      ///< replicas of the model; 0 for as many as the run has ranks for
  int tensor = 1;    ///< ranks that share the passes of a stage
  int expert = 1;    ///< replicas that share one set of experts; divides `data`
  /// The axes from the one along which ranks are neighbours to the one along which they are
  /// furthest apart: `tp`, `ep`, `dp` and `pp`, as in Megatron; an axis of size 1 may be left out.
  /// `cp` is known and has size 1.
  std::string order = "tp-cp-ep-dp-pp";
};

/// Names along what the ranks of a group lie.
enum class grid_axis : std::uint8_t {
  pipeline,     ///< the ranks of one pipeline
  data,         ///< the replicas of a part of the model: gradients are added up over them
  tensor,       ///< the ranks that share the passes of a stage
  expert,       ///< replicas that have one set of experts together: tokens go between them
  expert_data,  ///< the replicas with the same experts: gradients of experts are added up over them
};

/// @return `pipeline`, `data`, `tensor`, `expert` or `expert data`
[[nodiscard]] std::string_view to_string(grid_axis axis) noexcept;

/// Says where in a grid a rank is.
struct grid_coordinates {
  int pipeline = 0;  ///< its rank in the plan of its pipeline
  int data = 0;      ///< which replica it belongs to
  int tensor = 0;    ///< which share of a stage it has

  friend bool operator==(grid_coordinates const&, grid_coordinates const&) = default;
};

/// Numbers the ranks of a grid. Valid once made; the same grid and number of ranks give the same
/// numbers on every rank.
class grid_layout {
 public:
  /// @param ranks  of the run
  /// @throws error (bad_argument) that names the size or the axis at fault and what it must be
  grid_layout(grid const& stated, int ranks);

  [[nodiscard]] int ranks() const noexcept;
  [[nodiscard]] int size(grid_axis axis) const noexcept;
  /// @return the grid, with the number of replicas that follows
  [[nodiscard]] grid const& stated() const noexcept { return stated_; }

  /// @throws error (bad_argument) when the run has no such rank
  [[nodiscard]] grid_coordinates coordinates(int rank) const;
  /// @throws error (bad_argument) when a coordinate is out of range
  [[nodiscard]] int rank_of(grid_coordinates const& at) const;

  /// @return the ranks of the group of a rank, by their coordinate; for a pipeline as in its plan
  /// @throws error (bad_argument) when the run has no such rank
  [[nodiscard]] std::vector<int> group(grid_axis axis, int rank) const;
  /// @return the number of a rank in its group
  /// @throws error (bad_argument) when the run has no such rank
  [[nodiscard]] int place_in_group(grid_axis axis, int rank) const;
  [[nodiscard]] std::vector<std::vector<int>> groups(grid_axis axis) const;
  /// @return the ranks that hold one replica of the model together, ascending
  /// @throws error (bad_argument) when there is no such replica
  [[nodiscard]] std::vector<int> replica(int data) const;

  friend bool operator==(grid_layout const& a, grid_layout const& b) noexcept {
    return a.sizes_ == b.sizes_ && a.strides_ == b.strides_ &&
           a.stated_.expert == b.stated_.expert && a.expert_stride_ == b.expert_stride_;
  }

 private:
  // Of a group along an axis: how many ranks, and how far apart.
  struct line {
    int size;
    int stride;
  };
  [[nodiscard]] line line_of(grid_axis axis) const noexcept;
  void check_rank(int rank) const;

  grid stated_;
  // Of pipeline, data and tensor; along an axis of one rank neighbours would be 1 apart.
  std::array<int, 3> sizes_{};
  std::array<int, 3> strides_{};
  int expert_stride_ = 1;  // between replicas that share experts, in replicas
};

/// Writes a layout in a line: `16 ranks, tp-cp-ep-dp-pp: pipeline 4 x data 2 x tensor 2; rank =
/// tensor + 2 data + 4 pipeline`. Layouts that differ are written differently.
[[nodiscard]] std::string to_string(grid_layout const& layout);

/// Says where in a grid a rank is, in the axes that have more than one rank: `pipeline 1,
/// replica 0, tensor 3`.
[[nodiscard]] std::string coordinates_text(grid_layout const& layout, int rank);

/// @return what to call ranks in an error: `rank 5 (pipeline 1, replica 0, tensor 3)`
[[nodiscard]] std::vector<std::string> names_in_grid(
    grid_layout const& layout, std::span<int const> ranks);

/// Says which tensor groups lie on several hosts, where each pass waits for the network.
/// @param hosts  of each rank, by name
/// @return a remark of one line; empty where none does
/// @throws error (bad_argument) unless there is a host for each rank
[[nodiscard]] std::string tensor_groups_across_hosts(
    grid_layout const& layout, std::span<std::string const> hosts);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/grid.ipp>
#endif
