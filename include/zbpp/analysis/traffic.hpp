// SPDX-License-Identifier: Apache-2.0
//
// What the order of a program says about its messages: which channel each one takes, its number
// there, and when its sender can know that it has been consumed. Nothing here depends on time.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

/// Numbers the directed channels of a placement: one for each ordered pair of ranks whose stages
/// are neighbours, by sender, then receiver.
class channel_map {
 public:
  explicit channel_map(placement const& placement);

  static constexpr int none = -1;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(pairs_.size()); }
  [[nodiscard]] std::pair<int, int> ends(int channel) const noexcept {
    return pairs_[detail::index(channel)];
  }
  /// @return the channel from one rank to another; none when they have no neighbouring stages
  [[nodiscard]] int between(int from, int to) const noexcept;
  /// @return the channel of what a stage sends forward; none when it stays or is the last
  [[nodiscard]] int of_activation(int from_stage) const noexcept {
    return forward_[detail::index(from_stage)];
  }
  /// @return the channel of the gradient a stage sends back; none when it stays or is the first
  [[nodiscard]] int of_gradient(int from_stage) const noexcept {
    return backward_[detail::index(from_stage)];
  }
  [[nodiscard]] int reverse(int channel) const noexcept { return reverse_[detail::index(channel)]; }

  /// @return the channel of a send or receive; none for another instruction, or within a rank
  [[nodiscard]] int of(instruction const& i) const noexcept {
    if (!i.is_send() && !i.is_receive()) return none;
    auto const from = i.is_send() ? i.stage : i.other_stage();
    if (from < 0 || detail::index(from) >= forward_.size()) return none;
    return i.moves_activation() ? of_activation(from) : of_gradient(from);
  }
  /// @return the channel that brings the input of a pass; none when it needs none or has it at hand
  [[nodiscard]] int of_input(pass const& p) const noexcept {
    if (p.kind == pass_kind::forward) return p.stage == 0 ? none : of_activation(p.stage - 1);
    bool const last = detail::index(p.stage) + 1 == forward_.size();
    return p.makes_input_gradient() && !last ? of_gradient(p.stage + 1) : none;
  }

 private:
  std::vector<std::pair<int, int>> pairs_;
  std::vector<int> forward_;   // by sending stage
  std::vector<int> backward_;  // by sending stage
  std::vector<int> reverse_;
};

/// @param devices  of one process, by rank; none: no two ranks share one
/// @return whether two ranks run on one device, so that messages need no copy
[[nodiscard]] inline bool share_device(int rank, int other, std::span<int const> devices) noexcept {
  return !devices.empty() && devices[detail::index(rank)] == devices[detail::index(other)];
}

/// Says what one instruction has to do with messages.
struct message_note {
  std::int32_t channel = channel_map::none;  ///< of the message it sends, receives or consumes
  std::int32_t sequence = -1;                ///< its number there, from 0
  std::int32_t retired = -1;  ///< of the reverse channel: so many are known to be consumed by then
  /// Of its own channel, where receivers acknowledge: so many of the first messages are consumed
  /// once a pass has its input, or have to be before a send.
  std::int32_t acknowledged = -1;
};

/// Holds the notes of every instruction of a program, and how deep its channels get.
///
/// A pass that consumes a message from rank q knows from it that q has run everything before that
/// send, so what q consumed by then may be taken back. What no message tells stays until the end of
/// the step. The same program gives the same notes on every backend, so memory does not depend on
/// how fast a peer is.
class traffic {
 public:
  /// Reads a program whose ids are in range; other faults leave notes without a number.
  /// @complexity O(instructions)
  explicit traffic(program const& program);

  /// Reads a program of forward passes alone, in which receivers acknowledge what they consume:
  /// when message k of a channel is sent, all up to number k - depth are known to be consumed. No
  /// other message tells.
  /// @param depth  of channels, in messages, at least 1; see `evaluation_depth`
  /// @complexity O(instructions)
  traffic(program const& forwards, int depth);

  /// Reads the instructions of what is to become a program. @complexity O(instructions)
  traffic(placement const& placement, int microbatches, rows<instruction> const& instructions);

  [[nodiscard]] std::span<message_note const> notes(int rank) const noexcept {
    return notes_[rank];
  }
  [[nodiscard]] std::vector<channel> const& channels() const noexcept { return depths_; }
  [[nodiscard]] channel_map const& map() const noexcept { return map_; }

 private:
  using counters = std::vector<std::int32_t>;

  // Writes channel and sequence of every note, and counts the slots.
  // @return for each channel and each of its messages: how many of the reverse channel's messages
  //         the sender had consumed, without a gap, when it sent it
  [[nodiscard]] std::vector<counters> number(
      int stages, int microbatches, rows<instruction> const& instructions);

  // Writes what each note retires, and counts the messages in flight.
  void retire(rows<instruction> const& instructions, std::vector<counters> const& consumed_at_send);

  // Writes what the note of each pass acknowledges and what that of each send needs.
  void acknowledge(rows<instruction> const& instructions, int depth);

  void set_ends();

  channel_map map_;
  std::vector<channel> depths_;
  rows<message_note> notes_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/traffic.ipp>
#endif
