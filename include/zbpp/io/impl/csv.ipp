// SPDX-License-Identifier: Apache-2.0
//
// What io/csv.hpp declares. PyTorch's pipelining runtime wants every send waited for, and weights
// and gradients of sharded stages gathered and reduced.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/detail/csv_reader.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Says what to do about a pass that PyTorch's runtime does not have.
/// @throws error (bad_argument) if it is one
inline void require_known_to_pytorch(instruction const& i) {
  if (i.kind == instruction_kind::recompute)
    throw error(errc::bad_argument) + to_string(i) +
        ": PyTorch's pipelining runtime has no R; plan without it, and let the stage's module "
        "recompute";
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
    parts_.push_back({{}, joined(stage, letters)});
  }

  void add_wait(instruction const& send) {
    add(send.stage, send.moves_activation() ? "WAIT_SEND_F" : "WAIT_SEND_B");
    parts_.back().text += std::to_string(send.microbatch);
  }

  // What ends with a pass stands after its send: the other rank waits for that.
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

/// Throws what `verify` finds on PyTorch's queues; the order of W is a remark and may be any.
/// @throws error (refused_program) with the first fault
ZBPP_INLINE void require_right_for_pytorch(program const& code) {
  for (auto const& found : verify(code, channel_layout::one_per_rank))
    if (!is_remark(found.fault))
      throw error(errc::refused_program, found.location) +
          "PyTorch's runtime could not run the program, " + to_string(found) +
          "; lower the schedule with .layout = channel_layout::one_per_rank";
}

[[nodiscard]] ZBPP_INLINE bool are_overlapped(
    csv_part const& first, csv_part const& second, csv_options options) noexcept {
  auto const& f = first.content;
  auto const& b = second.content;
  if (b.is_paired) return f.is_pass() && b.is_pass() && may_pair(f.as_pass(), b.as_pass());
  return options.overlap && second.text.empty() && f.kind == instruction_kind::forward &&
         b.kind == instruction_kind::backward && f.stage != b.stage && f.microbatch != b.microbatch;
}

/// Writes a line of cells; `at(i)` is the i-th part of `count`.
template <class At>
void add_line(std::string& text, std::size_t count, csv_options options, At at) {
  auto const* comma = "";
  for (std::size_t i = 0; i < count; ++i) {
    csv_part const part = at(i);
    text += comma;
    comma = ",";
    if (!part.text.empty()) {
      text += part.text;
    } else if (i + 1 < count && are_overlapped(part, at(i + 1), options)) {
      add_cell(text += '(', part.content);
      add_cell(text += ';', at(++i).content);
      text.append(")").append(csv_pair_name);
    } else if (part.content.is_paired) {
      throw error(errc::bad_argument) + to_string(part.content) + ": " + pair_rule;
    } else {
      add_cell(text, part.content);
    }
  }
  text += '\n';
}

}  // namespace detail

ZBPP_INLINE std::string to_csv(schedule const& schedule, csv_options options) {
  std::string text;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    auto const passes = schedule.passes(rank);
    for (auto const& p : passes)
      if (options.for_pytorch) detail::require_known_to_pytorch(to_instruction(p));
    detail::add_line(text, passes.size(), options, [&](std::size_t i) {
      return detail::csv_part{to_instruction(passes[i])};
    });
  }
  return text;
}

ZBPP_INLINE std::string to_csv(program const& program, csv_options options) {
  std::string text;
  if (options.for_pytorch) {
    detail::require_right_for_pytorch(program);
    traffic const messages(program);
    for (int rank = 0; rank < program.ranks(); ++rank) {
      auto const parts = detail::pytorch_line(program, messages, rank).run();
      detail::add_line(text, parts.size(), options, [&](std::size_t i) { return parts[i]; });
    }
    return text;
  }
  for (int rank = 0; rank < program.ranks(); ++rank) {
    auto const row = program.instructions(rank);
    detail::add_line(
        text, row.size(), options, [&](std::size_t i) { return detail::csv_part{row[i]}; });
  }
  return text;
}

ZBPP_INLINE schedule schedule_from_csv(
    std::string_view text,
    std::optional<placement> const& placement,
    std::optional<int> microbatches,
    csv_pairs pairs) {
  detail::csv_reader reader(text, true, pairs);
  auto const [stages, count] = reader.shape(placement, microbatches);
  return {stages, count, reader.passes()};
}

ZBPP_INLINE program program_from_csv(
    std::string_view text,
    std::optional<placement> const& placement,
    std::optional<int> microbatches,
    csv_pairs pairs) {
  detail::csv_reader reader(text, false, pairs);
  auto const [stages, count] = reader.shape(placement, microbatches);
  program const program{stages, count, reader.instructions(), {}};
  auto channels = traffic(program).channels();
  return {program.placement(), program.microbatches(), program.instructions(), std::move(channels)};
}

ZBPP_INLINE program complete_program_from_csv(std::string_view text, problem const* problem) {
  std::optional<placement> placement;
  std::optional<int> microbatches;
  auto pairs = csv_pairs::in_turn;
  if (problem != nullptr) {
    placement = problem->placement();
    microbatches = problem->microbatches();
    pairs = pairs_for(*problem);
  }
  auto code = program_from_csv(text, placement, microbatches, pairs);
  bool const is_schedule = std::ranges::all_of(code.instructions().all(), &instruction::is_pass);
  return is_schedule ? lower(passes_of(code), {.step = step_kind::none}) : code;
}

ZBPP_INLINE csv_pairs pairs_for(problem const& problem) noexcept {
  return problem.gains_by_pairing() ? csv_pairs::together : csv_pairs::in_turn;
}

ZBPP_INLINE std::vector<ignored_action> ignored_actions_in_csv(std::string_view text) {
  std::vector<ignored_action> found;
  auto const count = detail::csv_reader(text, false).ignored_actions();
  for (std::size_t i = 0; i < count.size(); ++i)
    if (count[i] > 0) found.push_back({detail::csv_ignored_actions[i].letters, count[i]});
  return found;
}

ZBPP_INLINE std::int64_t overlapped_pairs_in_csv(std::string_view text) noexcept {
  return std::count(text.begin(), text.end(), '(');
}

}  // namespace zbpp
