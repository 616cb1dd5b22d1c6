// SPDX-License-Identifier: Apache-2.0
//
// How ZB-V orders the passes of each rank.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/policy/policy.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace zbpp {

namespace detail {

/// Builds ZB-V by running all ranks step by step in unit times: a fixed part for each rank, then a
/// drain in which a rank takes a B that has arrived, or else a W. In the fixed part of at least
/// 2p-1 microbatches each W follows its B; with fewer, W waits until no F or B can start.
class zb_v_builder {
 public:
  zb_v_builder(int ranks, int microbatches)
      : p_(ranks),
        m_(microbatches),
        holds_weights_back_(microbatches < 2 * ranks - 1),
        forward_end_(2 * ranks, microbatches, never),
        backward_end_(2 * ranks, microbatches, never) {
    for (int rank = 0; rank < p_; ++rank) ranks_.emplace_back().fixed = fixed_part(rank);
  }

  [[nodiscard]] rows<pass> build() {
    auto const all = std::int64_t{6} * p_ * m_;
    std::int64_t done = 0;
    for (int now = 0; done < all; ++now)
      for (int rank = 0; rank < p_; ++rank)
        if (run_one(rank, now)) ++done;
    rows<pass> result;
    result.reserve(index(p_), index(all));
    for (auto const& rank : ranks_) {
      for (auto const& one : rank.order) result.push(one);
      result.end_row();
    }
    return result;
  }

 private:
  static constexpr int never = std::numeric_limits<int>::max();

  // Counts of one chunk: how many F, B and W stand in the order so far.
  struct counts {
    int f = 0;
    int b = 0;
    int w = 0;
  };
  struct rank_state {
    std::vector<pass> fixed;
    std::vector<pass> order;
    std::size_t next = 0;  // first pass of the fixed part that has not run
    std::array<counts, 2> chunk;
    int b_turn = 0;  // chunk that comes next in the drain
    int w_turn = 0;
  };

  [[nodiscard]] int stage(int rank, int chunk) const {
    return chunk == 0 ? rank : 2 * p_ - 1 - rank;
  }

  // With fewer than 2p-1 microbatches the rule is that of 2p-1, less those that are not there.
  [[nodiscard]] std::vector<pass> fixed_part(int rank) const {
    auto const full = std::max(m_, 2 * p_ - 1);
    std::vector<pass> passes;
    std::array<counts, 2> n;
    auto add = [&](pass_kind kind, int chunk, int microbatch) {
      if (microbatch < m_) passes.push_back({kind, stage(rank, chunk), microbatch});
    };
    auto forward = [&](int chunk) {
      auto& c = n[index(chunk)];
      if (c.f < full) add(pass_kind::forward, chunk, c.f++);
    };
    auto group = [&](int chunk) {
      forward(chunk);
      auto& c = n[index(chunk)];
      add(pass_kind::backward_input, chunk, c.b++);
      if (!holds_weights_back_) add(pass_kind::backward_weight, chunk, c.w++);
    };
    for (int i = 0; i < 2 * p_ - 1 - 2 * rank; ++i) forward(0);
    for (int i = 0; i < rank; ++i) {
      forward(1);
      forward(0);
    }
    for (int i = 0; i < p_ - 1 - rank; ++i) group(1);
    for (group(1); n[1].f < full; group(1)) group(0);
    return passes;
  }

  // Whether all that a pass waits for has ended by `now`; W follows its B on the same rank.
  [[nodiscard]] bool is_ready(pass const& one, int now) const {
    switch (one.kind) {
      case pass_kind::forward:
        return one.stage == 0 || forward_end_(one.stage - 1, one.microbatch) <= now;
      case pass_kind::backward_input:
        if (one.stage == 2 * p_ - 1) return forward_end_(one.stage, one.microbatch) <= now;
        return backward_end_(one.stage + 1, one.microbatch) <= now;
      default: return true;
    }
  }

  // Whether a rank that holds W back keeps activations of fewer than p microbatches.
  [[nodiscard]] bool has_room(rank_state const& state) const {
    auto const& [first, second] = state.chunk;
    return !holds_weights_back_ || first.f + second.f - first.w - second.w < 2 * p_;
  }

  // Runs at most one pass of a rank in the time unit that begins at `now`.
  bool run_one(int rank, int now) {
    auto& state = ranks_[index(rank)];
    if (state.next == state.fixed.size())
      return drain(pass_kind::backward_input, rank, now) ||
             drain(pass_kind::backward_weight, rank, now);
    auto const& one = state.fixed[state.next];
    if (is_ready(one, now) && (one.kind != pass_kind::forward || has_room(state))) {
      ++state.next;
      run(one, rank, now);
      return true;
    }
    return holds_weights_back_ && drain(pass_kind::backward_weight, rank, now);
  }

  // Runs the next B or W of a chunk if one is ready; the chunks take turns.
  bool drain(pass_kind kind, int rank, int now) {
    auto& state = ranks_[index(rank)];
    bool const is_b = kind == pass_kind::backward_input;
    auto& turn = is_b ? state.b_turn : state.w_turn;
    for (int chunk : {turn, 1 - turn}) {
      auto const& c = state.chunk[index(chunk)];
      pass const one{kind, stage(rank, chunk), is_b ? c.b : c.w};
      if (one.microbatch == (is_b ? m_ : c.b) || !is_ready(one, now)) continue;
      turn = 1 - chunk;
      run(one, rank, now);
      return true;
    }
    return false;
  }

  void run(pass const& one, int rank, int now) {
    auto& state = ranks_[index(rank)];
    state.order.push_back(one);
    auto& c = state.chunk[index(one.stage < p_ ? 0 : 1)];
    switch (one.kind) {
      case pass_kind::forward:
        ++c.f;
        forward_end_(one.stage, one.microbatch) = now + 1;
        break;
      case pass_kind::backward_input:
        ++c.b;
        backward_end_(one.stage, one.microbatch) = now + 1;
        break;
      default: ++c.w;
    }
  }

  int p_;
  int m_;
  bool holds_weights_back_;
  cells<int> forward_end_;
  cells<int> backward_end_;
  std::vector<rank_state> ranks_;
};

}  // namespace detail

ZBPP_INLINE schedule zb_v::operator()(problem const& problem) const {
  detail::support_v_shape(problem, title);
  detail::zb_v_builder builder(problem.ranks(), problem.microbatches());
  return {problem.placement(), problem.microbatches(), builder.build()};
}

}  // namespace zbpp
