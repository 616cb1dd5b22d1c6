// SPDX-License-Identifier: Apache-2.0
//
// How timelines become trace events: lanes, slices, and the messages between ranks.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/detail/drawing.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Writes the events of all timelines into one text.
class chrome_trace {
 public:
  chrome_trace(std::vector<named_timeline> const& lines, std::optional<problem> const& problem)
      : lines_(lines), problem_(problem) {
    check_drawable(lines);
    if (!problem) return;
    for (auto const& named : lines)
      for (auto const& timed : named.line.all())
        if (timed.pass.stage >= problem->stages())
          throw error(errc::bad_argument) + "trace: " + to_string(timed.pass) + " of '" +
              named.name + "' is on a stage that the problem does not have";
  }

  [[nodiscard]] std::string write() {
    text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    for (auto const& named : lines_) {
      write_passes(named);
      write_messages(named.line);
      write_spans(named.path, "critical path", "critical");
      write_spans(named.longer, "longer than planned", "longer");
      next_process_ += named.line.ranks();
    }
    return std::move(text_) + "\n]}\n";
  }

 private:
  /// A pass with its rank and times.
  struct place {
    int rank;
    timed_pass timed;
  };
  /// A message between two ranks, from the end of one pass to the start of another.
  struct message {
    place from;
    place to;
    ticks arrival;
  };
  /// A lane of a channel, and when it is free again.
  struct sending_lane {
    int lane;
    ticks until;
  };

  [[nodiscard]] int process(int rank) const { return next_process_ + rank; }

  // Lanes are numbered through all processes; a viewer may take equal numbers for one lane.
  [[nodiscard]] int compute_lane(int rank) const { return first_lane_ + rank; }
  // The second pass of a pair runs at the same time as the first, so it has another lane.
  [[nodiscard]] int lane_of(int rank, pass const& p) const {
    return compute_lane(rank) + (p.is_paired ? ranks_ : 0);
  }

  void write_passes(named_timeline const& named) {
    first_lane_ = next_lane_;
    ranks_ = named.line.ranks();
    auto const has_pairs = [](timed_pass const& timed) { return timed.pass.is_paired; };
    next_lane_ += std::ranges::any_of(named.line.all(), has_pairs) ? 2 * ranks_ : ranks_;
    for (int rank = 0; rank < named.line.ranks(); ++rank) {
      std::string const title = joined(named.name.empty() ? "" : named.name + " ", "rank ", rank);
      describe("process_name", rank, compute_lane(rank), "\"name\":" + json_text(one_line(title)));
      describe(
          "process_sort_index", rank, compute_lane(rank), joined("\"sort_index\":", process(rank)));
      name_lane(rank, compute_lane(rank), "compute", 0);
      auto const row = named.line[rank];
      if (std::ranges::any_of(row, has_pairs))
        name_lane(rank, compute_lane(rank) + ranks_, "compute, paired", 0);
      for (std::size_t i = 0; i < row.size(); ++i) {
        slice(rank, lane_of(rank, row[i].pass), row[i].pass, row[i].start, row[i].end, "pass");
        if (named.memory.ranks() > 0)
          event(
              "C",
              rank,
              compute_lane(rank),
              row[i].start,
              joined("\"name\":\"memory\",\"args\":{\"in use\":", named.memory[rank][i], "}"));
      }
    }
  }

  // One lane for each rank that has some.
  void write_spans(
      std::vector<rank_span> const& spans, std::string const& title, std::string const& category) {
    std::vector<int> lanes(index(ranks_), 0);
    for (auto const& span : spans) {
      auto& lane = lanes[index(span.rank)];
      if (lane == 0) {
        lane = next_lane_++;
        name_lane(span.rank, lane, title, 1 + ranks_);
      }
      event(
          "X",
          span.rank,
          lane,
          span.start,
          "\"dur\":" + microseconds(span.end - span.start) + ",\"name\":" + json_text(title) +
              ",\"cat\":\"" + category + "\",\"args\":{}");
    }
  }

