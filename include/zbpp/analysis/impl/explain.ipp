// SPDX-License-Identifier: Apache-2.0
//
// How `explain` accounts for the time of a step, and finds what made it long.
#pragma once

#include <zbpp/analysis/detail/step_replay.hpp>
#include <zbpp/analysis/explain.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

// ---- accounts ----------------------------------------------------------------------------------

/// Adds up what a rank waited for.
struct rank_waits {
  std::vector<ticks> for_rank;
  ticks sent_late = 0;
  ticks messages = 0;
  ticks taken_late = 0;
  ticks host = 0;
  ticks optimizer = 0;
};

/// @return whether a pass started after the arrival of its messages, as far as that is known
[[nodiscard]] ZBPP_INLINE bool is_taken_late(step_replay const& step, replay_node const& node) {
  return step.has_messages() && node.has_inputs() && node.late > 0;
}

/// @param end  of the step, until which a rank waits for the one that ends last
[[nodiscard]] ZBPP_INLINE rank_waits
waits_of(step_replay const& step, int rank, ticks own_end, ticks end) {
  rank_waits waits{.for_rank = std::vector<ticks>(index(step.ranks()), 0)};
  for (auto const& node : step.nodes(rank)) {
    (node.is_behind_step         ? waits.optimizer
     : is_taken_late(step, node) ? waits.taken_late
                                 : waits.host) += node.late;
    if (node.awaited < 0) continue;
    auto const& input = node.inputs[index(node.awaited)];
    auto const& maker = step.nodes()[index(input.from)];
    auto from = step.free_before(node);
    auto const until = [&](ticks time) {
      auto const before = std::exchange(from, std::clamp(time, from, node.start - node.late));
      return from - before;
    };
    waits.for_rank[index(maker.rank)] += until(maker.end);
    waits.sent_late += until(maker.end + input.sent_late);
    waits.messages += until(maker.end + input.behind());
  }
  waits.for_rank[index(step.nodes()[step.last()].rank)] += end - own_end;
  return waits;
}

/// @param spare  how much less work the plan has for the rank than for the busiest one
[[nodiscard]] ZBPP_INLINE rank_account account_of(
    step_replay const& planned,
    step_replay const& measured,
    int rank,
    ticks spare,
    ticks optimizer,
    ticks end) {
  rank_account account{.optimizer = optimizer};
  for (auto const& node : measured.nodes(rank)) {
    account.work += std::min(node.took(), node.planned);
    account.longer += std::max<ticks>(node.took() - node.planned, 0);
  }
  auto const planned_waits = waits_of(planned, rank, planned.nodes(rank).back().end, planned.end());
  auto waits = waits_of(measured, rank, measured.nodes(rank).back().end + optimizer, end);
  ticks foreseen = 0;
  auto const subtract = [&](ticks& wait, ticks in_plan) {
    auto const both = std::min(wait, in_plan);
    wait -= both;
    foreseen += both;
  };
  for (std::size_t r = 0; r < waits.for_rank.size(); ++r)
    subtract(waits.for_rank[r], planned_waits.for_rank[r]);
  subtract(waits.messages, planned_waits.messages);
  account.imbalance = std::min(foreseen, spare);
  account.bubble = foreseen - account.imbalance;
  account.for_rank = std::move(waits.for_rank);
  account.sent_late = waits.sent_late;
  account.messages = waits.messages;
  account.taken_late = waits.taken_late;
  account.host = waits.host;
  account.optimizer += waits.optimizer;
  account.gain = measured.gain_with([&](std::size_t, replay_node& node) {
    if (node.rank == rank) node.end = node.start + std::min(node.took(), node.planned);
  });
  return account;
}

// ---- the critical path -------------------------------------------------------------------------

[[nodiscard]] ZBPP_INLINE std::vector<std::size_t> critical_nodes(step_replay const& step) {
  auto const nodes = step.nodes();
  std::vector<std::size_t> path;
  auto at = step.last();
  for (;;) {
    path.push_back(at);
    auto const& node = nodes[at];
    if (node.awaited >= 0)
      at = index(node.inputs[index(node.awaited)].from);
    else if (!node.is_first)
      --at;
    else
      break;
  }
  std::ranges::reverse(path);
  return path;
}

[[nodiscard]] ZBPP_INLINE critical_pass
critical_pass_of(step_replay const& step, replay_node const& node) {
  bool const by_message = node.awaited >= 0;
  auto const input = by_message ? node.inputs[index(node.awaited)] : replay_input{};
  auto const waited = input.behind() + node.late;
  return {
      .rank = node.rank,
      .pass = node.pass,
      .is_pair = node.beside.has_value(),
      .start = node.start,
      .end = node.end,
      .planned = node.planned,
      .waited = waited,
      .cause = waited == 0           ? wait_cause::none
               : by_message          ? wait_cause::message
               : node.is_behind_step ? wait_cause::optimizer
                                     : wait_cause::host,
      .sent_late = input.sent_late,
      .taken_late = is_taken_late(step, node) ? node.late : 0};
}

