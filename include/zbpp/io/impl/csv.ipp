// SPDX-License-Identifier: Apache-2.0
//
// How cells are written, and what is made of those that were read.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/detail/csv_reader.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace zbpp {

namespace detail {

/// @return whether an F and what stands right behind it are written as a pair
[[nodiscard]] ZBPP_INLINE bool are_overlapped(instruction const& f, instruction const& b) noexcept {
  return f.kind == instruction_kind::forward && b.kind == instruction_kind::backward &&
         f.stage != b.stage && f.microbatch != b.microbatch;
}

/// Writes a line of cells; `at(i)` is the instruction of the i-th of `count`.
template <class At>
void add_line(std::string& text, std::size_t count, csv_options options, At at) {
  auto const* comma = "";
  for (std::size_t i = 0; i < count; ++i) {
    instruction const what = at(i);
    text += comma;
    comma = ",";
    if (options.overlap && i + 1 < count && are_overlapped(what, at(i + 1))) {
      add_cell(text += '(', what);
      add_cell(text += ';', at(++i));
      text.append(")").append(csv_pair_name);
    } else {
      add_cell(text, what);
    }
  }
  text += '\n';
}

}  // namespace detail

ZBPP_INLINE std::string to_csv(schedule const& schedule, csv_options options) {
  std::string text;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    auto const passes = schedule.passes(rank);
    detail::add_line(
        text, passes.size(), options, [&](std::size_t i) { return to_instruction(passes[i]); });
  }
  return text;
}

ZBPP_INLINE std::string to_csv(program const& program, csv_options options) {
  std::string text;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    auto const row = program.instructions(rank);
    detail::add_line(text, row.size(), options, [&](std::size_t i) { return row[i]; });
  }
  return text;
}

ZBPP_INLINE schedule schedule_from_csv(
    std::string_view text, std::optional<placement> const& where, std::optional<int> microbatches) {
  detail::csv_reader const reader(text, true);
  auto const [stages, count] = reader.shape(where, microbatches);
  return {stages, count, reader.passes()};
}

ZBPP_INLINE program program_from_csv(
    std::string_view text, std::optional<placement> const& where, std::optional<int> microbatches) {
  detail::csv_reader const reader(text, false);
  auto const [stages, count] = reader.shape(where, microbatches);
  program const program{stages, count, reader.instructions(), {}};
  auto channels = traffic(program).channels();
  return {program.placement(), program.microbatches(), program.instructions(), std::move(channels)};
}

ZBPP_INLINE std::int64_t overlapped_pairs_in_csv(std::string_view text) noexcept {
  return std::count(text.begin(), text.end(), '(');
}

}  // namespace zbpp
