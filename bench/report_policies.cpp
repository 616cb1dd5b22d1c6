// SPDX-License-Identifier: Apache-2.0
//
// Compares greedy_auto with every policy of the registry within the same memory limits, on seeded
// problems of all placements from 2 to 32 ranks, and prints where a policy is cheaper.
#include <support/against_policies.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

struct tally {
  int problems = 0;
  int worse = 0;
  double widest = 0;  // percent
};

}  // namespace

/// Arguments: how many problems, 2,000 by default, and the number of the first.
int main(int argc, char** argv) {
  auto const argument = [&](int i, std::uint64_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  auto const count = argument(1, 2000);
  auto const first = argument(2, 0);
  constexpr int most_ranks = 32;
  tally all;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    auto const what = zbpp::test::any_planner_problem(seed, most_ranks);
    auto const cheaper = zbpp::test::cheaper_policies(seed, what, {});
    ++all.problems;
    all.worse += cheaper.empty() ? 0 : 1;
    for (auto const& one : cheaper) {
      auto const percent =
          100 * static_cast<double>(one.found - one.cost) / static_cast<double>(one.found);
      all.widest = std::max(all.widest, percent);
      std::printf(
          "problem %llu, %s, %d ranks, %d microbatches: %s is %.3f %% cheaper\n",
          static_cast<unsigned long long>(seed),
          one.placement.c_str(),
          what.ranks(),
          one.microbatches,
          one.policy.c_str(),
          percent);
      std::fflush(stdout);
    }
  }
  std::printf(
      "%d problems, a policy is cheaper in %d, by %.3f %% at most\n",
      all.problems,
      all.worse,
      all.widest);
  return 0;
}
