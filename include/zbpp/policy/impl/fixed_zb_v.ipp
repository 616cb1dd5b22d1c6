// SPDX-License-Identifier: Apache-2.0
//
// How ZB-V orders the passes of each rank.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/policy/fixed_zb_v.hpp>
#include <zbpp/policy/policy.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Builds ZB-V by running all ranks step by step in unit times: a fixed part for each rank, then a
/// drain in which a rank takes a B that has arrived, or else a W.
class zb_v_builder {
 public:
  zb_v_builder(int ranks, int microbatches)
      : p_(ranks),
        m_(microbatches),
        forward_end_(2 * ranks, microbatches, never),
        backward_end_(2 * ranks, microbatches, never) {
    for (int rank = 0; rank < p_; ++rank) ranks_.push_back(fixed_part(rank));
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
      for (auto const& done_pass : rank.order) result.push(done_pass);
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
  [[nodiscard]] rank_state fixed_part(int rank) const {
    auto const full = std::max(m_, 2 * p_ - 1);
    rank_state state;
    std::array<counts, 2> n;
    auto add = [&](pass_kind kind, int chunk, int microbatch) {
      if (microbatch < m_) state.order.push_back({kind, stage(rank, chunk), microbatch});
    };
    auto forward = [&](int chunk) {
      auto& c = n[index(chunk)];
      if (c.f < full) add(pass_kind::forward, chunk, c.f++);
    };
    auto group = [&](int chunk) {
      forward(chunk);
      auto& c = n[index(chunk)];
      add(pass_kind::backward_input, chunk, c.b++);
      add(pass_kind::backward_weight, chunk, c.w++);
    };
    for (int i = 0; i < 2 * p_ - 1 - 2 * rank; ++i) forward(0);
    for (int i = 0; i < rank; ++i) {
      forward(1);
      forward(0);
    }
    for (int i = 0; i < p_ - 1 - rank; ++i) group(1);
    for (group(1); n[1].f < full; group(1)) group(0);
    for (int chunk : {0, 1}) {
      auto const& c = n[index(chunk)];
      state.chunk[index(chunk)] = {std::min(c.f, m_), std::min(c.b, m_), std::min(c.w, m_)};
    }
    return state;
  }

  // Whether what a pass waits for has ended by `now`; W follows its B on the same rank.
  [[nodiscard]] bool is_ready(pass const& what, int now) const {
    switch (what.kind) {
      case pass_kind::forward:
        return what.stage == 0 || forward_end_(what.stage - 1, what.microbatch) <= now;
      case pass_kind::backward_input:
        if (what.stage == 2 * p_ - 1) return forward_end_(what.stage, what.microbatch) <= now;
        return backward_end_(what.stage + 1, what.microbatch) <= now;
      default: return true;
    }
  }

  // Runs at most one pass of a rank in the time unit that begins at `now`.
  bool run_one(int rank, int now) {
    auto& state = ranks_[index(rank)];
    if (state.next < state.order.size()) {
      auto const& what = state.order[state.next];
      if (!is_ready(what, now)) return false;
      ++state.next;
      finish(what, now + 1);
      return true;
    }
    return drain_one(rank, state, now);
  }

  // Runs a B that is ready, or else a W; the chunks take turns, as they do before.
  bool drain_one(int rank, rank_state& state, int now) {
    for (auto kind : {pass_kind::backward_input, pass_kind::backward_weight}) {
      bool const is_b = kind == pass_kind::backward_input;
      auto& turn = is_b ? state.b_turn : state.w_turn;
      for (int chunk : {turn, 1 - turn}) {
        auto& c = state.chunk[index(chunk)];
        pass const what{kind, stage(rank, chunk), is_b ? c.b : c.w};
        if (what.microbatch == (is_b ? m_ : c.b) || !is_ready(what, now)) continue;
        ++(is_b ? c.b : c.w);
        turn = 1 - chunk;
        state.order.push_back(what);
        ++state.next;
        finish(what, now + 1);
        return true;
      }
    }
    return false;
  }

  void finish(pass const& what, int end) {
    if (what.kind == pass_kind::forward) forward_end_(what.stage, what.microbatch) = end;
    if (what.kind == pass_kind::backward_input) backward_end_(what.stage, what.microbatch) = end;
  }

  int p_;
  int m_;
  grid<int> forward_end_;
  grid<int> backward_end_;
  std::vector<rank_state> ranks_;
};

}  // namespace detail

ZBPP_INLINE schedule fixed_zb_v::operator()(problem const& problem) const {
  detail::support(
      problem.placement().is_v_shape(),
      title,
      "needs a v placement, two stages per rank; this one is " + problem.placement().name());
  detail::zb_v_builder builder(problem.ranks(), problem.microbatches());
  return {problem.placement(), problem.microbatches(), builder.build()};
}

}  // namespace zbpp
