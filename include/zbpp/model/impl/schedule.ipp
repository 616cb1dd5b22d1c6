// SPDX-License-Identifier: Apache-2.0
//
// What model/schedule.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE schedule::schedule(zbpp::placement placement, int microbatches, rows<pass> passes)
    : placement_(std::move(placement)), microbatches_(microbatches), passes_(std::move(passes)) {
  check();
}

ZBPP_INLINE schedule::schedule(
    zbpp::placement placement, int microbatches, std::vector<std::vector<pass>> const& passes)
    : schedule(std::move(placement), microbatches, rows<pass>(passes)) {}

ZBPP_INLINE void schedule::check() const {
  detail::check_microbatches(placement_, microbatches_);
  if (passes_.ranks() != ranks())
    throw error(errc::bad_argument) + "the schedule has " + passes_.ranks() +
        " rows; its placement has " + ranks() + " ranks";
  for (int rank = 0; rank < ranks(); ++rank) {
    auto const row = passes_[rank];
    for (std::size_t i = 0; i < row.size(); ++i) check(rank, i, row[i]);
    for (std::size_t i = 0; i < row.size(); ++i)
      if (row[i].is_paired && (i == 0 || !detail::may_pair(row[i - 1], row[i])))
        throw error(errc::bad_argument, {.rank = rank, .position = static_cast<std::int64_t>(i)}) +
            to_string(row[i]) + ": " + detail::pair_rule;
  }
}

ZBPP_INLINE void schedule::check(int rank, std::size_t position, pass const& p) const {
  auto refuse = [&](std::string const& text) {
    throw error(
        errc::bad_argument, {.rank = rank, .position = static_cast<std::int64_t>(position)}) +
        to_string(p) + ": " + text;
  };
  if (!is_known(p.kind)) refuse("no such kind of pass");
  if (p.stage < 0 || p.stage >= stages())
    refuse(detail::joined("stages go from 0 to ", stages() - 1));
  if (p.microbatch < 0 || p.microbatch >= microbatches_)
    refuse(detail::joined("microbatches go from 0 to ", microbatches_ - 1));
  if (placement_.rank_of(p.stage) != rank)
    refuse(detail::joined("the stage belongs to rank ", placement_.rank_of(p.stage)));
}

}  // namespace zbpp
