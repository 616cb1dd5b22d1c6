// SPDX-License-Identifier: Apache-2.0
//
// What is called on each rank when a run fails: once when the rank is told of the failure, and once
// when all ranks have been told.
#pragma once

#include <zbpp/asio/roster.hpp>

#include <functional>

namespace zbpp::asio {

/// Holds what `control::on_stop` sets. Either may be empty. They are called on the I/O thread and
/// must not throw.
struct stop_calls {
  /// Called with the first failure of the run; ends what runs here. When it has returned, this rank
  /// acknowledges the failure to rank 0.
  /// @return whether `settle` will be called when that has ended
  std::function<bool(rank_failure const&)> told = {};
  /// Called when no rank is left that can be told. Only then may a rank give up messages: what it
  /// computes without them may reach other ranks, which by now know not to use it.
  std::function<void()> all_told = {};
};

}  // namespace zbpp::asio
