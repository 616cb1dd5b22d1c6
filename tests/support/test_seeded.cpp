// SPDX-License-Identifier: Apache-2.0
#include <support/seeded.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

namespace test_seeded {

using zbpp::test::parse_seed;
using zbpp::test::seeded_random;

TEST_CASE("the same seed and stream give the same values on every machine", "[seeded]") {
  seeded_random values(1, 0);
  std::array<std::int64_t, 4> const expected{399'003, 171'000, 472'274, 612'682};
  for (std::int64_t value : expected) {
    CHECK(values.integer(0, 999'999) == value);
  }
}

TEST_CASE("streams of one seed differ", "[seeded]") {
  seeded_random first(1, 0);
  seeded_random second(1, 1);
  CHECK(first.bits() != second.bits());
}

TEST_CASE("integers reach both ends and stay within them", "[seeded]") {
  ZBPP_SEEDED(values, 0);
  std::set<std::int64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    seen.insert(values.integer(-2, 2));
  }
  CHECK(seen == std::set<std::int64_t>{-2, -1, 0, 1, 2});

  auto const lowest = std::numeric_limits<std::int64_t>::min();
  auto const highest = std::numeric_limits<std::int64_t>::max();
  CHECK(values.integer(highest, highest) == highest);
  CHECK_NOTHROW(values.integer(lowest, highest));
  CHECK_THROWS_AS(values.integer(1, 0), std::invalid_argument);
}

TEST_CASE("reals stay below one", "[seeded]") {
  ZBPP_SEEDED(values, 1);
  for (int i = 0; i < 1000; ++i) {
    double value = values.real();
    CHECK((value >= 0 && value < 1));
  }
}

TEST_CASE("a shuffle keeps the items", "[seeded]") {
  ZBPP_SEEDED(values, 2);
  std::vector<int> items{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<int> shuffled = items;
  values.shuffle(std::span(shuffled));
  CHECK(std::is_permutation(items.begin(), items.end(), shuffled.begin()));
  int& picked = values.pick(std::span(items));
  CHECK(std::count(items.begin(), items.end(), picked) == 1);
}

TEST_CASE("a seed that is not a number is refused", "[seeded]") {
  CHECK(parse_seed("18446744073709551615") == 18446744073709551615U);
  CHECK_THROWS_AS(parse_seed(""), std::invalid_argument);
  CHECK_THROWS_AS(parse_seed("-1"), std::invalid_argument);
  CHECK_THROWS_AS(parse_seed("12x"), std::invalid_argument);
  CHECK_THROWS_AS(parse_seed("18446744073709551616"), std::invalid_argument);
}

}  // namespace test_seeded
