// SPDX-License-Identifier: Apache-2.0
//
// How an order grows, and what the rest of it costs at least.
#pragma once

#include <zbpp/analysis/detail/order_so_far.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <algorithm>
#include <bit>

namespace zbpp::detail {

ZBPP_INLINE order_so_far::order_so_far(problem const& problem)
    : problem_(problem),
      last_(problem.stages() - 1),
      m_(problem.microbatches()),
      step_(problem.distinct_microbatches() > 1 ? problem.stages() : 0),
      ranks_(index(problem.ranks())),
      stages_(index(problem.stages())),
      ends_{cells<ticks>(problem.stages(), m_), cells<ticks>(problem.stages(), m_)},
      rank_work_(index(problem.ranks())),
      rows_(index(problem.ranks())) {
  constexpr int most = 63;  // bits for microbatches
  if (m_ > most)
    throw error(errc::unsupported_problem) +
        "an exhaustive search takes up to 63 microbatches; these are " + m_;
  auto const distinct = problem.distinct_microbatches();
  for (int n = 0; n < distinct; ++n)
    for (int s = 0; s <= last_; ++s) {
      hops_down_.push_back(s > 0 ? problem.transfer_time(s - 1, s, n) : 0);
      hops_up_.push_back(s < last_ ? problem.transfer_time(s + 1, s, n) : 0);
      terms_.push_back(terms_of(problem.costs(s, n)));
    }
  for (int s = 0; s <= last_; ++s) rank_numbers_.push_back(problem.placement().rank_of(s));
  if (!are_alike())
    for (auto const k : {backward, forward}) {
      auto& sums = times_from_[k];
      sums.assign(index((m_ + 1) * step_), 0);
      for (int n = m_ - 1; n >= 0; --n)
        for (int s = 0; s <= last_; ++s) sums[at(s, n)] = sums[at(s, n + 1)] + time(k, s, n);
    }
  for (int r = 0; r < problem.ranks(); ++r) {
    auto& rank = ranks_[index(r)];
    rank.limit = problem.memory_limit(r).value_or(none);
    auto const stages = problem.placement().stages_of(r);
    stages_of_.emplace_back(stages.begin(), stages.end());
    for (int s : stages) {
      rank.held += problem.fixed_memory(s);
      rank.passes_left += 3 * m_;
      rank.forwards_left += time_from(forward, s, 0);
      rank.work_left += time_from(forward, s, 0) + time_from(backward, s, 0);
      for (int n = 0; n < m_; ++n) rank.work_left += terms(s, n).least_weight;
    }
  }
  settle_first_starts();
  // R costs time and saves memory. Only before a rank has begun can it be of use to take longer.
  bool const is_settled = all_settled();
  for (int s = 0; s <= last_; ++s) {
    auto const& c = problem.costs(s);
    bool const saves = rank_of(s).limit != none && c.recompute_input < c.activation;
    bool const may_recompute = c.recompute && (saves || !is_settled);
    for (int n = 0; n < distinct; ++n) terms_[at(s, n)].may_recompute = may_recompute;
    has_lean_ = has_lean_ || may_recompute;
  }
}

ZBPP_INLINE order_so_far::stage_terms order_so_far::terms_of(stage_costs const& c) {
  stage_terms t;
  t.may_fuse = c.output_gradient > 0 || c.gains_by_fusing();
  t.time[forward] = t.time[lean_forward] = c.forward;
  t.time[backward] = c.backward_input;
  t.time[weight] = c.backward_weight;
  t.time[fused] = c.of(pass_kind::backward);
  t.time[recompute] = c.of(pass_kind::recompute);
  t.least_weight = std::min(c.backward_weight, t.time[fused] - c.backward_input);
  // Work is counted as if W took the least, with R where it is certain.
  t.work = t.time;
  t.work[backward] -= c.backward_weight - t.least_weight;
  t.work[fused] = c.backward_input + t.least_weight;
  t.work[lean_forward] -= t.time[recompute];
  t.kept[forward] = c.activation;
  t.kept[lean_forward] = c.recompute_input;
  t.kept[recompute] = c.activation - c.recompute_input;
  t.kept[backward] = c.weight_gradient_input - c.activation;
  t.kept[weight] = -c.weight_gradient_input;
  t.kept[fused] = -c.activation;
  for (std::size_t k = 0; k < kinds; ++k) t.during[k] = c.workspace + std::max<bytes>(t.kept[k], 0);
  t.during[backward] = c.workspace + c.output_gradient;
  return t;
}

ZBPP_INLINE bool order_so_far::all_settled() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](auto const& r) { return r.settled; });
}

