// SPDX-License-Identifier: Apache-2.0
//
// Settings of a run on several processes: how its ranks meet, how long they wait for each other,
// and how their messages travel.
#pragma once

#include <zbpp/model/costs.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace zbpp::asio {

/// Holds how long the ranks of a run wait for each other, and where they listen. All ranks use the
/// same; only addresses may differ.
struct rendezvous_settings {
  /// The address of this machine to listen on; any other accepts connections from the network.
  std::string bind = "127.0.0.1";
  /// A name or address under which other ranks reach this process; empty: the one in `bind`, or
  /// where that is a wildcard such as 0.0.0.0, the one it calls from.
  std::string advertise = {};
  /// How long ranks may take to find each other.
  std::chrono::milliseconds join_deadline{60'000};
  /// How long the ranks may be apart in a collective call.
  std::chrono::milliseconds collective_deadline{60'000};
  /// How long ranks that have all made their pipelines may take to connect for their messages.
  std::chrono::milliseconds connect_deadline{20'000};
  /// How long a rank may be silent, and all may take to leave a step that failed.
  std::chrono::milliseconds deadline{10'000};
  /// How long a step may go on without any rank getting any further; longer than any pass takes.
  std::chrono::milliseconds stall_deadline{60'000};
  /// The most bytes that a rank may give to a collective call.
  std::size_t largest_blob = std::size_t{64} << 20;
  /// Called with the port where rank 0 listens, on rank 0, before it waits for others: for port 0.
  std::function<void(std::uint16_t)> on_listening = {};
};

/// Sets how messages travel.
struct tcp_settings {
  /// Of a message whose size the plan does not declare. Gradients of tied weights may be larger: as
  /// large as those of 16 layers.
  bytes largest_undeclared_message = bytes{1} << 30;
  int send_buffer = 0;     ///< of the kernel, in bytes; 0 leaves it to the kernel
  int receive_buffer = 0;  ///< of the kernel, in bytes; 0 leaves it to the kernel
  /// Whether the results of steps and evaluations have the losses on all ranks, and not only on
  /// that of the last stage. Then all ranks wait after each step for its losses, and for the norm
  /// where they agree on steps. All ranks need the same.
  bool share_losses = false;
  /// Called on the thread of the rank, with its number, before stages warm up, as in `threads`.
  std::function<void(std::span<int const> ranks)> on_thread_start = {};
  /// Whether `step_result::messages` says when messages were sent, arrived and were taken. All
  /// ranks need the same, for `gather_step`.
  bool records_messages = false;
};

}  // namespace zbpp::asio
