// SPDX-License-Identifier: Apache-2.0
//
// A second opinion on programs, to check `zbpp::verify` against: every rule written down as plainly
// as it can be, and deadlock looked for by visiting every state that a small program can reach. It
// shares the value types with the library and none of its analysis.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace zbpp::test {

using nested_rows = std::vector<std::vector<instruction>>;
using rank_pair = std::pair<int, int>;

/// How deep a channel gets.
struct depth {
  int slots = 0;
  int in_flight = 0;
  friend bool operator==(depth const&, depth const&) = default;
};

/// Examines the instructions of a program.
class independent_check {
 public:
  independent_check(placement const& placement, int microbatches, nested_rows all);

  /// Whether each rank holds exactly the instructions that it must hold, each once.
  [[nodiscard]] bool has_each_once() const;

  /// Whether every rank has what an instruction needs of its own before it. Needs each once.
  [[nodiscard]] bool keeps_dependences() const;

  /// Whether all ranks validate this step right, or all of them the step before: then only F and
  /// messages come first, and the messages sent first are those received first. Needs each once and
  /// the order of channels.
  [[nodiscard]] bool keeps_cut() const;

  /// Whether both ends of every channel list its messages in one order. Needs each once.
  [[nodiscard]] bool keeps_channel_order() const;

  /// How deep each channel gets. Needs all of the above.
  [[nodiscard]] std::map<rank_pair, depth> depths() const;

  /// Whether the sender of a message knows, from what it has consumed before `position`, that this
  /// message and all before it on its channel have been consumed.
  [[nodiscard]] bool is_known_consumed(instruction const& message, int position) const;

  /// Whether some way of running the program ends in a deadlock: every reachable state is
  /// visited. Needs each once, its dependences and the order of channels.
  [[nodiscard]] bool can_deadlock(channel_layout layout) const;

  /// The pass that makes what a send ships.
  [[nodiscard]] instruction producer_of(instruction const& send) const;
  /// The pass that needs what a send ships.
  [[nodiscard]] instruction consumer_of(instruction const& send) const;
  /// The B or BW of a stage and a microbatch.
  [[nodiscard]] instruction backward_of(int stage, int m) const;
  /// The W or BW of a stage and a microbatch.
  [[nodiscard]] instruction weight_of(int stage, int m) const;

  /// What must stand before an instruction on its own rank, if it is there.
  [[nodiscard]] std::vector<instruction> needs_of(instruction const& i) const;

  [[nodiscard]] static bool is_send(instruction const& i);
  [[nodiscard]] static bool is_receive(instruction const& i);
  /// The send that a receive meets.
  [[nodiscard]] static instruction send_of(instruction const& receive);
  /// Sender and receiver of a send or receive.
  [[nodiscard]] rank_pair channel_of(instruction const& i) const;
  /// The send whose message a pass consumes, if it comes from another rank; a pass that is no send
  /// otherwise.
  [[nodiscard]] instruction input_of(instruction const& i) const;
  [[nodiscard]] nested_rows const& all() const { return rows_; }

 private:
  [[nodiscard]] bool has_validations() const;
  [[nodiscard]] bool reduces() const;
  [[nodiscard]] bool gathers() const;
  // Those that any instruction about tied weights names.
  [[nodiscard]] std::set<int> tied_stages() const;
  [[nodiscard]] std::vector<instruction> const& row(int rank) const {
    return rows_[static_cast<std::size_t>(rank)];
  }
  // Whether what a stage sends forward goes to another rank.
  [[nodiscard]] bool crosses(int stage) const;
  [[nodiscard]] instruction either(
      instruction_kind split, instruction_kind fused, int stage, int m) const;

  [[nodiscard]] std::vector<instruction> expected_of(
      int rank, std::vector<instruction> const& present, bool steps) const;

  // How many messages of a channel a rank has opened and not consumed after a position.
  [[nodiscard]] int open_after(int rank, int position, rank_pair channel) const;

  placement where_;
  int microbatches_;
  nested_rows rows_;
  std::map<std::pair<int, instruction>, int> at_;
};

}  // namespace zbpp::test
