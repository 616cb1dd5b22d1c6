// SPDX-License-Identifier: Apache-2.0
//
// Settings of `ranks`: how a rank runs on its GPU, and how its messages travel.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/replay.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/runtime/arena.hpp>

#include <nccl.h>

#include <chrono>
#include <optional>
#include <vector>

namespace zbpp::nccl {

/// Says how the rank of this process runs, and how messages travel. Give all ranks the same layout,
/// edges, most_ctas, replay, steps_at_once and share_losses.
struct ranks_settings {
  std::optional<cuda::rank_device> device = {};  ///< none: the current device
  std::vector<cuda::message_shape> edges = {};   ///< one per edge; none: one buffer of its size
  bool traces = false;                           ///< whether passes are timed on the device
  /// Whether the host waits after each pass, and before it for its message; for debugging.
  bool synchronizes = false;
  /// Whether steps after the first ones are replayed, messages included, in which flows do not run:
  /// all that differs from step to step is then in device memory. The plan is to be lowered for
  /// `one_per_rank`, and the communicators are zbpp's own.
  cuda::replay replay = cuda::replay::none;
  /// How many steps `pipeline::step_async` lets be under way, one issued while others run.
  int steps_at_once = 1;
  /// Whether the results of steps and evaluations have the losses on all ranks: as
  /// `asio::tcp_settings::share_losses`. Steps of `step_async` cannot.
  bool share_losses = false;
  /// Where the arena takes its memory from; the source outlives all buffers.
  memory_source (*memory)(int device) = cuda::device_memory;
  /// Which communicators are made; the program must pass `verify` for it. `hardware_queues` says
  /// how many hardware queues a device then needs.
  channel_layout layout = channel_layout::one_per_directed_pair;
  /// Thread blocks that a message, or a sum over replicas, may use, each of which holds a
  /// multiprocessor while it waits; of a number that is no power of two, the next lower one counts.
  int most_ctas = 1;
  /// The caller's communicator of all ranks, in the order of their numbers, for all messages as
  /// with `one_per_rank`; revoked when the run fails. Null: zbpp makes its own.
  ncclComm_t adopted = nullptr;
  /// How long making and connecting communicators may take.
  std::chrono::milliseconds init_deadline{60'000};
};

}  // namespace zbpp::nccl
