// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/schedule.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/refusal.hpp>

#include <string>
#include <vector>

namespace test_schedule {

using namespace zbpp;
using namespace zbpp::test;

TEST_CASE("a schedule keeps its passes, its placement and its microbatches", "[schedule]") {
  schedule const order(placement::linear(2), 1, passes({"0F0 0BW0", "1F0 1BW0"}));
  CHECK(order.ranks() == 2);
  CHECK(order.stages() == 2);
  CHECK(order.microbatches() == 1);
  CHECK(order.passes(1)[1] == pass{pass_kind::backward, 1, 0});
  CHECK(order.passes().size() == 4);
  CHECK(
      order == schedule(
                   placement::linear(2),
                   1,
                   std::vector<std::vector<pass>>{
                       {{pass_kind::forward, 0, 0}, {pass_kind::backward, 0, 0}},
                       {{pass_kind::forward, 1, 0}, {pass_kind::backward, 1, 0}}}));
}

TEST_CASE("schedules on different placements differ", "[schedule]") {
  auto const empty = passes({"", ""});
  CHECK(schedule(placement::linear(2), 1, empty) != schedule(placement::custom({1, 0}), 1, empty));
  CHECK(schedule(placement::linear(2), 1, empty) != schedule(placement::linear(2), 2, empty));
}

TEST_CASE("a schedule refuses ids that do not exist, by rank and position", "[schedule]") {
  auto const refused = [](std::string const& row) {
    return refusal([&] { schedule(placement::linear(2), 3, passes({"0F0", row})); });
  };
  CHECK(refused("1F0 2F0") == "rank 1, position 1: 2F0: stages go from 0 to 1");
  CHECK(refused("-1F0") == "rank 1, position 0: -1F0: stages go from 0 to 1");
  CHECK(refused("1F0 1B1 1W3") == "rank 1, position 2: 1W3: microbatches go from 0 to 2");
  CHECK(refused("1F0 0F1") == "rank 1, position 1: 0F1: the stage belongs to rank 0");
  CHECK(
      refusal([] {
        schedule(
            placement::linear(1), 1, std::vector<std::vector<pass>>{{{pass_kind::forward, 0, -1}}});
      }) == "rank 0, position 0: 0F-1: microbatches go from 0 to 0");
  CHECK(refusal([] {
          schedule(
              placement::linear(1),
              1,
              std::vector<std::vector<pass>>{{{static_cast<pass_kind>(5), 0, 0}}});
        }) == "rank 0, position 0: 0?0: no such kind of pass");
}

TEST_CASE("a schedule refuses a wrong number of rows or microbatches", "[schedule]") {
  CHECK(refusal([] {
          schedule(placement::linear(2), 1, passes({"0F0"}));
        }) == "the schedule has 1 rows; its placement has 2 ranks");
  CHECK(refusal([] {
          schedule(placement::linear(1), 0, passes({""}));
        }) == "microbatches is 0; a step has at least 1");
}

}  // namespace test_schedule
