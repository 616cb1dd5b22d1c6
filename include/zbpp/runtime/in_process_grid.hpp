// SPDX-License-Identifier: Apache-2.0
//
// A grid whose pipelines all run in this process, each called from a thread of its own: for a
// machine of many cores, and to see a grid work before it runs on many machines.
#pragma once

#include <zbpp/model/grid.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/transport.hpp>

#include <functional>
#include <memory>
#include <string>

namespace zbpp {

class in_process_grid;

/// Says which pipeline of a grid a backend runs: give it to `threads` or `virtual_time`. One that
/// says nothing stands for a pipeline without a grid.
class grid_place {
 public:
  grid_place() = default;
  grid_place(in_process_grid& owner, grid_coordinates const& at) noexcept
      : owner_(&owner), at_(at) {}

  [[nodiscard]] explicit operator bool() const noexcept { return owner_ != nullptr; }
  /// @return which replica of the model the pipeline is
  [[nodiscard]] int data() const noexcept { return at_.data; }
  /// @return which share of each stage it has
  [[nodiscard]] int tensor() const noexcept { return at_.tensor; }
  /// @return the grid; only of a place in one
  [[nodiscard]] in_process_grid& owner() const noexcept { return *owner_; }
  /// @return what a rank of the pipeline knows of the grid; null where there is no grid
  [[nodiscard]] rank_grid* grid_of(int rank) const;
  /// Sets what to notify when something arrives for a rank, null for nothing; for backends.
  void bind(int rank, wakeup* wake) const;
  /// Checks whether a pipeline can be at this place; for backends.
  /// @param ranks  of the pipeline
  /// @param waits_alone    whether all ranks that share stages can wait for each other in passes
  /// @param shares_thread  whether one thread runs all ranks, in an order that all pipelines have
  /// @throws error (bad_argument) when it cannot
  void check(int ranks, bool waits_alone, bool shares_thread = false) const;

 private:
  in_process_grid* owner_ = nullptr;
  grid_coordinates at_;
};

/// Connects the ranks of all pipelines of a grid. Where one of them fails, the calls of all others
/// fail with its error, and the grid is over.
class in_process_grid {
 public:
  /// @throws error (bad_argument) when the number of replicas is not stated, or as `grid_layout`
  explicit in_process_grid(grid const& stated);
  in_process_grid(in_process_grid const&) = delete;
  in_process_grid& operator=(in_process_grid const&) = delete;
  ~in_process_grid();

  [[nodiscard]] grid_layout const& layout() const noexcept { return layout_; }
  /// @throws error (bad_argument) when there is no such pipeline
  [[nodiscard]] grid_place place(int data, int tensor = 0);

  /// Calls `work` once for each pipeline, each on a thread of its own, and blocks until all have
  /// returned. In it, make a pipeline with `place` and run it: what a process of a larger run does.
  /// @throws what `work` threw first
  void run(std::function<void(grid_place const& place)> const& work);

  [[nodiscard]] rank_grid& grid_of(grid_coordinates const& at);
  /// Sets what to notify when something arrives for a rank, null for nothing; for backends.
  void bind(grid_coordinates const& at, wakeup* wake);

 private:
  struct shared;

  friend class grid_place;
  // Ends the grid: every call that waits, or would, throws an error that says why.
  void fail(grid_coordinates const& at, std::string const& why);
  // Says whether the ranks of a pipeline send no more.
  void tell_left(grid_place const& at, bool has_left);

  grid_layout layout_;
  std::unique_ptr<shared> shared_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/in_process_grid.ipp>
#endif
