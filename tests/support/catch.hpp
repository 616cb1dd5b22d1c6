// SPDX-License-Identifier: Apache-2.0
//
// Catch2, version 2 or 3. Tests keep to what both have: no Approx, no SKIP but skip() below.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace zbpp::test {

/// Says why a test ends here, which ctest takes for a skipped one.
inline void skip(std::string const& need) { WARN("skipped: this test needs " << need); }

}  // namespace zbpp::test
