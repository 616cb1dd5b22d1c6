// SPDX-License-Identifier: Apache-2.0
//
// What memory forces: passes that must have ended before an F has room, or before a B, and when the
// last of them can have ended.
#pragma once

#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Finds when enough B and W of a stage have ended for its next F. Ask for ascending F.
class release_time {
 public:
  explicit release_time(stage_terms const& t) : t_(t) {}

  /// @param n  number of the F, counted from 1; memory forces something before it
  /// @param end_of_b, end_of_w  give the least end of the B or W with a number; they ascend
  /// @return the least end, over numbers of B, of these and the W that are then necessary
  /// @complexity O(1) on average
  template <class EndOfB, class EndOfW>
  [[nodiscard]] ticks before_forward(std::int64_t n, EndOfB end_of_b, EndOfW end_of_w) {
    auto const after_w = [&](std::int64_t b) {
      auto const w = t_.weights_with(n, b);
      return w == 0 ? 0 : end_of_w(w);
    };
    // More B end later but need fewer W. The best number is where both meet, which ascends with n.
    auto const least = t_.least_backward(n);
    meet_ = std::max(meet_, least);
    while (meet_ + 1 < n && end_of_b(meet_) < after_w(meet_)) ++meet_;
    auto const here = std::max(end_of_b(meet_), after_w(meet_));
    if (meet_ == least) return here;
    return std::min(here, std::max(end_of_b(meet_ - 1), after_w(meet_ - 1)));
  }

 private:
  stage_terms const& t_;
  std::int64_t meet_ = 0;
};

/// Orders F of a stage after passes of a later stage of its rank.
///
/// F of the later stage finds all activations in memory whose B wait for it. So the earlier stage
/// can only be `ahead` F ahead; else no room would ever come.
struct later_stage {
  int stage = 0;
  std::int64_t ahead = 0;
  bytes activation = 0;
  bytes held = 0;  ///< activations of this stage and the earlier ones of its rank

  /// @return how many F of this stage must come before F number `n` of the earlier one
  [[nodiscard]] std::int64_t forwards_before(std::int64_t n) const noexcept {
    return std::max<std::int64_t>(0, n - ahead);
  }
};

/// States what the memory of a rank means for one of its stages.
struct memory_terms {
  std::vector<later_stage> later;  ///< stages of the rank
  /// How many B of each stage of the rank must come before each F of this stage: by stage and F.
  std::vector<std::vector<std::int32_t>> backwards = {};
  ticks before_last = 0;            ///< F of later stages, B and W that must come before the last F
  ticks before_last_backward = 0;   ///< B and W of them alone
  ticks before_first = 0;           ///< the most that can run before the first F
  ticks before_first_backward = 0;  ///< the same for the first B
  bytes backlog = 0;       ///< what the rank keeps at least when the first B of the stage starts
  bytes backlog_step = 0;  ///< what each further B of the stage adds, while no W runs
  bytes most_room = 0;     ///< for activations on the rank
  ticks least_weight = 0;  ///< least time of a W on the rank
  bytes most_weight = 0;   ///< the most that a W on the rank frees

  /// @return time of the W before B number `n` of the stage, counted from 1
  [[nodiscard]] ticks weights_before_backward(std::int64_t n) const noexcept {
    auto const need = backlog + (n - 1) * backlog_step - most_room;
    return need <= 0 || most_weight == 0 ? 0 : units_for(need, most_weight) * least_weight;
  }
};

/// Counts the B that must come before an F of a stage, one later stage after another.
class backward_count {
 public:
  /// @param n  number of the F, counted from 1
  backward_count(stage_terms const& t, std::int64_t n) : n_(n), need_(t.need(n)) {}

  /// @return how many B of the next later stage must come before the F
  [[nodiscard]] std::int64_t of(later_stage const& later) noexcept {
    need_ += later.forwards_before(n_) * later.activation;
    return need_ <= 0 ? 0 : units_for(need_, later.held);
  }

 private:
  std::int64_t n_;
  bytes need_;  // what must have been freed, with all that later stages must have taken
};

[[nodiscard]] inline std::vector<later_stage> later_stages_of(
    bound_terms const& terms, std::span<int const> stages, int s) {
  std::vector<later_stage> later;
  auto const held = terms[s].held;
  for (int other : stages) {
    if (other <= s) continue;
    auto const& o = terms[other];
    std::int64_t ahead = terms.microbatches();
    if (held > 0) ahead = std::min(ahead, (o.room - o.held) / held + 1);
    later.push_back({other, ahead, o.activation, o.held});
  }
  return later;
}

