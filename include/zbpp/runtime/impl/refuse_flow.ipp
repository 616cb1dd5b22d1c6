// SPDX-License-Identifier: Apache-2.0
//
// What an engine says of flows that it refuses.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/refuse_flow.hpp>

#include <string_view>

namespace zbpp::detail {

ZBPP_INLINE void refuse_flow(
    instruction const& running,
    location const& at,
    std::string_view does,
    std::string_view point,
    std::string_view after) {
  throw error(errc::wrong_flow, at) + "the program says " + to_string(running) +
      ", the flow of stage " + running.stage + " microbatch " + running.microbatch + " " + does +
      point + after +
      "; a flow awaits recv_activation, F, send_activation, R where the program has it, "
      "recv_gradient, B, send_gradient, W";
}

ZBPP_INLINE void refuse_missing_loss(location const& at) {
  throw error(errc::wrong_flow, at) + "evaluate() runs F only, and there the flow of stage " +
      at.stage + " microbatch " + at.microbatch +
      " reports no loss; call mb.report_loss() in F and not in B, or take the outputs with "
      "evaluate(on_output)";
}

ZBPP_INLINE void refuse_size(
    location const& at, int from_stage, bool forward, bytes carried, bytes declared) {
  throw error(errc::wrong_size, at) + "edge " + from_stage + "->" +
      (forward ? from_stage + 1 : from_stage - 1) + " carries " + carried + " bytes of " +
      (forward ? "activation" : "gradient") + "; the costs declare at most " + declared;
}

}  // namespace zbpp::detail
