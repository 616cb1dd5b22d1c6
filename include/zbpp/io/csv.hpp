// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes schedules and programs as CSV, in the form that PyTorch's pipelining runtime
// uses: one line for each rank, one cell for each action, an empty cell for an idle moment.
//
//   0F0  forward             0I0  gradient of the input (B)    1SEND_F2  1RECV_F2  activation
//   0B0  whole backward (BW) 0W0  gradient of the weights      1SEND_B2  1RECV_B2  gradient
//
// Stage, letters, microbatch. Some kinds have no counterpart there: `0R3` recomputes, and `0STEP`,
// `0STEP_NOW`, `0NORM` and `0VALIDATE`, which have no microbatch, belong to an optimizer step.
// `(0F7;7B3)OVERLAP_F_B` is a pair that runs together. Of what that runtime does besides, nothing
// concerns a program: UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD, WAIT_SEND_F and WAIT_SEND_B
// are left out.
#pragma once

#include <zbpp/io/csv_pairs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

/// Says how a schedule or program is written. Pairs are always written as such.
struct csv_options {
  bool overlap = false;  ///< as a pair `(0F7;7B3)OVERLAP_F_B` each F and the BW right after it of
                         ///< another stage and another microbatch, as DualPipeV pairs them
  /// As PyTorch's runtime takes it. A schedule is its form `compute_only`, a program
  /// `compute_comms`: with what it wants besides, and without steps and tied gradients, which are
  /// the trainer's there. A recompute pass is refused, and so is a program that `verify` refuses
  /// with one channel per rank.
  bool for_pytorch = false;
};

/// Says how often a text has an action that a program does not have.
struct ignored_action {
  std::string_view name;   ///< the letters, such as UNSHARD
  std::int64_t count = 0;  ///< how many cells

  friend bool operator==(ignored_action const&, ignored_action const&) = default;
};

/// Writes a schedule: a line for each rank, a cell for each pass.
/// @throws error (bad_argument) for a pass that PyTorch does not have, where it is written for that
[[nodiscard]] std::string to_csv(schedule const& schedule, csv_options options = {});

/// Writes a program: a line for each rank, a cell for each instruction.
/// @throws error (refused_program or bad_argument) where PyTorch is to run it, and could not
[[nodiscard]] std::string to_csv(program const& program, csv_options options = {});

/// Reads a schedule. Empty cells are skipped, and spaces around a cell. It reads what spreadsheets
/// and editors write: a byte order mark, lines that end in LF, CR LF or CR, empty lines at the end,
/// cells in quotes, and a line such as `sep=;` in front. Commas separate cells; where there is
/// none, semicolons do, or else tabs.
///
/// Without a placement, each stage belongs to the rank in whose line it stands, and without a
/// number of microbatches there are as many as the cells show; unless both are given, the cells
/// have to show as many passes as stages times microbatches. `verify` judges the order.
/// @throws error (bad_format) with line, cell, what was found and what was expected
[[nodiscard]] schedule schedule_from_csv(
    std::string_view text,
    std::optional<placement> const& placement = {},
    std::optional<int> microbatches = {},
    csv_pairs pairs = csv_pairs::in_turn);

/// Reads a program, or a schedule as a program without transfers; otherwise as `schedule_from_csv`.
/// How deep its channels get follows from its order. Actions of PyTorch's runtime that a program
/// does not have are checked and left out; `ignored_actions_in_csv` tells which.
/// @throws error (bad_format) with line, cell, what was found and what was expected
[[nodiscard]] program program_from_csv(
    std::string_view text,
    std::optional<placement> const& placement = {},
    std::optional<int> microbatches = {},
    csv_pairs pairs = csv_pairs::in_turn);

/// Reads a program that can be verified, or a schedule, whose transfers are put in place; for a
/// problem, or as the cells show.
/// @throws error (bad_format) as `program_from_csv`; (refused_program) as `lower`
[[nodiscard]] program complete_program_from_csv(
    std::string_view text, problem const* problem = nullptr);

/// @return how the pairs of an order for a problem are read: together where it says what they take
[[nodiscard]] csv_pairs pairs_for(problem const& problem) noexcept;

/// @return the actions that `program_from_csv` leaves out of a text, each with its number
/// @throws error (bad_format) where a cell is not one, as `program_from_csv` does
[[nodiscard]] std::vector<ignored_action> ignored_actions_in_csv(std::string_view text);

/// @return how many pairs `(0F7;7B3)OVERLAP_F_B` there are in a text that a reader accepts
[[nodiscard]] std::int64_t overlapped_pairs_in_csv(std::string_view text) noexcept;

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/csv.ipp>
#endif
