// SPDX-License-Identifier: Apache-2.0
//
// Proves that a program may run: every pass once, every dependence kept, both ends of every channel
// in one order, no deadlock even if every send waits for its receive, memory within its limits.
// What is wrong comes back as a list, each fault with its rank, position and instruction.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>

#include <span>
#include <vector>

namespace zbpp {

/// Proves that the instructions of a program may run on channels laid out as `layout`: ids in
/// range, every pass and message exactly once, every dependence kept, both ends of every channel in
/// one order, pairs of an F and a B or BW of another microbatch, channels as deep as stated, and
/// freedom from deadlock when a send completes only together with its receive. Where ranks agree
/// before optimizer steps, also that each does so at its place, and that what runs before the
/// validation of the step before can be run again: only F, and no message that is sent before and
/// received after, or the reverse; and where only the first ranks validate the step before, that
/// all of their stages step at once. If all of that holds, also that W of each stage ascends in
/// microbatch, which makes gradients those of a plain loop to the bit; `is_remark` tells that fault
/// from the others, which make a program wrong.
/// @return the faults, about a thousand at most; empty without any. Throws for no bad program
/// @complexity O(instructions + stages * microbatches)
[[nodiscard]] std::vector<diagnostic> verify(
    program const& program, channel_layout layout = channel_layout::one_per_directed_pair);

/// Proves the same, and that every rank stays within its memory limit: activations, edge slots and
/// messages in flight included.
/// @param devices  of one process, by rank, as for `peak_memory`; none: no two ranks share one
/// @return the faults, empty when there is none; never throws on a bad program
/// @throws error (bad_argument) when there are devices, but not one for each rank
[[nodiscard]] std::vector<diagnostic> verify(
    program const& program,
    problem const& limits,
    channel_layout layout = channel_layout::one_per_directed_pair,
    std::span<int const> devices = {});

/// Throws what `verify` finds.
/// @throws error (refused_program) with every fault on a line of its own, at the first one's place
void verify_or_throw(
    program const& program,
    problem const& limits,
    channel_layout layout = channel_layout::one_per_directed_pair,
    std::span<int const> devices = {});

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/verify.ipp>
#endif
