// SPDX-License-Identifier: Apache-2.0
//
// What asio/measure.hpp declares.
#pragma once

#include <zbpp/analysis/detail/record_places.hpp>
#include <zbpp/analysis/message_times.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/measure.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio {

namespace detail {

[[nodiscard]] ZBPP_INLINE blob costs_to_blob(std::span<stage_costs const> all) {
  wire_writer to;
  for (auto const& costs : all)
    for (auto const& field : zbpp::detail::cost_fields) to.put(field.of(costs).value_or(-1));
  return to.take();
}

[[nodiscard]] ZBPP_INLINE std::vector<stage_costs> costs_from_blob(blob const& part) {
  using zbpp::detail::cost_fields;
  std::vector<stage_costs> all(part.size() / (cost_fields.size() * sizeof(ticks)));
  wire_reader from(part);
  for (auto& costs : all)
    for (auto const& field : cost_fields)
      if (auto const value = from.get<ticks>(); value >= 0 || field.optional == nullptr)
        field.set(costs, value);
  return all;
}

/// Puts what a rank ran into the order of its schedule; W may have run in front of their places.
/// @return nothing where it ran other passes, or others than W in another order
[[nodiscard]] ZBPP_INLINE std::vector<timed_pass> in_order_of(
    std::span<pass const> order, std::span<timed_pass const> ran) {
  auto const is_w = [](pass const& p) { return p.kind == pass_kind::backward_weight; };
  std::map<pass, timed_pass> w;
  std::vector<timed_pass> others;
  for (auto const& timed : ran)
    if (is_w(timed.pass))
      w.emplace(timed.pass, timed);
    else
      others.push_back(timed);
  std::vector<timed_pass> found;
  if (ran.size() != order.size()) return found;
  std::size_t next = 0;  // of the others
  for (auto const& p : order) {
    if (is_w(p) && w.contains(p))
      found.push_back(w[p]);
    else if (next < others.size() && others[next].pass == p)
      found.push_back(others[next++]);
    else
      return {};
  }
  return found;
}

/// Refuses ranks that are not those of a plan.
/// @throws error (bad_argument)
ZBPP_INLINE void check_ranks(
    rendezvous const& meeting, int ranks, pipeline_ranks const& among, char const* call) {
  auto const refuse = [&](std::string const& text) {
    throw error(errc::bad_argument) + call + text;
  };
  auto const& layout = among.layout();
  auto const in_run = " the run has " + std::to_string(meeting.ranks()) + " ranks and ";
  if (layout == nullptr && meeting.ranks() != ranks)
    refuse(
        " takes a run of one pipeline:" + in_run + "the plan " + std::to_string(ranks) +
        "; in a grid give pipeline_ranks, which says whose steps they are");
  if (layout == nullptr) return;
  if (layout->ranks() != meeting.ranks() || layout->size(grid_axis::pipeline) != ranks)
    refuse(
        " takes a pipeline of the run:" + in_run + "the plan " + std::to_string(ranks) +
        ", and pipeline_ranks is for " + std::to_string(layout->ranks()) + " and " +
        std::to_string(layout->size(grid_axis::pipeline)) + "; give those of the run");
}

/// Collects the passes of all ranks, each by its own clock.
[[nodiscard]] ZBPP_INLINE timeline gather_passes(
    rendezvous& meeting, schedule const& order, timeline const& own, pipeline_ranks const& among) {
  using zbpp::detail::index;
  check_ranks(meeting, order.ranks(), among, "gather_timeline");
  auto const own_rank = among.in_pipeline(meeting.rank());
  auto const row = in_order_of(order.passes(own_rank), own[own_rank]);
  wire_writer to;
  for (auto const& timed : row) to.put(timed.start).put(timed.end);
  auto const parts = meeting.all_gather(to.bytes());
  timeline all;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    auto const& part = parts[index(among.in_run(rank))];
    zbpp::detail::require(
        part.size() == order.passes(rank).size() * 2 * sizeof(ticks),
        "gather_timeline: a rank did not run its passes in the order of the schedule, W apart");
    wire_reader from(part);
    for (auto const& pass : order.passes(rank)) {
      auto const start = from.get<ticks>();
      all.push({pass, start, from.get<ticks>()});
    }
    all.end_row();
    std::ranges::stable_sort(all[rank], {}, &timed_pass::start);  // as they ran
  }
  return all;
}

