// SPDX-License-Identifier: Apache-2.0
//
// How a text becomes a problem, and a problem a text.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/problem_text.hpp>
#include <zbpp/json/problem.hpp>

#include <string>
#include <string_view>

namespace zbpp::json {

ZBPP_INLINE problem read_problem(std::string_view text, std::string const& name, time_unit* unit) {
  detail::document const all(text, name);
  detail::problem_reader reader{detail::value(all)};
  auto problem = reader.read();
  if (unit != nullptr) *unit = reader.unit();
  return problem;
}

ZBPP_INLINE std::string write_problem(problem const& problem, time_unit unit) {
  return detail::problem_writer(problem, unit, "").write() + "\n";
}

}  // namespace zbpp::json
