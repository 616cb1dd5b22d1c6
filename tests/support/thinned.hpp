// SPDX-License-Identifier: Apache-2.0
//
// Fewer sizes and seeds under sanitizers, which make tests several times slower: what they look for
// shows on any size, and the build without them goes through all.
#pragma once

namespace zbpp::test {

/// Whether a sanitizer slows this build down; CMakeLists.txt defines the macro for ZBPP_SANITIZE.
#ifdef ZBPP_SLOW_BUILD
inline constexpr bool is_slow_build = true;
#else
inline constexpr bool is_slow_build = false;
#endif

/// @param all  how much of a grid a test goes through: how many seeds, which sizes
/// @param few  the same under sanitizers; every policy, placement and kind of case stays
template <class Amount>
[[nodiscard]] constexpr Amount thinned(Amount all, Amount few) {
  return is_slow_build ? few : all;
}

}  // namespace zbpp::test
