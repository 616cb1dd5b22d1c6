// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/formats.md.

// [is_true
#include <zbpp/io/file.hpp>
#include <zbpp/json/json.hpp>

#include <iostream>

// is_true]
namespace docs_formats {

// [is_true
bool is_true(char const* path) {
  auto const plan = zbpp::json::read_plan(zbpp::read_file(path), path);
  auto const faults = zbpp::json::check_claims(plan);
  for (auto const& fault : faults) std::cerr << fault << '\n';
  return faults.empty();
}
// is_true]

}  // namespace docs_formats
