// SPDX-License-Identifier: Apache-2.0
//
// Counts the memory of tensors.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

#include <algorithm>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <torch/version.h>

namespace zbpp::torch::detail {

/// Counts the bytes of tensors that this thread makes and frees while it lives.
class live_memory {
 public:
  live_memory() : guard_(c10::DebugInfoKind::PROFILER_STATE, counts_) {}
  [[nodiscard]] std::int64_t bytes() const noexcept { return counts_->bytes; }
  /// @return the most bytes at one time
  [[nodiscard]] std::int64_t peak() const noexcept { return counts_->peak; }
  /// Starts measuring the peak again.
  void reset_peak() noexcept { counts_->peak = counts_->bytes; }

 private:
#if TORCH_VERSION_MAJOR >= 2
  using total = std::size_t;
#else
  using total = std::int64_t;
#endif
  struct counts : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t size, total, total, c10::Device) override {
      bytes += size;
      peak = std::max(peak, bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t bytes = 0;
    std::int64_t peak = 0;
  };

  std::shared_ptr<counts> counts_ = std::make_shared<counts>();
  c10::DebugInfoGuard guard_;
};

}  // namespace zbpp::torch::detail
