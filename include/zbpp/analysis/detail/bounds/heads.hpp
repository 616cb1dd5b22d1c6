// SPDX-License-Identifier: Apache-2.0
//
// Heads: for each pass, the least time from the first start on a rank to the start of the pass.
// They grow along the pipeline, after what shares a rank, and after what memory forces ahead.
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
#include <vector>

namespace zbpp::detail {

/// Finds the heads of all passes, microbatch by microbatch.
class pass_heads {
 public:
  explicit pass_heads(rank_view const& view)
      : view_(view),
        terms_(view.terms),
        forward_(terms_.stages(), view.microbatches(), pass_lines::none),
        backward_(terms_.stages(), view.microbatches(), pass_lines::none),
        weight_ends_(terms_.are_alike() ? 0 : terms_.stages(), view.microbatches(), 0) {
    for (int r = 0; r < view.placement.ranks(); ++r)
      lines_.emplace_back(view.times(r), most_before(r));
    for (int s = 0; s < terms_.stages(); ++s) releases_.emplace_back(terms_[s]);
    auto const way_of_first = terms_.there_and_back(0, view.from);
    for (int k = 0; k < view.microbatches(); ++k) {
      for (int s = view.from; s < terms_.stages(); ++s) {
        forward_(s, k) = find_forward(s, k);
        add(pass_line::forward, s, k, terms_.down(0, view.from, s));
      }
      for (int s = terms_.stages() - 1; s >= 0; --s) {
        // To the end of the B of microbatch 0.
        auto const way = way_of_first - (s >= view.from ? terms_.up(0, s, view.from)
                                                        : -terms_.up(0, view.from, s));
        backward_(s, k) = find_backward(s, k);
        end_weight(s, k);
        add(pass_line::backward, s, k, way - terms_.of(s, 0).backward_input);
        add(pass_line::weight, s, k, way);
      }
    }
  }

  /// @return the head of a pass, `pass_lines::none` where it can come before the first start
  [[nodiscard]] ticks of(pass_line line, int s, int k) const noexcept {
    if (line == pass_line::forward) return forward_(s, k);
    return line == pass_line::backward ? backward_(s, k) : end_of_backward(s, k);
  }
  [[nodiscard]] pass_lines const& lines(int rank) const noexcept { return lines_[index(rank)]; }

 private:
  [[nodiscard]] pass_lines& lines_at(int s) { return lines_[index(view_.placement.rank_of(s))]; }

  // Marks of lines are the heads that their first passes have whatever the limits are, so that with
  // less memory the same sets of passes are looked at.
  void add(pass_line line, int s, int k, ticks mark) {
    if (k == 0)
      lines_at(s).start(view_.line(line, s), of(line, s, k), mark);
    else
      lines_at(s).add(view_.line(line, s), of(line, s, k));
  }

  [[nodiscard]] ticks end_of_forward(int s, std::int64_t k) const noexcept {
    return forward_(s, static_cast<int>(k)) + terms_.of(s, k).forward;
  }
  [[nodiscard]] ticks end_of_backward(int s, std::int64_t k) const noexcept {
    return backward_(s, static_cast<int>(k)) + terms_.of(s, k).backward_input;
  }
  [[nodiscard]] ticks end_of_weight(int s, std::int64_t k) const noexcept {
    return terms_.are_alike() ? end_of_backward(s, k) + terms_.of(s, k).backward_weight
                              : weight_ends_(s, static_cast<int>(k));
  }
  // W end in turn, however long each microbatch is.
  void end_weight(int s, int k) {
    if (terms_.are_alike()) return;
    auto const end = end_of_backward(s, k) + terms_.of(s, k).backward_weight;
    weight_ends_(s, k) = k == 0 ? end : std::max(weight_ends_(s, k - 1), end);
  }

  [[nodiscard]] std::vector<ticks> most_before(int rank) const {
    std::vector<ticks> all;
    for (int s : view_.placement.stages_of(rank)) {
      auto const& memory = view_.memory[index(s)];
      all.insert(all.end(), {memory.before_first, memory.before_first_backward, pass_lines::none});
    }
    return all;
  }

  [[nodiscard]] ticks find_forward(int s, int k) {
    ticks least = 0;
    if (s > view_.from) least = forward_(s - 1, k) + terms_.down(k, s - 1, s);
    if (k > 0) least = std::max(least, end_of_forward(s, k - 1));
    auto const& t = terms_[s];
    auto const number = std::int64_t{k} + 1;
    if (t.need(number) > 0)
      least = std::max(
          least,
          releases_[index(s)].before_forward(
              number,
              [&](std::int64_t b) { return end_of_backward(s, b - 1); },
              [&](std::int64_t w) { return end_of_weight(s, w - 1); }));
    return std::max({least, after_rank_of_last(s, k), after_rank(s, k)});
  }