ZBPP_INLINE void order_so_far::run(int r, option const& chosen) {
  auto& rank = ranks_[index(r)];
  auto const [does, s] = chosen.next;
  auto& stage = stages_[index(s)];
  constexpr std::array names{
      pass_kind::backward_input,
      pass_kind::forward,
      pass_kind::backward_weight,
      pass_kind::backward,
      pass_kind::recompute,
      pass_kind::forward};
  auto const k = counted_as(does);
  auto const number = next(does, s);
  auto const& t = terms(s, number);
  taken_.push_back({r, chosen.next, stage.lean, rank});
  rows_[index(r)].push_back({names[does], s, number});
  if (!rank.settled) rank.start = chosen.start;
  rank.settled = true;
  rank.clock = chosen.end;
  rank.work_left -= t.work[does];
  rank.held += t.kept[does];
  rank.passes_left -= does == fused ? 2 : does == lean_forward ? 0 : 1;
  rank.committed = {};
  if (k == forward) rank.forwards_left -= t.time[forward];
  if (does == fused) ++stage.done[weight];
  if (does == lean_forward) stage.lean |= std::uint64_t{1} << number;
  if (k == recompute) {
    stage.lean &= stage.lean - 1;
    return;
  }
  if (k != weight) ends_[k](s, number) = chosen.end;
  ++stage.done[k];
}

ZBPP_INLINE void order_so_far::take_back() {
  auto const& [r, next, lean, before] = taken_.back();
  auto& stage = stages_[index(next.stage)];
  auto const k = counted_as(next.does);
  if (k != recompute) --stage.done[k];
  if (next.does == fused) --stage.done[weight];
  stage.lean = lean;
  ranks_[index(r)] = before;
  rows_[index(r)].pop_back();
  taken_.pop_back();
}

ZBPP_INLINE std::optional<order_so_far::option> order_so_far::ready(int r) const {
  auto const next = rank(r).committed;
  if (next.stage < 0 || !input_of(next).known) return std::nullopt;
  return option_of(next);
}

ZBPP_INLINE void order_so_far::add_options(int r, bool settled, std::vector<option>& to) const {
  bool const leaves_out_lean = !has_lean_ || (settled && has_room_for_all(r));
  for (std::size_t k = 0; k < kinds; ++k) {
    auto const next = static_cast<kind>(k);
    if (next == lean_forward && leaves_out_lean) continue;
    for (int s : stages_of_[index(r)])
      if (can_be_next(next, s)) to.push_back(option_of({next, s}));
  }
}

// Whether a rank could even run all its F, R and B before it frees anything.
ZBPP_INLINE bool order_so_far::has_room_for_all(int r) const {
  auto all = rank(r).held;
  bytes most = 0;
  for (int s : stages_of_[index(r)]) {
    auto const& t = terms(s, 0);
    all += left(forward, s) * t.kept[forward] +
           std::popcount(stages_[index(s)].lean) * t.kept[recompute] +
           left(backward, s) * std::max<bytes>(t.kept[backward], 0);
    most = std::max({most, t.during[backward], t.during[weight]});
  }
  return all <= rank(r).limit - most;
}

