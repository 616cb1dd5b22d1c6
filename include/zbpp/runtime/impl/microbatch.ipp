// SPDX-License-Identifier: Apache-2.0
//
// Where a loss goes, and what a flow may not send or report.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/runtime/microbatch.hpp>

#include <cstddef>

namespace zbpp {

ZBPP_INLINE double& microbatch::loss() const {
  if (!is_last_stage())
    throw error(errc::wrong_flow, {.stage = stage(), .microbatch = index()}) +
        "report_loss() belongs to the last stage";
  state_->has_loss = true;
  return state_->common->losses[static_cast<std::size_t>(index())];
}

ZBPP_INLINE double microbatch::loss_scale() const {
  if (!state_->is_running || state_->running == pass_kind::forward ||
      state_->running == pass_kind::recompute)
    throw error(errc::wrong_flow, {.stage = stage(), .microbatch = index()}) +
        "loss_scale() belongs to B and BW: the scale can change until they run";
  return state_->common->loss_scale == nullptr ? 1 : *state_->common->loss_scale;
}

ZBPP_INLINE void microbatch::refuse_captured_step() {
  throw error(errc::wrong_flow) +
      "step() is asked while the step is captured, and each replay would take this one for it; "
      "keep a counter in device memory, and let update() move it on";
}

ZBPP_INLINE void microbatch::refuse_captured_loss() {
  throw error(errc::wrong_flow) +
      "report_loss() gives a value of the host while the step is captured, and no replay would "
      "give it again; let a kernel write the loss to loss_slot()";
}

ZBPP_INLINE void microbatch::refuse_second_send() const {
  throw error(errc::wrong_flow, {.stage = stage(), .microbatch = index()}) +
      "the flow sends twice before its first message could leave; one message holds up to 8 "
      "buffers";
}

}  // namespace zbpp
