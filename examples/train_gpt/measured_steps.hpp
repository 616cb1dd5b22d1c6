// SPDX-License-Identifier: Apache-2.0
//
// From measured steps of a pipeline to the problem that plans are made for.
#pragma once

#include "message_times.hpp"
#include <zbpp/analysis/costs_from.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace gpt {

/// Sets each BW of a schedule to B and W, so that both can be measured.
[[nodiscard]] inline zbpp::schedule split_backward(zbpp::schedule const& order) {
  zbpp::rows<zbpp::pass> passes;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    for (auto const& p : order.passes(rank)) {
      if (p.kind != zbpp::pass_kind::backward) {
        passes.push(p);
        continue;
      }
      passes.push({zbpp::pass_kind::backward_input, p.stage, p.microbatch});
      passes.push({zbpp::pass_kind::backward_weight, p.stage, p.microbatch});
    }
    passes.end_row();
  }
  return {order.placement(), order.microbatches(), std::move(passes)};
}

/// Gives the value that a share of some values lies below, or a default one of none.
/// @param share  0 to 1; the default gives the median
template <class Value>
[[nodiscard]] Value quantile(std::vector<Value> values, double share = 0.5) {
  if (values.empty()) return {};
  auto const last = static_cast<double>(values.size() - 1);
  auto const place = values.begin() + static_cast<std::ptrdiff_t>(share * last + 0.5);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

/// Says how long a message takes from one rank to the next; 0 where there is one rank.
[[nodiscard]] inline zbpp::ticks message_time(zbpp::problem const& problem) {
  return problem.ranks() > 1 ? problem.transfer()(0, 1, problem.costs(0).edge) : 0;
}

/// @return the same problem, in which each message takes `time`
[[nodiscard]] inline zbpp::problem with_message_time(
    zbpp::problem const& problem, zbpp::ticks time) {
  auto const costs = problem.all_costs();
  return {
      problem.placement(),
      problem.microbatches(),
      {costs.begin(), costs.end()},
      zbpp::transfer_costs(time),
      {problem.memory_limits().begin(), problem.memory_limits().end()}};
}

/// Own choice, where ranks are threads or processes of a CPU: a message is what the quickest few
/// took. The rest is largely the wait of a woken thread for a core, which a machine with other work
/// to do makes as long as it likes.
inline constexpr double quick_message_quantile = 0.02;

/// Gives the problem of measured steps: what its passes took, and its messages.
/// @param sizes  says how large everything is; and what messages take where none was waited for
/// @param message_quantile  of what messages took that were waited for: 0.5 plans with the median
[[nodiscard]] inline zbpp::problem problem_from(
    std::vector<zbpp::timeline> const& steps, zbpp::problem const& sizes, double message_quantile) {
  std::vector<zbpp::ticks> messages;
  for (auto const& line : steps)
    for_each_message(
        line,
        sizes.placement(),
        sizes.microbatches(),
        [&](int, int to, std::size_t i, zbpp::ticks made) {
          // Only a rank that was waiting starts as soon as the message is there.
          if (i > 0 && made > line[to][i - 1].end) messages.push_back(line[to][i].start - made);
        });
  auto const passes = zbpp::costs_from(steps, sizes);
  return messages.empty() ? passes
                          : with_message_time(passes, quantile(messages, message_quantile));
}

}  // namespace gpt