ZBPP_INLINE bool order_so_far::look_ahead() {
  for (auto& rank : ranks_) rank.free = rank.free_for_rest = rank.clock;
  bool changed = true;
  for (int round = 0; round < 3 && changed; ++round) {
    for (int s = 0; s <= last_; ++s) find_input(forward, s);
    for (int s = last_; s >= 0; --s) find_input(backward, s);
    changed = false;
    for (int r = 0; r < problem_.ranks(); ++r) {
      auto& rank = ranks_[index(r)];
      if (rank.passes_left == 0) continue;
      auto const soonest = soonest_start(r);
      if (soonest == none) return false;
      changed = changed || soonest > rank.free;
      auto const [k, s] = rank.committed;
      rank.free = soonest;
      rank.free_for_rest = s >= 0 ? soonest + next_time(k, s) : soonest;
    }
  }
  return true;
}

ZBPP_INLINE ticks order_so_far::bound() {
  find_last_ends();
  ticks most = 0;
  for (int r = 0; r < problem_.ranks(); ++r) {
    auto const& rank = ranks_[index(r)];
    auto finish = rank.passes_left == 0 ? rank.clock : rank.free + rank.work_left;
    for (int s : stages_of_[index(r)]) {
      if (left(weight, s) == 0) continue;
      auto const after =
          left(backward, s) > 0 ? terms(s, m_ - 1).least_weight : time(weight, s, m_ - 1);
      finish = std::max(finish, stages_[index(s)].last[backward] + after);
    }
    // A rank whose first start is open may start late, but has all its work before it then.
    most = std::max(most, rank.settled ? finish - rank.start : rank.work_left);
  }
  return most;
}

ZBPP_INLINE void order_so_far::describe(std::string& key, std::vector<ticks>& times) const {
  key.clear();
  times.clear();
  for (auto const& stage : stages_) {
    for (int n : stage.done) key.push_back(static_cast<char>(n));
    if (has_lean_) key.push_back(static_cast<char>(std::popcount(stage.lean)));
    for (auto bits = stage.lean; bits != 0; bits &= bits - 1) {
      auto const number = std::countr_zero(bits);
      if (are_alike())
        times.push_back(-number);  // R of a later microbatch has more time
      else
        key.push_back(static_cast<char>(number));
    }
  }
  for (auto const& rank : ranks_) {
    key.push_back(static_cast<char>(-1 - rank.committed.stage));
    key.push_back(static_cast<char>(rank.committed.does));
    times.push_back(rank.clock);
    times.push_back(-rank.start);  // a late start makes the span short
  }
  // An input that is there before its rank is free is as good as one that comes just then.
  for (int s = 0; s <= last_; ++s) {
    auto const clock = rank_of(s).clock;
    if (s > 0)
      for (int n = done(forward, s); n < done(forward, s - 1); ++n)
        times.push_back(std::max(clock, ends_[forward](s - 1, n) + down(s, n)));
    if (s < last_)
      for (int n = done(backward, s); n < done(backward, s + 1); ++n)
        times.push_back(std::max(clock, ends_[backward](s + 1, n) + up(s, n)));
  }
}

// Where the first p stages are on p ranks, nothing can run on a rank before the first of them.
ZBPP_INLINE void order_so_far::settle_first_starts() {
  ticks now = 0;
  for (int s = 0; s < problem_.ranks(); ++s) {
    auto& rank = ranks_[index(rank_number(s))];
    if (rank.settled) return;
    now += down(s, 0);
    rank.start = now;
    rank.settled = true;
    now += time(forward, s, 0);
  }
}

ZBPP_INLINE bool order_so_far::can_be_next(kind k, int s) const {
  auto const& t = terms(s, 0);
  auto const& rank = rank_of(s);
  if (t.during[k] > rank.limit - rank.held) return false;
  auto const c = counted_as(k);
  if (c == recompute) return stages_[index(s)].lean != 0;
  auto const number = done(c, s);
  if (number == m_) return false;
  auto const has = [&](int other) {
    return rank_number(other) != rank_number(s) || done(c, other) > number;
  };
  switch (k) {
    case lean_forward:
    case forward: return (k == forward || t.may_recompute) && (s == 0 || has(s - 1));
    case weight: return done(backward, s) > number;
    case fused:
      if (!terms(s, number).may_fuse || done(weight, s) != number) return false;
      [[fallthrough]];
    default: return done(forward, s) > number && !is_lean(s) && (s == last_ || has(s + 1));
  }
}

