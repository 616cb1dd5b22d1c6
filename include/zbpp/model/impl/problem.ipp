// SPDX-License-Identifier: Apache-2.0
//
// What model/problem.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/detail/cost_sums.hpp>
#include <zbpp/model/detail/divided_stages.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/scaled_costs.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

ZBPP_INLINE void check_layers(
    std::span<layer_costs const> layers, placement const& placement, double slowest) {
  constexpr std::size_t most_layers = 4096;  // keeps searches that recurse off the stack's end
  if (layers.size() < index(placement.stages()))
    throw error(errc::bad_argument) + "there are " + layers.size() + " layers for " +
        placement.stages() + " stages; each stage needs at least 1";
  if (layers.size() > most_layers)
    throw error(errc::bad_argument) + "there are " + layers.size() + " layers; at most " +
        most_layers;
  cost_sums sums;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto const& c = layers[i];
    try {
      c.check(-1);
    } catch (error const& wrong) {
      throw error(errc::bad_argument) + "layer " + i + ": " + wrong.what();
    }
    sums.add(c);
  }
  auto const most = (cost_sums::most + 1) / placement.ranks();
  if (sums.greatest() > most ||
      static_cast<double>(sums.greatest()) / slowest > static_cast<double>(most))
    throw error(
        errc::bad_argument,
        "times or sizes of all layers, for each rank, add up to more than 2^62; use a coarser "
        "unit");
}

}  // namespace detail

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

ZBPP_INLINE problem::problem(std::vector<layer_costs> layers, step_setup setup)
    : placement_(zbpp::placement::linear(setup.ranks)),
      microbatches_(setup.microbatches),
      transfer_(std::move(setup.transfer)),
      memory_limits_(std::move(setup.memory_limits)),
      layers_(std::move(layers)),
      rank_speeds_(std::move(setup.rank_speeds)) {
  cut_evenly();
}

ZBPP_INLINE double problem::check_speeds() const {
  if (!rank_speeds_.empty() && rank_speeds_.size() != detail::index(ranks()))
    throw error(errc::bad_argument) + "there are " + rank_speeds_.size() + " speeds for " +
        ranks() + " ranks; give one for each, or none";
  double slowest = 1;
  for (std::size_t rank = 0; rank < rank_speeds_.size(); ++rank) {
    constexpr double most = 1000;
    auto const speed = rank_speeds_[rank];
    if (!(speed >= 1 / most && speed <= most))
      throw error(
          errc::bad_argument,
          "the speed is not from 0.001 to 1000; at 0.5 all takes twice as long",
          {.rank = static_cast<int>(rank)});
    slowest = std::min(slowest, speed);
  }
  return slowest;
}

// Cuts the layers so that the longest stage takes the least time: by halving how long that may be.
ZBPP_INLINE void problem::cut_evenly() {
  auto const slowest = check_speeds();
  detail::check_layers(layers_, placement_, slowest);
  auto const count = layers_.size();
  auto const spare = count - detail::index(stages());  // each stage has one layer at least
  std::vector<double> before{0};                       // of one microbatch, in ticks at speed 1
  for (auto const& c : layers_)
    before.push_back(
        before.back() + static_cast<double>(c.forward) +
        static_cast<double>(c.of(pass_kind::backward)));
  // Whether the layers from s + b on have room in the stages from s on, at s * width + b. That is
  // so where stage s ends as early as it can. Where ranks are equally fast, it may as well end
  // late.
  bool const alike = rank_speeds_.empty();
  auto const width = spare + 1;
  std::vector<bool> fits(alike ? 0 : (detail::index(stages()) + 1) * width, false);
  if (!alike) fits.back() = true;
  // @return the first layer of each stage; nothing where none is so short
  auto const cut_within = [&](ticks most) {
    auto const has_room = [&](std::size_t s, std::size_t begin, std::size_t end) {
      auto const speed = rank_speed(placement_.rank_of(static_cast<int>(s)));
      return before[end] - before[begin] <= static_cast<double>(most) * speed;
    };
    if (!alike)
      for (auto s = detail::index(stages()); s-- > 0;)
        for (std::size_t b = width, nearest = width; b-- > 0;) {
          if (fits[(s + 1) * width + b]) nearest = b;
          fits[s * width + b] = nearest < width && has_room(s, s + b, s + 1 + nearest);
        }
    std::vector<int> first;
    std::size_t begin = 0;
    for (std::size_t s = 0; s < detail::index(stages()); ++s) {
      first.push_back(static_cast<int>(begin));
      auto end = begin;
      for (auto one = begin + 1; one <= s + width && has_room(s, begin, one); ++one)
        if (alike || fits[(s + 1) * width + one - s - 1]) end = one;
      if (end == begin) return std::vector<int>{};
      begin = end;
    }
    if (begin < count) first.clear();
    return first;
  };
  auto enough = static_cast<ticks>(std::ceil(before.back() / slowest) + 1);
  for (ticks too_little = -1; enough - too_little > 1;) {
    auto const middle = too_little + (enough - too_little) / 2;
    (cut_within(middle).empty() ? too_little : enough) = middle;
  }
  cut(cut_within(enough), {});
}

