// SPDX-License-Identifier: Apache-2.0
//
// Explanations of measured steps as JSON, for programs that compare many of them.
#pragma once

#include <zbpp/analysis/explain.hpp>
#include <zbpp/io/text.hpp>

#include <string>

namespace zbpp::json {

/// Writes all of an explanation, its times in `unit`, exactly. Keys are the names of the fields; a
/// pass is written as in plans.
/// @throws error (bad_argument) when a time is negative
[[nodiscard]] std::string write_explanation(
    explanation const& step, time_unit unit = time_unit::milliseconds);

}  // namespace zbpp::json

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/json/impl/explanation.ipp>
#endif
