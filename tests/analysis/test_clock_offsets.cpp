// SPDX-License-Identifier: Apache-2.0
//
// Clocks whose offsets, and how they drift, are planted: what is found is never further away than
// its error.
#include <zbpp/analysis/clock_offsets.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace test_clock_offsets {

using namespace zbpp;

namespace {

// What a clock shows: it is `ahead` at first, and gains `rate` of the time that passes.
struct planted_clock {
  ticks ahead = 0;
  double rate = 0;

  [[nodiscard]] ticks at(ticks time) const {
    return time + ahead + static_cast<ticks>(std::llround(rate * static_cast<double>(time)));
  }
};

using links = std::vector<std::pair<int, int>>;

// Neighbours in a row exchange messages in both directions.
links row_of(int ranks) {
  links all;
  for (int rank = 0; rank + 1 < ranks; ++rank) {
    all.emplace_back(rank, rank + 1);
    all.emplace_back(rank + 1, rank);
  }
  return all;
}

// Messages go around, in one direction.
links ring_of(int ranks) {
  links all;
  for (int rank = 0; rank < ranks; ++rank) all.emplace_back(rank, (rank + 1) % ranks);
  return all;
}

// Some messages of a step by each link, as the clocks show their times.
message_record messages_by(
    links const& all,
    std::vector<planted_clock> const& clocks,
    ticks step,
    test::seeded_random& random) {
  message_record record;
  for (auto const& [from, to] : all) {
    auto const least = random.integer(1, 500);  // a link may be slower than that back
    for (int i = 0; i < 5; ++i) {
      auto const sent = random.integer(0, step);
      auto const arrived = sent + least + random.integer(0, 2'000);
      record.push(
          {.from = from,
           .to = to,
           .sent = clocks[detail::index(from)].at(sent),
           .arrived = clocks[detail::index(to)].at(arrived),
           .taken = clocks[detail::index(to)].at(arrived)});
    }
    record.end_row();
  }
  return record;
}

timed_message sent_at(int from, int to, ticks sent, ticks arrived) {
  return {.from = from, .to = to, .sent = sent, .arrived = arrived, .taken = arrived};
}

message_record record_of(std::vector<timed_message> const& all) {
  return message_record(std::vector<std::vector<timed_message>>{all});
}

}  // namespace

TEST_CASE("the true offset of a clock is never further away than the error", "[clocks]") {
  for (int trial = 0; trial < test::thinned(300, 60); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const ranks = static_cast<int>(random.integer(2, 8));
    auto const step = random.integer(1'000, 50'000'000);
    // Two clocks are apart by twice the rate of one at most.
    double const drift = random.chance(0.5) ? 0 : 1e-4;
    std::vector<planted_clock> clocks(detail::index(ranks));
    for (auto& clock : clocks)
      clock = {random.integer(-1'000'000'000, 1'000'000'000), random.real(-drift, drift) / 2.01};
    auto const record =
        messages_by(trial % 2 == 0 ? row_of(ranks) : ring_of(ranks), clocks, step, random);
    auto const found = clock_offsets(record, ranks, drift);
    REQUIRE(found.size() == clocks.size());
    CHECK(found.front() == clock_offset{0, 0});
    for (std::size_t rank = 1; rank < clocks.size(); ++rank)
      for (ticks const time : {ticks{0}, step / 3, step}) {
        auto const ahead = clocks[rank].at(time) - clocks[0].at(time);
        INFO("rank " << rank << " is ahead " << ahead << ", found " << found[rank].ahead);
        CHECK(std::abs(found[rank].ahead - ahead) <= found[rank].error);
      }
  }
}

TEST_CASE("clocks that are set by messages let none arrive before it is sent", "[clocks]") {
  for (int trial = 0; trial < test::thinned(100, 30); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const ranks = static_cast<int>(random.integer(2, 8));
    std::vector<planted_clock> clocks(detail::index(ranks));
    for (auto& clock : clocks) clock.ahead = random.integer(-1'000'000, 1'000'000);
    auto all = row_of(ranks);
    for (auto const& link : ring_of(ranks)) all.push_back(link);
    auto record = messages_by(all, clocks, 100'000, random);
    auto const before = record;
    timeline step;
    for (auto const& clock : clocks) {
      step.push({{}, clock.at(1'000), clock.at(2'000)});
      step.end_row();
    }
    auto const found = align_clocks(step, record, 0);
    for (std::size_t i = 0; i < record.size(); ++i) {
      auto const& m = std::as_const(record).all()[i];
      CHECK(m.arrived >= m.sent);
      CHECK(m.taken == m.arrived);
      CHECK(before.all()[i].sent - m.sent == found[detail::index(m.from)].ahead);
    }
    for (int rank = 0; rank < ranks; ++rank)
      CHECK(
          std::as_const(step)[rank][0].end ==
          clocks[detail::index(rank)].at(2'000) - found[detail::index(rank)].ahead);
    // Set once, they stay as they are.
    for (auto const& offset : clock_offsets(record, ranks, 0)) CHECK(std::abs(offset.ahead) <= 1);
  }
}

TEST_CASE("the error of two clocks is half of the least round trip", "[clocks]") {
  // The clock of rank 1 is 1000 ahead; messages take 30 and more there, 50 and more back.
  auto const record = record_of(
      {sent_at(0, 1, 0, 1'090),
       sent_at(0, 1, 100, 1'130),
       sent_at(1, 0, 1'200, 251),
       sent_at(1, 0, 1'300, 350)});
  CHECK(clock_offsets(record, 2, 0) == std::vector<clock_offset>{{0, 0}, {990, 40}});
  // The longest that one rank sees is 300, in which clocks run apart by 30.
  CHECK(clock_offsets(record, 2, 0.1) == std::vector<clock_offset>{{0, 0}, {990, 75}});
}

TEST_CASE("errors of chains add up, and the shortest chain counts", "[clocks]") {
  std::vector<timed_message> all;
  auto const exchange = [&](int a, int b, ticks took) {
    all.push_back(sent_at(a, b, 0, took));
    all.push_back(sent_at(b, a, 0, took));
  };
  exchange(0, 1, 10);
  exchange(1, 2, 20);
  exchange(2, 3, 40);
  CHECK(
      clock_offsets(record_of(all), 4, 0) ==
      std::vector<clock_offset>{{0, 0}, {0, 10}, {0, 30}, {0, 70}});
  exchange(0, 3, 15);
  CHECK(
      clock_offsets(record_of(all), 4, 0) ==
      std::vector<clock_offset>{{0, 0}, {0, 10}, {0, 30}, {0, 15}});
}

TEST_CASE("clocks that messages do not set are refused", "[clocks]") {
  auto const refused = [](std::vector<timed_message> const& all, int ranks, double drift = 0) {
    return test::refusal(errc::bad_argument, [&] {
      static_cast<void>(clock_offsets(record_of(all), ranks, drift));
    });
  };
  // One direction alone says how far a clock may be behind, and not how far ahead.
  CHECK(
      refused({sent_at(0, 1, 0, 10)}, 2) ==
      "rank 1: the messages of the step do not tell how far the clock of rank 1 is ahead of that "
      "of rank 0: no chain of messages leads from one to the other and back");
  CHECK(
      refused({sent_at(0, 1, 0, 10), sent_at(1, 0, 0, 10)}, 3).starts_with("rank 2: the messages"));
  // Rank 1 gets a message at 10, and sends one at 50 that is there at 20; sent at 0, the first
  // had 10 to travel in.
  CHECK(
      refused({sent_at(0, 1, 0, 10), sent_at(1, 0, 50, 20)}, 2) ==
      "rank 0: by the clocks of the ranks, messages from this one and back took 20 ns less than no "
      "time; a clock ran backwards, or faster than the drift allows");
  // By 20 clocks may run apart in 40 where that is allowed.
  CHECK(
      clock_offsets(record_of({sent_at(0, 1, 0, 10), sent_at(1, 0, 50, 20)}), 2, 0.25).size() == 2);
  auto unknown = sent_at(0, 1, 0, 10);
  unknown.arrived = timed_message::unknown;
  CHECK(
      refused({unknown}, 2) ==
      "a record of messages lacks the times of 0F0 from rank 0 to 1: sent 0, arrived ?, taken 10; "
      "gather the records of all processes");
  CHECK(
      refused({sent_at(0, 2, 0, 10)}, 2) ==
      "a record of messages holds 0F0 of other ranks than 0 to 1");
  CHECK(refused({}, 0) == "clock_offsets is given the number of ranks, at least 1");
  for (double const drift : {-0.1, 1.0})
    CHECK(refused({}, 1, drift) == "clock_offsets: drift is a share, at least 0 and below 1");
  CHECK(clock_offsets({}, 1) == std::vector<clock_offset>{{0, 0}});
}

TEST_CASE("a step and its messages count from its first start", "[clocks]") {
  timeline step;
  step.push({{}, 120, 130});
  step.end_row();
  step.push({{}, 100, 110});
  step.end_row();
  auto record = record_of({sent_at(0, 1, 95, 99)});
  record[0][0].taken = timed_message::unknown;
  from_first_start(step, record);
  CHECK(std::as_const(step)[0][0] == timed_pass{{}, 20, 30});
  CHECK(std::as_const(step)[1][0] == timed_pass{{}, 0, 10});
  CHECK(
      std::as_const(record)[0][0] == timed_message{.from = 0, .to = 1, .sent = -5, .arrived = -1});
}

}  // namespace test_clock_offsets
