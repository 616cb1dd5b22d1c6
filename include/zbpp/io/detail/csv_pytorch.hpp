// SPDX-License-Identifier: Apache-2.0
//
// How a program is written for PyTorch's pipelining runtime, which wants every send waited for and
// weights and gradients of sharded stages gathered and reduced. Only `impl/csv.ipp` includes it.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/detail/csv_cell.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/program.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Says what to do about a pass that PyTorch's runtime does not have.
/// @throws error (bad_argument) if it is one
inline void require_known_to_pytorch(instruction const& i) {
  if (i.kind == instruction_kind::recompute)
    throw error(
        errc::bad_argument,
        to_string(i) +
            ": PyTorch's pipelining runtime has no R; plan without it, and let the stage's module "
            "recompute");
}

/// Finds the cells of a rank's line. Its program has to be right.
class pytorch_line {
 public:
  pytorch_line(program const& code, traffic const& messages, int rank)
      : row_(code.instructions(rank)),
        notes_(messages.notes(rank)),
        map_(messages.map()),
        sends_(index(map_.size())),
        waited_(index(map_.size()), 0),
        left_(index(code.stages()), 0) {}

  [[nodiscard]] std::vector<csv_part> run() {
    for (auto const& i : row_) {
      require_known_to_pytorch(i);
      if (!i.is_pass()) continue;
      if (left_[index(i.stage)]++ == 0) add(i.stage, "UNSHARD");
    }
    for (std::size_t at = 0; at < row_.size(); ++at) {
      auto const& i = row_[at];
      if (i.is_send()) sends_[index(map_.of(i))].push_back(i);
      if (!i.is_send()) add_ends();
      if (i.is_pass() || i.is_send() || i.is_receive()) parts_.push_back({i});
      if (i.is_pass()) note_ends(i, notes_[at]);
    }
    add_ends();
    for (std::size_t at = 0; at < row_.size(); ++at)
      if (row_[at].is_send() && notes_[at].sequence >= waited_[index(notes_[at].channel)])
        add_wait(row_[at]);
    return std::move(parts_);
  }

 private:
  void add(std::int32_t stage, char const* letters) {
    parts_.push_back({{}, std::to_string(stage) + letters});
  }

  void add_wait(instruction const& send) {
    add(send.stage, send.moves_activation() ? "WAIT_SEND_F" : "WAIT_SEND_B");
    parts_.back().text += std::to_string(send.microbatch);
  }

  // What ends with a pass stands behind its send: the other rank waits for that.
  void note_ends(instruction const& pass, message_note const& note) {
    if (note.channel != channel_map::none) {
      back_ = map_.reverse(note.channel);
      consumed_ = note.retired;
    }
    if (--left_[index(pass.stage)] == 0) ended_ = pass.stage;
  }

  void add_ends() {
    if (back_ != channel_map::none) {
      auto& done = waited_[index(back_)];
      for (; done < consumed_; ++done) add_wait(sends_[index(back_)][index(done)]);
    }
    if (ended_ != none)
      for (auto const* letters : {"REDUCE_GRAD", "WAIT_REDUCE_GRAD", "RESHARD"})
        add(ended_, letters);
    back_ = channel_map::none;
    ended_ = none;
  }

  static constexpr std::int32_t none = -1;

  std::span<instruction const> row_;
  std::span<message_note const> notes_;
  channel_map const& map_;
  std::vector<csv_part> parts_;
  std::vector<std::vector<instruction>> sends_;  // by channel, those written
  std::vector<std::int32_t> waited_;             // by channel, how many of them
  std::vector<std::int32_t> left_;               // by stage, passes to come
  int back_ = channel_map::none;  // the channel whose sends the last pass proves done
  std::int32_t consumed_ = 0;     // so many of them
  std::int32_t ended_ = none;     // the stage whose last pass it was
};

}  // namespace zbpp::detail
