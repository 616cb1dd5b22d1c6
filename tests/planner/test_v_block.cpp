// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/detail/v_blocks.hpp>
// What the checks need besides.
#include <zbpp/planner/detail/list_scheduler.hpp>

#include <support/catch.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace test_v_block {

using namespace zbpp;

using detail::fb_code;
using detail::index;
using detail::list_scheduler;
using detail::planner_rules;
using detail::v_block;
using detail::v_block_shape;
using detail::v_block_shapes;

namespace {

// No two stages are alike; W keeps nothing, so that F and B alone decide what fits.
problem uneven(test::seeded_random& random) {
  auto const ranks = static_cast<int>(random.integer(2, 9));
  auto const placement = placement::v_shape(ranks);
  std::vector<stage_costs> stages;
  for (int s = 0; s < placement.stages(); ++s)
    stages.push_back(
        {.forward = random.integer(1, 100),
         .backward_input = random.integer(1, 100),
         .backward_weight = random.integer(0, 100),
         .activation = random.integer(0, 100)});
  auto const m = static_cast<int>(random.integer(1, 4 * ranks));
  return {placement, m, stages, random.integer(0, 30), {random.integer(200, 200 * ranks)}};
}

std::vector<bytes> rooms(problem const& problem) {
  list_scheduler const engine(problem);
  std::vector<bytes> room;
  for (int rank = 0; rank < problem.ranks(); ++rank) room.push_back(engine.room(rank));
  return room;
}

// The stage of a leg, the way down and up the V, twice.
int stage_of(problem const& problem, std::size_t leg, int rank) {
  return leg == 0 || leg == 3 ? rank : problem.stages() - 1 - rank;
}

// Calls `check` with each block that some shapes of a problem lead to.
template <class Check>
int for_blocks(problem const& problem, std::uint64_t seed, Check const& check) {
  std::vector<detail::stage_rule> const rules(index(problem.stages()));
  v_block block(problem, rooms(problem));
  v_block_shapes shapes(problem, seed);
  int built = 0;
  v_block_shape shape;
  for (int i = 0; i < 40; ++i) {
    if (i % 4 == 0)
      shape = shapes.sample();
    else
      shapes.change(shape);
    if (!block.place(shape, rules)) continue;
    check(block, shape);
    ++built;
  }
  return built;
}

constexpr int trials = test::thinned(200, 60);

}  // namespace

TEST_CASE("blocks that follow each other meet on no rank", "[v_block]") {
  int built = 0;
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const problem = uneven(random);
    built +=
        for_blocks(problem, random.bits(), [&](v_block const& block, v_block_shape const& shape) {
          for (int rank = 0; rank < problem.ranks(); ++rank)
            for (std::size_t a = 0; a < v_block::legs; ++a)
              for (std::size_t b = 0; b < v_block::legs; ++b) {
                if (a == b) continue;
                auto since = (block.start(b, rank) - block.start(a, rank)) % shape.interval;
                if (since < 0) since += shape.interval;
                bool const apart =
                    since >= block.time(a, rank) && since + block.time(b, rank) <= shape.interval;
                CHECK(apart);
              }
        });
  }
  CHECK(built > 10 * trials);
}

TEST_CASE("a pass of a block starts when its input is there", "[v_block]") {
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const problem = uneven(random);
    for_blocks(problem, random.bits(), [&](v_block const& block, v_block_shape const&) {
      ticks ready = 0;
      int before = 0;
      for (std::size_t leg = 0; leg < v_block::legs; ++leg)
        for (int i = 0; i < problem.ranks(); ++i) {
          auto const rank = leg % 2 == 0 ? i : problem.ranks() - 1 - i;
          auto const stage = stage_of(problem, leg, rank);
          if (stage != before) ready += problem.transfer_time(before, stage, 0);
          CHECK(block.start(leg, rank) >= ready);
          ready = block.start(leg, rank) + block.time(leg, rank);
          before = stage;
        }
    });
  }
}

TEST_CASE("the order of a block has every F and B once, within the memory", "[v_block]") {
  for (int trial = 0; trial < trials; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const problem = uneven(random);
    auto const room = rooms(problem);
    planner_rules rules(problem.ranks(), problem.stages());
    list_scheduler engine(problem);
    for_blocks(problem, random.bits(), [&](v_block& block, v_block_shape const& shape) {
      block.order(shape, rules.fb_orders);
      for (int rank = 0; rank < problem.ranks(); ++rank) {
        CHECK(block.most_held(rank) <= room[index(rank)]);
        std::array<int, 4> count{};  // of each code
        bytes held = 0;
        bytes most = 0;
        for (auto const step : rules.fb_orders[index(rank)]) {
          ++count[step];
          auto const stage = problem.placement().stages_of(rank)[step / 2];
          held += (step % 2 == 0 ? 1 : -1) * problem.costs(stage).activation;
          most = std::max(most, held);
          CHECK(count[step / 2 * 2] >= count[step / 2 * 2 + 1]);  // no B before its F
        }
        for (int const n : count) CHECK(n == problem.microbatches());
        CHECK(most <= room[index(rank)]);
      }
      CHECK(engine.run(rules) != detail::never);
    });
  }
}

TEST_CASE("more memory makes blocks that keep more microbatches", "[v_block]") {
  stage_costs const costs{
      .forward = 20, .backward_input = 20, .backward_weight = 10, .activation = 100};
  std::vector<detail::stage_rule> const rules(16);
  bytes last = 0;
  for (bytes room = 1000; room <= 2000; room += 200) {
    problem const problem(placement::v_shape(8), 24, costs, 1, {room});
    v_block block(problem, rooms(problem));
    bytes most = 0;
    v_block_shapes shapes(problem, 1);
    for (int i = 0; i < 200; ++i)
      if (block.place(shapes.sample(), rules))
        for (int rank = 0; rank < problem.ranks(); ++rank)
          most = std::max(most, block.most_held(rank));
    CHECK(most > last);
    CHECK(most <= room);
    last = most;
  }
}

}  // namespace test_v_block
