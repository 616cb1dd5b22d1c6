// SPDX-License-Identifier: Apache-2.0
//
// What an evaluation runs and what it holds: the forward passes of a program alone, how many
// messages each rank keeps, and how much memory that takes.
#pragma once

#include <zbpp/analysis/memory.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <vector>

namespace zbpp {

/// Gives the forward passes of a verified program, in its order, with their transfers.
[[nodiscard]] program forward_only(program const& program);

/// Says how many messages of a channel a rank may hold in an evaluation before it waits with its
/// next send: the fewest, from 2 on, with which no ranks ever wait for each other in a cycle.
///
/// It is 2 where each rank has one stage and all have the microbatches in one order. Where ranks
/// have several stages and run all forward passes of one before those of the next, it grows with
/// the number of microbatches: the messages have to be somewhere.
/// @param forwards  what `forward_only` gives
[[nodiscard]] int evaluation_depth(program const& forwards);

/// Says the greatest memory use of each rank in an evaluation of a verified program. Receivers
/// acknowledge what they consume, as on `threads`, under `virtual_time` and over TCP.
///
/// A pass keeps the activations of its stage until it ends. Messages count as in `peak_memory`, on
/// their sender until the send before which their receiver has to have consumed them. What the last
/// stage sends is not counted.
/// @throws error (bad_argument) when program and problem differ in placement or microbatches
[[nodiscard]] std::vector<memory_peak> peak_evaluation_memory(
    program const& program, problem const& problem);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/evaluation.ipp>
#endif
