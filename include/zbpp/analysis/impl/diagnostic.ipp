// SPDX-License-Identifier: Apache-2.0
//
// What analysis/diagnostic.hpp declares.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <cstdint>
#include <string>

namespace zbpp {

ZBPP_INLINE std::string to_string(diagnostic const& d) {
  auto text = std::string(to_string(d.fault));
  if (d.location != location{}) text.append(" at ").append(to_string(d.location));
  return text.append(": ").append(d.text);
}

namespace detail {

ZBPP_INLINE diagnostic make_diagnostic(
    fault fault, int rank, std::int64_t position, instruction const& i, std::string const& text) {
  return {fault, {rank, position, i.stage, i.microbatch}, i, to_string(i) + ": " + text};
}

ZBPP_INLINE diagnostic make_diagnostic(
    program const& program, fault fault, int rank, std::int64_t position, std::string const& text) {
  return make_diagnostic(fault, rank, position, program.instructions(rank)[index(position)], text);
}

}  // namespace detail

}  // namespace zbpp
