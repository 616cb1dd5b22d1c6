// SPDX-License-Identifier: Apache-2.0
//
// A step that fails: which rank was first, and what went wrong there and elsewhere.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <atomic>
#include <exception>

namespace zbpp {

/// Keeps which rank failed first in a step. All engines of a step share one.
class step_status {
 public:
  static constexpr int nobody = -1;

  /// Claims the failure of the step for a rank, unless another was first.
  void fail(int rank) noexcept {
    int expected = nobody;
    // Release: whoever reads the rank finds its failure written.
    first_.compare_exchange_strong(
        expected, rank, std::memory_order_release, std::memory_order_relaxed);
  }
  [[nodiscard]] bool has_failed() const noexcept {
    return first_.load(std::memory_order_acquire) != nobody;
  }
  /// @return the rank that failed first, or nobody
  [[nodiscard]] int first() const noexcept { return first_.load(std::memory_order_acquire); }
  /// Forgets the failure; only when no engine is running.
  void reset() noexcept { first_.store(nobody, std::memory_order_relaxed); }

 private:
  std::atomic<int> first_{nobody};
};

/// Describes what went wrong on one rank in a step.
struct failure {
  zbpp::location location;        ///< rank, position, stage, microbatch
  zbpp::instruction instruction;  ///< the instruction that was running
  std::exception_ptr exception;   ///< what a pass threw, or an `error` (wrong_flow, wrong_size)
};

}  // namespace zbpp
