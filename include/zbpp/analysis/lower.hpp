// SPDX-License-Identifier: Apache-2.0
//
// Turns a schedule into a program: sends right after the passes that make what they ship, receives
// before the passes that need them, an optimizer step after the last W. Both ends of every channel
// list its messages in the sender's order; chunks of one rank hand over without a message.
#pragma once

#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

namespace zbpp {

/// Chooses how a schedule becomes a program.
struct lower_options {
  int receive_ahead = 0;        ///< how many passes before its consumer a receive is opened
  bool optimizer_steps = true;  ///< whether each stage steps after its last W
};

/// Puts transfers and optimizer steps in place. It takes any schedule, also one that `verify` will
/// refuse: what is wrong in the order stays wrong in the program, at the same place.
/// @throws error (bad_argument) when receive_ahead is negative
/// @complexity O(passes)
[[nodiscard]] program lower(schedule const& schedule, lower_options options = {});

/// Joins each B that its own W follows at once into one BW, which saves what splitting costs; the
/// gradient then leaves later, so `simulate` says whether it pays.
[[nodiscard]] schedule fuse_backward(schedule const& schedule);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/lower.ipp>
#endif
