// SPDX-License-Identifier: Apache-2.0
//
// Says what the transfer of a message between devices has to wait for: the pass that made the
// message and the passes that used the slot's memory before, unless the order of the program
// implies that they are done. Public for authors of backends; it needs nothing of CUDA.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::cuda {

/// Says how the slots of a channel are filled on a device, one after the other.
enum class slot_filling : std::uint8_t {
  by_copies,    ///< in the order in which messages are consumed, each once it is there
  by_receives,  ///< in the order of their numbers, each from the moment it is opened
  handed_over,  ///< there are none: the receiver gets the sender's memory when it consumes
};

/// @param devices  of one process, by rank
/// @return by channel, how `cuda::device` fills slots: ranks on one device hand messages over
[[nodiscard]] inline std::vector<slot_filling> fillings_of(
    traffic const& messages, std::span<int const> devices) {
  std::vector<slot_filling> filling;
  for (auto const& c : messages.channels())
    filling.push_back(
        share_device(c.from, c.to, devices) ? slot_filling::handed_over : slot_filling::by_copies);
  return filling;
}

/// Says what the transfer of a message waits for, besides the earlier transfers of its channel.
struct transfer_waits {
  /// It waits for what the sender ran before it sent; where messages are handed over, the
  /// receiver's next pass does.
  bool for_sender = true;
  bool for_slot = true;     ///< it waits for what the receiver ran before it opened the slot
  bool by_receiver = true;  ///< the receiver's next pass waits for it
};

/// Says what the transfer of each message has to wait for, by channel and number.
///
/// Leaves out only waits that are over in every timing, such as one for a slot when messages that
/// the sender has received show that its memory is free. Where ranks agree on optimizer steps, a
/// step may follow another whose work is still going on.
/// @param program  a program that `verify` accepts
/// @param filling  by channel
/// @complexity O(instructions + messages * ranks)
[[nodiscard]] inline std::vector<std::vector<transfer_waits>> transfer_waits_of(
    program const& program, traffic const& messages, std::span<slot_filling const> filling);

namespace detail {

/// Walks a program and keeps a vector clock for each rank: how much of every rank's work is done
/// once its own is, by the messages that it has consumed.
class transfer_order {
 public:
  transfer_order(
      program const& program, traffic const& messages, std::span<slot_filling const> filling)
      : program_(program),
        messages_(messages),
        known_(
            zbpp::detail::index(program.ranks()),
            knowledge(zbpp::detail::index(program.ranks()), 0)),
        channels_(messages.channels().size()),
        next_(zbpp::detail::index(program.ranks()), 0) {
    // Then nobody knows of another rank that its work before this step is done.
    if (agrees_on_steps(program))
      for (std::size_t r = 0; r < known_.size(); ++r) known_[r][r] = 1;
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      channels_[c].from = messages.channels()[c].from;
      channels_[c].to = messages.channels()[c].to;
      channels_[c].filling = filling[c];
      channels_[c].after.resize(zbpp::detail::index(program.ranks()), 0);
    }
  }

  [[nodiscard]] std::vector<std::vector<transfer_waits>> run() {
    for (bool again = true; again;) {
      again = false;
      for (int rank = 0; rank < program_.ranks(); ++rank)
        while (advance(rank)) again = true;
    }
    std::vector<std::vector<transfer_waits>> result;
    for (auto& each : channels_) result.push_back(std::move(each.waits));
    return result;
  }

 private:
  // Passes and optimizer steps that are done, by rank; all before the step count as one.
  using knowledge = std::vector<std::int32_t>;

  struct channel_state {
    int from = 0;
    int to = 0;
    slot_filling filling = slot_filling::by_copies;
    std::vector<knowledge> sent;        // what the sender knew, by message
    std::vector<bool> follows_pass;     // whether one ran since the message before, by message
    std::int32_t done_before = 0;       // what the sender had run when it sent the last one
    std::vector<knowledge> opened;      // what the receiver knew as it opened the slot, by message
    std::vector<transfer_waits> waits;  // by message
    knowledge after;                    // what all further transfers of the channel come after
    std::size_t received = 0;           // messages whose receives are over
  };

  // @return whether the rank's next instruction could be taken
  bool advance(int rank) {
    auto const at = next_[zbpp::detail::index(rank)];
    auto const row = program_.instructions(rank);
    if (at == row.size()) return false;
    auto const& i = row[at];
    auto const& note = messages_.notes(rank)[at];
    auto& known = known_[zbpp::detail::index(rank)];
    auto& done = known[zbpp::detail::index(rank)];
    if (i.is_pass()) {
      if (!i.is_paired && !consume(rank, at)) return false;
    } else if (note.channel != channel_map::none) {
      auto& l = channels_[zbpp::detail::index(note.channel)];
      if (i.is_send()) {
        l.follows_pass.push_back(l.sent.empty() || done > l.done_before);
        l.done_before = done;
        l.sent.push_back(known);
      } else {
        l.opened.push_back(known);
        l.waits.emplace_back();
      }
    }
    if (!i.is_send() && !i.is_receive()) ++done;
    ++next_[zbpp::detail::index(rank)];
    return true;
  }

