// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes problems of layers as JSON: what is written reads back to the same value, bit
// for bit. They are written as problems are, with `layers` in place of `stages`.
#pragma once

#include <zbpp/io/text.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/problem.hpp>

#include <string>
#include <string_view>
#include <variant>

namespace zbpp::json {

/// Reads a problem of layers. `name` says in messages what was read; `unit` receives the unit of
/// the times in the text.
/// @throws error (bad_format) with line and column or key, what was found and what was expected
[[nodiscard]] layered_problem read_layers(
    std::string_view text, std::string const& name = "problem", time_unit* unit = nullptr);

/// Reads a problem of stages or of layers, whichever the text states.
/// @throws error (bad_format) as `read_layers`
[[nodiscard]] std::variant<problem, layered_problem> read_stages_or_layers(
    std::string_view text, std::string const& name = "problem", time_unit* unit = nullptr);

/// Writes a problem of layers, with its times in `unit`; `read_layers` gives back the same value.
/// Equal layers one after another are one entry.
/// @throws error (bad_argument) when it has more stages than a file may have, 65536
[[nodiscard]] std::string write_layers(
    layered_problem const& model, time_unit unit = time_unit::milliseconds);

}  // namespace zbpp::json

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/json/impl/layers.ipp>
#endif
