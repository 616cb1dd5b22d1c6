// SPDX-License-Identifier: Apache-2.0
//
// Lower bounds where each rank has one stage: what the wait for the first B, the drain and the
// memory of a stage cost, and the staircase, which adds up what whole F leave open in the waits of
// all stages. docs/bounds.md proves each; stages stand for their ranks here.
#pragma once

#include <zbpp/analysis/detail/bounds/memory.hpp>
#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace zbpp::detail {

/// States what holds for one stage that has a rank for itself.
struct stage_facts {
  int in_flight = 0;       ///< most F before the first B
  ticks idle = 0;          ///< least idle time before the first B
  ticks forced = 0;        ///< B and W that memory forces before the last F
  ticks backlog = 0;       ///< W that memory forces before the last B
  ticks last_forward = 0;  ///< least time from the start of the first F to that of the last
};

/// Gives the least time at which the last F of a stage can start after its first one.
///
/// Before each F, memory forces some B and W. They take time, and each comes a whole way there and
/// back after the F of its microbatch. And F do not reach the stage faster than at their pace.
/// @param facts  of the stage: `in_flight`, `idle` and `forced`
/// @complexity O(microbatches)
[[nodiscard]] inline ticks last_forward_start(
    bound_terms const& terms, int stage, stage_facts const& facts) {
  auto const& t = terms[stage];
  auto const microbatches = terms.microbatches();
  if (facts.in_flight >= microbatches) return terms.arrival(stage, microbatches - 1);
  ticks start = 0;
  std::vector<ticks> ends_of_b(index(microbatches) + 1, 0);
  std::vector<ticks> ends_of_w(ends_of_b.size(), 0);
  auto const end_of_b = [&](std::int64_t b) { return ends_of_b[index(b)]; };
  auto const end_of_w = [&](std::int64_t w) { return ends_of_w[index(w)]; };
  release_time release(t);
  for (std::int64_t n = 1; n <= microbatches; ++n) {
    if (n > 1)
      start = std::max(start + terms.of(stage, n - 2).forward, terms.arrival(stage, n - 1));
    if (n > 1 && t.need(n) > 0) {
      auto const work = n == microbatches
                            ? facts.forced
                            : terms.first(stage, t.least_backward(n)).backward_input +
                                  terms.first(stage, t.weights_with(n, n - 1)).backward_weight;
      start = std::max(
          {start,
           terms.first(stage, n - 1).forward + facts.idle + work,
           release.before_forward(n, end_of_b, end_of_w)});
    }
    // They end in turn, however long each microbatch is.
    ends_of_b[index(n)] = std::max(end_of_b(n - 1), start + terms.there_and_back(n - 1, stage));
    ends_of_w[index(n)] =
        std::max(end_of_w(n - 1), end_of_b(n) + terms.of(stage, n - 1).backward_weight);
  }
  return start;
}

/// Weighs how many F a stage runs before its first B, which can start `need` after the first F.
/// They take at least as long as they take to come, and F for the last.
class wait_window {
 public:
  /// @param most  F that fit the memory
  wait_window(bound_terms const& terms, int stage, ticks need, int most)
      : terms_(terms), stage_(stage), need_(need), most_(most) {}

  /// @return the most F that do not delay the first B, at least one
  [[nodiscard]] int in_time() const noexcept {
    int in_time = 1;
    for (int late = most_ + 1; in_time + 1 < late;) {
      auto const n = in_time + (late - in_time) / 2;
      (end_of(n) <= need_ ? in_time : late) = n;
    }
    return in_time;
  }
  /// @return from the start of the first F to that of the first B, with `n` F between
  [[nodiscard]] ticks wait(int n) const noexcept { return std::max(need_, end_of(n)); }
  /// @return how much of that is idle
  [[nodiscard]] ticks idle(int n) const noexcept {
    return wait(n) - terms_.first(stage_, n).forward;
  }
  /// @return the least idle time with any number of F; after one F more than in time, each adds
  [[nodiscard]] ticks least_idle() const noexcept {
    auto const n = in_time();
    return std::min(idle(n), idle(std::min(n + 1, most_)));
  }

 private:
  // From the start of the first F to when `n` F can have ended.
  [[nodiscard]] ticks end_of(int n) const noexcept {
    return terms_.arrival(stage_, n - 1) + terms_.of(stage_, n - 1).forward;
  }

  bound_terms const& terms_;
  int stage_;
  ticks need_;
  int most_;
};

