// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/timeline.hpp>

#include <support/catch.hpp>

#include <vector>

namespace test_timeline {

using namespace zbpp;

namespace {

timed_pass ran(pass_kind kind, zbpp::ticks start, zbpp::ticks end) {
  return {{kind, 0, 0}, start, end};
}

timeline const two_ranks(std::vector<std::vector<timed_pass>>{
    {ran(pass_kind::forward, 0, 10), ran(pass_kind::backward, 30, 50)},
    {ran(pass_kind::forward, 12, 20),
     ran(pass_kind::recompute, 20, 25),
     ran(pass_kind::backward, 25, 60)}});

}  // namespace

TEST_CASE("cost is the longest span of a rank, makespan the end of all", "[timeline]") {
  CHECK(cost(two_ranks) == 50);
  CHECK(makespan(two_ranks) == 60);
}

TEST_CASE("recomputing is not counted as work", "[timeline]") {
  CHECK(busy(two_ranks, 0) == 30);
  CHECK(busy(two_ranks, 1) == 43);
}

TEST_CASE("the bubble rate is the share of the ranks' time that is lost", "[timeline]") {
  CHECK(bubble_rate(two_ranks) == 1 - 73.0 / 100.0);
  timeline const full(std::vector<std::vector<timed_pass>>{
      {ran(pass_kind::forward, 3, 5), ran(pass_kind::backward, 5, 9)}});
  CHECK(bubble_rate(full) == 0);
}

TEST_CASE("a timeline is counted from its first start, whichever rank has it", "[timeline]") {
  CHECK(from_first_start(two_ranks) == two_ranks);
  timeline const later(std::vector<std::vector<timed_pass>>{
      {ran(pass_kind::forward, 9, 10)},
      {},
      {ran(pass_kind::forward, 7, 8), ran(pass_kind::backward, 8, 12)}});
  timeline const counted(std::vector<std::vector<timed_pass>>{
      {ran(pass_kind::forward, 2, 3)},
      {},
      {ran(pass_kind::forward, 0, 1), ran(pass_kind::backward, 1, 5)}});
  CHECK(from_first_start(later) == counted);
  CHECK(from_first_start(counted) == counted);
}

TEST_CASE("an empty timeline costs nothing and loses nothing", "[timeline]") {
  timeline const none(std::vector<std::vector<timed_pass>>{{}, {}});
  CHECK(cost(none) == 0);
  CHECK(makespan(none) == 0);
  CHECK(bubble_rate(none) == 0);
  CHECK(cost(timeline{}) == 0);
  CHECK(from_first_start(none) == none);
}

}  // namespace test_timeline
