// SPDX-License-Identifier: Apache-2.0
//
// Profiles of measured steps as lines for people.
#pragma once

#include <zbpp/analysis/profile.hpp>
#include <zbpp/io/text.hpp>

#include <string>

namespace zbpp {

/// Writes a profile: a table of the passes of each stage, and one of the messages between ranks.
/// Times have three decimals.
[[nodiscard]] std::string to_text(step_profile const& of, time_unit unit);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/profile_text.ipp>
#endif
