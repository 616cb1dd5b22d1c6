// SPDX-License-Identifier: Apache-2.0
//
// How trace events become timelines: which process is which rank, and which slices are passes.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/detail/drawing.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/chrome_trace.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/fields.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::json {

namespace detail {

/// Reads timelines from the outermost object of a trace.
class trace_reader {
 public:
  explicit trace_reader(value const& object) : object_(object) {}

  [[nodiscard]] std::vector<named_timeline> read() {
    constexpr std::array<std::string_view, 1> names{"traceEvents"};
    auto const [events] = object_.known_members(names, 1);
    if (!events.is(value_kind::array)) events.refuse("an array of events");
    events.for_each([&](value const& event) { read_name(event); });
    events.for_each([&](value const& event) { read_pass(event); });
    auto lines = timelines();
    if (lines.empty())
      events.refuse("no passes", "slices of the category 'pass' in processes 'NAME rank R'");
    return lines;
  }

 private:
  /// A process of the trace: a rank of a timeline.
  struct rank_process {
    std::string timeline;  ///< its name
    int rank;
    value title;
    std::vector<timed_pass> row = {};
  };
  using lane = std::pair<std::int64_t, std::int64_t>;  // process and thread

  static constexpr std::array<std::string_view, 8> event_names{
      "ph", "pid", "tid", "ts", "dur", "name", "cat", "args"};

  [[nodiscard]] static bool has_word(value const& from, std::string_view word) {
    return from && is_word(from, word);
  }

  // Programs of others number processes and threads as they like.
  [[nodiscard]] static std::optional<std::int64_t> number_of(value const& from) {
    if (!from || !from.is(value_kind::number)) return std::nullopt;
    auto const number = scaled(from.text(), 0);
    return number && number->exact ? std::optional(number->value) : std::nullopt;
  }

  void read_name(value const& event) {
    auto const [phase, process, thread, ts, dur, name, category, arguments] =
        event.known_members(event_names, 0);
    if (!has_word(phase, "M") || !name || !arguments || !arguments.is(value_kind::object)) return;
    constexpr std::array<std::string_view, 1> names{"name"};
    auto const [title] = arguments.known_members(names, 0);
    auto const number = number_of(process);
    if (!number || !title || !title.is(value_kind::string)) return;
    if (is_word(name, "process_name")) add_process(*number, title);
    if (is_word(name, "thread_name") && is_word(title, "compute, paired"))
      if (auto const lane_number = number_of(thread)) paired_.emplace(*number, *lane_number);
  }

  // Adds a process whose title is that of a rank.
  void add_process(std::int64_t number, value const& title) {
    auto const text = title.text();
    auto const blank = text.rfind(' ');
    if (blank == std::string_view::npos) return;
    auto const digits = text.substr(blank + 1);
    auto before = text.substr(0, blank);
    int rank = 0;
    auto const parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (parsed.ec != std::errc{} || rank < 0 || std::to_string(rank) != digits) return;
    constexpr std::string_view word = " rank";
    if (before == word.substr(1))
      before = {};
    else if (before.ends_with(word))
      before.remove_suffix(word.size());
    else
      return;
    if (!by_number_.emplace(number, processes_.size()).second)
      title.refuse(
          "a second name of process " + std::to_string(number), "processes of different numbers");
    processes_.push_back({std::string(before), rank, title});
  }

  void read_pass(value const& event) {
    auto const [phase, process, thread, ts, dur, name, category, arguments] =
        event.known_members(event_names, 0);
    if (!has_word(phase, "X") || !has_word(category, "pass")) return;
    static_cast<void>(event.known_members(event_names, event_names.size()));
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    auto const number = whole(process, 0, most);
    auto const of = by_number_.find(number);
    if (of == by_number_.end())
      process.refuse("a process that an event process_name calls 'NAME rank R'");
    auto const done = pass_of(name, arguments, paired_.contains({number, whole(thread, 0, most)}));
    auto& row = processes_[of->second].row;
    if (done.is_paired && (row.empty() || !zbpp::detail::may_pair(row.back().pass, done)))
      thread.refuse_as(zbpp::detail::joined(to_string(done), ": ", zbpp::detail::pair_rule));
    constexpr auto unit = time_unit::microseconds;
    auto const start = time(ts, unit);
    auto const took = time(dur, unit);
    constexpr auto latest = zbpp::detail::latest_time;
    if (took > latest || start > latest - took)
      dur.refuse("an end after more than 2^62 ns", "a pass that ends before that");
    if (!row.empty() && start < row.back().start)
      ts.refuse(
          "at least " + number_text(row.back().start, unit) + ", the start of " +
          to_string(row.back().pass) + " in front of it");
    row.push_back({done, start, start + took});
  }

  [[nodiscard]] static pass pass_of(value const& name, value const& arguments, bool is_paired) {
    constexpr std::array<std::string_view, 2> names{"stage", "microbatch"};
    auto const [stage, microbatch] = arguments.known_members(names, names.size());
    constexpr auto most = std::numeric_limits<std::int32_t>::max();
    pass done{
        {},
        static_cast<std::int32_t>(whole(stage, 0, most)),
        static_cast<std::int32_t>(whole(microbatch, 0, most)),
        is_paired};
    std::string const number = zbpp::detail::joined(" ", done.microbatch);
    for (auto const& traits : pass_table) {
      if (!is_word(name, std::string(traits.letters) + number)) continue;
      done.kind = traits.kind;
      return done;
    }
    name.refuse("F, B, W, BW or R with its microbatch, such as 'F" + number + "'");
  }

  // Ranks of one name belong together, up to the next time that a rank of it is there again.
  [[nodiscard]] std::vector<named_timeline> timelines() const {
    std::vector<std::map<int, rank_process const*>> groups;
    std::map<std::string_view, std::size_t> last;  // group of a name
    for (auto const& one : processes_) {
      auto const found = last.find(one.timeline);
      if (found == last.end() || groups[found->second].contains(one.rank)) {
        last.insert_or_assign(one.timeline, groups.size());
        groups.emplace_back();
      }
      groups[last.at(one.timeline)].emplace(one.rank, &one);
    }
    std::vector<named_timeline> lines;
    for (auto const& group : groups)
      if (std::ranges::any_of(group, [](auto const& rank) { return !rank.second->row.empty(); }))
        lines.push_back(timeline_of(group));
    return lines;
  }

  [[nodiscard]] static named_timeline timeline_of(std::map<int, rank_process const*> const& group) {
    named_timeline made{group.begin()->second->timeline, {}};
    for (auto const& [rank, from] : group) {
      if (rank != made.line.ranks())
        from->title.refuse(
            zbpp::detail::joined("rank ", rank, " without rank ", made.line.ranks()),
            "all ranks of a timeline, from 0");
      for (auto const& timed : from->row) made.line.push(timed);
      made.line.end_row();
    }
    return made;
  }

  value object_;
  std::vector<rank_process> processes_;  // in the order of the text
  std::map<std::int64_t, std::size_t> by_number_;
  std::set<lane> paired_;
};

}  // namespace detail

ZBPP_INLINE std::vector<named_timeline> read_chrome_trace(
    std::string_view text, std::string const& name) {
  detail::document const all(text, name);
  return detail::trace_reader(detail::value(all)).read();
}

}  // namespace zbpp::json
