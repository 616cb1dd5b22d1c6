// SPDX-License-Identifier: Apache-2.0
//
// Explanations of measured steps as lines for people.
#pragma once

#include <zbpp/analysis/explain.hpp>
#include <zbpp/io/text.hpp>

#include <string>

namespace zbpp {

/// Writes an explanation: the step, a table with the account of each rank, the critical path by
/// rank, the worst delays, and what would shorten the step. Times have three decimals.
[[nodiscard]] std::string to_text(explanation const& step, time_unit unit);

/// Writes by how much the step and each part of the account of each rank changed from one step of
/// a plan to another.
/// @throws error (bad_argument) when they have different numbers of ranks
[[nodiscard]] std::string changes_text(
    explanation const& before, explanation const& after, time_unit unit);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/explanation_text.ipp>
#endif
