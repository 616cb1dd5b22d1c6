// SPDX-License-Identifier: Apache-2.0
//
// How a measured step becomes a network.
#pragma once

#include <zbpp/analysis/detail/rank_walk.hpp>
#include <zbpp/analysis/detail/step_replay.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

[[noreturn]] ZBPP_INLINE void refuse_step(std::string const& text, location where = {}) {
  throw error(errc::bad_argument, where) + text + "; give the plan that ran";
}

/// Knows for each pass of a plan how long the plan has it.
class planned_times {
 public:
  explicit planned_times(plan const& planned)
      : planned_(planned),
        times_(
            pass_kinds,
            cells<ticks>(planned.problem().stages(), planned.problem().microbatches(), none)) {
    for (auto const& timed : planned.timeline().all())
      time_of(timed.pass) = timed.end - timed.start;
  }

  /// Takes the time of a pass, which runs once.
  /// @throws error (bad_argument) when the plan does not run the pass on this rank
  [[nodiscard]] ticks take(int rank, pass const& p) {
    auto const& problem = planned_.problem();
    bool const exists = p.stage >= 0 && p.stage < problem.stages() && p.microbatch >= 0 &&
                        p.microbatch < problem.microbatches();
    if (!exists || problem.placement().rank_of(p.stage) != rank || time_of(p) == none)
      refuse_step(
          "the measured step holds " + to_string(p) +
              " here, where the plan does not have it, or not twice",
          {.rank = rank, .stage = p.stage, .microbatch = p.microbatch});
    return std::exchange(time_of(p), none);
  }

 private:
  static constexpr ticks none = -1;

  [[nodiscard]] ticks& time_of(pass const& p) {
    return times_[static_cast<std::size_t>(p.kind)](p.stage, p.microbatch);
  }

  plan const& planned_;
  std::vector<cells<ticks>> times_;  // by kind
};

[[nodiscard]] ZBPP_INLINE std::array<std::optional<pass>, 2> passes_of(replay_node const& node) {
  return {node.pass, node.beside};
}

ZBPP_INLINE step_replay::step_replay(
    plan const& planned, timeline const& measured, std::span<timed_message const> messages)
    : has_messages_(!messages.empty()) {
  if (measured.ranks() != planned.problem().ranks())
    refuse_step(
        joined("the measured step has ") + measured.ranks() + " ranks and the plan " +
        planned.problem().ranks());
  add_nodes(planned, measured);
  last_ = static_cast<std::size_t>(
      std::ranges::max_element(nodes_, {}, &replay_node::end) - nodes_.begin());
  find_inputs(planned.problem());
  if (messages.empty()) {
    find_waits();
  } else {
    note_messages(messages, planned.problem());
    for (auto& node : nodes_) find_recorded_wait(node);
  }
  find_order(planned.problem().placement());
}

ZBPP_INLINE void step_replay::add_nodes(plan const& planned, timeline const& measured) {
  planned_times times(planned);
  std::set<pass> behind_steps;
  for (int rank = 0; rank < measured.ranks(); ++rank) {
    bool is_behind = false;
    for (auto const& i : planned.program().instructions(rank)) {
      if (!i.has_microbatch())
        is_behind = true;
      else if (i.is_pass() && std::exchange(is_behind, false))
        behind_steps.insert(i.as_pass());
    }
  }
  begin_ = std::numeric_limits<ticks>::max();
  for (auto const& timed : measured.all()) begin_ = std::min(begin_, timed.start);
  first_.push_back(0);
  for (int rank = 0; rank < measured.ranks(); ++rank) {
    auto const row = measured[rank];
    auto const all = planned.schedule().passes(rank).size();
    if (row.size() != all)
      refuse_step(
          joined("the measured step ran ") + row.size() + " passes here, the plan has " + all +
              "; give the passes of all ranks",
          {.rank = rank});
    ticks free = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      replay_node node{
          .rank = rank,
          .pass = row[i].pass,
          .is_first = i == 0,
          .start = row[i].start - begin_,
          .end = row[i].end - begin_,
          .planned = times.take(rank, row[i].pass),
          .is_behind_step = behind_steps.contains(row[i].pass)};
      if (next_is_paired(row, i)) {
        node.beside = row[++i].pass;
        node.end = std::max(node.end, row[i].end - begin_);
        node.planned = std::max(node.planned, times.take(rank, *node.beside));
      }
      if (node.end < node.start || node.start < free)
        throw error(
            errc::bad_argument,
            {.rank = rank, .stage = node.pass.stage, .microbatch = node.pass.microbatch}) +
            "the measured step has " + to_string(node.pass) +
            (node.end < node.start ? " end before it starts"
                                   : " start before the pass in front of it ends") +
            "; the clock of this rank ran backwards";
      free = node.end;
      nodes_.push_back(node);
    }
    first_.push_back(nodes_.size());
  }
}