// A W or R that can be next has what it needs on its own rank, and so has its input.
ZBPP_INLINE order_so_far::input order_so_far::input_of(next_pass next) const {
  auto const k = counted_as(next.does);
  return k == weight || k == recompute ? input{0, true} : stages_[index(next.stage)].inputs[k];
}

ZBPP_INLINE order_so_far::option order_so_far::option_of(next_pass next) const {
  auto const in = input_of(next);
  auto const start = std::max(rank_of(next.stage).clock, in.time);
  return {next, start, start + next_time(next.does, next.stage), in.known};
}

ZBPP_INLINE ticks order_so_far::earliest_input(kind k, int s) const {
  return std::max(rank_of(s).free, input_of({k, s}).time);
}

ZBPP_INLINE ticks order_so_far::earliest_end(kind k, int s) const {
  auto const& rank = rank_of(s);
  next_pass const committed{counted_as(rank.committed.does), rank.committed.stage};
  bool const is_rest = committed.stage >= 0 && committed != next_pass{k, s};
  auto free = is_rest ? rank.free_for_rest : rank.free;
  if (k == backward && is_lean(s)) free += time(recompute, s, done(backward, s));
  return std::max(free, input_of({k, s}).time) + next_time(k, s);
}

ZBPP_INLINE ticks order_so_far::soonest_start(int r) const {
  auto const next = rank(r).committed;
  if (next.stage >= 0) return earliest_input(next.does, next.stage);
  auto soonest = none;
  for (std::size_t k = 0; k < kinds; ++k)
    for (int s : stages_of_[index(r)])
      if (auto const each = static_cast<kind>(k); can_be_next(each, s))
        soonest = std::min(soonest, earliest_input(each, s));
  return soonest;
}

ZBPP_INLINE void order_so_far::find_input(kind k, int s) {
  if (left(k, s) == 0) return;
  auto const number = done(k, s);
  auto const from = [&](kind made, int other, ticks hop) -> input {
    bool const known = done(made, other) > number;
    auto const at = known ? ends_[made](other, number) : earliest_end(made, other);
    return {at + hop, known};
  };
  auto& in = stages_[index(s)].inputs[k];
  if (k == forward)
    in = s == 0 ? input{0, true} : from(forward, s - 1, down(s, number));
  else
    in = s == last_ ? from(forward, s, 0) : from(backward, s + 1, up(s, number));
}

ZBPP_INLINE void order_so_far::find_last_ends() {
  ticks before = 0;  // when the last microbatch reaches a stage
  for (int s = 0; s <= last_; ++s) {
    auto const n = left(forward, s);
    auto& end = stages_[index(s)].last[forward];
    before += down(s, m_ - 1);
    end = n == 0 ? ends_[forward](s, m_ - 1)
                 : std::max(
                       earliest_end(forward, s) + time_from(forward, s, done(forward, s) + 1),
                       before + time(forward, s, m_ - 1));
    before = end;
  }
  // Of all F, and the R and B of this stage and later ones.
  for (std::size_t r = 0; r < ranks_.size(); ++r) rank_work_[r] = ranks_[r].forwards_left;
  for (int s = last_; s >= 0; --s) {
    auto const n = left(backward, s);
    auto& end = stages_[index(s)].last[backward];
    auto& needed = rank_work_[index(rank_number(s))];
    auto const all = time_from(backward, s, done(backward, s));
    needed += all;
    for (auto bits = stages_[index(s)].lean; bits != 0; bits &= bits - 1)
      needed += time(recompute, s, std::countr_zero(bits));
    if (s < last_) before += up(s, m_ - 1);
    end = n == 0 ? ends_[backward](s, m_ - 1)
                 : std::max(
                       {rank_of(s).free + needed,
                        earliest_input(backward, s) + all,
                        before + time(backward, s, m_ - 1)});
    before = end;
  }
}

}  // namespace zbpp::detail
