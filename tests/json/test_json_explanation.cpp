// SPDX-License-Identifier: Apache-2.0
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/fields.hpp>
#include <zbpp/json/explanation.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace test_json_explanation {

using namespace zbpp;
using json::write_explanation;
using json::detail::value;

namespace {

constexpr ticks most = std::numeric_limits<ticks>::max();

// Reads what write_explanation wrote, each key of it once and none besides.
class reader {
 public:
  explicit reader(value const& object) : object_(object) {}

  [[nodiscard]] explanation read() {
    constexpr std::array<std::string_view, 11> names{
        "time_unit",
        "planned",
        "measured",
        "ranks",
        "critical",
        "worst",
        "message_gain",
        "send_gain",
        "host_gain",
        "has_messages",
        "clock_error"};
    auto const
        [unit,
         planned,
         measured,
         ranks,
         critical,
         worst,
         message_gain,
         send_gain,
         host_gain,
         has_messages,
         clock_error] = object_.members(names, names.size());
    while (to_string(unit_) != unit.text())
      unit_ = static_cast<time_unit>(static_cast<int>(unit_) + 1);
    explanation found{.planned = time(planned), .measured = time(measured)};
    ranks.for_each([&](value const& v) { found.ranks.push_back(read_account(v)); });
    critical.for_each([&](value const& v) { found.critical.push_back(read_critical(v)); });
    worst.for_each([&](value const& v) { found.worst.push_back(read_delay(v)); });
    found.message_gain = time(message_gain);
    found.send_gain = time(send_gain);
    found.host_gain = time(host_gain);
    found.has_messages = flag(has_messages);
    found.clock_error = time(clock_error);
    return found;
  }

 private:
  [[nodiscard]] ticks time(value const& from) const { return json::detail::time(from, unit_); }
  [[nodiscard]] static std::int32_t id(value const& from) {
    return static_cast<std::int32_t>(
        json::detail::whole(from, 0, std::numeric_limits<std::int32_t>::max()));
  }
  [[nodiscard]] static bool flag(value const& from) {
    REQUIRE(from.is(json::detail::value_kind::boolean));
    return from.text() == "true";
  }
  [[nodiscard]] static pass read_pass(value const& kind, value const& stage, value const& number) {
    pass p{{}, id(stage), id(number)};
    for (auto const& traits : pass_table)
      if (traits.letters == kind.text()) p.kind = traits.kind;
    CHECK(to_string(p.kind) == kind.text());
    return p;
  }

  [[nodiscard]] rank_account read_account(value const& from) const {
    constexpr std::array<std::string_view, 11> names{
        "work",
        "longer",
        "bubble",
        "imbalance",
        "for_rank",
        "sent_late",
        "messages",
        "taken_late",
        "host",
        "optimizer",
        "gain"};
    auto const
        [work,
         longer,
         bubble,
         imbalance,
         for_rank,
         sent_late,
         messages,
         taken_late,
         host,
         optimizer,
         gain] = from.members(names, names.size());
    rank_account account{
        .work = time(work),
        .longer = time(longer),
        .bubble = time(bubble),
        .imbalance = time(imbalance),
        .sent_late = time(sent_late),
        .messages = time(messages),
        .taken_late = time(taken_late),
        .host = time(host),
        .optimizer = time(optimizer),
        .gain = time(gain)};
    for_rank.for_each([&](value const& wait) { account.for_rank.push_back(time(wait)); });
    return account;
  }

  [[nodiscard]] critical_pass read_critical(value const& from) const {
    constexpr std::array<std::string_view, 12> names{
        "rank",
        "pass",
        "stage",
        "microbatch",
        "is_pair",
        "start",
        "end",
        "planned",
        "waited",
        "cause",
        "sent_late",
        "taken_late"};
    auto const
        [rank,
         kind,
         stage,
         number,
         is_pair,
         start,
         end,
         planned,
         waited,
         cause,
         sent_late,
         taken_late] = from.members(names, names.size());
    critical_pass found{
        .rank = id(rank),
        .pass = read_pass(kind, stage, number),
        .is_pair = flag(is_pair),
        .start = time(start),
        .end = time(end),
        .planned = time(planned),
        .waited = time(waited),
        .sent_late = time(sent_late),
        .taken_late = time(taken_late)};
    for (auto const known :
         {wait_cause::none, wait_cause::message, wait_cause::host, wait_cause::optimizer})
      if (to_string(known) == cause.text()) found.cause = known;
    CHECK(to_string(found.cause) == cause.text());
    return found;
  }

  [[nodiscard]] delay read_delay(value const& from) const {
    constexpr std::array<std::string_view, 8> names{
        "rank", "pass", "stage", "microbatch", "kind", "planned", "took", "gain"};
    auto const [rank, letters, stage, number, kind, planned, took, gain] =
        from.members(names, names.size());
    delay found{
        .rank = id(rank),
        .pass = read_pass(letters, stage, number),
        .planned = time(planned),
        .took = time(took),
        .gain = time(gain)};
    for (auto const known :
         {delay_kind::pass, delay_kind::send, delay_kind::message, delay_kind::start})
      if (to_string(known) == kind.text()) found.kind = known;
    CHECK(to_string(found.kind) == kind.text());
    return found;
  }

