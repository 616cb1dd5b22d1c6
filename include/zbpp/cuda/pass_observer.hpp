// SPDX-License-Identifier: Apache-2.0
//
// The clock of a rank on a GPU. The host issues work long before it runs, so the clock counts what
// the plan says; the contexts of ranks measure what became of it.
#pragma once

#include <zbpp/cuda/nvtx.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>

#include <algorithm>

namespace zbpp::cuda {

/// Counts a rank's time by the costs of what it issues.
class pass_observer {
 public:
  pass_observer() = default;
  explicit pass_observer(device_context& at) noexcept : at_(&at) {}

  /// Begins a pass. @return its planned start
  /// @throws cuda_error
  ticks start(ticks arrival, pass const& what) {
    at_->begin_pass();
    range_.open(what);
    return now_ = std::max(now_, arrival);
  }
  /// Ends a pass. @return its planned end
  /// @throws cuda_error
  ticks finish(ticks cost) {
    range_.close();
    at_->end_pass();
    return now_ += cost;
  }
  /// @return when a message that is sent now will arrive, as planned
  [[nodiscard]] ticks arrival_of_send(ticks transfer) const noexcept { return now_ + transfer; }
  /// @return true: the device waits for the message, the host does not
  [[nodiscard]] static constexpr bool has_arrived(ticks) noexcept { return true; }
  /// @return the planned end of the last pass
  [[nodiscard]] ticks now() const noexcept { return now_; }

 private:
  device_context* at_ = nullptr;
  nvtx_range range_;
  ticks now_ = 0;
};

}  // namespace zbpp::cuda
