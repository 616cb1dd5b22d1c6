// SPDX-License-Identifier: Apache-2.0
//
// How STP orders the passes of each rank.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/policy/detail/v_row.hpp>
#include <zbpp/policy/policy.hpp>
#include <zbpp/policy/stp.hpp>

namespace zbpp {

namespace detail {

/// Appends the whole backward pass of a chunk. Where a W of that chunk is kept, a BW would sum the
/// gradients of weights out of turn; then the oldest of these W follows the B in place of its own.
inline void backward_in_turn(v_row& row, int chunk, bool pairs) {
  bool const splits = row.keeps_weight(chunk);
  splits ? row.split_backward(chunk) : row.backward(chunk);
  if (pairs) row.pair_last();
  if (splits) row.oldest_weight(chunk);
}

ZBPP_INLINE void write_stp(v_row& row, problem const& problem, int rank) {
  auto const p = problem.ranks();
  auto const m = problem.microbatches();
  auto const after = p - 1 - rank;  // ranks that come after this one on the way down
  auto const turns = m - 3 * p + 1 + rank;
  for (int i = 0; i < 2 * after; ++i) row.forward(0);
  for (int i = 0; i < rank + 1; ++i) {
    row.forward(0);
    row.forward(1);
  }
  for (int i = 0; i < rank + 1; ++i) row.forward(0);
  for (int i = 0; i < after; ++i) {
    row.forward(1);
    row.split_backward(1);
    row.pair_last();
    row.forward(0);
    row.oldest_weight();
  }
  // The chunks take turns; the last `rank` of these pairs keep W back.
  for (int i = 0; i < 2 * turns + 1; ++i) {
    auto const chunk = i % 2 == 0 ? 1 : 0;
    row.forward(chunk);
    if (i < 2 * turns + 1 - rank) {
      backward_in_turn(row, chunk, true);
    } else {
      row.split_backward(chunk);
      row.pair_last();
    }
  }
  for (int i = 0; i < 2 * p - 2 - rank; ++i) {
    backward_in_turn(row, 0, false);
    row.forward(1);
    row.split_backward(1);
    row.pair_last();
  }
  for (int i = 0; i < rank + 1; ++i) {
    backward_in_turn(row, 0, false);
    row.split_backward(1);
  }
  backward_in_turn(row, 0, false);
  for (int i = 0; i < after; ++i) {
    row.oldest_weight();
    row.oldest_weight();
    backward_in_turn(row, 0, false);
  }
  row.all_weights();
}

}  // namespace detail

ZBPP_INLINE schedule stp::operator()(problem const& problem) const {
  auto const least = 3 * problem.ranks() - 1;
  detail::support(
      problem.microbatches() >= least,
      title,
      detail::joined("needs a step of at least ") + least +
          " microbatches, 3p - 1 for p ranks; there are " + problem.microbatches());
  detail::support_v_shape(problem, title);
  return detail::schedule_by_rows(problem, detail::write_stp);
}

}  // namespace zbpp