[[nodiscard]] ZBPP_INLINE std::vector<delay> worst_delays(
    step_replay const& step, std::vector<std::size_t> const& path, int most) {
  struct candidate {
    std::size_t node;
    delay found;
  };
  std::vector<candidate> all;
  for (auto const at : path) {
    auto const& node = step.nodes()[at];
    auto const add = [&](delay_kind kind, ticks planned, ticks took) {
      if (took > planned) all.push_back({at, {node.rank, node.pass, kind, planned, took}});
    };
    add(delay_kind::pass, node.planned, node.took());
    if (!node.is_behind_step) add(delay_kind::start, 0, node.late);
    if (node.awaited < 0) continue;
    auto const& input = node.inputs[index(node.awaited)];
    add(delay_kind::send, 0, input.sent_late);
    add(delay_kind::message, input.stated, input.took);
  }
  // Those that took the most beyond their planned time can give the most.
  std::ranges::stable_sort(all, std::ranges::greater{}, [](candidate const& c) {
    return c.found.took - c.found.planned;
  });
  constexpr std::size_t tried_for_each = 4;
  all.resize(std::min(all.size(), tried_for_each * index(most)));
  std::vector<delay> worst;
  for (auto& tried : all) {  // no structured binding, which clang 14 lets no lambda capture
    auto& found = tried.found;
    found.gain = step.gain_with([&](std::size_t i, replay_node& node) {
      if (i != tried.node) return;
      switch (found.kind) {
        case delay_kind::pass: node.end = node.start + found.planned; break;
        case delay_kind::send: node.inputs[index(node.awaited)].sent_late = 0; break;
        case delay_kind::message: node.inputs[index(node.awaited)].took = found.planned; break;
        case delay_kind::start: node.late = 0; break;
      }
    });
    if (found.gain > 0) worst.push_back(found);
  }
  std::ranges::stable_sort(worst, std::ranges::greater{}, &delay::gain);
  worst.resize(std::min(worst.size(), index(most)));
  return worst;
}

}  // namespace detail

ZBPP_INLINE ticks rank_account::sum() const noexcept {
  return std::accumulate(for_rank.begin(), for_rank.end(), ticks{0}) + work + longer + bubble +
         imbalance + sent_late + messages + taken_late + host + optimizer;
}

ZBPP_INLINE std::string_view to_string(wait_cause cause) noexcept {
  switch (cause) {
    case wait_cause::none: return "none";
    case wait_cause::message: return "message";
    case wait_cause::host: return "host";
    case wait_cause::optimizer: return "optimizer";
  }
  return "?";
}

ZBPP_INLINE std::string_view to_string(delay_kind kind) noexcept {
  switch (kind) {
    case delay_kind::pass: return "pass";
    case delay_kind::send: return "send";
    case delay_kind::message: return "message";
    case delay_kind::start: return "start";
  }
  return "?";
}

ZBPP_INLINE explanation
explain(plan const& planned, timeline const& measured, explain_options const& options) {
  using detail::index;
  detail::require(options.worst >= 0, "explain_options::worst is below 0; give a number from 0");
  detail::require(
      options.ranks.empty() || options.ranks.size() == index(measured.ranks()),
      "explain_options::ranks has other ranks than the step; give those of all ranks, or none");
  detail::step_replay const foreseen(planned, planned.timeline());
  detail::step_replay const step(planned, measured, options.messages);

  explanation found{
      .planned = foreseen.end(), .measured = step.end(), .has_messages = !options.messages.empty()};
  for (auto const& clock : options.clocks)
    found.clock_error = std::max(found.clock_error, clock.error);
  std::vector<ticks> optimizer(index(step.ranks()), 0);
  for (std::size_t r = 0; r < options.ranks.size(); ++r) {
    auto const& update = options.ranks[r];
    auto const done = std::max({update.stepped, update.validated, update.ended}) - step.begin();
    optimizer[r] = std::max<ticks>(done - step.nodes(static_cast<int>(r)).back().end, 0);
    found.measured = std::max(found.measured, done);
  }
  std::vector<ticks> work(index(step.ranks()), 0);  // that the plan has for each rank
  for (auto const& node : step.nodes()) work[index(node.rank)] += node.planned;
  auto const most_work = *std::ranges::max_element(work);
  for (int rank = 0; rank < step.ranks(); ++rank)
    found.ranks.push_back(detail::account_of(
        foreseen,
        step,
        rank,
        most_work - work[index(rank)],
        optimizer[index(rank)],
        found.measured));

  auto const path = detail::critical_nodes(step);
  for (auto const at : path)
    found.critical.push_back(detail::critical_pass_of(step, step.nodes()[at]));
  found.worst = detail::worst_delays(step, path, options.worst);
  found.message_gain = step.gain_with([](std::size_t, detail::replay_node& node) {
    for (auto& input : node.inputs) input.took = std::min(input.took, input.stated);
  });
  found.send_gain = step.gain_with([](std::size_t, detail::replay_node& node) {
    for (auto& input : node.inputs) input.sent_late = 0;
  });
  found.host_gain = step.gain_with([](std::size_t, detail::replay_node& node) {
    if (!node.is_behind_step) node.late = 0;
  });
  return found;
}

}  // namespace zbpp
