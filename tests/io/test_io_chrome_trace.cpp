// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/random_pairs.hpp>
#include <support/random_timeline.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_io_chrome_trace {

using namespace zbpp;

namespace {

// A JSON value: a text, a number as it is written, a list or an object.
struct value {
  std::string text;
  std::vector<value> list;
  std::map<std::string, value> object;

  value const& operator[](char const* key) const { return object.at(key); }
  bool has(char const* key) const { return object.contains(key); }
  int number() const { return std::stoi(text); }
  // Nanoseconds of a number of microseconds, by its digits.
  ticks time() const {
    auto const point = text.find('.');
    auto digits = point == std::string::npos ? "" : text.substr(point + 1);
    if (digits.size() > 3) throw std::runtime_error("more digits than nanoseconds: " + text);
    digits.resize(3, '0');
    return std::stoll(text.substr(0, point)) * 1000 + std::stoll(digits);
  }
};

// Reads JSON strictly, as far as a trace uses it.
class json_reader {
 public:
  explicit json_reader(std::string_view text) : rest_(text) {}

  value read_all() {
    auto result = read();
    skip();
    if (!rest_.empty()) fail("trailing text");
    return result;
  }

 private:
  [[noreturn]] void fail(std::string const& text) const {
    throw std::runtime_error(text + " at '" + std::string(rest_.substr(0, 30)) + "'");
  }
  void skip() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n'))
      rest_.remove_prefix(1);
  }
  bool take(char c) {
    skip();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("no ") + c);
  }
  value read() {
    value result;
    if (take('{')) {
      if (take('}')) return result;
      do {
        skip();
        auto const key = read_text();
        expect(':');
        if (!result.object.emplace(key, read()).second) fail("key twice");
      } while (take(','));
      expect('}');
    } else if (take('[')) {
      if (take(']')) return result;
      do result.list.push_back(read());
      while (take(','));
      expect(']');
    } else if (rest_.starts_with('"')) {
      result.text = read_text();
    } else {
      auto const length = std::min(rest_.find_first_not_of("0123456789."), rest_.size());
      result.text = rest_.substr(0, length);
      if (result.text.empty() || result.text.front() == '.' || result.text.back() == '.' ||
          std::count(result.text.begin(), result.text.end(), '.') > 1 ||
          (result.text.size() > 1 && result.text[0] == '0' && result.text[1] != '.'))
        fail("no value");
      rest_.remove_prefix(length);
    }
    return result;
  }
  std::string read_text() {
    std::string result;
    expect('"');
    while (!rest_.starts_with('"')) {
      if (rest_.starts_with('\\')) rest_.remove_prefix(1);
      if (rest_.empty() || static_cast<unsigned char>(rest_.front()) < 0x20) fail("bad text");
      result += rest_.front();
      rest_.remove_prefix(1);
    }
    rest_.remove_prefix(1);
    return result;
  }

  std::string_view rest_;
};

std::vector<value> events_of(std::string const& text, char const* phase) {
  auto const all = json_reader(text).read_all();
  std::vector<value> result;
  for (auto const& event : all["traceEvents"].list)
    if (event["ph"].text == phase) result.push_back(event);
  return result;
}

using lane = std::pair<int, int>;
lane lane_of(value const& event) { return {event["pid"].number(), event["tid"].number()}; }

// The slice that an arrow end at this time would be bound to: the one around it, the later at a
// seam.
value const* slice_at(std::vector<value> const& slices, lane track, ticks time) {
  value const* found = nullptr;
  for (auto const& s : slices)
    if (lane_of(s) == track && s["ts"].time() <= time && time <= s["ts"].time() + s["dur"].time() &&
        (found == nullptr || (*found)["ts"].time() < s["ts"].time()))
      found = &s;
  return found;
}

problem v_problem(ticks transfer) {
  return {
      placement::v_shape(3),
      5,
      stage_costs{
          .forward = 1'001,
          .backward_input = 2'002,
          .backward_weight = 999,
          .activation = 4,
          .weight_gradient_input = 2},
      transfer};
}

}  // namespace

