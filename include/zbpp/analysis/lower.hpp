// SPDX-License-Identifier: Apache-2.0
//
// Turns a schedule into a program: sends right after the passes that make what they ship, receives
// before the passes that need them, optimizer steps and what ranks agree on before them. Both ends
// of every channel list its messages in the sender's order; chunks of one rank hand over without a
// message. Gradients of tied weights are exchanged after the last pass of each rank.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstdint>
#include <vector>

namespace zbpp {

/// Says when stages step, and what ranks agree on before.
enum class step_kind : std::uint8_t {
  none,       ///< no stage steps
  unchecked,  ///< each stage steps after its last W; ranks agree on nothing
  /// All ranks learn the norm of all gradients, then step: no rank begins the next step before.
  /// `lower_options::at_once` excepts stages.
  synchronous,
  /// Each rank steps as soon as it knows the gradients of the ranks before it, and begins the next
  /// step. Ahead of the first pass there that could not be undone it validates: the norm of all
  /// gradients is known by then. If it asks for another step, all ranks go back and take that one.
  /// Gives the same bits as `synchronous`.
  post_validated,
};

/// Chooses how a schedule becomes a program.
struct lower_options {
  int receive_ahead = 0;  ///< how many passes before its consumer a receive is opened
  step_kind step = step_kind::unchecked;  ///< when stages step
  /// Stages with tied weights, whose gradients are summed before they step; a plan takes those of
  /// its problem. None is tied with `step_kind::none`.
  std::vector<int> tied = {};
  /// Stages that step at once, as soon as their rank has looked at its gradients, while the others
  /// wait for the norm; only with `step_kind::synchronous`. Such a stage takes its gradients
  /// unclipped, and skips the step by itself if one of them is not finite. A rank that has no other
  /// stages, and no rank with others before it, also begins the next step at once; the last rank,
  /// which knows the norm first, never does.
  std::vector<int> at_once = {};
  /// Whether the gradients of each stage are added up over replicas: begun after its last W or BW,
  /// and waited for after the last pass of its rank. A plan does where its problem has replicas.
  /// None are with `step_kind::none`.
  bool reduces = false;
  /// Whether each replica steps a share of each stage, and then gives its weights to the others;
  /// with `reduces`, and not with `step_kind::post_validated`, whose steps may be taken back. A
  /// plan does where its problem says so.
  bool shards_optimizer = false;
  /// Which transfers share one queue. Where those of several directed pairs do, all
  /// transfers stand in one order that all ranks agree on: each receive where its rank is when the
  /// sender sends, if every pass took the same time. A receive takes its slot from there on, so a
  /// rank may need the memory of some more messages; `verify` says where that exceeds a limit.
  channel_layout layout = channel_layout::one_per_directed_pair;
};

/// Puts transfers and optimizer steps in place. It takes any schedule, also one that `verify` will
/// refuse: what is wrong in the order stays wrong in the program, at the same place.
/// @throws error (bad_argument) when receive_ahead is negative, or not 0 with another layout than
///         one channel for each directed pair, or what is tied or at once is not stages in
///         ascending order, or a stage is at once that is tied, or without synchronous steps, or an
///         optimizer is sharded without replicas or with steps that are validated afterwards
/// @complexity O(passes), for `post_validated` and other layouts O(ranks * passes) at worst
[[nodiscard]] program lower(schedule const& schedule, lower_options options = {});

/// @return the passes of a program in its order, which `lower` makes a program of
/// @throws error (bad_argument) for a pair that no schedule may have
[[nodiscard]] schedule passes_of(program const& program);

/// Finds how many passes of each rank may run before it validates the step before: the most F from
/// the beginning of its row whose input, where it is a message, is sent by one of those passes of
/// another rank. Run again from the beginning, they meet no message of the first time.
/// @complexity O(ranks * passes) at worst, O(passes) for the orders of known policies
[[nodiscard]] std::vector<std::int32_t> passes_before_validation(schedule const& schedule);

/// Joins each B that its own W follows at once into one BW, which saves what splitting costs; the
/// gradient then leaves later, so `simulate` says whether it pays.
[[nodiscard]] schedule fuse_backward(schedule const& schedule);
/// Splits each BW into B and the W after it, so that both can be measured.
/// @throws error (bad_argument) when a BW is part of a pair
[[nodiscard]] schedule split_backward(schedule const& schedule);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/lower.ipp>
#endif
