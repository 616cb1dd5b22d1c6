// SPDX-License-Identifier: Apache-2.0
//
// Correct programs that are small enough to be spoilt in every way, and to have every state that
// they can reach visited.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/planner/registry.hpp>

#include <support/instructions.hpp>
#include <support/policy_grid.hpp>

#include <string>
#include <vector>

namespace zbpp::test {

/// Holds a program and what it is.
struct small_program {
  std::string name;
  program code;
};

/// One program of each policy, and some whose rows are written out: with R, on a placement of no
/// policy, with passes out of the order of their messages, and without optimizer steps.
[[nodiscard]] inline std::vector<small_program> small_programs() {
  auto const of = [](auto decide, placement const& placement, int m) {
    return decide(problem(placement, m, uneven_costs()));
  };
  auto const p1 = placement::linear(1);
  auto const p2 = placement::linear(2);
  auto const p3 = placement::linear(3);
  auto const round_trip = placement::custom({0, 1, 0});
  return {
      {"ZB-H1 on 1 rank", lower(of(zb_h1{}, p1, 2))},
      {"GPipe, p = 2, m = 2", lower(of(gpipe{}, p2, 2))},
      {"1F1B, p = 2, m = 3", lower(of(one_f_one_b{}, p2, 3))},
      {"ZB-H1, p = 2, m = 3", lower(of(zb_h1{}, p2, 3))},
      {"ZB-H2, p = 2, m = 3, receives ahead", lower(of(zb_h2{}, p2, 3), {.receive_ahead = 2})},
      {"ZB-H1, p = 3, m = 2", lower(of(zb_h1{}, p3, 2))},
      {"1F1B-I, p = 2, v = 2, m = 2", lower(of(interleaved{}, placement::looped(2, 2), 2))},
      {"ZB-V, p = 2, m = 2", lower(of(zb_v{}, placement::v_shape(2), 2))},
      {"1F1B-I, p = 3, v = 2, one microbatch",
       lower(schedule(
           placement::looped(3, 2),
           1,
           passes({"0F0 3F0 3BW0 0BW0", "1F0 4F0 4BW0 1BW0", "2F0 5F0 5BW0 2BW0"})))},
      {"ZB-H1, p = 3, m = 2, synchronous",
       lower(of(zb_h1{}, p3, 2), {.step = step_kind::synchronous})},
      {"ZB-H1, p = 3, m = 2, first stages at once",
       lower(of(zb_h1{}, p3, 2), {.step = step_kind::synchronous, .at_once = {0, 1}})},
      {"1F1B, p = 2, m = 2, last stage at once",
       lower(of(one_f_one_b{}, p2, 2), {.step = step_kind::synchronous, .at_once = {1}})},
      {"ZB-H1, p = 3, m = 3, validated afterwards",
       lower(of(zb_h1{}, p3, 3), {.step = step_kind::post_validated})},
      {"ZB-V, p = 2, m = 2, validated afterwards",
       lower(of(zb_v{}, placement::v_shape(2), 2), {.step = step_kind::post_validated})},
      {"GPipe on 1 rank, validated afterwards",
       lower(of(gpipe{}, p1, 2), {.step = step_kind::post_validated})},
      {"1F1B, p = 2, m = 2, tied, validated afterwards",
       lower(of(one_f_one_b{}, p2, 2), {.step = step_kind::post_validated, .tied = {0, 1}})},
      {"ZB-V, p = 2, m = 1, tied",
       lower(of(zb_v{}, placement::v_shape(2), 1), {.tied = {0, 1, 3}})},
      {"ZB-H1, p = 2, m = 2, replicas", lower(of(zb_h1{}, p2, 2), {.reduces = true})},
      {"1F1B, p = 2, m = 2, replicas that share steps, synchronous",
       lower(
           of(one_f_one_b{}, p2, 2),
           {.step = step_kind::synchronous, .reduces = true, .shards_optimizer = true})},
      {"ZB-V, p = 2, m = 1, tied, replicas, validated afterwards",
       lower(
           of(zb_v{}, placement::v_shape(2), 1),
           {.step = step_kind::post_validated, .tied = {0, 3}, .reduces = true})},
      {"1F1B with R", lower(with_recompute(of(one_f_one_b{}, p2, 2)))},
      {"there and back, fused by half",
       lower(schedule(
           round_trip,
           2,
           passes({"0F0 0F1 2F0 2B0 2F1 2B1 0B0 2W0 0W0 0BW1 2W1", "1F0 1F1 1BW0 1B1 1W1"})))},
      {"messages out of order",
       lower(
           schedule(p2, 2, passes({"0F0 0F1 0BW0 0BW1", "1F1 1F0 1B1 1B0 1W0 1W1"})),
           {.step = zbpp::step_kind::none})},
  };
}

}  // namespace zbpp::test
