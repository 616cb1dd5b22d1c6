// SPDX-License-Identifier: Apache-2.0
//
// Puts the transfers of a program into one order that all ranks agree on, for transports on which
// all transfers of a rank share one queue.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Runs a program without times, in rounds: first at most one pass of every rank, then the sends
/// after them, one after another. Each receive is put where its rank stands at the send. So the
/// two ends of every message are neighbours in the order of the run, of which each row is a part,
/// and no queue can hold up another.
class common_order {
 public:
  /// @param origin  whose receives are those of its sends; else its order may be any
  explicit common_order(program const& origin)
      : origin_(origin),
        map_(origin.placement()),
        rows_(index(origin.ranks())),
        next_(index(origin.ranks()), 0),
        is_at_validation_(index(origin.ranks()), false),
        may_go_back_(validates_step_before(origin)),
        activation_sent_(origin.stages(), origin.microbatches(), 0),
        gradient_sent_(origin.stages(), origin.microbatches(), 0) {}

  /// @return the rows of the program with its receives moved
  /// @complexity O(ranks * passes)
  [[nodiscard]] rows<instruction> run() {
    for (bool is_done = false; !is_done;) {
      is_done = true;
      bool moved = false;
      for (int rank = 0; rank < origin_.ranks(); ++rank) moved = start(rank) || moved;
      for (int rank = 0; rank < origin_.ranks(); ++rank) moved = follow(rank) || moved;
      for (int rank = 0; rank < origin_.ranks(); ++rank) is_done = is_done && has_ended(rank);
      if (!moved && !is_done) force();
    }
    rows<instruction> result;
    for (auto const& row : rows_) {
      for (auto const& i : row) result.push(i);
      result.end_row();
    }
    return result;
  }

 private:
  [[nodiscard]] bool has_ended(int rank) const {
    return next_[index(rank)] == origin_.instructions(rank).size();
  }
  [[nodiscard]] instruction const& current(int rank) const {
    return origin_.instructions(rank)[next_[index(rank)]];
  }
  [[nodiscard]] static bool may_wait(instruction const& i) noexcept {
    return i.is_pass() || i.kind == instruction_kind::validate;
  }

  // The next pass, pair or validation, if it need not wait. Returns whether the rank got anywhere.
  bool start(int rank) {
    auto const begin = next_[index(rank)];
    while (!has_ended(rank) && current(rank).is_receive()) ++next_[index(rank)];
    if (has_ended(rank) || !may_wait(current(rank))) return next_[index(rank)] != begin;
    auto const& i = current(rank);
    if (i.is_pass() ? !has_input(i) : !may_validate(rank)) return next_[index(rank)] != begin;
    bool const is_pair = next_is_paired(origin_.instructions(rank), next_[index(rank)]);
    if (is_pair && !has_input((&i)[1])) return next_[index(rank)] != begin;
    for (int k = 0; k < (is_pair ? 2 : 1); ++k, ++next_[index(rank)]) emit(rank, current(rank));
    return true;
  }

  // What stands after it, sends above all.
  bool follow(int rank) {
    auto const begin = next_[index(rank)];
    for (; !has_ended(rank) && !may_wait(current(rank)); ++next_[index(rank)])
      if (!current(rank).is_receive()) emit(rank, current(rank));
    return next_[index(rank)] != begin;
  }

  // In an order that `verify` refuses, nobody may get further; it stays as it is.
  void force() {
    int rank = 0;
    while (has_ended(rank)) ++rank;
    bool const is_pair = next_is_paired(origin_.instructions(rank), next_[index(rank)]);
    for (int k = 0; k < (is_pair ? 2 : 1); ++k, ++next_[index(rank)]) emit(rank, current(rank));
  }

  void emit(int rank, instruction const& i) {
    rows_[index(rank)].push_back(i);
    if (!i.is_send()) return;
    bool const down = i.moves_activation();
    auto const to = i.other_stage();
    (down ? activation_sent_ : gradient_sent_)(to, i.microbatch) = 1;
    rows_[index(map_.ends(map_.of(i)).second)].push_back(
        {down ? instruction_kind::receive_activation : instruction_kind::receive_gradient,
         to,
         i.microbatch});
  }

  [[nodiscard]] bool has_input(instruction const& i) const {
    if (map_.of_input(i.as_pass()) == channel_map::none) return true;
    bool const down = i.kind == instruction_kind::forward;
    return (down ? activation_sent_ : gradient_sent_)(i.stage, i.microbatch) != 0;
  }

  // What may be sent again in front of a validation is received in front of one, too.
  [[nodiscard]] bool may_validate(int rank) {
    if (!may_go_back_) return true;
    if (!is_at_validation_[index(rank)]) ++at_validation_;
    is_at_validation_[index(rank)] = true;
    return at_validation_ == origin_.ranks();
  }

  program const& origin_;
  channel_map map_;
  std::vector<std::vector<instruction>> rows_;
  std::vector<std::size_t> next_;       // by rank, the position in its row
  std::vector<bool> is_at_validation_;  // by rank
  bool may_go_back_;
  int at_validation_ = 0;
  cells<std::uint8_t> activation_sent_;  // by receiving stage, whether it was
  cells<std::uint8_t> gradient_sent_;
};

}  // namespace zbpp::detail
