// SPDX-License-Identifier: Apache-2.0
//
// How DualPipeV orders the passes of each rank.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/policy.hpp>

#include <array>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Writes the passes of one rank of DualPipeV, step by step.
class dualpipe_v_rank {
 public:
  dualpipe_v_rank(problem const& problem, int rank)
      : stages_{rank, 2 * problem.ranks() - 1 - rank},
        p_(problem.ranks()),
        r_(rank),
        m_(problem.microbatches()),
        pairs_(
            problem.costs(stages_[0]).saved_by_pairing() > 0 &&
            problem.costs(stages_[1]).saved_by_pairing() > 0) {}

  [[nodiscard]] std::vector<pass> passes() {
    auto const after = p_ - 1 - r_;  // ranks that come after this one on the way down
    repeat(2 * after, [&](int) { forward(0); });
    repeat(r_ + 1, [&](int) {
      forward(0);
      forward(1);
    });
    repeat(after, [&](int) {
      split_backward(1);
      oldest_weight();
      forward(1);
    });
    repeat(m_ - 2 * p_ + r_ + 1, [&](int i) {
      bool const is_first_of_turn = i == 0 && after == 0;  // nothing to hide yet, so not paired
      forward_backward(0, 1, pairs_ && !is_first_of_turn);
      forward_backward(1, 0, pairs_);
    });
    repeat(after, [&](int) {
      backward(1);
      forward_backward(1, 0, pairs_);
    });
    // Of these 2(r+1) passes the last r+1 keep W back, to fill the holes that follow.
    repeat(r_ + 1, [&](int i) {
      2 * i < r_ + 1 ? backward(1) : split_backward(1);
      2 * i + 1 < r_ + 1 ? backward(0) : split_backward(0);
    });
    repeat(after, [&](int) {
      oldest_weight();
      split_backward(0);
    });
    while (!kept_.empty()) oldest_weight();
    return std::move(passes_);
  }

 private:
  template <class Act>
  static void repeat(int times, Act act) {
    for (int i = 0; i < times; ++i) act(i);
  }

  void add(pass_kind kind, int chunk, int microbatch) {
    passes_.push_back({kind, stages_[index(chunk)], microbatch});
  }
  void forward(int chunk) { add(pass_kind::forward, chunk, forwards_[index(chunk)]++); }
  void backward(int chunk) { add(pass_kind::backward, chunk, backwards_[index(chunk)]++); }
  void forward_backward(int forward_chunk, int backward_chunk, bool pairs) {
    forward(forward_chunk);
    backward(backward_chunk);
    passes_.back().is_paired = pairs;
  }
  void split_backward(int chunk) {
    auto const microbatch = backwards_[index(chunk)]++;
    add(pass_kind::backward_input, chunk, microbatch);
    kept_.emplace_back(chunk, microbatch);
  }
  void oldest_weight() {
    auto const [chunk, microbatch] = kept_.front();
    kept_.pop_front();
    add(pass_kind::backward_weight, chunk, microbatch);
  }

  std::array<int, 2> stages_;
  int p_;
  int r_;
  int m_;
  bool pairs_;  // whether an F and a BW take less time together
  std::array<int, 2> forwards_{};
  std::array<int, 2> backwards_{};
  std::deque<std::pair<int, int>> kept_;  // chunk and microbatch of the W that are open
  std::vector<pass> passes_;
};

}  // namespace detail

ZBPP_INLINE schedule dualpipe_v::operator()(problem const& problem) const {
  auto const p = problem.ranks();
  auto const m = problem.microbatches();
  detail::support(
      problem.placement().is_v_shape(),
      title,
      "needs a v placement, two stages per rank; this one is " + problem.placement().name());
  detail::support(
      m >= 2 * p,
      title,
      "needs a step of at least " + std::to_string(2 * p) +
          " microbatches, two for each rank; there are " + std::to_string(m));
  rows<pass> passes;
  passes.reserve(detail::index(p), detail::index(problem.stages()) * detail::index(m) * 3);
  for (int rank = 0; rank < p; ++rank) {
    for (auto const& one : detail::dualpipe_v_rank(problem, rank).passes()) passes.push(one);
    passes.end_row();
  }
  return {problem.placement(), m, std::move(passes)};
}

}  // namespace zbpp
