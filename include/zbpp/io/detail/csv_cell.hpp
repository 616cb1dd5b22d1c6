// SPDX-License-Identifier: Apache-2.0
//
// The cells of CSV files: the letters of each kind of instruction, and the actions of PyTorch's
// runtime that are none here.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zbpp::detail {

/// What stands behind the passes of a pair.
inline constexpr std::string_view csv_pair_name = "OVERLAP_F_B";

/// The letters of each kind of instruction, in the order of `instruction_kind`.
inline constexpr std::array<std::string_view, instruction_kinds> csv_letters{
    "F",
    "I",
    "W",
    "B",
    "R",
    "SEND_F",
    "RECV_F",
    "SEND_B",
    "RECV_B",
    "STEP",
    "NORM",
    "VALIDATE",
    "SEND_T",
    "ADD_T"};

/// An action of PyTorch's runtime that says nothing to a program. Those about one microbatch follow
/// a send.
struct csv_outside_action {
  std::string_view letters;
  instruction_kind like;  ///< the kind that it is as to ids: a send, or an optimizer step
};

/// Sharded weights are gathered and let go, gradients reduced among replicas, and sends waited for.
inline constexpr std::array<csv_outside_action, 6> csv_outside_actions{
    {{"UNSHARD", instruction_kind::optimizer_step},
     {"RESHARD", instruction_kind::optimizer_step},
     {"REDUCE_GRAD", instruction_kind::optimizer_step},
     {"WAIT_REDUCE_GRAD", instruction_kind::optimizer_step},
     {"WAIT_SEND_F", instruction_kind::send_activation},
     {"WAIT_SEND_B", instruction_kind::send_gradient}}};

/// Writes one cell.
/// @throws error (bad_argument) when there is no such kind of instruction
inline void add_cell(std::string& text, instruction const& i) {
  if (static_cast<std::size_t>(i.kind) >= csv_letters.size())
    throw error(errc::bad_argument, to_string(i) + ": there is no such instruction");
  text += std::to_string(i.stage);
  text += csv_letters[static_cast<std::size_t>(i.kind)];
  if (i.has_microbatch()) text += std::to_string(i.microbatch);
}

/// One cell to write: an instruction, or else a text.
struct csv_part {
  instruction what;
  std::string text = {};
};

/// One cell as it was read.
struct csv_cell {
  instruction what;           // of an outside action, with the kind that it is like
  std::int32_t outside = -1;  // which outside action it is
  std::int64_t column = 0;

  [[nodiscard]] bool is_outside() const noexcept { return outside >= 0; }
};

/// Writes a cell that was read as it stands in its file.
[[nodiscard]] inline std::string to_string(csv_cell const& c) {
  std::string text;
  if (!c.is_outside()) {
    add_cell(text, c.what);
    return text;
  }
  text = std::to_string(c.what.stage);
  text += csv_outside_actions[index(c.outside)].letters;
  if (c.what.has_microbatch()) text += std::to_string(c.what.microbatch);
  return text;
}

}  // namespace zbpp::detail
