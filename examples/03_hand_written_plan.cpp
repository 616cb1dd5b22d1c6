// SPDX-License-Identifier: Apache-2.0
//
// A plan written by hand, in the CSV that other runtimes use. The first try makes two ranks wait
// for each other; verify says how, and the second try is fixed.
#include <zbpp/plan.hpp>

#include <iostream>
#include <string_view>
#include <vector>

using namespace zbpp;

namespace {

// Rank 0 wants a gradient back before it starts microbatch 1; rank 1 wants microbatch 1 first.
constexpr std::string_view first_try = "0F0,0I0,0W0,0F1,0I1,0W1\n"
                                       "1F0,1F1,1I0,1W0,1I1,1W1\n";

constexpr std::string_view second_try = "0F0,0F1,0I0,0W0,0I1,0W1\n"
                                        "1F0,1F1,1I0,1W0,1I1,1W1\n";

std::vector<diagnostic> check(std::string_view csv) {
  auto const code = lower(schedule_from_csv(csv));
  auto faults = verify(code);
  for (auto const& fault : faults) std::cout << "  " << to_string(fault) << '\n';
  if (faults.empty()) std::cout << "  may run:\n" << to_csv(code);
  return faults;
}

}  // namespace

int main() {
  std::cout << "first try\n";
  auto const refused = check(first_try);
  std::cout << "second try\n";
  auto const accepted = check(second_try);
  return !refused.empty() && accepted.empty() ? 0 : 1;
}
