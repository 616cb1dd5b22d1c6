// SPDX-License-Identifier: Apache-2.0
//
// A rank's program made ready to run: every instruction with the slot of its flow, the number of
// its message, and what it hands over, so that the engine looks nothing up.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Holds one instruction, ready to run.
struct ready_instruction {
  static constexpr std::int32_t none = -1;

  instruction_kind kind{};
  bool ends_flow : 1 = false;      // no later pass of this flow
  bool frees_slot : 1 = false;     // nothing later mentions this flow
  bool is_recomputed : 1 = false;  // of F: an R follows
  bool is_last_w : 1 = false;      // the gradients of the stage are complete after it
  bool begins_pair : 1 = false;    // the next pass is paired with it
  bool is_paired : 1 = false;      // with the pass before it
  bool acknowledges : 1 = false;   // of a pass: `retired` is of its own channel, for the sender
  std::int32_t chunk = 0;          // the stage, counted among those of the rank
  std::int32_t microbatch = 0;
  std::int32_t slot = none;       // of its flow, in the engine's table
  std::int32_t hand_over = none;  // slot of the flow on this rank that consumes the output
  std::int32_t channel = none;    // of what it sends, receives or consumes
  std::int32_t sequence = none;
  // How many messages of a channel are consumed by then. Of a send in an evaluation: of its own
  // channel, before it may go; of a pass: those that its message proves consumed, or, where it
  // `acknowledges`, those that it reports to the sender.
  std::int32_t retired = none;
  // What a pass, or a send's message, takes by the problem. The second of a pair has both times.
  ticks takes = 0;
};

/// Holds the instructions of one rank and how many flows are alive at one time.
struct rank_code {
  // Messages of one channel that arrive before the rank validates.
  struct early_messages {
    int channel = 0;
    std::int32_t count = 0;
  };

  std::vector<ready_instruction> instructions;
  int flow_slots = 0;
  std::vector<early_messages> cut;
};

/// Makes a rank's part of a verified program ready to run. Flows get slots by first and last
/// mention, so that the table is as small as the most flows alive together.
[[nodiscard]] rank_code make_rank_code(program const& program, traffic const& messages, int rank);

/// States what the passes and messages of a rank take.
/// @param row  the instructions of the rank
void state_times(rank_code& code, std::span<instruction const> row, problem const& problem);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/rank_code.ipp>
#endif