ZBPP_INLINE void step_replay::find_inputs(problem const& problem) {
  cells<int> forward(problem.stages(), problem.microbatches(), -1);
  cells<int> backward(problem.stages(), problem.microbatches(), -1);
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    for (auto const& p : passes_of(nodes_[i])) {
      if (p && p->kind == pass_kind::forward)
        forward(p->stage, p->microbatch) = static_cast<int>(i);
      if (p && p->makes_input_gradient()) backward(p->stage, p->microbatch) = static_cast<int>(i);
    }
  for (auto& node : nodes_) {
    auto input = node.inputs.begin();
    for (auto const& p : passes_of(node)) {
      bool const is_forward = p && p->kind == pass_kind::forward;
      if (!p || (!is_forward && !p->makes_input_gradient())) continue;
      auto const source = p->stage + (is_forward ? -1 : 1);
      if (source < 0 || source >= problem.stages() ||
          problem.placement().rank_of(source) == node.rank)
        continue;
      input->pass = *p;
      input->from = is_forward ? forward(source, p->microbatch) : backward(source, p->microbatch);
      input->stated = problem.transfer_time(source, p->stage, p->microbatch);
      ++input;
    }
  }
}

// Writes into each input when its message was sent and arrived, so that the replay is exact.
// Between processes a message may seem to be sent after it arrived, by the error of the clocks.
ZBPP_INLINE void step_replay::note_messages(
    std::span<timed_message const> messages, problem const& problem) {
  cells<timed_message const*> forward(problem.stages(), problem.microbatches(), nullptr);
  cells<timed_message const*> backward(problem.stages(), problem.microbatches(), nullptr);
  auto const to = [&](pass const& p) -> timed_message const*& {
    return (p.kind == pass_kind::forward ? forward : backward)(p.stage, p.microbatch);
  };
  for (auto const& m : messages) {
    auto const& p = m.pass;
    if (p.stage < 0 || p.stage >= problem.stages() || p.microbatch < 0 ||
        p.microbatch >= problem.microbatches())
      refuse_step(
          "the record holds a message to " + to_string(p) + ", which the plan does not have");
    to(p) = &m;
  }
  for (auto& node : nodes_)
    for (auto& input : node.inputs) {
      if (input.from < 0) continue;
      auto const& p = input.pass;
      location const where{.rank = node.rank, .stage = p.stage, .microbatch = p.microbatch};
      auto const* const m = to(p);
      auto const is_unknown = [](ticks time) { return time == timed_message::unknown; };
      if (m == nullptr || is_unknown(m->sent) || is_unknown(m->arrived) || is_unknown(m->taken))
        refuse_step(
            "the record lacks the message to " + to_string(p) +
                ", or a time of it; give that of all ranks",
            where);
      auto const made = nodes_[index(input.from)].end;
      bool const is_ordered =
          made <= m->sent - begin_ && m->arrived <= m->taken && m->taken - begin_ <= node.start;
      if (!is_ordered)
        throw error(errc::bad_argument, where) +
            "the times of a message do not fit those of passes: " + to_string(*m) +
            "; the record is of another step, or a clock ran backwards";
      auto const behind = m->arrived - begin_ - made;
      input.sent_late = std::clamp<ticks>(m->sent - begin_ - made, 0, std::max<ticks>(behind, 0));
      input.took = behind - input.sent_late;
    }
}

