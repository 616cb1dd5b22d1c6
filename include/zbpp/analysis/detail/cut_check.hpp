// SPDX-License-Identifier: Apache-2.0
//
// Checks where ranks validate: between the norm and the optimizer steps of one step, or early in
// the next one, after passes that can run again and at a cut that no message crosses. Of the first
// ranks alone those may do so early that step at once.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Checks a program in which every rank has a norm, a validation and the steps of its stages, each
/// once and the steps after the norm.
class cut_check {
 public:
  /// @param norm_at      by rank, the position of its norm
  /// @param validate_at  by rank, the position of its validation
  cut_check(
      program const& program,
      channel_map const& map,
      std::span<std::int32_t const> norm_at,
      std::span<std::int32_t const> validate_at)
      : program_(program), map_(map), norm_at_(norm_at), validate_at_(validate_at) {}

  [[nodiscard]] std::vector<diagnostic> run() {
    bool const late = is_late(program_.ranks() - 1);
    bool goes_on = true;  // whether no rank up to this one waits
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      goes_on = goes_on && is_late(rank);
      if (late)
        check_late(rank);
      else if (goes_on)
        check_ahead(rank);
      else
        check_waiting(rank);
    }
    if (late && found_.empty()) check_messages();
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool is_late(int rank) const { return validation_of(rank) < norm_of(rank); }
  [[nodiscard]] std::size_t norm_of(int rank) const { return index(norm_at_[index(rank)]); }
  [[nodiscard]] std::size_t validation_of(int rank) const {
    return index(validate_at_[index(rank)]);
  }

  void add(fault fault, int rank, std::size_t position, std::string const& text) {
    found_.push_back(
        make_diagnostic(program_, fault, rank, static_cast<std::int64_t>(position), text));
  }

  // All ranks may have to go back to the step before, so no stage steps at once.
  void check_late(int rank) {
    auto const row = program_.instructions(rank);
    if (!is_late(rank))
      add(fault::cut,
          rank,
          validation_of(rank),
          "it validates this step; the last rank validates the step before");
    else
      check_forwards(rank, "it cannot be undone");
    for (std::size_t i = 0; i < row.size(); ++i)
      if (row[i].kind == instruction_kind::immediate_step)
        add(fault::cut,
            rank,
            i,
            "it cannot be undone, and the ranks validate the step before; let them validate this "
            "step");
  }

  // A rank that nobody waits for goes on, and has the verdict before it needs a loss scale.
  void check_ahead(int rank) {
    auto const row = program_.instructions(rank);
    check_forwards(rank, "it may need the verdict");
    for (std::size_t i = 0; i < row.size(); ++i)
      if (row[i].kind == instruction_kind::optimizer_step)
        add(fault::cut,
            rank,
            i,
            "it waits for the norm, and its rank validates the step before, as the last rank does "
            "not");
  }

  // A rank whose steps wait for the norm has its verdict before them.
  void check_waiting(int rank) {
    auto const row = program_.instructions(rank);
    auto const end = validation_of(rank);
    if (is_late(rank))
      return add(
          fault::cut,
          rank,
          end,
          "it validates the step before; the last rank and one before this one validate this step");
    for (std::size_t i = 0; i < end; ++i)
      if (row[i].kind == instruction_kind::optimizer_step)
        add(fault::dependence, rank, i, joined("it needs the validation at ", end));
  }

  // Where what stands before the validation of the step before runs again if that fails, or needs
  // nothing of it.
  void check_forwards(int rank, char const* why) {
    auto const row = program_.instructions(rank);
    auto const end = validation_of(rank);
    for (std::size_t i = 0; i < end; ++i) {
      if (row[i].kind == instruction_kind::forward || row[i].is_send() || row[i].is_receive())
        continue;
      return add(
          fault::dependence,
          rank,
          i,
          joined(why, ", so it must stand behind the validation at ", end));
    }
  }

  // Per channel, as many messages are sent before the sender validates as are received before the
  // receiver does: those of the first run can then be told from those of the second.
  void check_messages() {
    std::vector<int> sent(index(map_.size()), 0);
    std::vector<int> received(sent);
    for (int rank = 0; rank < program_.ranks(); ++rank)
      for (auto const& i : program_.instructions(rank).first(validation_of(rank)))
        if (i.is_send() || i.is_receive()) ++(i.is_send() ? sent : received)[index(map_.of(i))];
    for (int c = 0; c < map_.size(); ++c) {
      if (sent[index(c)] == received[index(c)]) continue;
      auto const [from, to] = map_.ends(c);
      add(fault::cut,
          to,
          validation_of(to),
          joined("before it the rank receives ") + received[index(c)] + " messages of channel " +
              from + "->" + to + "; rank " + from + " sends " + sent[index(c)] +
              " before its own validation; make the two numbers equal");
    }
  }

  program const& program_;
  channel_map const& map_;
  std::span<std::int32_t const> norm_at_;
  std::span<std::int32_t const> validate_at_;
  std::vector<diagnostic> found_;
};

}  // namespace zbpp::detail
