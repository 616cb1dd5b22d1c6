// SPDX-License-Identifier: Apache-2.0
//
// The ranks and channels of one process.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/in_process.hpp>

#include <memory>
#include <numeric>

namespace zbpp {

ZBPP_INLINE one_process::one_process(plan const& planned)
    : ranks_(detail::index(planned.problem().ranks())) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

ZBPP_INLINE std::unique_ptr<in_process> one_process::make_transport(
    program const& program, traffic const& messages, problem const&) {
  return std::make_unique<in_process>(state_map(program), messages.channels());
}

}  // namespace zbpp
