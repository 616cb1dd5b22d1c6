// SPDX-License-Identifier: Apache-2.0
//
// How `simulate` walks the ranks of a schedule.
#pragma once

#include <zbpp/analysis/detail/pass_inputs.hpp>
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

/// Walks all ranks at once. A rank runs until it meets a pass whose input has not been made;
/// whoever makes that input wakes it. A pass wakes at most one rank, so the walk is linear.
class simulation {
 public:
  simulation(schedule const& schedule, problem const& problem)
      : schedule_(schedule),
        problem_(problem),
        inputs_(problem),
        done_(problem.stages(), problem.microbatches(), 0),
        clock_(index(problem.ranks()), 0),
        next_(index(problem.ranks()), 0),
        sleeping_(index(problem.ranks()), false) {
    line_.reserve(index(problem.ranks()), schedule.passes().size());
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      for (auto const& p : schedule.passes(rank)) line_.push({p, 0, 0});
      line_.end_row();
      awake_.push_back(problem.ranks() - 1 - rank);
    }
  }

  [[nodiscard]] timeline run() {
    while (!awake_.empty()) {
      auto const rank = awake_.back();
      awake_.pop_back();
      run_rank(rank);
    }
    for (int rank = 0; rank < problem_.ranks(); ++rank)
      if (sleeping_[index(rank)]) refuse(rank, "waits for something that never happens");
    return std::move(line_);
  }

 private:
  void run_rank(int rank) {
    auto const row = line_[rank];
    auto& now = clock_[index(rank)];
    auto& next = next_[index(rank)];
    for (; next < row.size(); ++next) {
      auto& timed = row[next];
      auto const arrival = inputs_(timed.pass);
      if (arrival == pass_inputs::never) {
        sleeping_[index(rank)] = true;
        return;
      }
      if (!mark_done(timed.pass)) refuse(rank, "stands twice; every pass runs once");
      timed.start = std::max(now, arrival);
      timed.end = timed.start + problem_.costs(timed.pass.stage).of(timed.pass.kind);
      now = timed.end;
      publish(timed);
    }
  }

  // Work that is done once keeps clocks within the sums that `problem` has checked.
  // @return whether none of the work of a pass has been done before
  [[nodiscard]] bool mark_done(pass const& p) {
    constexpr std::array<std::uint8_t, 5> work_of_kind{1, 2, 4, 2 | 4, 8};
    auto const work = work_of_kind[static_cast<std::size_t>(p.kind)];
    auto& done = done_(p.stage, p.microbatch);
    if ((done & work) != 0) return false;
    done = static_cast<std::uint8_t>(done | work);
    return true;
  }

  void publish(timed_pass const& done) {
    inputs_.end(done);
    if (done.pass.kind == pass_kind::forward) wake(done.pass.stage + 1);
    if (done.pass.makes_input_gradient()) wake(done.pass.stage - 1);
  }

  void wake(int stage) {
    if (stage < 0 || stage >= problem_.stages()) return;
    auto const rank = problem_.placement().rank_of(stage);
    if (!sleeping_[index(rank)]) return;
    sleeping_[index(rank)] = false;
    awake_.push_back(rank);
  }

  [[noreturn]] void refuse(int rank, std::string const& why) const {
    auto const position = next_[index(rank)];
    throw error(
        errc::refused_program,
        to_string(schedule_.passes(rank)[position]) + " " + why,
        {.rank = rank, .position = static_cast<std::int64_t>(position)});
  }

  schedule const& schedule_;
  problem const& problem_;
  pass_inputs inputs_;
  grid<std::uint8_t> done_;  // a bit each for F, B, W and R
  std::vector<ticks> clock_;
  std::vector<std::size_t> next_;
  std::vector<bool> sleeping_;
  std::vector<int> awake_;
  timeline line_;
};

}  // namespace detail

ZBPP_INLINE timeline simulate(schedule const& schedule, problem const& problem) {
  detail::require_fit(schedule, problem);
  return detail::simulation(schedule, problem).run();
}

}  // namespace zbpp
