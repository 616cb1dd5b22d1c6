// SPDX-License-Identifier: Apache-2.0
//
// What analysis/message_times.hpp declares.
#pragma once

#include <zbpp/analysis/costs_from.hpp>
#include <zbpp/analysis/message_times.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// A message between ranks in a measured step.
struct measured_message {
  int from;
  int to;
  std::size_t position;  // on rank `to`, of the pass that needs it
  ticks made;            // when the pass ended that made it
};

[[nodiscard]] ZBPP_INLINE std::vector<measured_message> messages_of(
    timeline const& step, placement const& placement) {
  require(
      step.ranks() == placement.ranks(),
      "a measured step needs a row for each rank of the placement; gather those of all processes");
  std::int32_t microbatches = 0;
  for (auto const& timed : step.all()) {
    auto const& p = timed.pass;
    if (p.stage < 0 || p.stage >= placement.stages() || p.microbatch < 0)
      throw error(errc::bad_argument) + "a measured step holds " + to_string(p) +
          ", which a placement of " + placement.stages() + " stages does not have";
    microbatches = std::max(microbatches, p.microbatch + 1);
  }
  cells<std::optional<ticks>> forward(placement.stages(), microbatches);
  cells<std::optional<ticks>> backward(placement.stages(), microbatches);
  for (auto const& timed : step.all()) {
    auto const& p = timed.pass;
    if (p.kind == pass_kind::forward) forward(p.stage, p.microbatch) = timed.end;
    if (p.makes_input_gradient()) backward(p.stage, p.microbatch) = timed.end;
  }
  std::vector<measured_message> messages;
  for (int rank = 0; rank < step.ranks(); ++rank) {
    for (std::size_t i = 0; i < step[rank].size(); ++i) {
      auto const& p = step[rank][i].pass;
      bool const is_forward = p.kind == pass_kind::forward;
      if (!is_forward && !p.makes_input_gradient()) continue;
      auto const source = p.stage + (is_forward ? -1 : 1);
      if (source < 0 || source >= placement.stages() || placement.rank_of(source) == rank) continue;
      auto const made = is_forward ? forward(source, p.microbatch) : backward(source, p.microbatch);
      if (made) messages.push_back({placement.rank_of(source), rank, i, *made});
    }
  }
  return messages;
}

}  // namespace detail

ZBPP_INLINE void align_clocks(timeline& step, placement const& placement) {
  // The quickest message from each rank to the next one, and back, by the clocks as they are.
  std::vector<std::optional<ticks>> there(detail::index(step.ranks()));
  std::vector<std::optional<ticks>> back(detail::index(step.ranks()));
  for (auto const& m : detail::messages_of(step, placement)) {
    auto const took = step[m.to][m.position].start - m.made;
    auto const keep_least = [&](std::optional<ticks>& least) {
      least = std::min(least.value_or(took), took);
    };
    if (m.to == m.from + 1) keep_least(there[detail::index(m.from)]);
    if (m.from == m.to + 1) keep_least(back[detail::index(m.to)]);
  }
  ticks before = 0;  // how far the clock of the rank before was ahead of that of rank 0
  for (int rank = 1; rank < step.ranks(); ++rank) {
    auto const& out = there[detail::index(rank - 1)];
    auto const& in = back[detail::index(rank - 1)];
    auto const ahead = out && in ? ((*out + before) - (*in - before)) / 2 : 0;
    for (auto& timed : step[rank]) {
      timed.start -= ahead;
      timed.end -= ahead;
    }
    before = ahead;
  }
}

ZBPP_INLINE std::vector<awaited_message> awaited_messages(
    timeline const& step, placement const& placement) {
  std::vector<awaited_message> found;
  for (auto const& m : detail::messages_of(step, placement))
    if (m.position > 0 && m.made > step[m.to][m.position - 1].end)
      found.push_back({m.from, m.to, step[m.to][m.position].start - m.made});
  return found;
}

ZBPP_INLINE problem
costs_and_messages_from(std::span<timeline const> steps, problem const& stated, double quantile) {
  detail::require(quantile >= 0 && quantile <= 1, "a quantile lies between 0 and 1");
  std::vector<ticks> times;
  for (auto const& step : steps)
    for (auto const& m : awaited_messages(step, stated.placement())) times.push_back(m.took);
  auto const passes = costs_from(steps, stated);
  if (times.empty()) return passes;
  auto const last = static_cast<double>(times.size() - 1);
  auto const place = times.begin() + static_cast<std::ptrdiff_t>(quantile * last + 0.5);
  std::nth_element(times.begin(), place, times.end());
  return with_transfer(passes, transfer_costs(std::max<ticks>(*place, 0)));
}

}  // namespace zbpp