  void write_messages(timeline const& line) {
    auto messages = find_messages(line);
    auto ends = [](message const& m) { return std::pair(m.from.rank, m.to.rank); };
    std::stable_sort(messages.begin(), messages.end(), [&](message const& a, message const& b) {
      return std::pair(ends(a), a.from.timed.end) < std::pair(ends(b), b.from.timed.end);
    });
    std::vector<sending_lane> lanes;  // of one channel
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (i > 0 && ends(messages[i]) != ends(messages[i - 1])) lanes.clear();
      write_message(messages[i], lanes);
    }
  }

  // An arrow binds to the slice around it, so it leaves just before its producer ends.
  void write_message(message const& m, std::vector<sending_lane>& lanes) {
    auto const& made = m.from.timed;
    std::string const arrow =
        joined("\"name\":\"message\",\"cat\":\"message\",\"bp\":\"e\",\"id\":", ++last_arrow_);
    event(
        "s",
        m.from.rank,
        lane_of(m.from.rank, made.pass),
        std::max(made.start, made.end - 1),
        arrow);
    if (m.arrival > made.end) {
      auto const lane = free_lane(lanes, m);
      slice(m.from.rank, lane, m.to.timed.pass, made.end, m.arrival, "transfer");
      event("t", m.from.rank, lane, made.end, arrow);
    }
    event("f", m.to.rank, lane_of(m.to.rank, m.to.timed.pass), m.to.timed.start, arrow);
  }

  [[nodiscard]] std::vector<message> find_messages(timeline const& line) const {
    std::unordered_map<std::uint64_t, place> made;
    for (int rank = 0; rank < line.ranks(); ++rank)
      for (auto const& timed : line[rank])
        if (timed.pass.kind == pass_kind::forward || timed.pass.makes_input_gradient())
          made.insert_or_assign(key(timed.pass, timed.pass.stage), place{rank, timed});
    std::vector<message> messages;
    for (int rank = 0; rank < line.ranks(); ++rank) {
      for (auto const& timed : line[rank]) {
        bool const forward = timed.pass.kind == pass_kind::forward;
        if (!forward && !timed.pass.makes_input_gradient()) continue;
        auto const stage = std::int64_t{timed.pass.stage} + (forward ? -1 : 1);
        auto const from = made.find(key(timed.pass, stage));
        if (from == made.end() || from->second.rank == rank) continue;
        auto arrival = from->second.timed.end;
        if (problem_)
          arrival += problem_->transfer_time(
              static_cast<int>(stage), timed.pass.stage, timed.pass.microbatch);
        messages.push_back({from->second, {rank, timed}, std::min(arrival, timed.start)});
      }
    }
    return messages;
  }

  // What passes of one direction, stage and microbatch have in common.
  [[nodiscard]] static std::uint64_t key(pass const& p, std::int64_t stage) {
    auto const direction = p.kind == pass_kind::forward ? 0U : 1U;
    auto const microbatch = static_cast<std::uint32_t>(p.microbatch);
    return static_cast<std::uint64_t>(stage) << 32U | microbatch << 1U | direction;
  }

  // Slices of one lane may not overlap: messages that fly at the same time get lanes of their own.
  [[nodiscard]] int free_lane(std::vector<sending_lane>& lanes, message const& m) {
    for (auto& [lane, until] : lanes) {
      if (until > m.from.timed.end) continue;
      until = m.arrival;
      return lane;
    }
    lanes.push_back({next_lane_++, m.arrival});
    name_lane(m.from.rank, lanes.back().lane, joined("to rank ", m.to.rank), 1 + m.to.rank);
    return lanes.back().lane;
  }

  void name_lane(int rank, int lane, std::string const& title, int order) {
    describe("thread_name", rank, lane, "\"name\":" + json_text(one_line(title)));
    describe("thread_sort_index", rank, lane, joined("\"sort_index\":", order));
  }

  void describe(std::string const& kind, int rank, int lane, std::string const& value) {
    begin_event("M", rank, lane);
    text_ += ",\"name\":\"" + kind + "\",\"args\":{" + value + "}}";
  }

  void slice(
      int rank, int lane, pass const& p, ticks start, ticks end, std::string const& category) {
    event(
        "X",
        rank,
        lane,
        start,
        joined("\"dur\":") + microseconds(end - start) + ",\"name\":\"" + to_string(p.kind) + " " +
            p.microbatch + "\",\"cat\":\"" + category + "\",\"args\":{\"stage\":" + p.stage +
            ",\"microbatch\":" + p.microbatch + "}");
  }

  void event(std::string_view phase, int rank, int lane, ticks time, std::string const& rest) {
    begin_event(phase, rank, lane);
    text_ += ",\"ts\":" + microseconds(time) + "," + rest + "}";
  }

  void begin_event(std::string_view phase, int rank, int lane) {
    text_ += text_.back() == '[' ? "\n" : ",\n";
    text_.append("{\"ph\":\"").append(phase).append("\",\"pid\":");
    text_.append(std::to_string(process(rank))).append(",\"tid\":").append(std::to_string(lane));
  }

  [[nodiscard]] static std::string microseconds(ticks time) { return decimal(time, 1000); }

  std::vector<named_timeline> const& lines_;
  std::optional<problem> const& problem_;
  std::string text_;
  int next_process_ = 1;  // viewers keep 0 for themselves
  int next_lane_ = 1;
  int first_lane_ = 1;  // of the timeline being written
  int ranks_ = 0;
  std::int64_t last_arrow_ = 0;
};

}  // namespace detail

ZBPP_INLINE std::string to_chrome_trace(
    std::vector<named_timeline> const& lines, std::optional<problem> const& problem) {
  return detail::chrome_trace(lines, problem).write();
}

}  // namespace zbpp
