// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes problems as JSON, of stages or of layers: what is written reads back to the same
// value, bit for bit.
#pragma once

#include <zbpp/io/text.hpp>
#include <zbpp/model/problem.hpp>

#include <string>
#include <string_view>

namespace zbpp::json {

/// Reads a problem. `name` says in messages what was read; `unit` receives the unit of the times
/// in the text.
/// @throws error (bad_format) with line and column or key, what was found and what was expected
[[nodiscard]] problem read_problem(
    std::string_view text, std::string const& name = "problem", time_unit* unit = nullptr);

/// Writes a problem, with its times in `unit`; `read_problem` gives back the same value. Equal
/// layers one after another are one entry.
/// @throws error (bad_argument) when it has more stages than a file may have, 65536
[[nodiscard]] std::string write_problem(
    problem const& problem, time_unit unit = time_unit::milliseconds);

}  // namespace zbpp::json

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/json/impl/problem.ipp>
#endif
