// SPDX-License-Identifier: Apache-2.0
//
// What model/problem.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/detail/cost_sums.hpp>
#include <zbpp/model/problem.hpp>

#include <string>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE problem::problem(
    zbpp::placement const& placement,
    int microbatches,
    stage_costs every_stage,
    transfer_costs transfer,
    std::vector<bytes> memory_limits)
    : problem(
          placement,
          microbatches,
          std::vector<stage_costs>(detail::index(placement.stages()), every_stage),
          std::move(transfer),
          std::move(memory_limits)) {}

ZBPP_INLINE problem::problem(
    zbpp::placement placement,
    int microbatches,
    std::vector<stage_costs> stages,
    transfer_costs transfer,
    std::vector<bytes> memory_limits)
    : placement_(std::move(placement)),
      microbatches_(microbatches),
      stages_(std::move(stages)),
      transfer_(std::move(transfer)),
      memory_limits_(std::move(memory_limits)) {
  check();
}

ZBPP_INLINE void problem::check() const {
  detail::check_microbatches(placement_, microbatches_);
  if (stages_.size() != detail::index(placement_.stages()))
    throw error(
        errc::bad_argument,
        "costs are given for " + std::to_string(stages_.size()) + " stages; the placement has " +
            std::to_string(placement_.stages()));
  for (int s = 0; s < stages(); ++s) costs(s).check(s);
  if (transfer_.ranks() != 0 && transfer_.ranks() != ranks())
    throw error(
        errc::bad_argument,
        "transfer: the table is for " + std::to_string(transfer_.ranks()) +
            " ranks; the placement has " + std::to_string(ranks()));
  if (memory_limits_.size() > 1 && memory_limits_.size() != detail::index(ranks()))
    throw error(
        errc::bad_argument,
        "memory_limit has " + std::to_string(memory_limits_.size()) + " entries; give 1 or " +
            std::to_string(ranks()));
  auto const tied = tied_stages();
  for (int s : tied)
    if (costs(s).tied != costs(tied.front()).tied)
      throw error(
          errc::bad_argument,
          "tied is " + std::to_string(costs(s).tied) + "; stage " + std::to_string(tied.front()) +
              " has the same weights, so give both the same size, not " +
              std::to_string(costs(tied.front()).tied),
          {.stage = s});
  for (auto limit : memory_limits_)
    if (limit < 0)
      throw error(
          errc::bad_argument,
          "memory_limit is " + std::to_string(limit) + "; a limit is at least 0 bytes");
  check_sums();
}

ZBPP_INLINE void problem::check_sums() const {
  detail::cost_sums sums;
  auto const tied = tied_stages();
  for (int s = 0; s < stages(); ++s) {
    auto const& c = costs(s);
    sums.add(c);
    if (s > 0) {
      sums.add_time(transfer_time(s - 1, s));
      sums.add_time(transfer_time(s, s - 1));
    }
    if (c.tied > 0)
      for (int other : tied)
        if (other != s)
          sums.add_time(transfer_(placement_.rank_of(s), placement_.rank_of(other), c.tied));
    sums.add_memory(c.edge, 4);
    sums.add_memory(c.workspace);
  }
  if (sums.greatest() * microbatches_ > detail::cost_sums::most)
    throw error(
        errc::bad_argument,
        "times or sizes add up to more than 2^62 over a step; use a coarser unit");
}

ZBPP_INLINE std::vector<int> problem::tied_stages() const {
  std::vector<int> tied;
  for (int s = 0; s < stages(); ++s)
    if (costs(s).tied > 0) tied.push_back(s);
  return tied;
}

ZBPP_INLINE bool problem::gains_by_pairing() const noexcept {
  for (auto const& c : stages_)
    if (c.most_saved_by_pairing() > 0) return true;
  return false;
}

ZBPP_INLINE bytes problem::tied_size() const noexcept {
  bytes size = 0;
  for (auto const& costs : stages_) size = std::max(size, costs.tied);
  return size;
}

ZBPP_INLINE problem with_memory_limits(problem const& problem, std::vector<bytes> limits) {
  return {
      problem.placement(),
      problem.microbatches(),
      {problem.all_costs().begin(), problem.all_costs().end()},
      problem.transfer(),
      std::move(limits)};
}

ZBPP_INLINE problem with_memory_limit(problem const& problem, bytes limit) {
  return with_memory_limits(problem, {limit});
}

ZBPP_INLINE problem with_microbatches(problem const& problem, int microbatches) {
  return {
      problem.placement(),
      microbatches,
      {problem.all_costs().begin(), problem.all_costs().end()},
      problem.transfer(),
      {problem.memory_limits().begin(), problem.memory_limits().end()}};
}

ZBPP_INLINE problem with_transfer(problem const& problem, transfer_costs transfer) {
  return {
      problem.placement(),
      problem.microbatches(),
      {problem.all_costs().begin(), problem.all_costs().end()},
      std::move(transfer),
      {problem.memory_limits().begin(), problem.memory_limits().end()}};
}

}  // namespace zbpp
