// SPDX-License-Identifier: Apache-2.0
//
// How DualPipeV orders the passes of each rank.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/policy/detail/v_row.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/policy.hpp>

namespace zbpp {

namespace detail {

ZBPP_INLINE void write_dualpipe_v(v_row& row, problem const& problem, int rank) {
  auto const p = problem.ranks();
  auto const m = problem.microbatches();
  auto const after = p - 1 - rank;  // ranks that come after this one on the way down
  auto const forward_backward = [&](int forward_chunk, int backward_chunk) {
    row.forward(forward_chunk);
    row.backward(backward_chunk);
  };
  for (int i = 0; i < 2 * after; ++i) row.forward(0);
  for (int i = 0; i < rank + 1; ++i) {
    row.forward(0);
    row.forward(1);
  }
  for (int i = 0; i < after; ++i) {
    row.split_backward(1);
    row.oldest_weight();
    row.forward(1);
  }
  for (int i = 0; i < m - 2 * p + rank + 1; ++i) {
    bool const is_first_of_turn = i == 0 && after == 0;  // nothing to hide yet, so not paired
    forward_backward(0, 1);
    if (!is_first_of_turn) row.pair_last();
    forward_backward(1, 0);
    row.pair_last();
  }
  for (int i = 0; i < after; ++i) {
    row.backward(1);
    forward_backward(1, 0);
    row.pair_last();
  }
  // Of these 2(r+1) passes the last r+1 keep W back, to fill the holes that follow.
  for (int i = 0; i < rank + 1; ++i) {
    2 * i < rank + 1 ? row.backward(1) : row.split_backward(1);
    2 * i + 1 < rank + 1 ? row.backward(0) : row.split_backward(0);
  }
  for (int i = 0; i < after; ++i) {
    row.oldest_weight();
    row.split_backward(0);
  }
  row.all_weights();
}

}  // namespace detail

ZBPP_INLINE schedule dualpipe_v::operator()(problem const& problem) const {
  auto const p = problem.ranks();
  auto const m = problem.microbatches();
  detail::support(
      m >= 2 * p,
      title,
      detail::joined("needs a step of at least ") + (2 * p) +
          " microbatches, two for each rank; there are " + m);
  detail::support_v_shape(problem, title);
  return detail::schedule_by_rows(problem, detail::write_dualpipe_v);
}

}  // namespace zbpp