  // Counts F that must come before an F anyhow: of earlier stages, and of its own.
  void count_own_forwards(int s, int k) {
    counts_.assign(lines_at(s).size(), 0);
    for (int other : view_.placement.stages_of(view_.placement.rank_of(s)))
      if (other >= view_.from && other <= s)
        counts_[view_.line(pass_line::forward, other)] = other < s ? k + 1 : k;
  }

  // After the passes that were counted, and after `work` that comes at `first` or later.
  [[nodiscard]] ticks after_counted(int s, ticks first, ticks work) {
    return lines_at(s).end_of(counts_, [=](ticks head) { return head > first ? 0 : work; });
  }

  // The head of the first B of a rank: that of its last stage.
  [[nodiscard]] ticks first_backward(int s) {
    auto const last = view_.placement.stages_of(view_.placement.rank_of(s)).back();
    return lines_at(s).first(view_.line(pass_line::backward, last));
  }

  // After the passes of its rank of which memory forces so many each to come first.
  [[nodiscard]] ticks after_rank(int s, int k) {
    auto const& t = terms_[s];
    auto const& memory = view_.memory[index(s)];
    auto const number = std::int64_t{k} + 1;
    ticks least = 0;
    count_own_forwards(s, k);
    for (int other : view_.placement.stages_of(view_.placement.rank_of(s))) {
      auto const b = memory.backwards[index(view_.placement.chunk_of(other))][index(k)];
      counts_[view_.line(pass_line::backward, other)] = b;
      if (b == 0) continue;
      least = std::max(least, end_of_backward(other, b - 1));
      if (other > s) counts_[view_.line(pass_line::forward, other)] = b;
    }
    for (auto const& next : memory.later) {
      auto const f = next.forwards_before(number);
      if (f == 0) continue;
      least = std::max(least, end_of_forward(next.stage, f - 1));
      auto& count = counts_[view_.line(pass_line::forward, next.stage)];
      count = std::max(count, f);
    }
    auto const weights =
        t.need(number) <= 0 ? 0 : terms_.first(s, t.weights_with(number, k)).backward_weight;
    return std::max(least, after_counted(s, first_backward(s), weights));
  }

  // Before the last F, memory forces more in all than so many of each.
  [[nodiscard]] ticks after_rank_of_last(int s, int k) {
    auto const& memory = view_.memory[index(s)];
    if (k + 1 < view_.microbatches() || memory.before_last == 0) return 0;
    count_own_forwards(s, k);
    if (memory.later.empty()) return after_counted(s, first_backward(s), memory.before_last);
    auto const next = view_.line(pass_line::forward, memory.later.front().stage);
    auto const least = after_counted(s, lines_at(s).first(next), memory.before_last);
    for (auto const& other : memory.later)
      counts_[view_.line(pass_line::forward, other.stage)] = other.forwards_before(k + 1);
    return std::max(least, after_counted(s, first_backward(s), memory.before_last_backward));
  }

  [[nodiscard]] ticks find_backward(int s, int k) {
    auto least = s + 1 == terms_.stages() ? end_of_forward(s, k)
                                          : end_of_backward(s + 1, k) + terms_.hop_up(k, s + 1);
    if (k > 0) least = std::max(least, end_of_backward(s, k - 1));
    counts_.assign(lines_at(s).size(), 0);
    for (int other : view_.placement.stages_of(view_.placement.rank_of(s))) {
      if (other >= view_.from) counts_[view_.line(pass_line::forward, other)] = k + 1;
      if (other >= s) counts_[view_.line(pass_line::backward, other)] = other > s ? k + 1 : k;
    }
    auto const weights = view_.memory[index(s)].weights_before_backward(std::int64_t{k} + 1);
    return std::max(least, after_counted(s, first_backward(s), weights));
  }

  rank_view const& view_;
  bound_terms const& terms_;
  cells<ticks> forward_;
  cells<ticks> backward_;
  cells<ticks> weight_ends_;       // where microbatches differ
  std::vector<pass_lines> lines_;  // by rank
  std::vector<release_time> releases_;
  std::vector<std::int64_t> counts_;
};

}  // namespace zbpp::detail
