// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/detail/bottleneck.hpp>

#include <support/catch.hpp>
#include <support/random_layers.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace test_bottleneck {

using zbpp::bytes;
using zbpp::layer_costs;
using zbpp::placement;
using zbpp::ticks;
using zbpp::detail::bottleneck_partition;
using zbpp::test::for_each_composition;
using zbpp::test::greatest_load;
using zbpp::test::random_layers;
using zbpp::test::random_placement;

TEST_CASE("no cut has less than the bottleneck that is found", "[bottleneck][long]") {
  int linear = 0;
  int coupled = 0;
  for (int trial = 0; trial < zbpp::test::thinned(4000, 2000); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = random_placement(random);
    auto const count = placement.stages() + static_cast<int>(random.integer(0, 6));
    auto const layers = random_layers(random, count);
    auto least = std::pair{ticks{1} << 60, bytes{1} << 60};
    for_each_composition(count, placement.stages(), [&](std::vector<int> const& first) {
      least = std::min(least, greatest_load(layers, placement, first));
    });
    auto const found = bottleneck_partition(layers, placement);
    CAPTURE(placement.name(), placement.ranks(), count);
    CHECK(found.optimal);
    CHECK(std::pair(found.work, found.memory) == least);
    CHECK(greatest_load(layers, placement, found.first_layer) == least);
    ++(placement.stages() == placement.ranks() ? linear : coupled);
  }
  CHECK(linear > 500);
  CHECK(coupled > 500);
}

TEST_CASE("the bottleneck of models as they are is proved", "[bottleneck]") {
  // Equal blocks of 29 between a light embedding of 1 and a head of 150.
  auto const check = [](int blocks, placement const& placement, ticks least) {
    std::vector<layer_costs> layers(
        static_cast<std::size_t>(blocks) + 2,
        {.forward = 10, .backward_input = 10, .backward_weight = 9, .static_memory = 3});
    layers.front() = {.backward_weight = 1, .static_memory = 17};
    layers.back() = {
        .forward = 50, .backward_input = 50, .backward_weight = 50, .static_memory = 17};
    auto const found = bottleneck_partition(layers, placement);
    CAPTURE(placement.name(), placement.stages(), blocks);
    CHECK(found.optimal);
    CHECK(found.work == least);
    CHECK(
        greatest_load(layers, placement, found.first_layer) == std::pair(found.work, found.memory));
  };
  check(32, placement::linear(8), 150);       // the head alone
  check(32, placement::v_shape(8), 150 + 1);  // head and embedding share a rank
  check(32, placement::looped(8, 2), 179);    // the head's rank has another chunk
  check(32, placement::looped(8, 4), 237);    // three more
  check(32, placement::looped(4, 2), 10 * 29);
  // With 8 blocks on each of seven ranks and 3 beside the head 5 are left over.
  check(64, placement::linear(8), 9 * 29);
  check(64, placement::v_shape(8), 9 * 29);
  check(64, placement::looped(8, 2), 9 * 29);
  check(64, placement::looped(8, 4), 9 * 29);
  check(64, placement::looped(4, 2), 18 * 29);
}

TEST_CASE("as many layers as are taken can be cut", "[bottleneck]") {
  std::vector<layer_costs> const layers(4096, {.forward = 3, .static_memory = 5});
  auto const one_each = bottleneck_partition(layers, placement::linear(4096));
  CHECK(one_each.optimal);
  CHECK(one_each.work == 3);
  CHECK(bottleneck_partition(layers, placement::v_shape(2048)).memory == 10);
  CHECK(bottleneck_partition(layers, placement::linear(7)).work == 3 * 586);
}

TEST_CASE("a search that gives up says so, and its cut is still a cut", "[bottleneck][long]") {
  int gave_up = 0;
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = placement::looped(4, 2);
    auto const layers = random_layers(random, 20);
    auto const hasty = bottleneck_partition(layers, placement, {.steps = 10});
    auto const best = bottleneck_partition(layers, placement);
    CHECK(best.optimal);
    CHECK(
        greatest_load(layers, placement, hasty.first_layer) == std::pair(hasty.work, hasty.memory));
    CHECK(hasty.work >= best.work);
    if (hasty.optimal) CHECK(hasty.work == best.work);
    if (!hasty.optimal) ++gave_up;
  }
  CHECK(gave_up > 50);
}

}  // namespace test_bottleneck
