// SPDX-License-Identifier: Apache-2.0
//
// How cells are written, and what is made of those that were read.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/detail/csv_cell.hpp>
#include <zbpp/io/detail/csv_pytorch.hpp>
#include <zbpp/io/detail/csv_reader.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Throws what `verify` finds on PyTorch's queues; the order of W is a remark and may be any.
/// @throws error (refused_program) with the first fault
ZBPP_INLINE void require_right_for_pytorch(program const& code) {
  for (auto const& found : verify(code, channel_layout::one_per_rank))
    if (!is_remark(found.fault))
      throw error(
          errc::refused_program,
          "PyTorch's runtime could not run the program, " + to_string(found) +
              "; lower the schedule with .layout = channel_layout::one_per_rank",
          found.location);
}

/// @return whether an F and what stands right behind it are written as a pair
[[nodiscard]] ZBPP_INLINE bool are_overlapped(
    csv_part const& first, csv_part const& second, csv_options options) noexcept {
  auto const& f = first.what;
  auto const& b = second.what;
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
      add_cell(text += '(', part.what);
      add_cell(text += ';', at(++i).what);
      text.append(")").append(csv_pair_name);
    } else if (part.what.is_paired) {
      throw error(errc::bad_argument, to_string(part.what) + ": " + std::string(pair_rule));
    } else {
      add_cell(text, part.what);
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
    std::optional<placement> const& where,
    std::optional<int> microbatches,
    csv_pairs pairs) {
  detail::csv_reader reader(text, true, pairs);
  auto const [stages, count] = reader.shape(where, microbatches);
  return {stages, count, reader.passes()};
}

ZBPP_INLINE program program_from_csv(
    std::string_view text,
    std::optional<placement> const& where,
    std::optional<int> microbatches,
    csv_pairs pairs) {
  detail::csv_reader reader(text, false, pairs);
  auto const [stages, count] = reader.shape(where, microbatches);
  program const program{stages, count, reader.instructions(), {}};
  auto channels = traffic(program).channels();
  return {program.placement(), program.microbatches(), program.instructions(), std::move(channels)};
}

ZBPP_INLINE program complete_program_from_csv(std::string_view text, problem const* problem) {
  std::optional<placement> where;
  std::optional<int> microbatches;
  auto pairs = csv_pairs::in_turn;
  if (problem != nullptr) {
    where = problem->placement();
    microbatches = problem->microbatches();
    pairs = pairs_for(*problem);
  }
  auto code = program_from_csv(text, where, microbatches, pairs);
  bool const is_schedule = std::ranges::all_of(code.instructions().all(), &instruction::is_pass);
  return is_schedule ? lower(passes_of(code), {.step = step_kind::none}) : code;
}

ZBPP_INLINE csv_pairs pairs_for(problem const& problem) noexcept {
  return problem.gains_by_pairing() ? csv_pairs::together : csv_pairs::in_turn;
}

ZBPP_INLINE std::vector<ignored_action> ignored_actions_in_csv(std::string_view text) {
  std::vector<ignored_action> found;
  auto const count = detail::csv_reader(text, false).outside_actions();
  for (std::size_t i = 0; i < count.size(); ++i)
    if (count[i] > 0) found.push_back({detail::csv_outside_actions[i].letters, count[i]});
  return found;
}

ZBPP_INLINE std::int64_t overlapped_pairs_in_csv(std::string_view text) noexcept {
  return std::count(text.begin(), text.end(), '(');
}

}  // namespace zbpp
