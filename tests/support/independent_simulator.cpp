// SPDX-License-Identifier: Apache-2.0
#include <support/independent_simulator.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace zbpp::test {

std::optional<timeline> simulate_by_events(schedule const& order, problem const& problem) {
  // What a rank can wait for: 'F', the activation that reaches a stage; 'G', its gradient; and 'f'
  // and 'b', the ends of its own F and B. The value is when it is there.
  std::map<std::tuple<char, int, int>, ticks> there;
  auto const last = problem.stages() - 1;
  for (int m = 0; m < problem.microbatches(); ++m) {
    there[{'F', 0, m}] = 0;
    there[{'G', last, m}] = 0;
  }
  auto const needs = [](pass const& p) -> std::vector<std::tuple<char, int, int>> {
    if (p.kind == pass_kind::forward) return {{'F', p.stage, p.microbatch}};
    if (p.kind == pass_kind::recompute) return {{'f', p.stage, p.microbatch}};
    if (p.kind == pass_kind::backward_weight) return {{'b', p.stage, p.microbatch}};
    return {{'f', p.stage, p.microbatch}, {'G', p.stage, p.microbatch}};
  };
  auto const duration = [&](pass const& p) {
    auto const& c = problem.all_costs()[static_cast<std::size_t>(p.stage)];
    if (p.kind == pass_kind::forward) return c.forward;
    if (p.kind == pass_kind::backward_input) return c.backward_input;
    if (p.kind == pass_kind::backward_weight) return c.backward_weight;
    if (p.kind == pass_kind::recompute) return c.recompute.value_or(0);
    return c.backward_fused ? *c.backward_fused : c.backward_input + c.backward_weight;
  };
  auto const hop = [&](int from, int to) {
    auto const& size = problem.all_costs()[static_cast<std::size_t>(std::min(from, to))].edge;
    return problem.transfer()(
        problem.placement().rank_of(from), problem.placement().rank_of(to), size);
  };

  // An event tells a rank to look whether its next pass can start.
  using event = std::pair<ticks, int>;
  std::priority_queue<event, std::vector<event>, std::greater<>> events;
  auto line = order.passes().nested();
  std::vector<std::vector<timed_pass>> done(line.size());
  std::vector<ticks> free_at(line.size(), 0);
  for (int rank = 0; rank < order.ranks(); ++rank) events.push({0, rank});
  auto const arrive = [&](char kind, int stage, int m, ticks when) {
    there[{kind, stage, m}] = when;
    events.push({when, problem.placement().rank_of(stage)});
  };
  while (!events.empty()) {
    auto const [now, rank] = events.top();
    events.pop();
    auto const r = static_cast<std::size_t>(rank);
    if (done[r].size() == line[r].size() || free_at[r] > now) continue;
    auto const& p = line[r][done[r].size()];
    auto const wanted = needs(p);
    bool const can_start = std::all_of(wanted.begin(), wanted.end(), [&, t = now](auto const& key) {
      auto const found = there.find(key);
      return found != there.end() && found->second <= t;
    });
    if (!can_start) continue;
    auto const end = now + duration(p);
    done[r].push_back({p, now, end});
    free_at[r] = end;
    events.push({end, rank});
    if (p.kind == pass_kind::forward) {
      arrive('f', p.stage, p.microbatch, end);
      if (p.stage < last) arrive('F', p.stage + 1, p.microbatch, end + hop(p.stage, p.stage + 1));
    } else if (p.kind == pass_kind::backward_input || p.kind == pass_kind::backward) {
      arrive('b', p.stage, p.microbatch, end);
      if (p.stage > 0) arrive('G', p.stage - 1, p.microbatch, end + hop(p.stage, p.stage - 1));
    }
  }
  for (std::size_t r = 0; r < line.size(); ++r)
    if (done[r].size() != line[r].size()) return std::nullopt;
  return timeline(done);
}

}  // namespace zbpp::test
