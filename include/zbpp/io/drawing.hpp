// SPDX-License-Identifier: Apache-2.0
//
// What all drawings of timelines share: a timeline with a name, which of a rank's idle time counts
// as bubble, which chunk a stage is, and how times, rates and names become text.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

/// Names a timeline, for drawings that show one or several.
struct named_timeline {
  std::string name;
  timeline line;
  rows<bytes> memory = {};  ///< in use while each pass runs, as `activation_profile` says; or empty
};

namespace detail {

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

/// @throws error (bad_argument) naming the first pass that no drawing could show
inline void check_drawable(timeline const& line) {
  constexpr auto most = std::numeric_limits<ticks>::max() / 2;
  for (int rank = 0; rank < line.ranks(); ++rank) {
    ticks before = 0;
    for (std::size_t i = 0; i < line[rank].size(); ++i) {
      auto const& timed = line[rank][i];
      auto refuse = [&](char const* text) {
        throw error(
            errc::bad_argument,
            to_string(timed.what) + " " + text,
            {.rank = rank, .position = static_cast<std::int64_t>(i)});
      };
      if (timed.what.kind > pass_kind::recompute) refuse("has no such kind of pass");
      if (timed.what.stage < 0 || timed.what.microbatch < 0) refuse("has a negative id");
      if (timed.start < before) refuse("starts before the pass before it; times only go on from 0");
      if (timed.end < timed.start) refuse("ends before it starts");
      if (timed.end > most) refuse("ends after more than 2^62 ns; a coarser unit would be right");
      before = timed.start;
    }
  }
}

/// @throws error (bad_argument) naming the timeline and the first thing that cannot be shown
inline void check_drawable(std::vector<named_timeline> const& lines) {
  for (auto const& named : lines) {
    check_drawable(named.line);
    if (named.memory.ranks() == 0) continue;
    bool same = named.memory.ranks() == named.line.ranks();
    for (int rank = 0; same && rank < named.line.ranks(); ++rank)
      same = named.memory[rank].size() == named.line[rank].size();
    require(same, "memory: it needs one number for each pass of the timeline");
  }
}

/// @return the end of the last pass of all timelines
[[nodiscard]] inline ticks last_end(std::vector<named_timeline> const& lines) noexcept {
  ticks last = 0;
  for (auto const& named : lines) last = std::max(last, makespan(named.line));
  return last;
}

/// Knows which of its rank's chunks per stage is, from the stages that the rank runs.
class chunk_finder {
 public:
  explicit chunk_finder(timeline const& line) : stages_(index(line.ranks())) {
    for (int rank = 0; rank < line.ranks(); ++rank) {
      auto& stages = stages_[index(rank)];
      for (auto const& timed : line[rank]) {
        auto const at = std::lower_bound(stages.begin(), stages.end(), timed.what.stage);
        if (at == stages.end() || *at != timed.what.stage) stages.insert(at, timed.what.stage);
      }
      chunks_ = std::max(chunks_, static_cast<int>(stages.size()));
    }
  }

  /// @return the chunk of a stage that the rank runs
  [[nodiscard]] int operator()(int rank, int stage) const {
    auto const& stages = stages_[index(rank)];
    return static_cast<int>(std::lower_bound(stages.begin(), stages.end(), stage) - stages.begin());
  }
  /// @return the most chunks that a rank has
  [[nodiscard]] int chunks() const noexcept { return chunks_; }

 private:
  std::vector<std::vector<std::int32_t>> stages_;  // by rank, ascending
  int chunks_ = 0;
};

/// Names a unit of time.
struct time_unit {
  ticks size = 1;
  std::string_view name = "ns";
};

/// @return the unit that suits a time; steps of a few seconds are told in ms, as is usual
[[nodiscard]] constexpr time_unit unit_for(ticks time) noexcept {
  if (time >= 10'000'000'000) return {1'000'000'000, "s"};
  if (time >= 1'000'000) return {1'000'000, "ms"};
  if (time >= 1'000) return {1'000, "us"};
  return {};
}

/// Writes a fraction exactly and without needless zeros; `parts` is a power of ten.
[[nodiscard]] inline std::string decimal(std::int64_t value, std::int64_t parts) {
  auto text = std::to_string(value / parts);
  auto rest = value % parts;
  if (rest != 0) text += '.';
  for (; rest != 0; rest %= parts) {
    rest *= 10;
    text += static_cast<char>('0' + rest / parts);
  }
  return text;
}

/// Writes a time with its unit, exactly.
[[nodiscard]] inline std::string time_text(ticks time, time_unit unit) {
  return decimal(time, unit.size).append(" ").append(unit.name);
}

/// Writes what a timeline cost, to a thousandth of the unit, and its bubble rate.
[[nodiscard]] inline std::string summary(timeline const& line) {
  auto const whole = cost(line);
  auto const unit = unit_for(whole);
  auto const step = std::max<ticks>(unit.size / 1000, 1);
  std::array<char, 32> rate{};
  auto const percent = std::max(0.0, 100 * bubble_rate(line));
  auto const end =
      std::to_chars(rate.data(), rate.data() + rate.size(), percent, std::chars_format::fixed, 1);
  return "cost " + time_text((whole + step / 2) / step * step, unit) + ", bubble rate " +
         std::string(rate.data(), end.ptr) + " %";
}

/// @return the length of the valid UTF-8 character that a text begins with; 0 when there is none
/// @source The Unicode Standard 15, table 3-7
[[nodiscard]] inline std::size_t character_length(std::string_view text) noexcept {
  auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  auto const first = byte(0);
  if (first < 0x80) return 1;
  auto const length = first >= 0xF0 ? 4U : first >= 0xE0 ? 3U : 2U;
  if (first < 0xC2 || first > 0xF4) return 0;
  auto const low = first == 0xE0 ? 0xA0U : first == 0xF0 ? 0x90U : 0x80U;
  auto const high = first == 0xED ? 0x9FU : first == 0xF4 ? 0x8FU : 0xBFU;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  return length;
}

/// Makes a name fit for one line of any format: control characters become spaces, bytes that are
/// not UTF-8 become question marks, and what exceeds `most` characters is cut.
[[nodiscard]] inline std::string one_line(
    std::string_view text, std::size_t most = std::string_view::npos) {
  std::string result;
  for (std::size_t count = 0; !text.empty() && count < most; ++count) {
    auto const length = character_length(text);
    auto const first = static_cast<unsigned char>(text.front());
    if (length == 0)
      result += '?';
    else if (first < 0x20 || first == 0x7F)
      result += ' ';
    else
      result += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

}  // namespace detail
}  // namespace zbpp
