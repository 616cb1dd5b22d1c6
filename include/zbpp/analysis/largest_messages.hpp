// SPDX-License-Identifier: Apache-2.0
//
// How large the messages of each channel are, as the costs of a problem say.
#pragma once

#include <zbpp/model/costs.hpp>

#include <vector>

namespace zbpp {

class problem;
class traffic;

/// @return by channel, bytes of the largest declared message; 0 where one has no declared size
[[nodiscard]] std::vector<bytes> largest_messages(traffic const& messages, problem const& problem);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/largest_messages.ipp>
#endif
