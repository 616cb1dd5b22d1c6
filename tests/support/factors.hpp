// SPDX-License-Identifier: Apache-2.0
//
// Microbatches of random sizes.
#pragma once

#include <zbpp/model/problem.hpp>

#include <support/seeded.hpp>

#include <utility>
#include <vector>

namespace zbpp::test {

/// Gives the microbatches of a problem factors: short and long ones in turn, or any from 0.05 to 3,
/// a few of them alike.
[[nodiscard]] inline problem with_random_factors(problem const& alike, seeded_random& random) {
  std::vector<double> factors;
  bool const are_two = random.chance(0.3);
  for (int m = 0; m < alike.microbatches(); ++m)
    factors.push_back(
        are_two              ? (random.chance(0.5) ? 1.0 : 0.25)
        : random.chance(0.2) ? 1.0
                             : random.real(0.05, 3));
  return with_microbatch_factors(alike, std::move(factors));
}

}  // namespace zbpp::test