/// Lists the times of a message that a rank knows.
[[nodiscard]] ZBPP_INLINE std::vector<ticks*> times_of(timed_message& m, int rank) {
  if (rank == m.from) return {&m.sent};
  if (rank == m.to) return {&m.arrived, &m.taken};
  return {};
}

/// Collects the messages of all ranks, each time by the clock of its rank.
[[nodiscard]] ZBPP_INLINE message_record gather_messages(
    rendezvous& meeting, program const& ran, message_record own, pipeline_ranks const& among) {
  auto const own_rank = among.in_pipeline(meeting.rank());
  wire_writer to;
  for (int channel = 0; channel < own.ranks(); ++channel)
    for (auto& m : own[channel])
      for (auto const* const time : times_of(m, own_rank)) to.put(*time);
  auto const parts = meeting.all_gather(to.bytes());
  auto const part_of = [&](int rank) -> blob const& {
    return parts[zbpp::detail::index(among.in_run(rank))];
  };
  std::vector<int> ranks(zbpp::detail::index(ran.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto all = zbpp::detail::record_places(ran, traffic(ran), ranks);
  if (std::ranges::all_of(ranks, [&](int rank) { return part_of(rank).empty(); })) return {};
  for (int const rank : ranks) {
    auto const& part = part_of(rank);
    std::vector<ticks*> known;
    for (int channel = 0; channel < all.ranks(); ++channel)
      for (auto& m : all[channel])
        for (auto* const time : times_of(m, rank)) known.push_back(time);
    if (part.size() != known.size() * sizeof(ticks))
      throw error(
          errc::bad_argument,
          "gather_step: the rank recorded other messages than those of the plan, or none; set "
          "records_messages on all ranks, and give the plan that ran",
          {.rank = among.in_run(rank)});
    wire_reader from(part);
    for (auto* const time : known) *time = from.get<ticks>();
  }
  return all;
}

/// Collects when all ranks were done with a step; 0 where that is not known.
/// @param measured  the passes of all ranks, on one clock
[[nodiscard]] ZBPP_INLINE std::vector<rank_update> gather_ends(
    rendezvous& meeting,
    timeline const& measured,
    step_result const& own,
    pipeline_ranks const& among) {
  using zbpp::detail::index;
  auto const own_rank = among.in_pipeline(meeting.rank());
  auto const ended = own.ranks.empty() ? 0 : own.ranks[index(own_rank)].ended;
  auto const took = ended == 0 ? 0 : ended - own.measured[own_rank].front().start;
  auto const parts = meeting.all_gather(wire_writer().put(took).bytes());
  std::vector<rank_update> all(index(measured.ranks()));
  for (int rank = 0; rank < measured.ranks(); ++rank)
    if (auto const of = wire_reader(parts[index(among.in_run(rank))]).get<ticks>(); of > 0)
      all[index(rank)].ended = measured[rank].front().start + of;
  return all;
}

}  // namespace detail

ZBPP_INLINE timeline gather_timeline(
    rendezvous& meeting, schedule const& order, timeline const& own, pipeline_ranks const& among) {
  auto all = detail::gather_passes(meeting, order, own, among);
  align_clocks(all, order.placement());
  return from_first_start(std::move(all));
}

ZBPP_INLINE gathered_step gather_step(
    rendezvous& meeting, plan const& planned, step_result const& own, pipeline_ranks const& among) {
  gathered_step all{
      detail::gather_passes(meeting, planned.schedule(), own.measured, among),
      detail::gather_messages(meeting, planned.program(), own.messages, among),
      {},
      {}};
  if (all.messages.size() > 0)
    all.clocks = align_clocks(all.measured, all.messages);
  else
    align_clocks(all.measured, planned.problem().placement());
  from_first_start(all.measured, all.messages);
  all.ranks = detail::gather_ends(meeting, all.measured, own, among);
  return all;
}

ZBPP_INLINE std::vector<stage_costs> gather_costs(
    rendezvous& meeting,
    placement const& placement,
    std::span<stage_costs const> own,
    pipeline_ranks const& among) {
  detail::check_ranks(meeting, placement.ranks(), among, "gather_costs");
  auto const parts = meeting.all_gather(detail::costs_to_blob(own));
  std::vector<stage_costs> all(zbpp::detail::index(placement.stages()));
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    auto const costs = detail::costs_from_blob(parts[zbpp::detail::index(among.in_run(rank))]);
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