ZBPP_INLINE void step_replay::find_recorded_wait(replay_node& node) const {
  auto ready = free_before(node);
  for (int i = 0; i < 2; ++i) {
    auto const& input = node.inputs[index(i)];
    if (input.from < 0) continue;
    auto const arrived = nodes_[index(input.from)].end + input.behind();
    if (arrived <= ready) continue;
    ready = arrived;
    node.awaited = i;
  }
  node.late = node.start - ready;
}

// Without a record a message is known to be there when its pass starts. Those from one rank to
// another took as long as stated, and as much longer as all did that a free rank had to wait for.
// One that was there by that while the rank was busy made nobody wait: its pass was late.
ZBPP_INLINE void step_replay::find_waits() {
  constexpr auto unknown = std::numeric_limits<ticks>::max();
  cells<ticks> longer(ranks(), ranks(), unknown);
  auto const channel = [&](replay_node const& node, replay_input const& input) -> ticks& {
    return longer(nodes_[index(input.from)].rank, node.rank);
  };
  // The input that is there last, and after the rank; with when that is.
  auto const last_of = [&](replay_node const& node, auto const& time_of) {
    std::pair last(-1, free_before(node));
    for (int i = 0; i < 2; ++i)
      if (auto const& input = node.inputs[index(i)]; input.from >= 0)
        if (auto const there = nodes_[index(input.from)].end + time_of(node, input);
            there > last.second)
          last = {i, there};
    return last;
  };
  for (auto const& node : nodes_) {
    auto const stated = [](auto const&, replay_input const& input) { return input.stated; };
    auto const [last, there] = last_of(node, stated);
    if (last < 0) continue;
    auto& least = channel(node, node.inputs[index(last)]);
    least = std::min(least, std::max<ticks>(node.start - there, 0));
  }
  auto const time_of = [&](replay_node const& node, replay_input const& input) {
    auto const least = channel(node, input);
    return input.stated + (least == unknown ? 0 : least);
  };
  for (auto& node : nodes_) {
    auto const waited = node.start - free_before(node);
    if (waited > 0) node.awaited = last_of(node, time_of).first;
    if (node.awaited < 0) node.late = waited;
    for (int i = 0; i < 2; ++i)
      if (auto& input = node.inputs[index(i)]; input.from >= 0) {
        auto const most = node.start - nodes_[index(input.from)].end;
        input.took = i == node.awaited ? most : std::min(time_of(node, input), most);
      }
  }
}

ZBPP_INLINE void step_replay::find_order(placement const& placement) {
  order_.reserve(nodes_.size());
  std::vector<bool> is_done(nodes_.size(), false);
  rank_walk walk(ranks());
  auto const wake = [&](int stage) {
    if (stage >= 0 && stage < placement.stages()) walk.wake(placement.rank_of(stage));
  };
  walk.run([&](int rank, std::size_t& next) {
    for (auto const end = first_[index(rank) + 1] - first_[index(rank)]; next < end; ++next) {
      auto const at = first_[index(rank)] + next;
      for (auto const& input : nodes_[at].inputs)
        if (input.from >= 0 && !is_done[index(input.from)]) return false;
      is_done[at] = true;
      order_.push_back(at);
      for (auto const& p : passes_of(nodes_[at])) {
        if (p && p->kind == pass_kind::forward) wake(p->stage + 1);
        if (p && p->makes_input_gradient()) wake(p->stage - 1);
      }
    }
    return true;
  });
  if (order_.size() != nodes_.size())
    refuse_step("the measured step has an order in which ranks wait for each other for ever");
}

}  // namespace zbpp::detail
