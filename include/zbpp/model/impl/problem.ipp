// SPDX-License-Identifier: Apache-2.0
//
// What model/problem.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/detail/cost_sums.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <cstddef>
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

ZBPP_INLINE ticks problem::scaled_time(pass const& p) const noexcept {
  return costs(p.stage, p.microbatch).of(p.kind);
}

ZBPP_INLINE ticks
problem::scaled_pair_time(pass const& forward, pass const& backward) const noexcept {
  return zbpp::pair_time(
      costs(forward.stage, forward.microbatch),
      costs(backward.stage, backward.microbatch),
      backward.kind);
}

ZBPP_INLINE ticks
problem::scaled_transfer_time(int from_stage, int to_stage, int microbatch) const noexcept {
  return transfer_(
      placement_.rank_of(from_stage),
      placement_.rank_of(to_stage),
      costs(std::min(from_stage, to_stage)).edge,
      factors_[detail::index(microbatch)]);
}

ZBPP_INLINE void problem::check() const {
  detail::check_microbatches(placement_, microbatches_);
  if (stages_.size() != detail::index(placement_.stages()))
    throw error(errc::bad_argument) + "costs are given for " + stages_.size() +
        " stages; the placement has " + placement_.stages();
  for (int s = 0; s < stages(); ++s) costs(s).check(s);
  if (transfer_.ranks() != 0 && transfer_.ranks() != ranks())
    throw error(errc::bad_argument) + "transfer: the table is for " + transfer_.ranks() +
        " ranks; the placement has " + ranks();
  if (memory_limits_.size() > 1 && memory_limits_.size() != detail::index(ranks()))
    throw error(errc::bad_argument) + "memory_limit has " + memory_limits_.size() +
        " entries; give 1 or " + ranks();
  auto const tied = tied_stages();
  for (int s : tied)
    if (costs(s).tied != costs(tied.front()).tied)
      throw error(errc::bad_argument, {.stage = s}) + "tied is " + costs(s).tied + "; stage " +
          tied.front() + " has the same weights, so give both the same size, not " +
          costs(tied.front()).tied;
  for (auto limit : memory_limits_)
    if (limit < 0)
      throw error(errc::bad_argument) + "memory_limit is " + limit +
          "; a limit is at least 0 bytes";
  replicas_.check();
  check_factors();
  check_sums();
}

ZBPP_INLINE void problem::check_factors() const {
  if (factors_.empty()) return;
  if (factors_.size() != detail::index(microbatches_))
    throw error(errc::bad_argument) + "there are " + factors_.size() + " microbatch factors for " +
        microbatches_ + " microbatches; give one for each, or none";
  for (std::size_t m = 0; m < factors_.size(); ++m) {
    constexpr double most = 1e6;
    if (!(factors_[m] > 0 && factors_[m] <= most))
      throw error(errc::bad_argument, {.microbatch = static_cast<int>(m)}) +
          "the microbatch factor is " + factors_[m] + "; a factor is above 0 and at most 10^6";
  }
}

ZBPP_INLINE void problem::check_sums() const {
  detail::cost_sums sums;
  auto const tied = tied_stages();
  for (int s = 0; s < stages(); ++s) {
    auto const& c = costs(s);
    sums.add(c);
    if (s > 0) {
      auto const add_hop = [&](int from, int to) {
        auto const rounded_off = factors_.empty() ? 0 : 1;
        sums.add_time(
            transfer_(placement_.rank_of(from), placement_.rank_of(to), costs(s - 1).edge) +
            rounded_off);
      };
      add_hop(s - 1, s);
      add_hop(s, s - 1);
    }
    if (c.tied > 0)
      for (int other : tied)
        if (other != s)
          sums.add_time(transfer_(placement_.rank_of(s), placement_.rank_of(other), c.tied));
    sums.add_time(reduction_time(s));
    sums.add_time(gather_time(s));
    sums.add_memory(c.edge, 4);
    sums.add_memory(c.workspace);
  }
  // A time that is multiplied and rounded is no more than the sum of both.
  long double all = microbatches_;
  for (auto const factor : factors_) all += factor;
  if (sums.greatest() * all > detail::cost_sums::most)
    throw error(errc::bad_argument) +
        "times or sizes add up to more than 2^62 over a step; use a coarser unit";
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

ZBPP_INLINE problem with_stages(problem changed, std::vector<stage_costs> stages) {
  changed.stages_ = std::move(stages);
  changed.check();
  return changed;
}

ZBPP_INLINE problem with_memory_limits(problem changed, std::vector<bytes> limits) {
  changed.memory_limits_ = std::move(limits);
  changed.check();
  return changed;
}

ZBPP_INLINE problem with_memory_limit(problem changed, bytes limit) {
  return with_memory_limits(std::move(changed), {limit});
}

ZBPP_INLINE problem with_microbatches(problem changed, int microbatches) {
  if (!changed.factors_.empty() && microbatches != changed.microbatches_)
    throw error(errc::bad_argument) + "the " + changed.microbatches_ +
        " microbatches have a factor each, which says nothing of " + microbatches +
        "; take the factors away first, and give those of the others";
  changed.microbatches_ = microbatches;
  changed.check();
  return changed;
}

ZBPP_INLINE problem with_transfer(problem changed, transfer_costs transfer) {
  changed.transfer_ = std::move(transfer);
  changed.check();
  return changed;
}

ZBPP_INLINE problem with_replicas(problem changed, replica_costs replicas) {
  changed.replicas_ = replicas;
  changed.check();
  return changed;
}

ZBPP_INLINE problem with_microbatch_factors(problem changed, std::vector<double> factors) {
  changed.factors_ = std::move(factors);
  changed.check();
  if (std::ranges::all_of(changed.factors_, [](double factor) { return factor == 1; }))
    changed.factors_.clear();
  return changed;
}

}  // namespace zbpp
