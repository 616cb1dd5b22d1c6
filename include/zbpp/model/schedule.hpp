// SPDX-License-Identifier: Apache-2.0
//
// A schedule: for each rank, its passes in the order in which it runs them. It carries its
// placement, so that an order can never be run on ranks it was not made for.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

/// Orders the passes of every rank; ids are valid once made, `verify` proves the rest.
class schedule {
 public:
  /// Takes one row of passes a rank.
  /// @throws error (bad_argument) naming rank and position when a stage or microbatch is out of
  ///         range, or the stage belongs to another rank
  schedule(zbpp::placement placement, int microbatches, rows<pass> passes)
      : placement_(std::move(placement)), microbatches_(microbatches), passes_(std::move(passes)) {
    check();
  }

  /// Takes one vector of passes a rank.
  schedule(
      zbpp::placement placement, int microbatches, std::vector<std::vector<pass>> const& passes)
      : schedule(std::move(placement), microbatches, rows<pass>(passes)) {}

  /// @return which rank runs which stage
  [[nodiscard]] zbpp::placement const& placement() const noexcept { return placement_; }
  /// @return how many ranks there are
  [[nodiscard]] int ranks() const noexcept { return placement_.ranks(); }
  /// @return how many stages there are
  [[nodiscard]] int stages() const noexcept { return placement_.stages(); }
  /// @return how many microbatches make a step
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  /// @return the passes of all ranks
  [[nodiscard]] rows<pass> const& passes() const noexcept { return passes_; }
  /// @return the passes of a rank, in order
  [[nodiscard]] std::span<pass const> passes(int rank) const noexcept { return passes_[rank]; }

  friend bool operator==(schedule const&, schedule const&) = default;

 private:
  void check() const {
    detail::check_microbatches(placement_, microbatches_);
    if (passes_.ranks() != ranks())
      throw error(
          errc::bad_argument,
          "the schedule has " + std::to_string(passes_.ranks()) + " rows; its placement has " +
              std::to_string(ranks()) + " ranks");
    for (int rank = 0; rank < ranks(); ++rank) {
      auto const row = passes_[rank];
      for (std::size_t i = 0; i < row.size(); ++i) check(rank, i, row[i]);
    }
  }

  void check(int rank, std::size_t position, pass const& p) const {
    auto refuse = [&](std::string const& text) {
      throw error(
          errc::bad_argument,
          to_string(p) + ": " + text,
          {.rank = rank, .position = static_cast<std::int64_t>(position)});
    };
    if (p.kind > pass_kind::recompute) refuse("no such kind of pass");
    if (p.stage < 0 || p.stage >= stages())
      refuse("stages go from 0 to " + std::to_string(stages() - 1));
    if (p.microbatch < 0 || p.microbatch >= microbatches_)
      refuse("microbatches go from 0 to " + std::to_string(microbatches_ - 1));
    if (placement_.rank_of(p.stage) != rank)
      refuse("the stage belongs to rank " + std::to_string(placement_.rank_of(p.stage)));
  }

  zbpp::placement placement_;
  int microbatches_;
  rows<pass> passes_;
};

}  // namespace zbpp
