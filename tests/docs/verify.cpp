// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/verify.md.

// [may_run
#include <zbpp/zbpp.hpp>

#include <iostream>

// may_run]
namespace docs_verify {

// [may_run
bool may_run(zbpp::program const& code, zbpp::problem const& problem) {
  auto const found = zbpp::verify(code, problem);
  for (auto const& fault : found) std::cerr << to_string(fault) << '\n';
  return found.empty();
}
// may_run]

}  // namespace docs_verify