/// @complexity O(microbatches)
[[nodiscard]] inline stage_facts facts_of(bound_terms const& terms, int stage) {
  auto const& t = terms[stage];
  auto const m = terms.microbatches();
  auto const back = terms.there_and_back(0, stage);
  auto const first_backward = terms.of(stage, 0).backward_input;
  stage_facts f;
  f.in_flight = t.in_flight(m);
  f.idle = wait_window(terms, stage, back - first_backward, f.in_flight).least_idle();
  f.forced = work_before_last(terms, std::span(&stage, 1), stage, {}, false);
  if (t.weight_gradient_input > 0) {
    auto const excess = t.activation + (m - 1) * t.weight_gradient_input - t.room;
    f.backlog = terms.first(stage, units_for(excess, t.weight_gradient_input)).backward_weight;
  }
  f.last_forward = last_forward_start(terms, stage, f);
  return f;
}

/// Bounds the span of each stage's rank by what happens on one stage.
class one_chunk_bounds {
 public:
  explicit one_chunk_bounds(bound_terms const& terms) : terms_(terms) {}

  /// From the first F to the end of the last B: the passes up to there and the wait for the first
  /// B, or up to the last F, then there and back.
  [[nodiscard]] ticks to_last_backward(int s, stage_facts const& f) const {
    auto const all = terms_.all(s);
    return std::max(
        all.forward + all.backward_input + f.idle + f.backlog,
        f.last_forward + terms_.there_and_back(last_, s));
  }
  /// Down to this stage or a later one, all that that one does up to its last B, up again, and W.
  /// @param f  of the stage that it goes through
  [[nodiscard]] ticks path(int s, int through, stage_facts const& f) const {
    return terms_.down(0, s, through) + to_last_backward(through, f) +
           terms_.up(last_, through, s) + terms_.of(s, last_).backward_weight;
  }

 private:
  bound_terms const& terms_;
  int last_ = terms_.microbatches() - 1;
};

/// Says whether a cost leaves every stage enough idle time to wait for its first B.
class staircase_steps {
 public:
  /// Holds the F of each stage before its first B, as far as they are found.
  struct steps {
    std::vector<int> forwards;
    int stuck = -1;  ///< the stage that `cost` leaves too little time; -1: none
  };

  /// @param facts  of all stages
  staircase_steps(bound_terms const& terms, std::vector<stage_facts> const& facts)
      : terms_(terms), facts_(facts) {}

  /// @complexity O(stages * log microbatches)
  [[nodiscard]] steps depths(ticks cost) const {
    steps found{std::vector<int>(index(terms_.stages()), 0)};
    ticks wait = 0;  // from the start of the first F to that of the first B, on the stage after
    for (int s = terms_.stages() - 1; s >= 0; --s) {
      auto const need = s + 1 == terms_.stages()
                            ? terms_.of(s, 0).forward
                            : terms_.down(0, s, s + 1) + wait + terms_.of(s + 1, 0).backward_input +
                                  terms_.hop_up(0, s + 1);
      wait_window const window(terms_, s, need, facts_[index(s)].in_flight);
      auto const n = forwards(s, window, cost);
      if (n == 0) {
        found.stuck = s;
        break;
      }
      found.forwards[index(s)] = n;
      wait = window.wait(n);
    }
    return found;
  }

  /// @return a cost that is enough: with F in time, no first B waits for more than its own way
  [[nodiscard]] ticks enough() const {
    ticks most = 0;
    for (int s = 0; s < terms_.stages(); ++s)
      most = std::max(
          most,
          work(s) + terms_.there_and_back(0, s) - terms_.of(s, 0).forward -
              terms_.of(s, 0).backward_input + idle_in_drain(s));
    return most;
  }

 private:
  [[nodiscard]] ticks work(int s) const { return terms_.all(s).all(); }

  // The last F of a stage is followed by its own way there and back, which the passes that are left
  // then may be too few to fill.
  [[nodiscard]] ticks idle_in_drain(int s) const {
    auto const m = terms_.microbatches();
    auto const all = terms_.all(s);
    auto const& last = terms_.of(s, m - 1);
    auto const left =
        all.backward_input + all.backward_weight - last.backward_weight - facts_[index(s)].forced;
    return m == 1 ? 0 : std::max<ticks>(0, terms_.there_and_back(m - 1, s) - last.forward - left);
  }

  // The number of F that lets the first B start soonest, 0 if none idles little enough.
  [[nodiscard]] int forwards(int s, wait_window const& window, ticks cost) const {
    auto const drain = idle_in_drain(s);
    auto const most = facts_[index(s)].in_flight;
    auto const fits = [&](int n) {
      // With all F before the first B, the wait for the last B is the same idle time.
      auto const apart = n < terms_.microbatches() ? drain : 0;
      return window.idle(n) + apart <= cost - work(s);
    };
    auto const n = window.in_time();
    for (int tried : {n, std::min(n + 1, most), most})
      if (fits(tried)) return tried;
    return 0;
  }

  bound_terms const& terms_;
  std::vector<stage_facts> const& facts_;
};

}  // namespace zbpp::detail
