// SPDX-License-Identifier: Apache-2.0
//
// What model/program.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE std::string to_string(instruction const& i) {
  auto text = std::to_string(i.stage).append(to_string(i.kind));
  if (i.has_microbatch()) text += std::to_string(i.microbatch);
  return text;
}

ZBPP_INLINE program::program(
    zbpp::placement placement,
    int microbatches,
    rows<instruction> instructions,
    std::vector<channel> channels)
    : placement_(std::move(placement)),
      microbatches_(microbatches),
      instructions_(std::move(instructions)),
      channels_(std::move(channels)) {
  detail::check_microbatches(placement_, microbatches_);
  if (instructions_.ranks() != ranks())
    throw error(errc::bad_argument) + "the program has " + instructions_.ranks() +
        " rows; its placement has " + ranks() + " ranks";
}

ZBPP_INLINE bool agrees_on_steps(program const& program) {
  for (auto const& i : program.instructions().all())
    if (i.is_of_rank()) return true;
  return false;
}

ZBPP_INLINE bool exchanges_states(program const& program) {
  for (auto const& i : program.instructions().all())
    if (i.is_of_rank() || i.is_of_tied()) return true;
  return false;
}

ZBPP_INLINE bool reduces_gradients(program const& program) {
  for (auto const& i : program.instructions().all())
    if (i.is_of_reduction()) return true;
  return false;
}

ZBPP_INLINE bool shards_optimizer(program const& program) {
  for (auto const& i : program.instructions().all())
    if (i.kind == instruction_kind::gather_weights) return true;
  return false;
}

ZBPP_INLINE std::vector<int> tied_stages(program const& program) {
  std::vector<int> stages;
  for (auto const& i : program.instructions().all())
    if (i.kind == instruction_kind::send_tied) stages.push_back(i.stage);
  std::sort(stages.begin(), stages.end());
  return stages;
}

ZBPP_INLINE bool validates_step_before(program const& program, int rank) {
  for (auto const& i : program.instructions(rank))
    if (i.is_of_rank()) return i.kind == instruction_kind::validate;
  return false;
}

// The last rank judges: where it need not wait for others, the ranks before may go on all the same.
ZBPP_INLINE bool validates_step_before(program const& program) {
  return validates_step_before(program, program.ranks() - 1);
}

ZBPP_INLINE std::vector<bool> steps_at_once(program const& program) {
  std::vector<bool> stages(detail::index(program.stages()), false);
  for (auto const& i : program.instructions().all())
    if (i.kind == instruction_kind::immediate_step) stages[detail::index(i.stage)] = true;
  return stages;
}

}  // namespace zbpp
