// SPDX-License-Identifier: Apache-2.0
//
// The places of a record of messages: what a program sends and receives, before it runs.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/message_record.hpp>
#include <zbpp/model/program.hpp>

#include <span>

namespace zbpp::detail {

/// Makes the record of a verified program, with no time known yet.
/// @param ranks  whose messages it holds: what they send, and what is sent to them
[[nodiscard]] message_record record_places(
    program const& program, traffic const& messages, std::span<int const> ranks);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/record_places.ipp>
#endif