  value object_;
  time_unit unit_ = time_unit::nanoseconds;
};

explanation read(std::string const& text) {
  json::detail::document const all(text, "explanation");
  return reader(value(all)).read();
}

ticks any_time(test::seeded_random& random) {
  return random.chance(0.1) ? most : random.integer(0, ticks{1} << random.integer(0, 62));
}

pass any_pass(test::seeded_random& random) {
  return {
      static_cast<pass_kind>(random.integer(0, std::int64_t{pass_kinds} - 1)),
      static_cast<std::int32_t>(random.integer(0, 1'000'000)),
      static_cast<std::int32_t>(random.integer(0, 1'000'000))};
}

explanation any_explanation(test::seeded_random& random) {
  auto const time = [&] { return any_time(random); };
  explanation made{.planned = time(), .measured = time()};
  for (auto count = random.integer(0, 4); count > 0; --count) {
    rank_account account{
        time(), time(), time(), time(), {}, time(), time(), time(), time(), time(), time()};
    for (auto ranks = random.integer(0, 4); ranks > 0; --ranks) account.for_rank.push_back(time());
    made.ranks.push_back(account);
  }
  for (auto count = random.integer(0, 4); count > 0; --count)
    made.critical.push_back(
        {.rank = static_cast<int>(random.integer(0, 9)),
         .pass = any_pass(random),
         .is_pair = random.chance(0.5),
         .start = time(),
         .end = time(),
         .planned = time(),
         .waited = time(),
         .cause = static_cast<wait_cause>(random.integer(0, 3)),
         .sent_late = time(),
         .taken_late = time()});
  for (auto count = random.integer(0, 4); count > 0; --count)
    made.worst.push_back(
        {static_cast<int>(random.integer(0, 9)),
         any_pass(random),
         static_cast<delay_kind>(random.integer(0, 3)),
         time(),
         time(),
         time()});
  made.message_gain = time();
  made.send_gain = time();
  made.host_gain = time();
  made.has_messages = random.chance(0.5);
  made.clock_error = time();
  return made;
}

}  // namespace

TEST_CASE("an explanation in JSON holds every number, exactly", "[json][explain]") {
  for (int trial = 0; trial < test::thinned(200, 50); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const step = any_explanation(random);
    for (auto const unit :
         {time_unit::nanoseconds,
          time_unit::microseconds,
          time_unit::milliseconds,
          time_unit::seconds}) {
      auto const text = write_explanation(step, unit);
      CAPTURE(text);
      CHECK(read(text) == step);
    }
  }
}

TEST_CASE("an explanation in JSON has the names of its fields", "[json][explain]") {
  explanation const step{
      .planned = 1'580,
      .measured = 2'280,
      .ranks = {{.work = 1'450, .bubble = 130, .for_rank = {0, 685}, .messages = 15}},
      .critical =
          {{.rank = 1, .pass = {pass_kind::backward, 3, 7}, .start = 10, .end = 30, .planned = 15}},
      .worst = {{1, {pass_kind::backward, 3, 7}, delay_kind::message, 5, 9, 4}},
      .message_gain = 4,
      .has_messages = true,
      .clock_error = 12};
  CHECK(write_explanation(step, time_unit::microseconds) == R"({
  "time_unit": "us",
  "planned": 1.58,
  "measured": 2.28,
  "ranks": [
    {"work": 1.45, "longer": 0, "bubble": 0.13, "imbalance": 0, "for_rank": [0, 0.685], "sent_late": 0, "messages": 0.015, "taken_late": 0, "host": 0, "optimizer": 0, "gain": 0}
  ],
  "critical": [
    {"rank": 1, "pass": "BW", "stage": 3, "microbatch": 7, "is_pair": false, "start": 0.01, "end": 0.03, "planned": 0.015, "waited": 0, "cause": "none", "sent_late": 0, "taken_late": 0}
  ],
  "worst": [
    {"rank": 1, "pass": "BW", "stage": 3, "microbatch": 7, "kind": "message", "planned": 0.005, "took": 0.009, "gain": 0.004}
  ],
  "message_gain": 0.004,
  "send_gain": 0,
  "host_gain": 0,
  "has_messages": true,
  "clock_error": 0.012
}
)");
}

TEST_CASE("an explanation with a negative time is not written", "[json][explain]") {
  auto const* const refused = "times of an explanation are at least 0";
  CHECK(test::refusal([] { static_cast<void>(write_explanation({.planned = -1})); }) == refused);
  CHECK(test::refusal([] {
          static_cast<void>(write_explanation({.ranks = {{.for_rank = {0, -1}}}}));
        }) == refused);
}

}  // namespace test_json_explanation
