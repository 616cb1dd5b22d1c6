// SPDX-License-Identifier: Apache-2.0
//
// Checks where ranks validate: between the norm and the optimizer steps of one step, or early in
// the next one, behind passes that can run again and at a cut that no message crosses.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Checks a program in which every rank has a norm, a validation and the steps of its stages, each
/// once and the steps behind the norm.
class cut_check {
 public:
  cut_check(program const& program, channel_map const& map) : program_(program), map_(map) {
    for (int rank = 0; rank < program.ranks(); ++rank) {
      auto const row = program.instructions(rank);
      auto& at = at_.emplace_back();
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (row[i].kind == instruction_kind::validate) at.validation = i;
        if (row[i].kind == instruction_kind::reduce_norm) at.norm = i;
      }
    }
  }

  [[nodiscard]] std::vector<diagnostic> run() {
    bool const late = is_late(0);
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      if (is_late(rank) != late)
        add(fault::cut,
            rank,
            at_[index(rank)].validation,
            std::string("it validates ") + (late ? "this step" : "the step before") +
                "; rank 0 validates " + (late ? "the step before" : "this step"));
      else if (late)
        check_redoable(rank);
      else
        check_steps(rank);
    }
    if (late && found_.empty()) check_messages();
    return std::move(found_);
  }

 private:
  struct places {
    std::size_t validation = 0;
    std::size_t norm = 0;
  };

  [[nodiscard]] bool is_late(int rank) const {
    return at_[index(rank)].validation < at_[index(rank)].norm;
  }

  void add(fault fault, int rank, std::size_t position, std::string const& text) {
    found_.push_back(
        make_diagnostic(program_, fault, rank, static_cast<std::int64_t>(position), text));
  }

  // What stands before the validation of the step before runs again if that fails.
  void check_redoable(int rank) {
    auto const row = program_.instructions(rank);
    auto const end = at_[index(rank)].validation;
    for (std::size_t i = 0; i < end; ++i) {
      if (row[i].kind == instruction_kind::forward || row[i].is_send() || row[i].is_receive())
        continue;
      return add(
          fault::dependence,
          rank,
          i,
          "it cannot be undone, so it must stand behind the validation at " + std::to_string(end));
    }
  }

  // A synchronous step waits for its validation.
  void check_steps(int rank) {
    auto const row = program_.instructions(rank);
    auto const end = at_[index(rank)].validation;
    for (std::size_t i = 0; i < end; ++i)
      if (row[i].kind == instruction_kind::optimizer_step)
        add(fault::dependence, rank, i, "it needs the validation at " + std::to_string(end));
  }

  // Per channel, as many messages are sent before the sender validates as are received before the
  // receiver does: those of the first run can then be told from those of the second.
  void check_messages() {
    std::vector<int> sent(index(map_.size()), 0);
    std::vector<int> received(sent);
    for (int rank = 0; rank < program_.ranks(); ++rank)
      for (auto const& i : program_.instructions(rank).first(at_[index(rank)].validation))
        if (i.is_send() || i.is_receive()) ++(i.is_send() ? sent : received)[index(map_.of(i))];
    for (int c = 0; c < map_.size(); ++c) {
      if (sent[index(c)] == received[index(c)]) continue;
      auto const [from, to] = map_.ends(c);
      add(fault::cut,
          to,
          at_[index(to)].validation,
          "before it the rank receives " + std::to_string(received[index(c)]) +
              " messages of channel " + std::to_string(from) + "->" + std::to_string(to) +
              "; rank " + std::to_string(from) + " sends " + std::to_string(sent[index(c)]) +
              " before its own validation; make the two numbers equal");
    }
  }

  program const& program_;
  channel_map const& map_;
  std::vector<places> at_;  // by rank
  std::vector<diagnostic> found_;
};

}  // namespace zbpp::detail
