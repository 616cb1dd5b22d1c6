// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/placement.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <limits>
#include <vector>

namespace test_placement {

using zbpp::placement;
using zbpp::test::refusal;

namespace {

std::vector<int> ranks_of(placement const& placement) {
  auto const list = placement.rank_of_stages();
  return {list.begin(), list.end()};
}

std::vector<int> stages_of(placement const& placement, int rank) {
  auto const list = placement.stages_of(rank);
  return {list.begin(), list.end()};
}

}  // namespace

TEST_CASE("linear puts one stage on each rank", "[placement]") {
  auto const placement = placement::linear(3);
  CHECK(ranks_of(placement) == std::vector<int>{0, 1, 2});
  CHECK(placement.ranks() == 3);
  CHECK(placement.stages() == 3);
  CHECK(placement.name() == "linear");
}

TEST_CASE("looped goes round the ranks", "[placement]") {
  auto const placement = placement::looped(2, 3);
  CHECK(ranks_of(placement) == std::vector<int>{0, 1, 0, 1, 0, 1});
  CHECK(placement.ranks() == 2);
  CHECK(placement.stages() == 6);
  CHECK(placement.name() == "looped");
  CHECK(placement::looped(4, 1) == placement::linear(4));
}

TEST_CASE("a v goes down the ranks and comes back", "[placement]") {
  auto const placement = placement::v_shape(3);
  CHECK(ranks_of(placement) == std::vector<int>{0, 1, 2, 2, 1, 0});
  CHECK(stages_of(placement, 0) == std::vector<int>{0, 5});
  CHECK(stages_of(placement, 2) == std::vector<int>{2, 3});
  CHECK(placement.name() == "v");
}

TEST_CASE("any list of ranks is a placement, and is known by its shape", "[placement]") {
  auto const placement = placement::custom({1, 0, 1, 1});
  CHECK(placement.ranks() == 2);
  CHECK(placement.name() == "custom");
  CHECK_FALSE(placement.is_linear());
  CHECK_FALSE(placement.is_looped());
  CHECK_FALSE(placement.is_v_shape());
  CHECK(placement::custom({0, 1, 2}).is_linear());
  CHECK(placement::custom({0, 1, 0, 1}).is_looped());
  CHECK(placement::custom({0, 1, 1, 0}).is_v_shape());
  CHECK(placement::custom({0, 1, 2, 0}).name() == "custom");
}

TEST_CASE("on one rank linear is looped, and a v is two chunks", "[placement]") {
  CHECK(placement::linear(1).is_looped());
  CHECK_FALSE(placement::linear(1).is_v_shape());
  CHECK(placement::v_shape(1) == placement::looped(1, 2));
  CHECK(placement::v_shape(1).name() == "v");
}

TEST_CASE("stages of a rank ascend, and chunks count them", "[placement]") {
  auto const placement = placement::custom({2, 0, 2, 1, 0, 2});
  CHECK(stages_of(placement, 0) == std::vector<int>{1, 4});
  CHECK(stages_of(placement, 1) == std::vector<int>{3});
  CHECK(stages_of(placement, 2) == std::vector<int>{0, 2, 5});
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    int chunk = 0;
    for (int stage : placement.stages_of(rank)) {
      CHECK(placement.rank_of(stage) == rank);
      CHECK(placement.chunk_of(stage) == chunk++);
    }
  }
}

TEST_CASE("a placement that cannot be says what would be right", "[placement]") {
  constexpr auto most = std::numeric_limits<int>::max();
  CHECK(
      refusal([] { (void)placement::linear(0); }) == "ranks is 0; a pipeline has at least 1 rank");
  CHECK(refusal([] {
          (void)placement::v_shape(-3);
        }) == "ranks is -3; a pipeline has at least 1 rank");
  CHECK(
      refusal([] { (void)placement::looped(2, 0); }) == "chunks is 0; a rank has at least 1 chunk");
  CHECK(refusal([] {
          (void)placement::custom({});
        }) == "the placement is empty; it needs the rank of every stage");
  CHECK(refusal([] {
          (void)placement::custom({0, -1});
        }) == "placement: stage 1 is on rank -1; with 2 stages ranks go from 0 to 1");
  CHECK(refusal([] {
          (void)placement::custom({0, 2});
        }) == "placement: stage 1 is on rank 2; with 2 stages ranks go from 0 to 1");
  CHECK(refusal([] {
          (void)placement::custom({0, 2, 2});
        }) == "placement: rank 1 has no stage; every rank from 0 to 2 needs one");
  CHECK(refusal([] {
          (void)placement::looped(most, most);
        }) == "the placement has 4611686014132420609 stages; at most 16777216");
  CHECK(refusal([] {
          (void)placement::v_shape(most);
        }) == "the placement has 4294967294 stages; at most 16777216");
}

TEST_CASE("microbatches are at least one, and few enough to number", "[placement]") {
  auto const placement = placement::linear(4);
  using zbpp::detail::check_microbatches;
  CHECK(refusal([&] { check_microbatches(placement, 1); }) == "<nothing was refused>");
  CHECK(refusal([&] { check_microbatches(placement, 1 << 25); }) == "<nothing was refused>");
  CHECK(refusal([&] {
          check_microbatches(placement, 0);
        }) == "microbatches is 0; a step has at least 1");
  CHECK(refusal([&] {
          check_microbatches(placement, std::numeric_limits<int>::max());
        }) == "microbatches is 2147483647; with 4 stages at most 33554432");
}

}  // namespace test_placement
