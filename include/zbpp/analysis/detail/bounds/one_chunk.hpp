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
  auto const there_and_back = terms.there_and_back(stage);
  if (facts.in_flight >= microbatches) return (microbatches - 1) * terms.pace(stage);
  std::vector<ticks> start(index(microbatches) + 1, 0);
  auto const end_of_b = [&](std::int64_t b) { return start[index(b)] + there_and_back; };
  auto const end_of_w = [&](std::int64_t w) { return end_of_b(w) + t.backward_weight; };
  release_time release(t);
  for (std::int64_t n = 2; n <= microbatches; ++n) {
    start[index(n)] = std::max(start[index(n - 1)] + t.forward, (n - 1) * terms.pace(stage));
    if (t.need(n) <= 0) continue;
    auto const work = n == microbatches ? facts.forced
                                        : t.least_backward(n) * t.backward_input +
                                              t.weights_with(n, n - 1) * t.backward_weight;
    start[index(n)] = std::max(
        {start[index(n)],
         (n - 1) * t.forward + facts.idle + work,
         release.before_forward(n, end_of_b, end_of_w)});
  }
  return start.back();
}

/// Weighs how many F a stage runs before its first B, which can start `need` after the first F.
/// They take at least as long as they take to come: one each `pace`, and F for the last.
class wait_window {
 public:
  /// @param most  F that fit the memory
  wait_window(bound_terms const& terms, int stage, ticks need, int most)
      : forward_(terms[stage].forward), pace_(terms.pace(stage)), need_(need), most_(most) {}

  /// @return the most F that do not delay the first B, at least one
  [[nodiscard]] int in_time() const noexcept {
    if (pace_ == 0) return most_;
    auto const after_first = std::max<ticks>(0, need_ - forward_) / pace_;
    return static_cast<int>(std::min<ticks>(most_ - 1, after_first)) + 1;
  }
  /// @return from the start of the first F to that of the first B, with `n` F between
  [[nodiscard]] ticks wait(int n) const noexcept {
    return std::max(need_, (n - 1) * pace_ + forward_);
  }
  /// @return how much of that is idle
  [[nodiscard]] ticks idle(int n) const noexcept { return wait(n) - n * forward_; }
  /// @return the least that is idle with any number of F; beyond one F more than are in time, each
  ///         only adds
  [[nodiscard]] ticks least_idle() const noexcept {
    auto const n = in_time();
    return std::min(idle(n), idle(std::min(n + 1, most_)));
  }

 private:
  ticks forward_;
  ticks pace_;
  ticks need_;
  int most_;
};

/// @return the facts of a stage
/// @complexity O(microbatches)
[[nodiscard]] inline stage_facts facts_of(bound_terms const& terms, int stage) {
  auto const& t = terms[stage];
  auto const m = terms.microbatches();
  auto const back = terms.there_and_back(stage);
  stage_facts f;
  f.in_flight = t.in_flight(m);
  f.idle = wait_window(terms, stage, back - t.backward_input, f.in_flight).least_idle();
  f.forced = work_before_last(terms, std::span(&stage, 1), stage, {}, false);
  if (t.weight_gradient_input > 0)
    f.backlog = t.backward_weight * units_for(
                                        t.activation + (m - 1) * t.weight_gradient_input - t.room,
                                        t.weight_gradient_input);
  f.last_forward = last_forward_start(terms, stage, f);
  return f;
}

/// Bounds the span of each stage's rank by what happens on one stage.
class one_chunk_bounds {
 public:
  explicit one_chunk_bounds(bound_terms const& terms) : terms_(terms) {}

  /// All passes.
  [[nodiscard]] ticks work(int s) const { return terms_.microbatches() * terms_[s].all(); }
  /// All passes, and the wait for the first B.
  [[nodiscard]] ticks wait(int s, stage_facts const& f) const { return work(s) + f.idle; }
  /// The last F, then there and back and W.
  [[nodiscard]] ticks drain(int s, stage_facts const& f) const {
    return f.last_forward + terms_.there_and_back(s) + terms_[s].backward_weight;
  }
  /// From the first F to the end of the last B.
  [[nodiscard]] ticks to_last_backward(int s, stage_facts const& f) const {
    auto const& t = terms_[s];
    return std::max(
        terms_.microbatches() * (t.forward + t.backward_input) + f.idle + f.backlog,
        f.last_forward + terms_.there_and_back(s));
  }
  /// Down to a later stage, all that this one does up to its last B, up again, and W.
  /// @param f  of the later stage
  [[nodiscard]] ticks path(int s, int through, stage_facts const& f) const {
    return terms_.down(s, through) + to_last_backward(through, f) + terms_.up(through, s) +
           terms_[s].backward_weight;
  }

 private:
  bound_terms const& terms_;
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

  /// @complexity O(stages)
  [[nodiscard]] steps depths(ticks cost) const {
    steps found{std::vector<int>(index(terms_.stages()), 0)};
    ticks wait = 0;  // from the start of the first F to that of the first B, on the stage after
    for (int s = terms_.stages() - 1; s >= 0; --s) {
      auto const need = s + 1 == terms_.stages()
                            ? terms_[s].forward
                            : terms_.down(s, s + 1) + wait + terms_[s + 1].backward_input +
                                  terms_.up(s + 1, s) - terms_[s].backward_input;
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

  /// @return a cost that is certainly enough: each stage runs the F that are in time, so that no
  ///         first B waits for more than its own way
  [[nodiscard]] ticks enough() const {
    ticks most = 0;
    for (int s = 0; s < terms_.stages(); ++s)
      most = std::max(
          most,
          work(s) + terms_.there_and_back(s) - terms_[s].forward - terms_[s].backward_input +
              idle_in_drain(s));
    return most;
  }

 private:
  [[nodiscard]] ticks work(int s) const { return terms_.microbatches() * terms_[s].all(); }

  // The last F of a stage is followed by its own way there and back, which the passes that are left
  // then may be too few to fill.
  [[nodiscard]] ticks idle_in_drain(int s) const {
    auto const& t = terms_[s];
    auto const m = terms_.microbatches();
    auto const left =
        m * (t.backward_input + t.backward_weight) - t.backward_weight - facts_[index(s)].forced;
    return m == 1 ? 0 : std::max<ticks>(0, terms_.there_and_back(s) - t.forward - left);
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
