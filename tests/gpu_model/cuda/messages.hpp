// SPDX-License-Identifier: Apache-2.0
//
// Communicators of the model. Every rank of one runs its groups one after another, kept in turn by
// a stream of NCCL's own; a send and its receive are a rendezvous: the k-th send to a peer meets
// the peer's k-th receive from it, when both groups have started. So is a sum, of all ranks: those
// that differ in size never meet.
#pragma once

#include "clock.hpp"
#include "shadow.hpp"

#include <nccl.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

namespace zbpp::cuda_model {

struct capture;
struct operation;
struct communicator;
struct group_launch;
struct record;
struct stream;

struct message {
  static constexpr int all_ranks = -1;  // the peer of a sum

  bool send = false;
  int peer = 0;
  void* data = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  std::size_t bytes = 0;
  byte_access touched;
  bool matched = false;
  // Which of the captured messages in this direction it is; not_captured when it was issued.
  static constexpr std::int64_t not_captured = -1;
  std::int64_t captured = not_captured;

  [[nodiscard]] bool is_sum() const { return peer == all_ranks; }
};

/// @return which rank of some a sum of `count` numbers begins with, for the number at `i`: each
///         rank with its part, as around a ring
[[nodiscard]] inline std::size_t first_in_sum(std::size_t i, std::size_t count, std::size_t ranks) {
  return i * ranks / count;
}

/// What NCCL chooses an algorithm by: the size of a sum, and how many sums are in its group. It
/// connects when it first uses one.
struct sum_class {
  int size;
  int calls;

  auto operator<=>(sum_class const&) const = default;
};
/// @param bytes  of the sum
/// @param calls  in its group
[[nodiscard]] inline sum_class class_of_sum(std::size_t bytes, std::size_t calls) {
  return {static_cast<int>(std::bit_width(bytes)) / 4, static_cast<int>(std::bit_width(calls))};
}

/// The messages of one ncclGroup that go over one communicator: one launch.
struct message_group {
  communicator* over = nullptr;
  operation* launch = nullptr;
  std::vector<message> messages;
  std::vector<stream*> streams;  // the first carries the launch, the others join it
  vector_clock clock;            // of the stream when the group started
  std::int64_t started_ns = 0;
  int held = 0;  // multiprocessors, while it runs
  bool started = false;
  bool cancelled = false;
};

/// What the ranks of one communicator share.
struct world {
  std::uint64_t id = 0;
  int ranks = 0;
  int joined = 0;
  bool duplicate_gpu = false;
  std::vector<communicator*> members;
};

struct communicator {
  std::uint32_t index = 0;
  world* of = nullptr;
  int rank = 0;
  int device = 0;
  bool blocking = true;
  int ctas = 1;           // of its kernels, each on a multiprocessor of its own
  void** made = nullptr;  // where the caller's handle is, which the end of its making writes again
  bool alive = true;
  bool revoked = false;
  bool finalizing = false;
  bool broken = false;   // comm_fault: nothing progresses any more
  bool aborted = false;  // its kernels end at once, those that are still to run as well
  int launched = 0;      // kernels on the device, running or not
  ncclResult_t failure = ncclSuccess;
  std::string last_error;
  std::deque<message_group*> fifo;
  // NCCL's own stream: each group waits for it, and it waits for each group.
  stream* launches = nullptr;
  group_launch* launching = nullptr;  // while ncclCommGetAsyncError is ncclInProgress for it
  int polls_left = 0;                 // until what a thread of NCCL does else is done
  // The end of its part of the last graph, which later groups wait for.
  record* graphs = nullptr;
  // How many messages to and from each peer were captured.
  std::vector<std::int64_t> captured_sends;
  std::vector<std::int64_t> captured_receives;
  // What this rank has asked of each peer, and whether both ends have.
  std::vector<bool> sends_to;
  std::vector<bool> receives_from;
  std::set<sum_class> sums;  // in which this rank has taken part
};

}  // namespace zbpp::cuda_model
