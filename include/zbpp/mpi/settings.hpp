// SPDX-License-Identifier: Apache-2.0
//
// Settings of a rank whose messages travel by MPI.
#pragma once

#include <zbpp/model/costs.hpp>

#include <chrono>
#include <functional>
#include <span>

namespace zbpp::mpi {

/// Sets how messages travel, and what moves them on while a pass runs.
struct ranks_settings {
  /// Of a message whose size the plan does not declare.
  bytes largest_undeclared_message = bytes{1} << 30;
  /// Whether a thread of its own calls MPI at times while a pass runs, so that large messages go on
  /// meanwhile. It needs MPI_THREAD_MULTIPLE; without it MPI_THREAD_FUNNELED is enough.
  bool progress_thread = true;
  /// How long that thread sleeps between two calls.
  std::chrono::microseconds progress_interval{100};
  /// How long a rank that waits asks MPI without a rest; afterwards it sleeps between two calls.
  /// Longer ones keep a core busy, and take it from other ranks where there are fewer cores.
  std::chrono::microseconds spin{50};
  /// Whether all ranks get the losses of a step, as `asio::tcp_settings::share_losses`.
  bool share_losses = false;
  /// Called on the thread that runs the rank, with its number, before its stages warm up.
  std::function<void(std::span<int const> ranks)> on_thread_start = {};
  /// Whether `step_result::messages` says when messages were sent, arrived and were taken, as
  /// `asio::tcp_settings::records_messages`. A message arrives when the rank, or the thread beside
  /// it, finds that MPI has all of it.
  bool records_messages = false;
};

}  // namespace zbpp::mpi
