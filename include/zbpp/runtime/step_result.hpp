// SPDX-License-Identifier: Apache-2.0
//
// What a step of a pipeline gives: losses, times, and how its optimizer step came out.
#pragma once

#include <zbpp/model/message_record.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/training.hpp>

#include <cmath>
#include <numeric>
#include <vector>

namespace zbpp {

/// Holds what a step gave. It belongs to the pipeline and is overwritten by the next step.
struct step_result {
  /// As reported, one per microbatch; not a number where none was, as in a process without the last
  /// stage, unless `share_losses` of the backend is set.
  std::vector<double> losses;
  timeline measured;  ///< when each pass ran; empty for ranks of other processes
  /// How the optimizer step came out; `is_update` is false where ranks agree on nothing.
  update_report update;
  /// What each rank of this process did for it, and when it was done with the step; of ranks of
  /// other processes all is 0.
  std::vector<rank_update> ranks;
  /// When messages between ranks were sent, arrived and were taken, as far as this process knows.
  /// Empty unless `records_messages` of the backend is set.
  message_record messages = {};

  /// @return whether every microbatch has a loss, and each is a finite number. Where it is false
  ///         after `unchecked` steps, weights may be ruined: such steps are taken whatever
  ///         gradients are. False, too, in a process without the last stage, which knows none.
  [[nodiscard]] bool has_finite_losses() const noexcept {
    for (double loss : losses)
      if (!std::isfinite(loss)) return false;
    return true;
  }
  /// @return the mean loss, summed in ascending microbatch; not a number when one is missing
  [[nodiscard]] double loss() const noexcept {
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  }
};

}  // namespace zbpp
