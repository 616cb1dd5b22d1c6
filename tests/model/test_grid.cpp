// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/grid.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

namespace test_grid {

using zbpp::grid;
using zbpp::grid_axis;
using zbpp::grid_coordinates;
using zbpp::grid_layout;
using zbpp::test::refusal;
using rank_groups = std::vector<std::vector<int>>;

namespace {

constexpr std::array all_axes{
    grid_axis::pipeline,
    grid_axis::data,
    grid_axis::tensor,
    grid_axis::expert,
    grid_axis::expert_data};

// Calls `check` with grids of all sizes up to 4 and all orders of their axes.
template <class Check>
void for_each_grid(Check check) {
  for (int pipeline : {1, 2, 3, 4}) {
    for (int data : {1, 2, 4}) {
      for (int tensor : {1, 2, 3}) {
        for (int expert : {1, 2, 4}) {
          if (data % expert != 0) continue;
          for (std::string_view with_experts : {"ep-dp", "dp-ep"}) {
            std::array<std::string, 3> names{std::string(with_experts), "pp", "tp"};
            std::ranges::sort(names);
            do {
              check(grid_layout(
                  {.pipeline = pipeline,
                   .data = data,
                   .tensor = tensor,
                   .expert = expert,
                   .order = names[0] + "-" + names[1] + "-" + names[2]},
                  pipeline * data * tensor));
            } while (std::ranges::next_permutation(names).found);
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("ranks and coordinates are the same thing in every grid", "[grid]") {
  for_each_grid([](grid_layout const& layout) {
    INFO(to_string(layout));
    std::set<int> seen;
    for (int p = 0; p < layout.size(grid_axis::pipeline); ++p)
      for (int d = 0; d < layout.size(grid_axis::data); ++d)
        for (int t = 0; t < layout.size(grid_axis::tensor); ++t) {
          grid_coordinates const at{.pipeline = p, .data = d, .tensor = t};
          auto const rank = layout.rank_of(at);
          REQUIRE((rank >= 0 && rank < layout.ranks()));
          CHECK(layout.coordinates(rank) == at);
          seen.insert(rank);
        }
    CHECK(seen.size() == static_cast<std::size_t>(layout.ranks()));
  });
}

TEST_CASE("the groups along an axis divide the ranks, and differ in its coordinate", "[grid]") {
  for_each_grid([](grid_layout const& layout) {
    INFO(to_string(layout));
    for (auto axis : all_axes) {
      std::vector<int> members;
      for (auto const& group : layout.groups(axis)) {
        CHECK(group.size() == static_cast<std::size_t>(layout.size(axis)));
        for (std::size_t i = 0; i < group.size(); ++i) {
          CHECK(layout.group(axis, group[i]) == group);
          CHECK(layout.place_in_group(axis, group[i]) == static_cast<int>(i));
          auto const at = layout.coordinates(group[i]);
          auto same = layout.coordinates(group.front());
          if (axis == grid_axis::pipeline)
            same.pipeline = static_cast<int>(i);
          else if (axis == grid_axis::tensor)
            same.tensor = static_cast<int>(i);
          else if (axis == grid_axis::data)
            same.data = static_cast<int>(i);
          else
            same.data = at.data;
          CHECK(at == same);
        }
        members.insert(members.end(), group.begin(), group.end());
      }
      std::ranges::sort(members);
      for (int rank = 0; rank < layout.ranks(); ++rank)
        REQUIRE(members[static_cast<std::size_t>(rank)] == rank);
      CHECK(members.size() == static_cast<std::size_t>(layout.ranks()));
    }
  });
}

TEST_CASE("replicas with the same experts and those that share them meet in one rank", "[grid]") {
  for_each_grid([](grid_layout const& layout) {
    INFO(to_string(layout));
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      auto const sharing = layout.group(grid_axis::expert, rank);
      auto const same = layout.group(grid_axis::expert_data, rank);
      std::set<int> all;
      for (auto from : sharing)
        for (auto to : layout.group(grid_axis::expert_data, from)) all.insert(to);
      auto const replicas = layout.group(grid_axis::data, rank);
      CHECK(all == std::set<int>(replicas.begin(), replicas.end()));
      std::set<int> both(sharing.begin(), sharing.end());
      CHECK(std::ranges::count_if(same, [&](int each) { return both.contains(each); }) == 1);
    }
  });
}

TEST_CASE("sixteen ranks are grouped as in Megatron", "[grid]") {
  grid_layout const layout({.pipeline = 4, .tensor = 2}, 16);
  CHECK(layout.size(grid_axis::data) == 2);
  CHECK(
      layout.groups(grid_axis::tensor) ==
      rank_groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}});
  CHECK(
      layout.groups(grid_axis::data) ==
      rank_groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}});
  CHECK(
      layout.groups(grid_axis::pipeline) ==
      rank_groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}});
  CHECK(layout.replica(0) == std::vector<int>{0, 1, 4, 5, 8, 9, 12, 13});
  CHECK(layout.replica(1) == std::vector<int>{2, 3, 6, 7, 10, 11, 14, 15});
}

TEST_CASE("experts are spread over neighbouring or distant replicas, as the order says", "[grid]") {
  grid const near{.pipeline = 1, .data = 4, .expert = 2, .order = "tp-ep-dp-pp"};
  CHECK(grid_layout(near, 4).groups(grid_axis::expert) == rank_groups{{0, 1}, {2, 3}});
  CHECK(grid_layout(near, 4).groups(grid_axis::expert_data) == rank_groups{{0, 2}, {1, 3}});
  grid const far{.pipeline = 1, .data = 4, .expert = 2, .order = "tp-dp-ep-pp"};
  CHECK(grid_layout(far, 4).groups(grid_axis::expert) == rank_groups{{0, 2}, {1, 3}});
  CHECK(grid_layout(far, 4).groups(grid_axis::expert_data) == rank_groups{{0, 1}, {2, 3}});
  CHECK(grid_layout(near, 4) != grid_layout(far, 4));
}

TEST_CASE("a layout is written in a line that tells grids apart", "[grid]") {
  CHECK(
      to_string(grid_layout({.pipeline = 4, .tensor = 2}, 16)) ==
      "16 ranks, tp-cp-ep-dp-pp: pipeline 4 x data 2 x tensor 2; "
      "rank = tensor + 2 data + 4 pipeline");
  CHECK(
      to_string(grid_layout({.pipeline = 2, .data = 4, .expert = 2, .order = "pp-ep-dp"}, 8)) ==
      "8 ranks, pp-ep-dp: pipeline 2 x data 4 x tensor 1, experts over 2 replicas; "
      "rank = pipeline + 2 data");
  CHECK(
      to_string(grid_layout({}, 1)) ==
      "1 ranks, tp-cp-ep-dp-pp: pipeline 1 x data 1 x tensor 1; rank = 0");
  std::vector<grid_layout> made;
  std::vector<std::string> lines;
  for_each_grid([&](grid_layout const& layout) {
    made.push_back(layout);
    lines.push_back(to_string(layout));
  });
  for (std::size_t i = 0; i < made.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (!(made[i] == made[k])) REQUIRE(lines[i] != lines[k]);
}

TEST_CASE("a grid that does not fit its run is refused with what would", "[grid]") {
  auto const refused = [](grid const& stated, int ranks) {
    return refusal([&] { static_cast<void>(grid_layout(stated, ranks)); });
  };
  CHECK(refused({.pipeline = 0}, 4) == "the grid: pipeline is 0; it must be 1 or more");
  CHECK(refused({.data = -1}, 4) == "the grid: data is -1; it must be 0 or more");
  CHECK(refused({.tensor = -2}, 4) == "the grid: tensor is -2; it must be 1 or more");
  CHECK(refused({.expert = 0}, 4) == "the grid: expert is 0; it must be 1 or more");
  CHECK(refused({}, 0) == "the grid: the run has 0 ranks; it needs 1 or more");
  CHECK(
      refused({.pipeline = 4, .tensor = 3}, 16) == "the grid: a replica has 12 ranks, pipeline 4 x "
                                                   "tensor 3, which do not divide the 16 ranks of "
                                                   "the run");
  CHECK(
      refused({.pipeline = 4, .data = 3, .tensor = 2}, 16) ==
      "the grid: pipeline 4 x data 3 x tensor 2 are 24 ranks; the run has 16, so set data to 2, or "
      "to 0");
  CHECK(
      refused({.pipeline = 1 << 30, .tensor = 1 << 30}, 16) ==
      "the grid: a replica has 1152921504606846976 ranks, pipeline 1073741824 x tensor 1073741824, "
      "which do not divide the 16 ranks of the run");
  CHECK(
      refused({.pipeline = 1, .data = 4, .expert = 3}, 4) ==
      "the grid: expert is 3; it must divide the 4 replicas");
  CHECK(
      refused({.pipeline = 4, .order = "tp-xp-pp"}, 4) ==
      "the grid: order is 'tp-xp-pp'; 'xp' is no axis; they are tp, cp, ep, dp and pp, with - "
      "between");
  CHECK(
      refused({.pipeline = 4, .order = ""}, 4) ==
      "the grid: order is ''; '' is no axis; they are tp, cp, ep, dp and pp, with - between");
  CHECK(
      refused({.pipeline = 4, .order = "pp-tp-pp"}, 4) ==
      "the grid: order is 'pp-tp-pp'; pp stands there twice");
  CHECK(
      refused({.pipeline = 4, .order = "tp-pp"}, 8) ==
      "the grid: order is 'tp-pp'; dp is missing, whose size is 2");
  CHECK(
      refused({.pipeline = 2, .data = 2, .expert = 2, .order = "ep-pp-dp"}, 4) ==
      "the grid: order is 'ep-pp-dp'; pp lies between ep and dp, but experts are spread over "
      "replicas, so put ep beside dp");

  grid_layout const layout({.pipeline = 2, .data = 2}, 4);
  CHECK(refusal([&] {
          static_cast<void>(layout.coordinates(4));
        }) == "rank 4 is not in the grid; it has ranks 0 to 3");
  CHECK(refusal([&] {
          static_cast<void>(layout.group(grid_axis::data, -1));
        }) == "rank -1 is not in the grid; it has ranks 0 to 3");
  CHECK(refusal([&] {
          static_cast<void>(layout.rank_of({.pipeline = 2}));
        }) == "the coordinate pipeline is 2; in this grid it is 0 to 1");
  CHECK(refusal([&] {
          static_cast<void>(layout.replica(2));
        }) == "the coordinate data is 2; in this grid it is 0 to 1");
}

TEST_CASE("tensor groups that lie on several hosts get a remark", "[grid]") {
  std::vector<std::string> const hosts{"a", "a", "a", "b", "b", "b"};
  CHECK(tensor_groups_across_hosts(grid_layout({.tensor = 3}, 6), hosts).empty());
  CHECK(tensor_groups_across_hosts(grid_layout({.pipeline = 6}, 6), hosts).empty());
  CHECK(
      tensor_groups_across_hosts(grid_layout({.tensor = 2}, 6), hosts) ==
      "1 of 3 tensor groups lie on several hosts, such as rank 2 on a and rank 3 on b; put tp "
      "first "
      "in the order, and as many ranks on each host as tensor divides");
  CHECK(refusal([&] {
          static_cast<void>(tensor_groups_across_hosts(grid_layout({.tensor = 2}, 4), hosts));
        }) == "6 hosts are named for 4 ranks; name the host of each rank");
}

}  // namespace test_grid
