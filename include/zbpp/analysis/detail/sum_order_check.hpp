// SPDX-License-Identifier: Apache-2.0
//
// Whether the W of each stage ascend in microbatch. Sums of floating-point numbers depend on their
// order, so this decides whether gradients are those of a plain loop to the bit, and nothing else.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace zbpp::detail {

/// Looks for W that run after a later microbatch of their stage, in a program whose ids are right.
/// @return nothing, or one diagnostic at the first of them, which says how many there are
/// @complexity O(instructions)
[[nodiscard]] inline std::vector<diagnostic> find_sum_order(program const& program) {
  std::vector<std::int32_t> latest(index(program.stages()), -1);  // microbatch of the W so far
  std::vector<diagnostic> found;
  std::int64_t count = 0;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    std::int64_t position = -1;
    for (auto const& i : program.instructions(rank)) {
      ++position;
      if (!i.is_pass() || !i.as_pass().makes_weight_gradient()) continue;
      auto& before = latest[index(i.stage)];
      if (i.microbatch < before && count++ == 0)
        found.push_back(make_diagnostic(
            program,
            fault::sum_order,
            rank,
            position,
            joined("W of stage ") + i.stage + " runs microbatch " + before + " before " +
                i.microbatch +
                ": the sums of gradients differ in their last bits from a plain loop"));
      before = std::max(before, i.microbatch);
    }
  }
  if (count > 1) found.front().text += joined("; ", count, " W in all stand behind a later one");
  return found;
}

}  // namespace zbpp::detail