TEST_CASE("every pass is in the trace once, to the nanosecond", "[io][trace]") {
  for (int trial = 0; trial < 50; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const order = test::random_schedule(values, 0.3);
    auto const line = test::random_timeline(values, order, 123'456'789);
    auto slices = events_of(to_chrome_trace({{"planned", line}}), "X");
    REQUIRE(slices.size() == line.size());
    std::size_t i = 0;
    for (int rank = 0; rank < line.ranks(); ++rank) {
      for (auto const& timed : line[rank]) {
        auto const& slice = slices[i++];
        CHECK(slice["pid"].number() == 1 + rank);
        CHECK(
            slice["name"].text ==
            std::string(to_string(timed.pass.kind)) + " " + std::to_string(timed.pass.microbatch));
        CHECK(slice["args"]["stage"].number() == timed.pass.stage);
        CHECK(slice["args"]["microbatch"].number() == timed.pass.microbatch);
        CHECK(slice["ts"].time() == timed.start);
        CHECK(slice["dur"].time() == timed.end - timed.start);
      }
    }
  }
}

TEST_CASE("slices of one lane do not overlap, even when transfers do", "[io][trace]") {
  for (ticks transfer : {0, 300, 5'000, 50'000}) {
    auto const problem = v_problem(transfer);
    auto const line = simulate(zb_v{}(problem), problem);
    auto const text = to_chrome_trace({{"planned", line}}, problem);
    std::map<lane, std::vector<std::pair<ticks, ticks>>> lanes;
    std::size_t transfers = 0;
    for (auto const& slice : events_of(text, "X")) {
      lanes[lane_of(slice)].emplace_back(
          slice["ts"].time(), slice["ts"].time() + slice["dur"].time());
      if (slice["cat"].text != "transfer") continue;
      ++transfers;
      CHECK(slice["dur"].time() == transfer);
    }
    CHECK(transfers == (transfer == 0 ? 0U : 5U * 2U * 4U));
    for (auto& [lane, times] : lanes) {
      std::sort(times.begin(), times.end());
      for (std::size_t i = 1; i < times.size(); ++i) CHECK(times[i - 1].second <= times[i].first);
    }
  }
}

TEST_CASE("the passes of a pair are slices of the same time in two lanes", "[io][trace]") {
  ZBPP_SEEDED(random, 1);
  auto const problem = v_problem(300);
  auto const order = test::pair_at_random(zb_v{}(problem), problem, random);
  auto const line = simulate(order, problem);
  std::map<lane, std::vector<std::pair<ticks, ticks>>> lanes;
  for (auto const& slice : events_of(to_chrome_trace({{"planned", line}}, problem), "X"))
    lanes[lane_of(slice)].emplace_back(
        slice["ts"].time(), slice["ts"].time() + slice["dur"].time());
  for (auto& [lane, times] : lanes) {
    std::sort(times.begin(), times.end());
    for (std::size_t i = 1; i < times.size(); ++i) CHECK(times[i - 1].second <= times[i].first);
  }
  int found = 0;
  for (int rank = 0; rank < line.ranks(); ++rank)
    for (auto const& timed : line[rank]) {
      if (!timed.pass.is_paired) continue;
      auto const& paired = lanes[{1 + rank, 1 + problem.ranks() + rank}];
      found += static_cast<int>(std::ranges::count(paired, std::pair(timed.start, timed.end)));
    }
  CHECK(found == test::pairs_in(order));
  CHECK(found > 0);
}

