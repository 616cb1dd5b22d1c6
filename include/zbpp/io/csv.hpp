// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes schedules and programs as CSV, in the form that PyTorch's pipelining runtime
// uses: one line for each rank, one cell for each action, an empty cell for a moment that is idle
// on purpose.
//
//   0F0  forward             0I0  gradient of the input (B)    1SEND_F2  1RECV_F2  activation
//   0B0  whole backward (BW) 0W0  gradient of the weights      1SEND_B2  1RECV_B2  gradient
//
// Stage, letters, microbatch. Two kinds have no counterpart there: `0R3` recomputes, and `0STEP`,
// which has no microbatch, is an optimizer step. `(0F7;7B3)OVERLAP_F_B` is a pair that runs at the
// same time there; here its passes run one after the other, in the order written.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/io/csv_reader.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace zbpp {

/// Says how a schedule or program is written.
struct csv_options {
  bool overlap = false;  ///< as a pair `(0F7;7B3)OVERLAP_F_B` each F and the BW right behind it of
                         ///< another stage and another microbatch, as DualPipeV pairs them
};

/// Writes a schedule: a line for each rank, a cell for each pass.
[[nodiscard]] std::string to_csv(schedule const& order, csv_options options = {});

/// Writes a program: a line for each rank, a cell for each instruction.
[[nodiscard]] std::string to_csv(program const& code, csv_options options = {});

/// Reads a schedule. Empty cells are skipped, and spaces around a cell. The passes of a pair
/// `(0F7;7B3)OVERLAP_F_B` follow one another as written.
///
/// Without a placement, each stage belongs to the rank in whose line it stands, and without a
/// number of microbatches there are as many as the cells show; unless both are given, the cells
/// have to show as many passes as stages times microbatches. It accepts any order: `verify` judges
/// it.
/// @throws error (bad_format) with line, cell, what was found and what would be right
[[nodiscard]] schedule schedule_from_csv(
    std::string_view text,
    std::optional<placement> const& where = {},
    std::optional<int> microbatches = {});

/// Reads a program, or a schedule as a program without transfers; otherwise as `schedule_from_csv`.
/// How deep its channels get follows from its order.
/// @throws error (bad_format) with line, cell, what was found and what would be right
[[nodiscard]] program program_from_csv(
    std::string_view text,
    std::optional<placement> const& where = {},
    std::optional<int> microbatches = {});

/// @return how many pairs `(0F7;7B3)OVERLAP_F_B` there are in a text that a reader accepts
[[nodiscard]] inline std::int64_t overlapped_pairs_in_csv(std::string_view text) noexcept {
  return std::count(text.begin(), text.end(), '(');
}

namespace detail {

/// @return whether an F and what stands right behind it are written as a pair
[[nodiscard]] inline bool are_overlapped(instruction const& f, instruction const& b) noexcept {
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

inline std::string to_csv(schedule const& order, csv_options options) {
  std::string text;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    auto const passes = order.passes(rank);
    detail::add_line(
        text, passes.size(), options, [&](std::size_t i) { return to_instruction(passes[i]); });
  }
  return text;
}

inline std::string to_csv(program const& code, csv_options options) {
  std::string text;
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    detail::add_line(text, row.size(), options, [&](std::size_t i) { return row[i]; });
  }
  return text;
}

inline schedule schedule_from_csv(
    std::string_view text, std::optional<placement> const& where, std::optional<int> microbatches) {
  detail::csv_reader const reader(text, true);
  auto const [stages, count] = reader.shape(where, microbatches);
  return {stages, count, reader.passes()};
}

inline program program_from_csv(
    std::string_view text, std::optional<placement> const& where, std::optional<int> microbatches) {
  detail::csv_reader const reader(text, false);
  auto const [stages, count] = reader.shape(where, microbatches);
  program const code{stages, count, reader.instructions(), {}};
  auto channels = traffic(code).channels();
  return {code.placement(), code.microbatches(), code.instructions(), std::move(channels)};
}

}  // namespace zbpp
