// SPDX-License-Identifier: Apache-2.0
//
// Looks up ranks of a run, and names them.
#pragma once

#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio {

ZBPP_INLINE pipeline_ranks::pipeline_ranks(grid_layout const& layout, int rank, int ranks)
    : layout_(std::make_shared<grid_layout const>(layout)) {
  if (layout.ranks() != ranks)
    throw error(
        errc::bad_argument,
        "the run has " + std::to_string(ranks) + " processes and the grid_layout " +
            std::to_string(layout.ranks()) + " ranks; make it for rendezvous::ranks()");
  places_ = layout.group(grid_axis::pipeline, rank);
}

ZBPP_INLINE location pipeline_ranks::in_run(location at) const noexcept {
  if (at.rank >= 0) at.rank = in_run(at.rank);
  return at;
}

ZBPP_INLINE std::vector<channel> pipeline_ranks::in_run(std::vector<channel> channels) const {
  for (auto& c : channels) {
    c.from = in_run(c.from);
    c.to = in_run(c.to);
  }
  return channels;
}

ZBPP_INLINE int pipeline_ranks::in_pipeline(int own) const {
  return layout_ == nullptr ? own : layout_->place_in_group(grid_axis::pipeline, own);
}

ZBPP_INLINE std::string coordinates_text(grid_layout const& layout, int rank) {
  auto const at = layout.coordinates(rank);
  std::string text;
  auto const add = [&](grid_axis axis, char const* name, int coordinate) {
    if (layout.size(axis) == 1) return;
    text += (text.empty() ? "" : ", ") + (name + (" " + std::to_string(coordinate)));
  };
  add(grid_axis::pipeline, "pipeline", at.pipeline);
  add(grid_axis::data, "replica", at.data);
  add(grid_axis::tensor, "tensor", at.tensor);
  return text;
}

}  // namespace zbpp::asio
