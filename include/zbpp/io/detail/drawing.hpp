// SPDX-License-Identifier: Apache-2.0
//
// What all drawings of timelines share: which of a rank's idle time counts as bubble, which chunk a
// stage is, and which unit suits its times. Only `impl/*.ipp` include it.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/drawing.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace zbpp::detail {

/// Spans the time over which a rank's idle time is counted.
struct time_window {
  ticks begin = 0;
  ticks end = 0;
};

/// @return the window of each rank: as long as the cost, and around its passes. What is idle in all
///         windows is the bubble rate times ranks times cost, so long as nothing is recomputed.
[[nodiscard]] inline std::vector<time_window> windows_of(timeline const& line) {
  auto const whole = cost(line);
  auto first = makespan(line);
  for (int rank = 0; rank < line.ranks(); ++rank)
    if (!line[rank].empty()) first = std::min(first, line[rank].front().start);
  std::vector<time_window> windows;
  for (int rank = 0; rank < line.ranks(); ++rank) {
    auto const row = line[rank];
    auto const begin = row.empty() ? first : std::max(first, row.back().end - whole);
    windows.push_back({begin, begin + whole});
  }
  return windows;
}

/// Says how drawings show a kind of pass.
struct pass_style {
  char const* words;            ///< beside its colour
  std::array<int, 3> colour;    ///< red, green, blue; BW is half B, half W
  std::array<int, 2> terminal;  ///< of the 256-colour palette: first chunk, later ones
};

/// Holds the styles of all kinds of passes, in the order of `pass_kind`: blue, orange and green
/// that stay apart for the colour-blind.
/// @source chosen by us, near the set of Okabe and Ito, softened so that dark numbers stand out
inline constexpr std::array pass_styles{
    pass_style{"F forward", {116, 169, 216}, {110, 153}},
    pass_style{"B gradient of input", {240, 172, 92}, {215, 223}},
    pass_style{"W gradient of weights", {110, 184, 150}, {108, 151}},
    pass_style{"BW both", {}, {179, 222}},
    pass_style{"R recompute", {190, 160, 205}, {139, 182}},
};
static_assert(pass_styles.size() == pass_kinds);

/// The latest time that a drawing can show.
inline constexpr ticks latest_time = std::numeric_limits<ticks>::max() / 2;

/// @throws error (bad_argument) naming the first pass that no drawing could show
inline void check_drawable(timeline const& line) {
  for (int rank = 0; rank < line.ranks(); ++rank) {
    ticks before = 0;
    for (std::size_t i = 0; i < line[rank].size(); ++i) {
      auto const& timed = line[rank][i];
      auto refuse = [&](char const* text) {
        throw error(errc::bad_argument, {.rank = rank, .position = static_cast<std::int64_t>(i)}) +
            to_string(timed.pass) + " " + text;
      };
      if (!is_known(timed.pass.kind)) refuse("has no such kind of pass");
      if (timed.pass.stage < 0 || timed.pass.microbatch < 0) refuse("has a negative id");
      if (timed.start < before)
        refuse("starts before the pass in front of it; give times that ascend from 0");
      if (timed.end < timed.start) refuse("ends before it starts");
      if (timed.end > latest_time) refuse("ends after more than 2^62 ns; use a coarser unit");
      before = timed.start;
    }
  }
}

/// @throws error (bad_argument) when a time cannot be shown
inline void check_drawable(rows<rank_update> const& updates) {
  for (auto const& update : updates.all())
    for (auto const time : {update.measured, update.stepped, update.validated})
      require(time >= 0 && time <= latest_time, "updates: times go from 0 to 2^62 ns");
}

