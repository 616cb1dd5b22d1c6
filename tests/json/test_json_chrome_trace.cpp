// SPDX-License-Identifier: Apache-2.0
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/json/chrome_trace.hpp>

#include <support/catch.hpp>
#include <support/damaged_texts.hpp>
#include <support/plan_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/random_timeline.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_json_chrome_trace {

using namespace zbpp;
using json::read_chrome_trace;

namespace {

using table = std::vector<std::vector<timed_pass>>;

void check_same(std::vector<named_timeline> const& read, std::vector<named_timeline> const& from) {
  REQUIRE(read.size() == from.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    CHECK(read[i].name == from[i].name);
    CHECK(read[i].line == from[i].line);
  }
}

void check_round_trip(
    std::vector<named_timeline> const& lines, std::optional<problem> const& problem = {}) {
  check_same(read_chrome_trace(to_chrome_trace(lines, problem)), lines);
}

// The times of a line, each moved by some and stretched.
timeline moved(timeline line, ticks by, ticks factor) {
  for (int rank = 0; rank < line.ranks(); ++rank)
    for (auto& timed : line[rank]) {
      timed.start = timed.start * factor + by;
      timed.end = timed.end * factor + by;
    }
  return line;
}

// F0 and BW0 on each of two ranks.
timeline small_line() {
  pass const forward{pass_kind::forward, 0, 0};
  pass const backward{pass_kind::backward, 0, 0};
  auto const on = [](pass p, int stage) {
    p.stage = stage;
    return p;
  };
  return timeline(
      {{{on(forward, 0), 0, 1'500}, {on(backward, 0), 6'001, 9'000}},
       {{on(forward, 1), 1'600, 3'000}, {on(backward, 1), 3'000, 6'000}}});
}

std::string small_trace() {
  auto text = to_chrome_trace({{"measured", small_line()}});
  text.pop_back();  // the line's end, without which the text is as good
  return text;
}

std::string refusal(std::string const& text) {
  return test::refusal(
      errc::bad_format, [&] { static_cast<void>(read_chrome_trace(text, "t.json")); });
}

// What is said of the small trace with the first `old_text` replaced.
std::string refusal_with(std::string const& old_text, std::string const& by) {
  auto text = small_trace();
  auto const at = text.find(old_text);
  REQUIRE(at != std::string::npos);
  return refusal(text.replace(at, old_text.size(), by));
}

}  // namespace

TEST_CASE(
    "timelines of all policies read back from a trace, to the nanosecond", "[json][trace][long]") {
  std::ptrdiff_t pairs = 0;
  for (int p : test::thinned<std::vector<int>>({1, 2, 4}, {1, 3}))
    for (auto const& placement : test::placements_to_run(p)) {
      auto costs = test::uneven_costs();
      for (bool const overlaps : {false, true}) {
        if (overlaps) costs.overlapped = 1500;
        problem const problem(placement, 3 * p, costs, 87);
        test::for_each_plan_of(
            problem, {.recomputed = !overlaps}, [&](std::string const& name, plan const& planned) {
              INFO(name);
              pairs += test::pairs_in(planned.schedule());
              auto const& line = planned.timeline();
              check_round_trip({{"measured", line}});
              check_round_trip(
                  {{"planned", line}, {"measured", moved(line, 12'345'678'901, 7)}}, problem);
            });
      }
    }
  CHECK(pairs > 0);
}

TEST_CASE("any timelines under any names read back from a trace", "[json][trace]") {
  std::vector<std::string> const names{
      "", "measured", "rank", "rank 3", "a rank 0", "two\twords", "a \"b\" \\ \xC3\xA9", " "};
  for (int trial = 0; trial < test::thinned(100, 20); ++trial) {
    ZBPP_SEEDED(random, trial);
    std::vector<named_timeline> lines;
    for (auto count = random.integer(1, 4); count > 0; --count) {
      auto const order = test::random_schedule(random, 0.3);
      auto name = names[static_cast<std::size_t>(random.integer(0, std::ssize(names) - 1))];
      std::ranges::replace(name, '\t', ' ');  // as traces write it
      auto line = test::random_timeline(random, order, 1'000'000'000'000'000);
      if (line.size() > 0) lines.push_back({name, std::move(line)});
    }
    if (!lines.empty()) check_round_trip(lines);
  }
}

TEST_CASE("a rank without passes keeps its row, a timeline without any is left out", "[json]") {
  timeline const line(table{{}, {{pass{}, 0, 1}}, {}});
  check_round_trip({{"a", line}});
  check_same(
      read_chrome_trace(to_chrome_trace({{"a", timeline(table(2))}, {"b", line}})), {{"b", line}});
}

TEST_CASE("events that zbpp did not write are left out of a timeline", "[json][trace]") {
  auto text = small_trace();
  auto const at = text.find("[\n") + 1;
  text.insert(
      at,
      R"(
{"ph":"M","pid":"host","tid":"x","name":"process_name","args":{"name":"python rank 0"}},
{"ph":"M","pid":77,"name":"process_name","args":{"name":"nccl rank 0"}},
{"ph":"M","pid":78,"name":"process_name","args":{"name":"rank zero"}},
{"ph":"M","pid":79,"name":"process_labels","args":{"labels":[1,{"a":null}]}},
{"ph":"M","pid":-1,"name":"process_name","args":{"name":"frank 0"}},
{"ph":"M","pid":80,"name":"process_name","args":[]},
{"ph":"X","pid":1,"tid":1,"name":"F 7","cat":"kernel","ts":-4,"dur":"long"},
{"ph":"X","name":"gap"},{"ph":"i","cat":"pass","name":"mark"},{},)");
  text.insert(1, R"("otherData":{"version":"3"},)");
  check_same(read_chrome_trace(text), {{"measured", small_line()}});
}

TEST_CASE("a damaged trace is refused in one line, or read as what it then says", "[json][trace]") {
  test::check_cut_and_altered_texts(small_trace(), [](std::string const& text) {
    auto const said = refusal(text);
    if (said == "<nothing was refused>") {
      std::vector<named_timeline> lines;
      for (auto& named : read_chrome_trace(text)) lines.push_back({"a", std::move(named.line)});
      check_round_trip(lines);
      return false;
    }
    CHECK(said.starts_with("t.json: "));
    CHECK(said.find('\n') == std::string::npos);
    return true;
  });
}

TEST_CASE("what is no trace of a step is refused at its place", "[json][trace]") {
  CHECK(refusal("[]") == "t.json: found an array of 0; expected an object");
  CHECK(refusal("{}") == "t.json: found no key 'traceEvents'; expected traceEvents");
  CHECK(
      refusal(R"({"traceEvents":3})") ==
      "t.json: traceEvents: found 3; expected an array of events");
  auto const* const none =
      "t.json: traceEvents: found no passes; expected slices of the category 'pass' in processes "
      "'NAME rank R'";
  CHECK(refusal(R"({"traceEvents":[]})") == none);
  CHECK(refusal(to_chrome_trace({{"a", timeline(table(1))}})) == none);
  CHECK(refusal(R"({"traceEvents":[7]})") == "t.json: traceEvents[0]: found 7; expected an object");
  CHECK(
      refusal_with("F 0", "Q 0") ==
      "t.json: traceEvents[4].name: found 'Q 0'; expected F, B, W, BW or R with its microbatch, "
      "such as 'F 0'");
  CHECK(
      refusal_with("F 0", "F 1") ==
      "t.json: traceEvents[4].name: found 'F 1'; expected F, B, W, BW or R with its microbatch, "
      "such as 'F 0'");
  CHECK(
      refusal_with("\"ts\":0", "\"ts\":\"now\"") ==
      "t.json: traceEvents[4].ts: found 'now'; expected a time from 0 to 9223372036854775 us");
  CHECK(
      refusal_with("\"dur\":1.5", "\"dur\":-1.5") ==
      "t.json: traceEvents[4].dur: found -1.5; expected a time from 0 to 9223372036854775 us");
  CHECK(
      refusal_with("\"dur\":1.5", "\"dur\":9223372036854775") ==
      "t.json: traceEvents[4].dur: found an end after more than 2^62 ns; expected a pass that ends "
      "before that");
  CHECK(
      refusal_with("\"dur\":1.5,", "") ==
      "t.json: traceEvents[4]: found no key 'dur'; expected ph, pid, tid, ts, dur, name, cat and "
      "args");
  CHECK(
      refusal_with("\"ts\":0", "\"ts\":7") ==
      "t.json: traceEvents[5].ts: found 6.001; expected at least 7, the start of 0F0 in front of "
      "it");
  CHECK(
      refusal_with("\"stage\":0", "\"stage\":-1") ==
      "t.json: traceEvents[4].args.stage: found -1; expected a whole number from 0 to 2147483647");
  CHECK(
      refusal_with("measured rank 0", "measured") ==
      "t.json: traceEvents[4].pid: found 1; expected a process that an event process_name calls "
      "'NAME rank R'");
  CHECK(
      refusal_with("measured rank 0", "other rank 0") ==
      "t.json: traceEvents[6].args.name: found rank 1 without rank 0; expected all ranks of a "
      "timeline, from 0");
  CHECK(
      refusal_with("measured rank 1\"", "measured rank 2\"") ==
      "t.json: traceEvents[6].args.name: found rank 2 without rank 1; expected all ranks of a "
      "timeline, from 0");
  CHECK(
      refusal_with("{\"ph\":\"M\",\"pid\":2", "{\"ph\":\"M\",\"pid\":1") ==
      "t.json: traceEvents[6].args.name: found a second name of process 1; expected processes of "
      "different numbers");
  CHECK(
      refusal_with("\"name\":\"compute\"", "\"name\":\"compute, paired\"") ==
      "t.json: traceEvents[4].tid: 0F0: it is paired; pair a B or BW with an F of another "
      "microbatch, right in front of it in its row");
}

}  // namespace test_json_chrome_trace