  // Consumes the message of a pass, or those of a pair, of which neither pass begins before both
  // are there. @return whether they were sent
  bool consume(int rank, std::size_t at) {
    auto const is_pair = zbpp::detail::next_is_paired(program_.instructions(rank), at);
    auto const notes = messages_.notes(rank).subspan(at, is_pair ? 2 : 1);
    for (auto const& note : notes)
      if (note.channel != channel_map::none && !is_sent(note)) return false;
    auto& known = known_[zbpp::detail::index(rank)];
    if (is_pair && covers(notes[1], notes[0])) {
      consume(notes[1], known);
      consume(notes[0], known);
      return true;
    }
    for (auto const& note : notes) consume(note, known);
    // Of two copies on one stream, the second one is there last.
    if (is_pair && notes[0].channel == notes[1].channel && notes[0].channel != channel_map::none)
      if (auto& l = of(notes[0]); l.filling == slot_filling::by_copies)
        l.waits[zbpp::detail::index(notes[0].sequence)].by_receiver = false;
    return true;
  }

  [[nodiscard]] channel_state& of(message_note const& note) {
    return channels_[zbpp::detail::index(note.channel)];
  }
  [[nodiscard]] bool is_sent(message_note const& note) {
    return zbpp::detail::index(note.sequence) < of(note).sent.size();
  }
  // Whether who waits for one message need not wait for another.
  [[nodiscard]] bool covers(message_note const& one, message_note const& other) {
    if (one.channel == channel_map::none || other.channel == channel_map::none) return false;
    auto const& l = of(one);
    auto const& m = of(other);
    if (m.filling == slot_filling::by_receives)
      return one.channel == other.channel && one.sequence > other.sequence;
    auto const from = zbpp::detail::index(m.from);
    return m.filling == slot_filling::handed_over &&
           l.sent[zbpp::detail::index(one.sequence)][from] >=
               m.sent[zbpp::detail::index(other.sequence)][from];
  }

  void consume(message_note const& note, knowledge& known) {
    if (note.channel != channel_map::none)
      consume(of(note), zbpp::detail::index(note.sequence), known);
  }
  // Fills the slot of a message that is consumed, and, where they are filled in the order of their
  // numbers, those of the messages before it.
  static void consume(channel_state& l, std::size_t sequence, knowledge& known) {
    if (l.filling == slot_filling::handed_over) {
      hand_over(l, sequence, known);
    } else if (l.filling == slot_filling::by_copies) {
      fill_by_copy(l, sequence);
    } else {
      l.waits[sequence].by_receiver = sequence >= l.received;
      for (; l.received <= sequence; ++l.received) receive(l, l.received);
    }
    join(known, l.after);
  }

  static void hand_over(channel_state& l, std::size_t sequence, knowledge& known) {
    auto const from = zbpp::detail::index(l.from);
    auto const sent = std::exchange(l.sent[sequence], {});
    l.waits[sequence] = {.for_sender = sent[from] > known[from], .for_slot = false};
    l.opened[sequence] = {};
    join(known, sent);
  }

  static void receive(channel_state& l, std::size_t sequence) {
    auto const to = zbpp::detail::index(l.to);
    l.waits[sequence].for_sender = l.follows_pass[sequence];
    l.waits[sequence].for_slot = l.opened[sequence][to] > l.after[to];
    join(l.after, std::exchange(l.opened[sequence], {}));
    join(l.after, std::exchange(l.sent[sequence], {}));
  }

  static void fill_by_copy(channel_state& l, std::size_t sequence) {
    auto const sent = std::exchange(l.sent[sequence], {});
    auto const opened = std::exchange(l.opened[sequence], {});
    auto const from = zbpp::detail::index(l.from);
    auto const to = zbpp::detail::index(l.to);
    auto& waits = l.waits[sequence];
    waits.for_slot = opened[to] > std::max(l.after[to], sent[to]);
    waits.for_sender =
        sent[from] > std::max(l.after[from], waits.for_slot ? opened[from] : std::int32_t{0});
    join(l.after, sent);
    join(l.after, opened);
  }

  static void join(knowledge& known, knowledge const& other) {
    for (std::size_t q = 0; q < known.size(); ++q) known[q] = std::max(known[q], other[q]);
  }

  program const& program_;
  traffic const& messages_;
  std::vector<knowledge> known_;         // by rank
  std::vector<channel_state> channels_;  // by channel
  std::vector<std::size_t> next_;        // by rank
};

}  // namespace detail

inline std::vector<std::vector<transfer_waits>> transfer_waits_of(
    program const& program, traffic const& messages, std::span<slot_filling const> filling) {
  return detail::transfer_order(program, messages, filling).run();
}

}  // namespace zbpp::cuda