/// @throws error (bad_argument) naming the timeline and the first thing that cannot be shown
inline void check_drawable(std::vector<named_timeline> const& lines) {
  for (auto const& named : lines) {
    check_drawable(named.line);
    if (named.updates.ranks() != 0) {
      require(
          named.updates.ranks() == named.line.ranks(),
          "updates: it needs a row for each rank of the timeline");
      check_drawable(named.updates);
    }
    if (named.reductions.ranks() != 0)
      require(
          named.reductions.ranks() == named.line.ranks(),
          "reductions: it needs a row for each rank of the timeline");
    for (auto const& sum : named.reductions.all())
      require(
          sum.start >= 0 && sum.start <= sum.end && sum.end <= latest_time,
          "reductions: each ends at or after its start, from 0 to 2^62 ns");
    for (auto const* const spans : {&named.path, &named.longer})
      for (auto const& span : *spans)
        require(
            span.rank >= 0 && span.rank < named.line.ranks() && span.start >= 0 &&
                span.start <= span.end && span.end <= latest_time,
            "path and longer: each span is of a rank of the timeline, and ends at or after its "
            "start, from 0 to 2^62 ns");
    if (named.memory.ranks() == 0) continue;
    bool same = named.memory.ranks() == named.line.ranks();
    for (int rank = 0; same && rank < named.line.ranks(); ++rank)
      same = named.memory[rank].size() == named.line[rank].size();
    require(same, "memory: it needs one number for each pass of the timeline");
  }
}

/// @return the end of the last pass or optimizer step of all timelines
[[nodiscard]] inline ticks last_end(std::vector<named_timeline> const& lines) noexcept {
  ticks last = 0;
  for (auto const& named : lines) {
    last = std::max(last, makespan(named.line));
    for (auto const& update : named.updates.all())
      last = std::max({last, update.stepped, update.validated});
    for (auto const& sum : named.reductions.all()) last = std::max(last, sum.end);
    for (auto const* const spans : {&named.path, &named.longer})
      for (auto const& span : *spans) last = std::max(last, span.end);
  }
  return last;
}

/// Finds the chunk of each stage within its rank, from the stages that the rank runs.
class chunk_finder {
 public:
  explicit chunk_finder(timeline const& line) : stages_(index(line.ranks())) {
    for (int rank = 0; rank < line.ranks(); ++rank) {
      auto& stages = stages_[index(rank)];
      for (auto const& timed : line[rank]) {
        auto const at = std::lower_bound(stages.begin(), stages.end(), timed.pass.stage);
        if (at == stages.end() || *at != timed.pass.stage) stages.insert(at, timed.pass.stage);
      }
      chunks_ = std::max(chunks_, static_cast<int>(stages.size()));
    }
  }

  [[nodiscard]] int operator()(int rank, int stage) const {
    auto const& stages = stages_[index(rank)];
    return static_cast<int>(std::lower_bound(stages.begin(), stages.end(), stage) - stages.begin());
  }
  [[nodiscard]] int chunks() const noexcept { return chunks_; }

 private:
  std::vector<std::vector<std::int32_t>> stages_;  // by rank, ascending
  int chunks_ = 0;
};

/// @return the unit that suits a time; steps of a few seconds are told in ms, as is usual
[[nodiscard]] constexpr time_unit unit_for(ticks time) noexcept {
  if (time >= 10'000'000'000) return time_unit::seconds;
  if (time >= 1'000'000) return time_unit::milliseconds;
  if (time >= 1'000) return time_unit::microseconds;
  return time_unit::nanoseconds;
}

/// Writes what a timeline cost, to a thousandth of the unit, and its bubble rate.
[[nodiscard]] inline std::string summary(timeline const& line) {
  auto const whole = cost(line);
  auto const unit = unit_for(whole);
  auto const step = std::max<ticks>(ticks_in(unit) / 1000, 1);
  std::array<char, 32> rate{};
  auto const percent = std::max(0.0, 100 * bubble_rate(line));
  auto const end =
      std::to_chars(rate.data(), rate.data() + rate.size(), percent, std::chars_format::fixed, 1);
  return "cost " + time_text((whole + step / 2) / step * step, unit) + ", bubble rate " +
         std::string(rate.data(), end.ptr) + " %";
}

}  // namespace zbpp::detail
