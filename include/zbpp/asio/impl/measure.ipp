// SPDX-License-Identifier: Apache-2.0
//
// What asio/measure.hpp declares.
#pragma once

#include <zbpp/analysis/message_times.hpp>
#include <zbpp/asio/measure.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>

namespace zbpp::asio {

namespace detail {

/// Lists what costs are made of.
struct cost_fields {
  static constexpr std::array numbers{
      &stage_costs::forward,
      &stage_costs::backward_input,
      &stage_costs::backward_weight,
      &stage_costs::norm,
      &stage_costs::optimizer_step,
      &stage_costs::activation,
      &stage_costs::weight_gradient_input,
      &stage_costs::output_gradient,
      &stage_costs::recompute_input,
      &stage_costs::edge,
      &stage_costs::static_memory,
      &stage_costs::workspace,
      &stage_costs::tied};
  static constexpr std::array optional_numbers{
      &stage_costs::backward_fused,
      &stage_costs::recompute,
      &stage_costs::overlapped,
      &stage_costs::overlapped_fused};
  /// Is how many bytes the costs of one stage take.
  static constexpr std::size_t size = (numbers.size() + optional_numbers.size()) * sizeof(ticks);
};

[[nodiscard]] ZBPP_INLINE blob costs_to_blob(std::span<stage_costs const> all) {
  wire_writer to;
  for (auto const& costs : all) {
    for (auto const number : cost_fields::numbers) to.put(costs.*number);
    for (auto const number : cost_fields::optional_numbers) to.put((costs.*number).value_or(-1));
  }
  return to.take();
}

[[nodiscard]] ZBPP_INLINE std::vector<stage_costs> costs_from_blob(blob const& part) {
  std::vector<stage_costs> all(part.size() / cost_fields::size);
  wire_reader from(part);
  for (auto& costs : all) {
    for (auto const number : cost_fields::numbers) costs.*number = from.get<ticks>();
    for (auto const number : cost_fields::optional_numbers) {
      auto const value = from.get<ticks>();
      if (value >= 0) costs.*number = value;
    }
  }
  return all;
}

}  // namespace detail

ZBPP_INLINE timeline
gather_timeline(rendezvous& meeting, schedule const& order, timeline const& own) {
  wire_writer to;
  auto const passes = order.passes(meeting.rank());
  auto const row = own[meeting.rank()];
  bool const is_right = std::ranges::equal(passes, row, {}, {}, &timed_pass::pass);
  for (auto const& timed : row) to.put(timed.start).put(timed.end);
  auto const parts = meeting.all_gather(is_right ? to.bytes() : blob{});
  timeline all;
  auto first = std::numeric_limits<ticks>::max();
  for (int rank = 0; rank < order.ranks(); ++rank) {
    auto const& part = parts[zbpp::detail::index(rank)];
    zbpp::detail::require(
        part.size() == order.passes(rank).size() * 2 * sizeof(ticks),
        "gather_timeline: a rank did not run its passes in the order of the schedule");
    wire_reader from(part);
    for (auto const& pass : order.passes(rank)) {
      auto const start = from.get<ticks>();
      all.push({pass, start, from.get<ticks>()});
    }
    all.end_row();
  }
  align_clocks(all, order.placement());
  for (auto const& timed : all.all()) first = std::min(first, timed.start);
  for (int rank = 0; rank < all.ranks(); ++rank) {
    for (auto& timed : all[rank]) {
      timed.start -= first;
      timed.end -= first;
    }
  }
  return all;
}

ZBPP_INLINE std::vector<stage_costs> gather_costs(
    rendezvous& meeting, placement const& placement, std::span<stage_costs const> own) {
  auto const parts = meeting.all_gather(detail::costs_to_blob(own));
  std::vector<stage_costs> all(zbpp::detail::index(placement.stages()));
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    auto const costs = detail::costs_from_blob(parts[zbpp::detail::index(rank)]);
    auto const stages = placement.stages_of(rank);
    zbpp::detail::require(
        costs.size() == stages.size(),
        "gather_costs: a rank gave costs of more or fewer stages than the placement has for it");
    for (std::size_t i = 0; i < costs.size(); ++i) all[zbpp::detail::index(stages[i])] = costs[i];
  }
  return all;
}

ZBPP_INLINE std::vector<stage_costs> broadcast_costs(
    rendezvous& meeting, std::span<stage_costs const> own, int root) {
  return detail::costs_from_blob(meeting.broadcast(detail::costs_to_blob(own), root));
}

}  // namespace zbpp::asio
