// SPDX-License-Identifier: Apache-2.0
//
// A schedule: for each rank, its passes in the order in which it runs them. It carries its
// placement, so that an order can never be run on ranks it was not made for.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace zbpp {

/// Orders the passes of every rank; ids are valid once made, `verify` proves the rest.
class schedule {
 public:
  /// Takes one row of passes per rank.
  /// @throws error (bad_argument) naming rank and position when a stage or microbatch is out of
  ///         range, the stage belongs to another rank, or a pass is paired that is no B or BW right
  ///         after an F
  schedule(zbpp::placement placement, int microbatches, rows<pass> passes);

  /// Takes one vector of passes per rank.
  schedule(
      zbpp::placement placement, int microbatches, std::vector<std::vector<pass>> const& passes);

  [[nodiscard]] zbpp::placement const& placement() const noexcept { return placement_; }
  [[nodiscard]] int ranks() const noexcept { return placement_.ranks(); }
  [[nodiscard]] int stages() const noexcept { return placement_.stages(); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] rows<pass> const& passes() const noexcept { return passes_; }
  [[nodiscard]] std::span<pass const> passes(int rank) const noexcept { return passes_[rank]; }

  friend bool operator==(schedule const&, schedule const&) = default;

 private:
  void check() const;
  void check(int rank, std::size_t position, pass const& p) const;

  zbpp::placement placement_;
  int microbatches_;
  rows<pass> passes_;
};

namespace detail {

/// @return whether the pass or instruction at a position of a row runs together with the next
template <class Row>
[[nodiscard]] bool next_is_paired(Row const& row, std::size_t position) noexcept {
  if (position + 1 >= row.size()) return false;
  if constexpr (requires { row[position].pass; })
    return row[position + 1].pass.is_paired;
  else
    return row[position + 1].is_paired;
}

template <class Row>
[[nodiscard]] bool has_pairs(Row const& row) noexcept {
  for (auto const& one : row)
    if (one.is_paired) return true;
  return false;
}

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/schedule.ipp>
#endif
