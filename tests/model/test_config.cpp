// SPDX-License-Identifier: Apache-2.0
#include <zbpp/config.hpp>

#include <support/catch.hpp>

namespace test_config {

TEST_CASE("the version as a number is made of its three parts", "[config]") {
  STATIC_REQUIRE(
      ZBPP_VERSION == ZBPP_VERSION_MAJOR * 10000 + ZBPP_VERSION_MINOR * 100 + ZBPP_VERSION_PATCH);
  STATIC_REQUIRE(ZBPP_VERSION_MINOR < 100);
  STATIC_REQUIRE(ZBPP_VERSION_PATCH < 100);
}

TEST_CASE("only g++ 12 is marked as destroying temporary closures twice", "[config]") {
#if defined(__clang__)
  STATIC_REQUIRE(ZBPP_BROKEN_TEMPORARY_CLOSURES == 0);
#else
  STATIC_REQUIRE(ZBPP_BROKEN_TEMPORARY_CLOSURES == (__GNUC__ == 12 ? 1 : 0));
#endif
}

}  // namespace test_config
