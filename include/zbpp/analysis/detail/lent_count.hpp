// SPDX-License-Identifier: Apache-2.0
//
// How many bytes of messages that no longer count as edges lie in the arena of a rank: the rank
// that they were handed over to may still use them.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Follows what one rank after another has lent. A flow may keep what it received until it ends,
/// and the lender knows that it has ended by the next message that was sent after that.
class lent_count {
 public:
  /// @param code     one that `verify` accepts
  /// @param devices  by rank: those on one hand messages over
  lent_count(
      program const& code,
      problem const& problem,
      traffic const& messages,
      std::span<int const> devices)
      : problem_(problem),
        map_(messages.map()),
        devices_(devices),
        ends_(index(map_.size())),
        sent_at_(index(map_.size())),
        lent_(index(map_.size())) {
    cells<std::int32_t> last_pass(code.stages(), code.microbatches(), 0);
    for (int rank = 0; rank < code.ranks(); ++rank) {
      auto const row = code.instructions(rank);
      for (std::size_t i = 0; i < row.size(); ++i)
        if (row[i].is_pass())
          last_pass(row[i].stage, row[i].microbatch) = static_cast<std::int32_t>(i);
    }
    for (int rank = 0; rank < code.ranks(); ++rank) {
      auto const row = code.instructions(rank);
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (!row[i].is_send()) continue;
        auto const c = index(map_.of(row[i]));
        sent_at_[c].push_back(static_cast<std::int32_t>(i));
        ends_[c].push_back(last_pass(row[i].other_stage(), row[i].microbatch));
      }
    }
  }

  /// Begins the row of another rank.
  void begin_row() noexcept {
    for (auto& each : lent_) each.clear();
    in_use_ = 0;
  }
  /// Begins the next step of the rank, or the same one again: what it sent counts as an edge no
  /// longer, and is proved to be free by the next message of whoever has it.
  void begin_again() noexcept {
    for (auto& each : lent_)
      for (auto& one : each) {
        if (!one.is_retired) in_use_ += one.size;
        one.is_retired = true;
        one.ends_at = before_row;
      }
  }
  /// Begins an instruction. @return what is lent, and counts as no edge, while it runs
  bytes begin(instruction const& i, message_note const& note) {
    if (!i.is_pass() || note.channel == channel_map::none) return in_use_;
    auto const sent_at = sent_at_[index(note.channel)][index(note.sequence)];
    auto& counter = lent_[index(map_.reverse(note.channel))];
    for (auto& one : counter) {
      if (one.is_retired || one.sequence >= note.retired) continue;
      one.is_retired = true;
      in_use_ += one.size;
    }
    std::erase_if(counter, [&](loan const& one) {
      bool const is_over = one.is_retired && one.ends_at < sent_at;
      if (is_over) in_use_ -= one.size;
      return is_over;
    });
    return in_use_;
  }
  /// Ends an instruction.
  void end(instruction const& i, message_note const& note) {
    if (!i.is_send()) return;
    auto const [from, to] = map_.ends(note.channel);
    if (!share_device(from, to, devices_)) return;
    lent_[index(note.channel)].push_back(
        {.size = problem_.costs(std::min(i.stage, i.other_stage())).edge,
         .sequence = note.sequence,
         .ends_at = ends_[index(note.channel)][index(note.sequence)]});
  }

 private:
  static constexpr std::int32_t before_row = -1;

  struct loan {
    bytes size;
    std::int32_t sequence;
    std::int32_t ends_at;  // position of the last pass of the flow that has it, on its rank
    bool is_retired = false;
  };

  problem const& problem_;
  channel_map const& map_;
  std::span<int const> devices_;
  std::vector<std::vector<std::int32_t>> ends_;     // by channel and message
  std::vector<std::vector<std::int32_t>> sent_at_;  // by channel and message
  std::vector<std::vector<loan>> lent_;             // by channel
  bytes in_use_ = 0;
};

}  // namespace zbpp::detail
