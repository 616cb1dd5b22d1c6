// SPDX-License-Identifier: Apache-2.0
//
// Compares greedy_auto with every policy of the registry within the same memory limits, on seeded
// problems of all placements from 2 to 32 ranks, and prints where a policy is cheaper, or as cheap
// with less memory. usage: report_policies [COUNT [FIRST]]     COUNT problems, 2,000 by default,
// from number FIRST on
#include "whole_number.hpp"

#include <support/against_policies.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace {

struct tally {
  int problems = 0;
  int worse = 0;
  int larger = 0;
  double widest = 0;  // percent
};

}  // namespace

int main(int argc, char** argv) {
  using zbpp::bench::whole_number;
  auto const count = argc > 1 ? whole_number(argv[1]) : 2000;
  auto const first = argc > 2 ? whole_number(argv[2]) : 0;
  if (argc > 3 || !count || !first) {
    std::fputs(
        "usage: report_policies [COUNT [FIRST]]; both are whole numbers, 0 or more\n", stderr);
    return 2;
  }
  constexpr int most_ranks = 32;
  tally all;
  for (std::int64_t i = 0; i < *count; ++i) {
    auto const seed = static_cast<std::uint64_t>(*first + i);
    auto const what = zbpp::test::any_planner_problem(seed, most_ranks);
    auto const better = zbpp::test::better_policies(seed, what, {});
    ++all.problems;
    bool const is_dearer = std::ranges::any_of(better, &zbpp::test::better_policy::is_cheaper);
    all.worse += is_dearer ? 1 : 0;
    all.larger += !is_dearer && !better.empty() ? 1 : 0;
    for (auto const& one : better) {
      if (!one.is_cheaper()) {
        std::printf(
            "problem %llu, %s, %d ranks, %d microbatches: %s is as cheap and takes %.3f %% less "
            "memory\n",
            static_cast<unsigned long long>(seed),
            one.placement.c_str(),
            what.ranks(),
            one.microbatches,
            one.policy.c_str(),
            100 * (1 - one.memory.largest_share / one.found_memory.largest_share));
        continue;
      }
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
      "%d problems, a policy is cheaper in %d, by %.3f %% at most, and as cheap with less memory "
      "in "
      "%d\n",
      all.problems,
      all.worse,
      all.widest,
      all.larger);
  return 0;
}
