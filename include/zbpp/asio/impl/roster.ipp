// SPDX-License-Identifier: Apache-2.0
//
// A failure of a rank as an error.
#pragma once

#include <zbpp/asio/roster.hpp>
#include <zbpp/config.hpp>

#include <string>

namespace zbpp::asio {

ZBPP_INLINE error to_error(rank_failure const& failure) {
  auto const running =
      failure.instruction ? "in " + to_string(*failure.instruction) + ": " : std::string();
  return error(failure.code, running + failure.text, failure.location);
}

}  // namespace zbpp::asio