/// Finds the least work that memory forces before the last F of a stage, by its own B before that.
/// @param with_forwards  whether F of later stages count as work
/// @complexity O(microbatches * stages of the rank)
[[nodiscard]] inline ticks work_before_last(
    bound_terms const& terms,
    std::span<int const> stages,
    int s,
    std::vector<later_stage> const& later,
    bool with_forwards) {
  auto const& t = terms[s];
  auto const m = terms.microbatches();
  if (t.need(m) <= 0) return 0;
  // What the counted passes do not free, single passes must: W, and B of other stages.
  auto single = std::numeric_limits<ticks>::max();
  bytes single_frees = 0;
  auto const add_single = [&](ticks time, bytes frees) {
    if (frees == 0) return;
    single = std::min(single, time);
    single_frees = std::max(single_frees, frees);
  };
  for (int other : stages) {
    auto const& o = terms[other];
    auto const& least_time = terms.least(other);
    add_single(least_time.backward_weight, o.weight_gradient_input);
    if (other != s) add_single(least_time.backward_input, o.activation - o.weight_gradient_input);
  }
  auto least = std::numeric_limits<ticks>::max();
  for (std::int64_t b = t.least_backward(m); b < m; ++b) {
    auto work = terms.first(s, b).backward_input;
    auto rest = t.need(m) - b * (t.activation - t.weight_gradient_input);
    for (int other : stages) {
      if (other >= s) break;
      auto const& o = terms[other];
      auto const h = t.backwards_with(m, b, o.held);
      work += terms.first(other, h).backward_input;
      rest -= h * (o.activation - o.weight_gradient_input);
    }
    backward_count backwards(t, m);
    for (auto const& next : later) {
      auto const& o = terms[next.stage];
      auto const h = std::max(b, backwards.of(next));
      auto const f = std::max(h, next.forwards_before(m));
      work += terms.first(next.stage, h).backward_input +
              (with_forwards ? terms.first(next.stage, f).forward : 0);
      rest += f * o.activation - h * (o.activation - o.weight_gradient_input);
    }
    if (rest > 0 && single_frees == 0) continue;
    least = std::min(least, work + (rest <= 0 ? 0 : units_for(rest, single_frees) * single));
  }
  return least;
}

/// Finds the most that can run on the rank of a stage before its first F and its first B. Until
/// then F of this stage and of earlier ones only fill the memory.
/// @complexity O(microbatches * stages of the rank)
inline void find_early_work(
    bound_terms const& terms, std::span<int const> stages, int s, memory_terms& found) {
  auto const& t = terms[s];
  auto const m = terms.microbatches();
  std::vector<ticks> earlier;  // the longest F of each earlier stage, the longest first
  auto least_size = std::numeric_limits<bytes>::max();
  for (int other : stages) {
    if (other >= s) break;
    earlier.push_back(terms.longest_forward(other));
    least_size = std::min(least_size, terms[other].activation);
  }
  std::sort(earlier.rbegin(), earlier.rend());
  // No more F of earlier stages than the smallest activations would allow, and the longest of them.
  auto const fill = [&](bytes room) {
    ticks sum = 0;
    auto left = least_size == 0 ? std::numeric_limits<bytes>::max() : room / least_size;
    for (auto forward : earlier) {
      auto const n = std::min<std::int64_t>(left, m);
      sum += n * forward;
      left -= n;
    }
    return sum;
  };
  found.before_first = fill(found.most_room - t.activation);
  for (std::int64_t n = 1; n <= m && n * t.held <= found.most_room; ++n) {
    auto work = terms.first(s, n).forward + fill(found.most_room - n * t.activation);
    // On later stages passes of these microbatches can run, as many as find room beside those here.
    for (auto const& next : found.later)
      work += terms.first(next.stage, std::min(n, next.ahead)).all();
    found.before_first_backward = std::max(found.before_first_backward, work);
  }
}

/// Counts the B of each stage of the rank that must come before each F of stage `s`.
/// @complexity O(microbatches * stages of the rank)
[[nodiscard]] inline std::vector<std::vector<std::int32_t>> count_backwards(
    bound_terms const& terms,
    std::span<int const> stages,
    int s,
    std::vector<later_stage> const& later) {
  auto const& t = terms[s];
  std::vector<std::vector<std::int32_t>> all(stages.size());
  for (std::int64_t n = 1; n <= terms.microbatches(); ++n) {
    auto row = all.begin();
    for (int other : stages)
      if (other <= s)
        (row++)->push_back(
            static_cast<std::int32_t>(t.backwards_with(n, n - 1, terms[other].held)));
    backward_count backwards(t, n);
    for (auto const& next : later)
      (row++)->push_back(static_cast<std::int32_t>(backwards.of(next)));
  }
  return all;
}

/// @param stages  of the rank
[[nodiscard]] inline memory_terms memory_terms_of(
    bound_terms const& terms, std::span<int const> stages, int s) {
  auto const& t = terms[s];
  memory_terms found{
      .later = later_stages_of(terms, stages, s),
      .backlog = t.held,
      .least_weight = terms.least(s).backward_weight};
  for (int other : stages) {
    auto const& o = terms[other];
    found.most_room = std::max(found.most_room, o.room);
    found.backlog_step += o.weight_gradient_input;
    found.most_weight = std::max(found.most_weight, o.weight_gradient_input);
    found.least_weight = std::min(found.least_weight, terms.least(other).backward_weight);
    if (other > s) found.backlog += o.weight_gradient_input;
  }
  found.before_last = work_before_last(terms, stages, s, found.later, true);
  found.before_last_backward = work_before_last(terms, stages, s, found.later, false);
  found.backwards = count_backwards(terms, stages, s, found.later);
  find_early_work(terms, stages, s, found);
  return found;
}

}  // namespace zbpp::detail
