// SPDX-License-Identifier: Apache-2.0
//
// Writes the passes of the two chunks of a rank on a V one by one, for the policies that state
// their order step by step.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Appends passes of the chunks 0, on the way down the V, and 1, on its way up. Each chunk runs its
/// microbatches in turn, so no call names one.
class v_row {
 public:
  v_row(problem const& problem, int rank)
      : problem_(problem), stages_{rank, 2 * problem.ranks() - 1 - rank} {}

  void forward(int chunk) { add(pass_kind::forward, chunk, forwards_[index(chunk)]++); }
  void backward(int chunk) { add(pass_kind::backward, chunk, backwards_[index(chunk)]++); }
  /// Appends a B and keeps its W for later.
  void split_backward(int chunk) {
    auto const microbatch = backwards_[index(chunk)]++;
    add(pass_kind::backward_input, chunk, microbatch);
    kept_.push_back({chunk, microbatch});
  }
  [[nodiscard]] bool keeps_weight(int chunk) const {
    return std::ranges::find(kept_, chunk, &weight::chunk) != kept_.end();
  }
  /// Appends the oldest W of a chunk that is kept.
  void oldest_weight(int chunk) { run(std::ranges::find(kept_, chunk, &weight::chunk)); }
  /// Appends the oldest W that is kept.
  void oldest_weight() { run(kept_.begin()); }
  void all_weights() {
    while (!kept_.empty()) oldest_weight();
  }
  /// Makes the B or BW that was appended last and the F in front of it a pair, where the two take
  /// less time together.
  void pair_last() {
    auto const& f = passes_[passes_.size() - 2];
    auto& b = passes_.back();
    auto const in_turn = problem_.time(f) + problem_.time(b);
    b.is_paired = problem_.pair_time(f, b) < in_turn;
  }

  [[nodiscard]] std::vector<pass> const& passes() const noexcept { return passes_; }

 private:
  struct weight {
    int chunk;
    int microbatch;
  };

  void run(std::deque<weight>::iterator at) {
    add(pass_kind::backward_weight, at->chunk, at->microbatch);
    kept_.erase(at);
  }
  void add(pass_kind kind, int chunk, int microbatch) {
    passes_.push_back({kind, stages_[index(chunk)], microbatch});
  }

  problem const& problem_;
  std::array<int, 2> stages_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> backwards_{};
  std::deque<weight> kept_;  // that are open, the oldest first
  std::vector<pass> passes_;
};

/// @return the schedule of a problem on a V of which `write` gives the passes of each rank
[[nodiscard]] inline schedule schedule_by_rows(
    problem const& problem, void (*write)(v_row& row, zbpp::problem const& problem, int rank)) {
  auto const p = problem.ranks();
  rows<pass> passes;
  passes.reserve(index(p), index(problem.stages()) * index(problem.microbatches()) * 3);
  for (int rank = 0; rank < p; ++rank) {
    v_row row(problem, rank);
    write(row, problem, rank);
    for (auto const& one : row.passes()) passes.push(one);
    passes.end_row();
  }
  return {problem.placement(), problem.microbatches(), std::move(passes)};
}

}  // namespace zbpp::detail
