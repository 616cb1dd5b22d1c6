// SPDX-License-Identifier: Apache-2.0
//
// How `simulate` walks the ranks of a schedule.
#pragma once

#include <zbpp/analysis/detail/pass_inputs.hpp>
#include <zbpp/analysis/detail/rank_walk.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Gives every pass its times. A rank is blocked by a pass whose input has not been made; whoever
/// makes that input wakes it, and a pass wakes at most one rank.
class simulation {
 public:
  simulation(schedule const& schedule, problem const& problem)
      : schedule_(schedule),
        problem_(problem),
        inputs_(problem),
        done_(problem.stages(), problem.microbatches(), 0),
        clock_(index(problem.ranks()), 0),
        walk_(problem.ranks()) {
    line_.reserve(index(problem.ranks()), schedule.passes().size());
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      for (auto const& p : schedule.passes(rank)) line_.push({p, 0, 0});
      line_.end_row();
    }
  }

  [[nodiscard]] timeline run() {
    walk_.run([this](int rank, std::size_t& next) { return advance(rank, next); });
    for (int rank = 0; rank < problem_.ranks(); ++rank) {
      if (!walk_.is_blocked(rank)) continue;
      auto const at = walk_.position(rank);
      bool const is_first_ready = inputs_(line_[rank][at].pass) != pass_inputs::never;  // of a pair
      refuse(rank, at + (is_first_ready ? 1 : 0), "waits for something that never happens");
    }
    return std::move(line_);
  }

 private:
  // Returns false when the rank is blocked.
  [[nodiscard]] bool advance(int rank, std::size_t& next) {
    auto const row = line_[rank];
    auto& now = clock_[index(rank)];
    while (next < row.size()) {
      auto const together = pass_inputs::next_of(row.subspan(next));
      auto const arrival = inputs_(together);
      if (arrival == pass_inputs::never) return false;
      for (auto const& timed : together) {
        if (!mark_done(timed.pass)) refuse(rank, next, "stands twice; every pass runs once");
        ++next;
      }
      now = inputs_.run(together, std::max(now, arrival));
      for (auto const& timed : together) wake_after(timed.pass);
    }
    return true;
  }

  // Work that is done once keeps clocks within the sums that `problem` has checked.
  // @return whether none of the work of a pass has been done before
  [[nodiscard]] bool mark_done(pass const& p) {
    constexpr auto bit = [](pass_kind kind) { return 1U << static_cast<unsigned>(kind); };
    auto const work = p.kind == pass_kind::backward
                          ? bit(pass_kind::backward_input) | bit(pass_kind::backward_weight)
                          : bit(p.kind);
    auto& done = done_(p.stage, p.microbatch);
    if ((done & work) != 0) return false;
    done = static_cast<std::uint8_t>(done | work);
    return true;
  }

  void wake_after(pass const& done) {
    if (done.kind == pass_kind::forward) wake(done.stage + 1);
    if (done.makes_input_gradient()) wake(done.stage - 1);
  }

  void wake(int stage) {
    if (stage < 0 || stage >= problem_.stages()) return;
    walk_.wake(problem_.placement().rank_of(stage));
  }

  [[noreturn]] void refuse(int rank, std::size_t position, std::string const& why) const {
    throw error(
        errc::refused_program, {.rank = rank, .position = static_cast<std::int64_t>(position)}) +
        to_string(schedule_.passes(rank)[position]) + " " + why;
  }

  schedule const& schedule_;
  problem const& problem_;
  pass_inputs inputs_;
  cells<std::uint8_t> done_;  // a bit each for F, B, W and R
  std::vector<ticks> clock_;
  rank_walk walk_;
  timeline line_;
};

}  // namespace detail

ZBPP_INLINE timeline simulate(schedule const& schedule, problem const& problem) {
  detail::require_fit(schedule, problem);
  return detail::simulation(schedule, problem).run();
}

}  // namespace zbpp
