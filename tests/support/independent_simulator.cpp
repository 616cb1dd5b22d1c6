// SPDX-License-Identifier: Apache-2.0
#include <support/independent_simulator.hpp>

#include <algorithm>
#include <cmath>
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
  auto const factor_of = [&](int m) {
    auto const factors = problem.microbatch_factors();
    return factors.empty() ? 1.0 : factors[static_cast<std::size_t>(m)];
  };
  // The times of a stage for one microbatch: each rounded, and two passes together neither less
  // than one of them nor more than both.
  struct times {
    ticks f, b, w, bw, r, beside_b, beside_bw;
  };
  auto const times_of = [&](pass const& p) {
    auto const& c = problem.all_costs()[static_cast<std::size_t>(p.stage)];
    auto const rounded = [&](ticks t) {
      return static_cast<ticks>(std::floor(static_cast<double>(t) * factor_of(p.microbatch) + 0.5));
    };
    times t{};
    t.f = rounded(c.forward);
    t.b = rounded(c.backward_input);
    t.w = rounded(c.backward_weight);
    t.r = rounded(c.recompute.value_or(0));
    auto const within = [](ticks both, ticks one, ticks other) {
      return std::min(std::max({both, one, other}), one + other);
    };
    t.bw = c.backward_fused ? within(rounded(*c.backward_fused), t.b, t.w) : t.b + t.w;
    t.beside_b = c.overlapped ? within(rounded(*c.overlapped), t.f, t.b) : t.f + t.b;
    t.beside_bw = c.overlapped_fused ? within(rounded(*c.overlapped_fused), t.f, t.bw)
                                     : t.f + t.bw - (t.f + t.b - t.beside_b);
    return t;
  };
  auto const duration = [&](pass const& p) {
    auto const t = times_of(p);
    if (p.kind == pass_kind::forward) return t.f;
    if (p.kind == pass_kind::backward_input) return t.b;
    if (p.kind == pass_kind::backward_weight) return t.w;
    return p.kind == pass_kind::recompute ? t.r : t.bw;
  };
  // What F and B or BW of the stage of a pass save when they run together.
  auto const hides = [&](pass const& p, bool fused) {
    auto const t = times_of(p);
    return fused ? t.f + t.bw - t.beside_bw : t.f + t.b - t.beside_b;
  };
  auto const hop = [&](int from, int to, int m) -> ticks {
    auto const sender = problem.placement().rank_of(from);
    auto const receiver = problem.placement().rank_of(to);
    if (sender == receiver) return 0;
    auto const& given = problem.transfer();
    auto const at =
        given.ranks() == 0 ? 0 : static_cast<std::size_t>(sender * given.ranks() + receiver);
    auto const size = problem.all_costs()[static_cast<std::size_t>(std::min(from, to))].edge;
    auto const rate = given.time_per_byte().empty() ? 0 : given.time_per_byte()[at];
    return given.latency()[at] +
           static_cast<ticks>(std::floor(rate * factor_of(m) * static_cast<double>(size) + 0.5));
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
    auto const at = done[r].size();
    auto const& p = line[r][at];
    auto wanted = needs(p);
    pass const* const beside =
        at + 1 < line[r].size() && line[r][at + 1].is_paired ? &line[r][at + 1] : nullptr;
    if (beside != nullptr)
      for (auto const& key : needs(*beside)) wanted.push_back(key);
    bool const can_start = std::all_of(wanted.begin(), wanted.end(), [&, t = now](auto const& key) {
      auto const found = there.find(key);
      return found != there.end() && found->second <= t;
    });
    if (!can_start) continue;
    auto end = now + duration(p);
    if (beside != nullptr) {
      bool const fused = beside->kind == pass_kind::backward;
      end += duration(*beside) - std::min(hides(p, fused), hides(*beside, fused));
    }
    free_at[r] = end;
    events.push({end, rank});
    for (auto const* each : {&p, beside}) {
      if (each == nullptr) continue;
      auto const [kind, stage, m, is_paired] = *each;
      done[r].push_back({*each, now, end});
      if (kind == pass_kind::forward) {
        arrive('f', stage, m, end);
        if (stage < last) arrive('F', stage + 1, m, end + hop(stage, stage + 1, m));
      } else if (kind == pass_kind::backward_input || kind == pass_kind::backward) {
        arrive('b', stage, m, end);
        if (stage > 0) arrive('G', stage - 1, m, end + hop(stage, stage - 1, m));
      }
    }
  }
  for (std::size_t r = 0; r < line.size(); ++r)
    if (done[r].size() != line[r].size()) return std::nullopt;
  return timeline(done);
}

}  // namespace zbpp::test
