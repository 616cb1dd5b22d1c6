// SPDX-License-Identifier: Apache-2.0
#include <zbpp/model/containers.hpp>

#include <support/catch.hpp>

#include <numeric>
#include <set>
#include <vector>

namespace test_containers {

using nested = std::vector<std::vector<int>>;

TEST_CASE("rows are read back as they were pushed, empty ones included", "[containers]") {
  zbpp::rows<int> all;
  all.push(1);
  all.push(2);
  all.end_row();
  all.end_row();
  all.push(3);
  all.end_row();
  CHECK(all.ranks() == 3);
  CHECK(all.size() == 3);
  CHECK(all.nested() == nested{{1, 2}, {}, {3}});
  CHECK(all.begin_of(0) == 0);
  CHECK(all.begin_of(1) == 2);
  CHECK(all.begin_of(2) == 2);
  CHECK(std::vector<int>(all.all().begin(), all.all().end()) == std::vector<int>{1, 2, 3});
}

TEST_CASE("rows and vectors of rows are copies of each other", "[containers]") {
  nested const origin{{}, {4, 5}, {6}, {}};
  CHECK(zbpp::rows<int>(origin).nested() == origin);
  CHECK(zbpp::rows<int>(nested{}).ranks() == 0);
  CHECK(zbpp::rows<int>{} == zbpp::rows<int>(nested{}));
}

TEST_CASE("rows differ when only the border between them differs", "[containers]") {
  CHECK(zbpp::rows<int>(nested{{1, 2}, {3}}) != zbpp::rows<int>(nested{{1}, {2, 3}}));
  CHECK(zbpp::rows<int>(nested{{1}, {}}) != zbpp::rows<int>(nested{{1}}));
}

TEST_CASE("a row can be written in place", "[containers]") {
  zbpp::rows<int> all(nested{{1, 2}, {3}});
  for (int& value : all[0]) value += 10;
  CHECK(all.nested() == nested{{11, 12}, {3}});
}

TEST_CASE("cells are there for every stage and microbatch", "[containers]") {
  zbpp::cells<int> cells(3, 4, 7);
  CHECK(cells(2, 3) == 7);
  int next = 0;
  for (int s = 0; s < 3; ++s)
    for (int m = 0; m < 4; ++m) cells(s, m) = next++;
  std::set<int> seen;
  auto const& fixed = cells;
  for (int s = 0; s < 3; ++s)
    for (int m = 0; m < 4; ++m) seen.insert(fixed(s, m));
  CHECK(seen.size() == 12);
  CHECK(fixed(1, 0) == 4);
}

}  // namespace test_containers
