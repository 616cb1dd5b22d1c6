// SPDX-License-Identifier: Apache-2.0
//
// The handcrafted schedules of a problem: a search begins with their orders of F and B, and is
// never worse than those that fit the memory.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/candidates.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/recompute.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/fixed_zb_v.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// 1F1B with its warm-up cut down to what the memory of every rank allows, in proportion.
[[nodiscard]] inline schedule scaled_one_f_one_b(problem const& problem) {
  auto const p = problem.ranks();
  auto const room = std::min(p, tightest_room(problem));
  return one_chunk(problem, one_f_one_b::title, [&](int rank) {
    auto const depth = (static_cast<std::int64_t>(p - rank) * room + p - 1) / p;
    return one_chunk_rule{.warm_up = static_cast<int>(depth) - 1, .fused = true};
  });
}

/// Makes the handcrafted schedules for the placement of a problem, whatever memory they need.
[[nodiscard]] inline std::vector<schedule> known_orders(problem const& problem) {
  auto const& where = problem.placement();
  std::vector<schedule> orders;
  if (where.is_linear()) {
    orders.push_back(zb_h2{}(problem));
    orders.push_back(zb_h1{}(problem));
    orders.push_back(scaled_one_f_one_b(problem));
  } else if (where.is_v_shape()) {
    orders.push_back(fixed_zb_v{}(problem));
    if (problem.microbatches() >= 2 * problem.ranks()) orders.push_back(dualpipe_v{}(problem));
  } else if (where.is_looped() && problem.microbatches() % problem.ranks() == 0) {
    orders.push_back(interleaved{}(problem));
  }
  for (auto& order : orders) order = insert_recompute(std::move(order), problem);
  return orders;
}

/// Makes what the handcrafted policies of the registry make for the placement of a problem, with R
/// in no stage and, where some may recompute, with R in all of them.
[[nodiscard]] inline std::vector<schedule> handcrafted_orders(problem const& problem) {
  auto const& where = problem.placement();
  std::vector<schedule> orders;
  if (where.is_linear()) {
    orders.push_back(zb_h2{}(problem));
    orders.push_back(zb_h1{}(problem));
    orders.push_back(one_f_one_b{}(problem));
    orders.push_back(gpipe{}(problem));
    orders.push_back(scaled_one_f_one_b(problem));
  }
  if (where.is_v_shape()) {
    orders.push_back(fixed_zb_v{}(problem));
    if (problem.microbatches() >= 2 * problem.ranks()) orders.push_back(dualpipe_v{}(problem));
  }
  if (where.is_looped() && problem.microbatches() % problem.ranks() == 0)
    orders.push_back(interleaved{}(problem));
  bool const may_recompute = std::ranges::any_of(
      problem.all_costs(), [](stage_costs const& c) { return c.recompute.has_value(); });
  if (may_recompute)
    for (auto& order : known_orders(problem)) orders.push_back(std::move(order));
  return orders;
}

/// Lists orders of F and B to begin a search with.
[[nodiscard]] inline std::vector<std::vector<std::vector<step_code>>> seeds_of(
    std::vector<schedule> const& known) {
  std::vector<std::vector<std::vector<step_code>>> seeds;
  for (auto const& order : known) seeds.push_back(steps_of(order));
  return seeds;
}

}  // namespace zbpp::detail
