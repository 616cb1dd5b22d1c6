// SPDX-License-Identifier: Apache-2.0
//
// What a copy on a device has to wait for: the pass that made the message, and the passes that used
// the slot's memory before, unless the order of the program says that they are over.
#pragma once

#include <zbpp/analysis/program.hpp>
#include <zbpp/analysis/traffic.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp {

/// Says what the copy of a message waits for, besides the copies of its channel before it.
struct transfer_waits {
  bool for_sender = true;  ///< for what the sender ran before it sent
  bool for_slot = true;    ///< for what the receiver ran before it opened the slot
};

namespace detail {

/// Walks a program and keeps, for each rank, how much of every other it knows to be done: its own
/// work, and what the messages it has consumed bring along.
class transfer_order {
 public:
  transfer_order(program const& code, traffic const& messages)
      : code_(code),
        messages_(messages),
        known_(index(code.ranks()), knowledge(index(code.ranks()), 0)),
        lanes_(messages.channels().size()),
        next_(index(code.ranks()), 0) {
    for (std::size_t c = 0; c < lanes_.size(); ++c) {
      lanes_[c].from = messages.channels()[c].from;
      lanes_[c].to = messages.channels()[c].to;
      lanes_[c].after.resize(index(code.ranks()), 0);
    }
  }

  [[nodiscard]] std::vector<std::vector<transfer_waits>> run() {
    for (bool again = true; again;) {
      again = false;
      for (int rank = 0; rank < code_.ranks(); ++rank)
        while (advance(rank)) again = true;
    }
    std::vector<std::vector<transfer_waits>> result;
    for (auto& each : lanes_) result.push_back(std::move(each.waits));
    return result;
  }

 private:
  // Passes and optimizer steps that are done, by rank.
  using knowledge = std::vector<std::int32_t>;

  struct lane {
    int from = 0;
    int to = 0;
    std::vector<knowledge> sent;        // what the sender knew, by message
    std::vector<knowledge> opened;      // what the receiver knew as it opened the slot, by message
    std::vector<transfer_waits> waits;  // by message
    knowledge after;                    // what all further copies of the channel come after
  };

  // @return whether the rank's next instruction could be taken
  bool advance(int rank) {
    auto const at = next_[index(rank)];
    auto const row = code_.instructions(rank);
    if (at == row.size()) return false;
    auto const& i = row[at];
    auto const& note = messages_.notes(rank)[at];
    auto& known = known_[index(rank)];
    auto& done = known[index(rank)];
    if (note.channel != channel_map::none) {
      auto& l = lanes_[index(note.channel)];
      if (i.is_send()) {
        l.sent.push_back(known);
      } else if (i.is_receive()) {
        l.opened.push_back(known);
        l.waits.emplace_back();
      } else if (!consume(l, index(note.sequence), known)) {
        return false;
      }
    }
    if (i.is_pass() || i.kind == instruction_kind::optimizer_step) ++done;
    ++next_[index(rank)];
    return true;
  }

  // Copies of a channel run in the order in which their messages are consumed.
  static bool consume(lane& l, std::size_t sequence, knowledge& known) {
    if (sequence >= l.sent.size()) return false;
    auto const sent = std::exchange(l.sent[sequence], {});
    auto const opened = std::exchange(l.opened[sequence], {});
    auto const from = index(l.from);
    auto const to = index(l.to);
    auto& waits = l.waits[sequence];
    waits.for_slot = opened[to] > std::max(l.after[to], sent[to]);
    waits.for_sender =
        sent[from] > std::max(l.after[from], waits.for_slot ? opened[from] : std::int32_t{0});
    join(l.after, sent);
    join(l.after, opened);
    join(known, l.after);
    return true;
  }

  static void join(knowledge& what, knowledge const& other) {
    for (std::size_t q = 0; q < what.size(); ++q) what[q] = std::max(what[q], other[q]);
  }

  program const& code_;
  traffic const& messages_;
  std::vector<knowledge> known_;   // by rank
  std::vector<lane> lanes_;        // by channel
  std::vector<std::size_t> next_;  // by rank
};

}  // namespace detail

/// Says what the copy of each message has to wait for, by channel and number.
///
/// Left out is only what holds in every timing, such as a wait for a slot whose memory the sender
/// knows to be free from the messages it got.
/// @param code  a program that `verify` accepts
/// @complexity O(instructions + messages * ranks)
[[nodiscard]] inline std::vector<std::vector<transfer_waits>> transfer_waits_of(
    program const& code, traffic const& messages) {
  return detail::transfer_order(code, messages).run();
}

}  // namespace zbpp