TEST_CASE("arrows lead from producer over transfer to consumer", "[io][trace]") {
  for (ticks transfer : {0, 300, 50'000}) {
    auto const problem = v_problem(transfer);
    auto const line = simulate(zb_v{}(problem), problem);
    auto const text = to_chrome_trace({{"planned", line}}, problem);
    auto const slices = events_of(text, "X");
    auto const ends = events_of(text, "f");
    std::map<std::string, value> begins;
    std::map<std::string, value> middles;
    for (auto const& e : events_of(text, "s")) CHECK(begins.emplace(e["id"].text, e).second);
    for (auto const& e : events_of(text, "t")) CHECK(middles.emplace(e["id"].text, e).second);
    CHECK(ends.size() == 5U * 2U * 4U);
    CHECK(begins.size() == ends.size());
    CHECK(middles.size() == (transfer == 0 ? 0 : ends.size()));
    for (auto const& end : ends) {
      auto const& begin = begins.at(end["id"].text);
      auto const* from = slice_at(slices, lane_of(begin), begin["ts"].time());
      auto const* to = slice_at(slices, lane_of(end), end["ts"].time());
      REQUIRE(from != nullptr);
      REQUIRE(to != nullptr);
      CHECK((*from)["name"].text == (*to)["name"].text);
      auto const step = (*to)["name"].text.starts_with('F') ? 1 : -1;
      CHECK((*from)["args"]["stage"].number() + step == (*to)["args"]["stage"].number());
      CHECK((*from)["pid"].number() != (*to)["pid"].number());
      auto const leaves = (*from)["ts"].time() + (*from)["dur"].time();
      CHECK(leaves + transfer <= (*to)["ts"].time());
      if (transfer == 0) continue;
      auto const& middle = middles.at(end["id"].text);
      auto const* flight = slice_at(slices, lane_of(middle), middle["ts"].time());
      REQUIRE(flight != nullptr);
      CHECK((*flight)["cat"].text == "transfer");
      CHECK((*flight)["ts"].time() == leaves);
      CHECK((*flight)["pid"].number() == (*from)["pid"].number());
    }
  }
}

TEST_CASE("planned and measured are groups of processes with names and lanes", "[io][trace]") {
  auto const problem = v_problem(300);
  auto const order = zb_v{}(problem);
  auto const line = simulate(order, problem);
  auto const text = to_chrome_trace(
      {{"planned", line, activation_profile(order, problem)}, {"measured", line}}, problem);
  std::vector<std::string> processes;
  std::map<int, lane> lanes;
  std::vector<std::string> lane_names;
  for (auto const& e : events_of(text, "M")) {
    if (e["name"].text == "process_name") processes.push_back(e["args"]["name"].text);
    if (e["name"].text != "thread_name") continue;
    CHECK(lanes.emplace(e["tid"].number(), lane_of(e)).second);
    if (e["pid"].number() == 2) lane_names.push_back(e["args"]["name"].text);
  }
  CHECK(
      processes == std::vector<std::string>{
                       "planned rank 0",
                       "planned rank 1",
                       "planned rank 2",
                       "measured rank 0",
                       "measured rank 1",
                       "measured rank 2"});
  CHECK(lane_names == std::vector<std::string>{"compute", "to rank 0", "to rank 2"});
  for (auto const* phase : {"X", "s", "t", "f"})
    for (auto const& e : events_of(text, phase)) CHECK(lanes.at(e["tid"].number()) == lane_of(e));
  auto const counts = events_of(text, "C");
  REQUIRE(counts.size() == line.size());
  CHECK(counts[0]["args"]["in use"].number() == 4);
  CHECK(counts.back()["pid"].number() == 3);
}

TEST_CASE("a transfer never outlasts a measured wait", "[io][trace]") {
  timeline const line(
      {{{{pass_kind::forward, 0, 0}, 0, 100}}, {{{pass_kind::forward, 1, 0}, 130, 200}}});
  problem const problem{placement::linear(2), 1, stage_costs{}, ticks{50}};
  auto const slices = events_of(to_chrome_trace({{"", line}}, problem), "X");
  REQUIRE(slices.size() == 3);
  CHECK(slices[2]["dur"].time() == 30);
  CHECK(events_of(to_chrome_trace({{"", line}}), "X").size() == 2);
}

TEST_CASE("names in a trace are escaped", "[io][trace]") {
  timeline const line({{{{}, 0, 1}}});
  auto const text = to_chrome_trace({{"a\"b\\c\n\x01\xff", line}});
  CHECK(events_of(text, "M").at(0)["args"]["name"].text == "a\"b\\c  ? rank 0");
}

TEST_CASE("empty timelines make a trace", "[io][trace]") {
  CHECK(events_of(to_chrome_trace({}), "X").empty());
  CHECK(events_of(to_chrome_trace({{"", timeline{}}}), "X").empty());
}

TEST_CASE("what does not fit is refused", "[io][trace]") {
  timeline const line({{{{pass_kind::forward, 2, 0}, 0, 100}}});
  problem const problem{placement::linear(2), 1, stage_costs{}};
  CHECK_THROWS_AS(to_chrome_trace({{"", line}}, problem), error);
  CHECK_THROWS_AS(to_chrome_trace({{"", timeline({{{{}, 2, 1}}})}}), error);
  rows<bytes> const memory({{1, 2}});
  CHECK_THROWS_AS(to_chrome_trace({{"", line, memory}}), error);
}

}  // namespace test_io_chrome_trace
