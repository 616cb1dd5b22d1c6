// SPDX-License-Identifier: Apache-2.0
//
// Reads timelines back from Chrome traces, so that a step can be looked at after it ran.
#pragma once

#include <zbpp/io/drawing.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace zbpp::json {

/// Reads the timelines of a text that `to_chrome_trace` wrote, in its order, to the nanosecond.
/// Names and passes are read; memory and messages are not. Events that are none of zbpp's and
/// timelines without passes are left out. `name` says in messages what was read.
/// @throws error (bad_format) with line and column, or the path of the key, what was found and what
///         was expected: where the text is no trace or is cut short, or passes or ranks are missing
[[nodiscard]] std::vector<named_timeline> read_chrome_trace(
    std::string_view text, std::string const& name = "trace");

}  // namespace zbpp::json

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/json/impl/chrome_trace.ipp>
#endif
