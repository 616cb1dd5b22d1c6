// SPDX-License-Identifier: Apache-2.0
//
// How DualPipeV orders the passes of each rank.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
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
  dualpipe_v_rank(int ranks, int rank, int microbatches)
      : stages_{rank, 2 * ranks - 1 - rank}, p_(ranks), r_(rank), m_(microbatches) {}

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
    repeat(m_ - 2 * p_ + r_ + 1, [&](int) {
      forward(0);
      backward(1);
      forward(1);
      backward(0);
    });
    repeat(after, [&](int) {
      backward(1);
      forward(1);
      backward(0);
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
    for (auto const& one : detail::dualpipe_v_rank(p, rank, m).passes()) passes.push(one);
    passes.end_row();
  }
  return {problem.placement(), m, std::move(passes)};
}

}  // namespace zbpp
