// SPDX-License-Identifier: Apache-2.0
//
// Joins B and W into BW where the two stand together.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstddef>
#include <utility>

namespace zbpp::detail {

/// Makes one BW of each B that its own W follows at once, where `joins` says so.
/// @param joins  called with each such B, rank by rank in order
template <class Joins>
[[nodiscard]] schedule fuse_pairs(schedule const& schedule, Joins joins) {
  rows<pass> fused;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    auto const row = schedule.passes(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const& p = row[i];
      pass const own_w{pass_kind::backward_weight, p.stage, p.microbatch};
      bool const is_pair =
          p.kind == pass_kind::backward_input && i + 1 < row.size() && row[i + 1] == own_w;
      bool const is_joined = is_pair && joins(p);
      fused.push(is_joined ? pass{pass_kind::backward, p.stage, p.microbatch, p.is_paired} : p);
      if (is_joined) ++i;
    }
    fused.end_row();
  }
  return {schedule.placement(), schedule.microbatches(), std::move(fused)};
}

}  // namespace zbpp::detail
