// SPDX-License-Identifier: Apache-2.0
//
// Tails: for each pass, the least time from its end to the last end on a rank. They mirror heads:
// back along the pipeline, before what shares a rank, and before what waits for the memory.
#pragma once

#include <zbpp/analysis/detail/bounds/memory.hpp>
#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/analysis/detail/bounds/view.hpp>
#include <zbpp/analysis/detail/pass_lines.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Finds the tails of all passes, from the last microbatch to the first.
class pass_tails {
 public:
  explicit pass_tails(rank_view const& view)
      : view_(view),
        terms_(view.terms),
        m_(view.microbatches()),
        forward_(terms_.stages(), m_, pass_lines::none),
        backward_(terms_.stages(), m_, pass_lines::none) {
    for (int r = 0; r < view.placement.ranks(); ++r) {
      auto times = view.times(r, true);
      std::vector<ticks> unknown(times.lines(), pass_lines::none);
      lines_.emplace_back(std::move(times), std::move(unknown));
    }
    for (int s = 0; s < terms_.stages(); ++s)
      waiting_.emplace_back(view.placement.stages_of(view.placement.rank_of(s)).size(), m_);
    for (int k = m_ - 1; k >= 0; --k) {
      for (int s : view.placement.stages_of(view.rank)) add(pass_line::weight, s, k);
      for (int s = view.from; s < terms_.stages(); ++s) {
        backward_(s, k) = find_backward(s, k);
        add(pass_line::backward, s, k);
      }
      for (int s = terms_.stages() - 1; s >= view.from; --s) {
        forward_(s, k) = find_forward(s, k);
        add(pass_line::forward, s, k);
      }
    }
  }

  /// @return the tail of a pass, `pass_lines::none` where it can come after the last end
  [[nodiscard]] ticks of(pass_line line, int s, int k) const noexcept {
    if (line == pass_line::forward) return forward_(s, k);
    if (line == pass_line::backward) return backward_(s, k);
    return view_.placement.rank_of(s) == view_.rank
               ? terms_.all(s).backward_weight - terms_.first(s, k + 1).backward_weight
               : pass_lines::none;
  }
  [[nodiscard]] pass_lines const& lines(int rank) const noexcept { return lines_[index(rank)]; }

 private:
  [[nodiscard]] pass_lines& lines_at(int s) { return lines_[index(view_.placement.rank_of(s))]; }

  // The tails of the last microbatch do not depend on the limits; they are the marks.
  void add(pass_line line, int s, int k) {
    auto const tail = of(line, s, k);
    if (k + 1 == m_)
      lines_at(s).start(view_.line(line, s), tail, tail);
    else
      lines_at(s).add(view_.line(line, s), tail);
  }

  [[nodiscard]] ticks from_start_of_forward(int s, int k) const noexcept {
    return forward_(s, k) + terms_.of(s, k).forward;
  }

  // Counts passes of a stage from their numbers on, counted from 0.
  void count(int s, std::int64_t forward, std::int64_t backward, std::int64_t weight) {
    counts_[view_.line(pass_line::forward, s)] = m_ - forward;
    counts_[view_.line(pass_line::backward, s)] = m_ - backward;
    if (view_.placement.rank_of(s) == view_.rank)
      counts_[view_.line(pass_line::weight, s)] = m_ - weight;
  }

  [[nodiscard]] ticks after_counted(int s) {
    return lines_at(s).end_of(counts_, [](ticks) { return ticks{0}; });
  }

  // How many B of a stage must come before F number `n`, counted from 1, of a stage of its rank.
  [[nodiscard]] std::int32_t backwards_before(int forward_stage, int s, int n) const {
    auto const& counts = view_.memory[index(forward_stage)].backwards;
    return counts[index(view_.placement.chunk_of(s))][index(n - 1)];
  }

  [[nodiscard]] ticks find_backward(int s, int k) {
    auto least = s > view_.from ? backward_(s - 1, k) + terms_.up(k, s, s - 1) : ticks{0};
    if (k + 1 < m_)
      least = std::max(least, backward_(s, k + 1) + terms_.of(s, k + 1).backward_input);
    counts_.assign(lines_at(s).size(), 0);
    int first = m_;  // of the F that wait for this B; what follows them does, too
    for (int other : view_.placement.stages_of(view_.placement.rank_of(s))) {
      if (other < view_.from) continue;
      auto& n = waiting_[index(s)][index(view_.placement.chunk_of(other))];
      while (n > 0 && backwards_before(other, s, n) > k) --n;
      if (n < m_) least = std::max(least, from_start_of_forward(other, n));
      first = std::min(first, n);
      if (other <= s)
        count(other, first, other < s ? k : k + 1, k);
      else
        count(other, first, first, first);
    }
    return std::max(least, after_counted(s));
  }

  [[nodiscard]] ticks find_forward(int s, int k) {
    auto least = s + 1 < terms_.stages() ? from_start_of_forward(s + 1, k) + terms_.hop_down(k, s)
                                         : backward_(s, k) + terms_.of(s, k).backward_input;
    if (k + 1 < m_) least = std::max(least, from_start_of_forward(s, k + 1));
    counts_.assign(lines_at(s).size(), 0);
    for (int other : view_.placement.stages_of(view_.placement.rank_of(s))) {
      if (other < view_.from) continue;
      auto const n = other < s ? first_not_ahead(other, s, k) : other == s ? k + 1 : k;
      if (other < s && n < m_)
        least = std::max(least, from_start_of_forward(other, static_cast<int>(n)));
      count(other, n, k, k);
    }
    return std::max(least, after_counted(s));
  }

  // The first F of an earlier stage of the rank that can only come after F number `k` of stage `s`.
  [[nodiscard]] std::int64_t first_not_ahead(int earlier, int s, int k) const {
    for (auto const& next : view_.memory[index(earlier)].later)
      if (next.stage == s) return std::min<std::int64_t>(m_, k + next.ahead);
    return m_;
  }

  rank_view const& view_;
  bound_terms const& terms_;
  int m_;
  cells<ticks> forward_;
  cells<ticks> backward_;
  std::vector<pass_lines> lines_;  // by rank
  // By stage, and by chunk of its rank: the first F there that waits for the B being looked at.
  std::vector<std::vector<int>> waiting_;
  std::vector<std::int64_t> counts_;
};

}  // namespace zbpp::detail