ZBPP_INLINE void problem::cut(std::vector<int> first_layer, std::vector<bool> const& recompute) {
  detail::require(
      first_layer.size() == detail::index(stages()) && first_layer.front() == 0,
      "first_layer has one entry per stage, the first of them 0");
  detail::require(
      recompute.empty() || recompute.size() == first_layer.size(),
      "recompute is empty or has one entry per stage");
  first_layer_ = std::move(first_layer);
  stages_.clear();
  for (int s = 0; s < stages(); ++s) {
    auto const begin = first_layer_[detail::index(s)];
    auto const end = end_layer(s);
    if (begin < 0 || begin >= end || detail::index(end) > layers_.size())
      throw error(errc::bad_argument, {.stage = s}) + "has the layers from " + begin +
          " to before " + end + "; give it at least one of the " + layers_.size();
    auto costs = merge_layers(
        layers().subspan(detail::index(begin), detail::index(end) - detail::index(begin)));
    bool const recomputes = !recompute.empty() && recompute[detail::index(s)];
    if (recomputes && !costs.recompute)
      throw error(
          errc::bad_argument,
          "is to recompute, but none of its layers says how long that takes",
          {.stage = s});
    if (!recomputes) costs.recompute.reset();
    stages_.push_back(at_speed(costs, rank_speed(placement_.rank_of(s))));
  }
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
  changed.layers_.clear();
  changed.first_layer_.clear();
  changed.rank_speeds_.clear();
  changed.check();
  return changed;
}

ZBPP_INLINE problem with_layers(problem changed, std::vector<layer_costs> layers) {
  changed.layers_ = std::move(layers);
  changed.cut_evenly();
  return changed;
}

ZBPP_INLINE problem
with_cut(problem changed, std::vector<int> first_layer, std::vector<bool> const& recompute) {
  detail::require(!changed.layers_.empty(), "the problem states stages; only layers can be cut");
  changed.cut(std::move(first_layer), recompute);
  return changed;
}

ZBPP_INLINE problem with_placement(problem changed, placement const& placement) {
  if (placement == changed.placement_) return changed;
  if (placement.ranks() != changed.ranks())
    throw error(errc::bad_argument) + "the placement has " + placement.ranks() +
        " ranks and the problem " + changed.ranks() + "; a model stays on its ranks";
  auto const stages = changed.stages();
  changed.placement_ = placement;
  if (!changed.layers_.empty()) {
    changed.cut_evenly();
    return changed;
  }
  int parts = 1;  // of each stage
  while (std::int64_t{parts} * stages % placement.stages() != 0) ++parts;
  constexpr std::int64_t most_parts = std::int64_t{1} << 20;
  if (std::int64_t{parts} * stages > most_parts)
    throw error(errc::bad_argument) + stages + " stages on a placement of " + placement.stages() +
        " would be divided into " + (std::int64_t{parts} * stages) + " parts; at most " +
        most_parts + " are. Choose fewer chunks, or a number that divides";
  auto const all = detail::divided_stages(changed.stages_, parts);
  auto const run = all.size() / detail::index(placement.stages());
  changed.stages_.clear();
  for (std::size_t first = 0; first < all.size(); first += run)
    changed.stages_.push_back(merge_layers(std::span<stage_costs const>(all).subspan(first, run)));
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
