// SPDX-License-Identifier: Apache-2.0
//
// Which ranks of a run are the ranks of the pipeline of this process: all of them, or where the run
// is a grid, those along the axis of the pipeline. For authors of backends.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/program.hpp>

#include <memory>
#include <vector>

namespace zbpp::asio {

/// Translates between ranks of a run and ranks of the pipeline that this process takes part in. A
/// pipeline and its program know the latter; connections and failures are of the former.
class pipeline_ranks {
 public:
  /// For a pipeline of all ranks of the run.
  pipeline_ranks() = default;
  /// For the pipeline of a rank of a grid.
  /// @param rank   of the run, that of this process
  /// @param ranks  of the run
  /// @throws error (bad_argument) unless the grid has as many ranks as the run
  pipeline_ranks(grid_layout const& layout, int rank, int ranks)
      : layout_(std::make_shared<grid_layout const>(layout)) {
    if (layout.ranks() != ranks)
      throw error(errc::bad_argument) + "the run has " + ranks + " processes and the grid_layout " +
          layout.ranks() + " ranks; make it for rendezvous::ranks()";
    places_ = layout.group(grid_axis::pipeline, rank);
  }

  /// @return the rank in the run of a rank of the pipeline
  [[nodiscard]] int in_run(int rank) const noexcept {
    return places_.empty() ? rank : places_[zbpp::detail::index(rank)];
  }
  [[nodiscard]] location in_run(location at) const noexcept {
    if (at.rank >= 0) at.rank = in_run(at.rank);
    return at;
  }
  [[nodiscard]] std::vector<channel> in_run(std::vector<channel> channels) const {
    for (auto& c : channels) {
      c.from = in_run(c.from);
      c.to = in_run(c.to);
    }
    return channels;
  }
  /// @return which rank of its pipeline the rank `own` of the run is, that of this process
  [[nodiscard]] int in_pipeline(int own) const {
    return layout_ == nullptr ? own : layout_->place_in_group(grid_axis::pipeline, own);
  }

  /// @return the grid; null where the pipeline has all ranks of the run
  [[nodiscard]] std::shared_ptr<grid_layout const> const& layout() const noexcept {
    return layout_;
  }

 private:
  std::shared_ptr<grid_layout const> layout_;
  std::vector<int> places_;  // by rank of the pipeline; empty for all ranks of the run
};

}  // namespace zbpp::asio
