// SPDX-License-Identifier: Apache-2.0
//
// A measured step as a network of what waited for what, which can be replayed with other times.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/message_record.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace zbpp::detail {

/// What brings a pass its input from another rank.
struct replay_input {
  int from = -1;         // the node that makes it; below 0 there is none
  zbpp::pass pass = {};  // that needs it
  ticks stated = 0;      // what its message takes by the problem
  ticks sent_late = 0;   // how long after the end of that node it was sent; 0 where it is not known
  ticks took = 0;        // after that; where nobody waited for it no more than it can have taken

  // How long after the end of that node it was there.
  [[nodiscard]] ticks behind() const noexcept { return sent_late + took; }
};

/// A pass, or a pair, of a measured step.
struct replay_node {
  int rank = 0;
  zbpp::pass pass = {};                   // of a pair the F
  std::optional<zbpp::pass> beside = {};  // of a pair the B or BW
  bool is_first = false;                  // of its rank
  ticks start = 0;                        // from the start of the step
  ticks end = 0;
  ticks planned = 0;            // how long the plan has it
  ticks late = 0;               // how long it waited for nothing that is known
  bool is_behind_step = false;  // what optimizer steps need stands in front of it
  std::array<replay_input, 2> inputs = {};
  int awaited = -1;  // which of them it waited for; or none

  [[nodiscard]] ticks took() const noexcept { return end - start; }
  [[nodiscard]] bool has_inputs() const noexcept { return inputs[0].from >= 0; }
};

/// Holds the nodes of a measured step, those of each rank in the order in which they ran. Replayed
/// with the times that were measured, all of them start and end as they did.
class step_replay {
 public:
  /// @param messages  of the step; or none
  /// @throws error (bad_argument) when the step is not one of the plan
  step_replay(
      plan const& planned, timeline const& measured, std::span<timed_message const> messages = {});

  [[nodiscard]] std::span<replay_node const> nodes() const noexcept { return nodes_; }
  [[nodiscard]] std::span<replay_node const> nodes(int rank) const noexcept {
    return std::span(nodes_).subspan(
        first_[index(rank)], first_[index(rank) + 1] - first_[index(rank)]);
  }
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(first_.size()) - 1; }
  [[nodiscard]] bool has_messages() const noexcept { return has_messages_; }
  /// @return when the first pass started, in the clock of the measured step
  [[nodiscard]] ticks begin() const noexcept { return begin_; }
  /// @return the number of the node that ends last
  [[nodiscard]] std::size_t last() const noexcept { return last_; }
  /// @return when it ended, from the start of the step
  [[nodiscard]] ticks end() const noexcept { return nodes_[last_].end; }
  /// @return when the rank of a node became free for it
  [[nodiscard]] ticks free_before(replay_node const& node) const noexcept {
    return node.is_first ? 0 : (&node - 1)->end;
  }

  /// Plays the step with other times. @return by how much it ends sooner
  /// @param change  called with the number of each node and a copy of it, to be changed
  template <class Change>
  [[nodiscard]] ticks gain_with(Change const& change) const {
    std::vector<ticks> ends(nodes_.size(), 0);
    ticks last = 0;
    for (auto const at : order_) {
      auto node = nodes_[at];
      change(at, node);
      auto ready = node.is_first ? 0 : ends[at - 1];
      for (auto const& input : node.inputs)
        if (input.from >= 0) ready = std::max(ready, ends[index(input.from)] + input.behind());
      ends[at] = ready + node.late + node.took();
      last = std::max(last, ends[at]);
    }
    return end() - last;
  }

 private:
  void add_nodes(plan const& planned, timeline const& measured);
  void find_inputs(problem const& problem);
  void note_messages(std::span<timed_message const> messages, problem const& problem);
  void find_waits();
  void find_recorded_wait(replay_node& node) const;
  void find_order(placement const& placement);

  std::vector<replay_node> nodes_;
  std::vector<std::size_t> first_;  // of each rank, and their number
  std::vector<std::size_t> order_;  // in which each stands after its inputs
  ticks begin_ = 0;
  std::size_t last_ = 0;
  bool has_messages_ = false;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/step_replay.ipp>
#endif
