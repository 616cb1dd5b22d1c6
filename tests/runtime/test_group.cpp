// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/catch.hpp>
#include <support/group_suite.hpp>
#include <support/refusal.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace test_group {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// Runs a group of threads.
void run_members(int size, std::function<void(group&)> const& work) {
  in_process_grid members({.data = 1, .tensor = size});
  members.run([&](grid_place const& at) { work(at.grid_of(0)->tensor()); });
}

}  // namespace

TEST_CASE("collective calls between threads give what they promise", "[group][long]") {
  check_collective_calls(run_members, 6, 60);
}

TEST_CASE("members that make different calls are told which", "[group]") {
  check_different_calls(run_members);
}

TEST_CASE("spans that do not fit a call are refused", "[group]") { check_wrong_spans(run_members); }

TEST_CASE("the groups of a grid are those of its layout", "[group]") {
  in_process_grid whole({.pipeline = 2, .data = 4, .tensor = 3, .expert = 2});
  auto const& layout = whole.layout();
  whole.run([&](grid_place const& place) {
    for (int pipeline = 0; pipeline < 2; ++pipeline) {
      auto& own = *place.grid_of(pipeline);
      grid_coordinates const at{pipeline, place.data(), place.tensor()};
      expect(own.at() == at, "the coordinates");
      auto const rank = layout.rank_of(at);
      for (auto axis :
           {grid_axis::data, grid_axis::tensor, grid_axis::expert, grid_axis::expert_data}) {
        auto const ranks = layout.group(axis, rank);
        std::vector<float> found(ranks.size());
        std::vector<float> const share{static_cast<float>(rank)};
        own.along(axis).all_gather(share, found);
        expect(
            std::ranges::equal(
                found, ranks, [](float a, int b) { return a == static_cast<float>(b); }),
            "the ranks of a group");
        expect(own.along(axis).place() == layout.place_in_group(axis, rank), "the place");
      }
      expect(own.along(grid_axis::pipeline).size() == 1, "a pipeline exchanges messages");
    }
  });
}

TEST_CASE("a rank without a grid has groups of one", "[group]") {
  rank_grid alone;
  std::vector<float> values{1, 2, 3};
  std::vector<float> copy(3);
  alone.tensor().all_reduce(values);
  alone.data().all_gather(values, copy);
  alone.expert().barrier();
  alone.expert_data().reduce_scatter(values, copy);
  CHECK(values == std::vector<float>{1, 2, 3});
  CHECK(copy == values);
}

TEST_CASE("what one pipeline of a grid throws ends the calls of all others", "[group]") {
  in_process_grid whole({.pipeline = 1, .data = 3, .tensor = 2});
  std::atomic<int> told{0};
  auto const run = [&] {
    whole.run([&](grid_place const& place) {
      auto& own = *place.grid_of(0);
      if (place.data() == 1 && place.tensor() == 1) throw std::runtime_error("no more weights");
      try {
        own.tensor().barrier();
        own.data().barrier();
        own.tensor().barrier();
      } catch (error const& failed) {
        expect(failed.code() == errc::peer_failed, "the code");
        expect(
            failed.message() == "the pipeline of replica 1, tensor 1 failed: no more weights",
            "the message: " + std::string(failed.message()));
        ++told;
        throw;
      }
    });
  };
  CHECK_THROWS_AS(run(), std::runtime_error);
  CHECK(told == 5);
}

TEST_CASE("grids that a process cannot hold are refused", "[group]") {
  CHECK(
      refusal([] { in_process_grid({.pipeline = 2}); }) ==
      "a grid in one process has no number of ranks that the replicas follow from; set grid::data "
      "to 1 or more");
  CHECK(refusal([] {
          in_process_grid({.pipeline = 0, .data = 1});
        }) == "the sizes of a grid are at least 1");
  CHECK(refusal([] {
          in_process_grid({.pipeline = 64, .data = 64, .tensor = 64});
        }) == "a grid in one process has at most 4096 ranks");
  in_process_grid whole({.pipeline = 2, .data = 2});
  CHECK(refusal([&] {
          static_cast<void>(whole.place(2));
        }) == "the coordinate data is 2; in this grid it is 0 to 1");
}

}  // namespace test_group
