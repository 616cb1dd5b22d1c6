// SPDX-License-Identifier: Apache-2.0
//
// How the clocks of ranks are set by the messages of a step.
#pragma once

#include <zbpp/analysis/clock_offsets.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Knows, for each pair of ranks, by how much the clock of the second can be ahead of the first.
class clock_limits {
 public:
  clock_limits(message_record const& messages, int ranks, double drift)
      : ranks_(ranks), most_(ranks, ranks, no_limit) {
    require(ranks >= 1, "clock_offsets is given the number of ranks, at least 1");
    require(drift >= 0 && drift < 1, "clock_offsets: drift is a share, at least 0 and below 1");
    auto const is_rank = [&](int rank) { return 0 <= rank && rank < ranks; };
    for (auto const& m : messages.all()) {
      if (!is_rank(m.from) || !is_rank(m.to))
        throw error(errc::bad_argument) + "a record of messages holds " + to_string(m.pass) +
            " of other ranks than 0 to " + (ranks - 1);
      if (m.sent == timed_message::unknown || m.arrived == timed_message::unknown)
        throw error(errc::bad_argument) + "a record of messages lacks the times of " +
            to_string(m) + "; gather the records of all processes";
    }
    auto const apart = drift_of(messages, drift);
    for (int rank = 0; rank < ranks; ++rank) most_(rank, rank) = 0;
    for (auto const& m : messages.all()) {
      auto& most = most_(m.from, m.to);
      most = std::min(most, m.arrived - m.sent + apart);
    }
    tighten();
  }

  [[nodiscard]] clock_offset of(int rank) const {
    auto const most = most_(0, rank);
    auto const least = most_(rank, 0);
    if (most == no_limit || least == no_limit)
      throw error(errc::bad_argument, {.rank = rank}) +
          "the messages of the step do not tell how far the clock of rank " + rank +
          " is ahead of that of rank 0: no chain of messages leads from one to the other and back";
    auto const ahead = (most - least) >> 1;  // rounded down on all ranks, they still fit
    return {ahead, most - ahead};
  }

 private:
  static constexpr ticks no_limit = std::numeric_limits<ticks>::max();

  // How far clocks run apart in the time from the first to the last event of a rank.
  [[nodiscard]] ticks drift_of(message_record const& messages, double drift) const {
    std::vector<std::pair<ticks, ticks>> spans(
        index(ranks_), {std::numeric_limits<ticks>::max(), std::numeric_limits<ticks>::min()});
    auto const note = [&](int rank, ticks time) {
      auto& [first, last] = spans[index(rank)];
      first = std::min(first, time);
      last = std::max(last, time);
    };
    for (auto const& m : messages.all()) {
      note(m.from, m.sent);
      note(m.to, m.arrived);
    }
    ticks longest = 0;
    for (auto const& [first, last] : spans)
      if (first <= last) longest = std::max(longest, last - first);
    return static_cast<ticks>(std::ceil(drift * static_cast<double>(longest)));
  }

  void tighten() {
    for (int by = 0; by < ranks_; ++by)
      for (int from = 0; from < ranks_; ++from) {
        if (most_(from, by) == no_limit) continue;
        for (int to = 0; to < ranks_; ++to)
          if (most_(by, to) != no_limit)
            most_(from, to) = std::min(most_(from, to), most_(from, by) + most_(by, to));
      }
    for (int rank = 0; rank < ranks_; ++rank)
      if (most_(rank, rank) < 0)
        throw error(errc::bad_argument, {.rank = rank}) +
            "by the clocks of the ranks, messages from this one and back took " +
            (-most_(rank, rank)) +
            " ns less than no time; a clock ran backwards, or faster than the drift allows";
  }

  int ranks_;
  cells<ticks> most_;
};

/// Subtracts from the times of each rank what its clock is ahead.
template <class Ahead>
void set_back(timeline& step, message_record& messages, Ahead const& ahead_of) {
  for (int rank = 0; rank < step.ranks(); ++rank)
    for (auto& timed : step[rank]) {
      timed.start -= ahead_of(rank);
      timed.end -= ahead_of(rank);
    }
  auto const subtract = [](ticks& time, ticks ahead) {
    if (time != timed_message::unknown) time -= ahead;
  };
  for (int channel = 0; channel < messages.ranks(); ++channel)
    for (auto& m : messages[channel]) {
      subtract(m.sent, ahead_of(m.from));
      subtract(m.arrived, ahead_of(m.to));
      subtract(m.taken, ahead_of(m.to));
    }
}

}  // namespace detail

ZBPP_INLINE std::vector<clock_offset> clock_offsets(
    message_record const& messages, int ranks, double drift) {
  detail::clock_limits const limits(messages, ranks, drift);
  std::vector<clock_offset> offsets;
  for (int rank = 0; rank < ranks; ++rank) offsets.push_back(limits.of(rank));
  return offsets;
}

ZBPP_INLINE std::vector<clock_offset> align_clocks(
    timeline& step, message_record& messages, double drift) {
  auto offsets = clock_offsets(messages, step.ranks(), drift);
  detail::set_back(step, messages, [&](int rank) { return offsets[detail::index(rank)].ahead; });
  return offsets;
}

ZBPP_INLINE void from_first_start(timeline& step, message_record& messages) {
  if (step.size() == 0) return;
  auto const begin = std::ranges::min(std::as_const(step).all(), {}, &timed_pass::start).start;
  detail::set_back(step, messages, [begin](int) { return begin; });
}

}  // namespace zbpp
