// SPDX-License-Identifier: Apache-2.0
//
// What model/layers.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/detail/cost_sums.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/scaled_costs.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE stage_costs merge_layers(std::span<layer_costs const> layers) {
  using detail::cost_merge;
  stage_costs sum;
  for (auto const& field : detail::cost_fields) {
    if (field.merge == cost_merge::own) continue;
    auto& all = sum.*field.number;
    for (auto const& layer : layers) {
      auto const one = layer.*field.number;
      all = field.merge == cost_merge::sum        ? all + one
            : field.merge == cost_merge::greatest ? std::max(all, one)
                                                  : one;
    }
  }
  ticks fused = 0;
  ticks saved = 0;        // by an F beside a B
  ticks saved_fused = 0;  // by an F beside a BW
  bool is_made_again = false;
  for (auto const& layer : layers) {
    fused += layer.of(pass_kind::backward);
    saved += layer.saved_by_pairing(pass_kind::backward_input);
    saved_fused += layer.saved_by_pairing(pass_kind::backward);
    if (!layer.recompute) sum.recompute_input += layer.activation;
    if (layer.recompute && !is_made_again) sum.recompute_input += layer.recompute_input;
    if (layer.recompute) sum.recompute = sum.recompute.value_or(0) + *layer.recompute;
    is_made_again = layer.recompute.has_value();
  }
  if (fused != sum.backward_input + sum.backward_weight) sum.backward_fused = fused;
  if (saved != 0) sum.overlapped = sum.forward + sum.backward_input - saved;
  if (saved_fused != saved) sum.overlapped_fused = sum.forward + fused - saved_fused;
  if (!sum.recompute) sum.recompute_input = 0;
  return sum;
}

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

ZBPP_INLINE layered_problem::layered_problem(
    zbpp::placement placement,
    int microbatches,
    std::vector<layer_costs> layers,
    transfer_costs transfer,
    std::vector<bytes> memory_limits,
    std::vector<double> rank_speeds)
    : placement_(std::move(placement)),
      microbatches_(microbatches),
      layers_(std::move(layers)),
      transfer_(std::move(transfer)),
      memory_limits_(std::move(memory_limits)),
      rank_speeds_(std::move(rank_speeds)) {
  check();
}

ZBPP_INLINE void layered_problem::check() const {
  double slowest = 1;
  if (!rank_speeds_.empty() && rank_speeds_.size() != detail::index(placement_.ranks()))
    throw error(errc::bad_argument) + "there are " + rank_speeds_.size() + " speeds for " +
        placement_.ranks() + " ranks; give one for each, or none";
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
  detail::check_layers(layers_, placement_, slowest);
  std::vector<int> one_each;
  for (int s = 0; s < placement_.stages(); ++s) one_each.push_back(s);
  (void)with(one_each);
}

ZBPP_INLINE problem layered_problem::with(
    std::vector<int> const& first_layer, std::vector<bool> const& recompute) const {
  detail::require(
      first_layer.size() == detail::index(stages()) && first_layer.front() == 0,
      "first_layer has one entry per stage, the first of them 0");
  detail::require(
      recompute.empty() || recompute.size() == first_layer.size(),
      "recompute is empty or has one entry per stage");
  std::vector<stage_costs> costs;
  for (int s = 0; s < stages(); ++s) {
    auto const begin = first_layer[detail::index(s)];
    auto const end =
        s + 1 < stages() ? first_layer[detail::index(s) + 1] : static_cast<int>(layers_.size());
    if (begin < 0 || begin >= end || detail::index(end) > layers_.size())
      throw error(errc::bad_argument, {.stage = s}) + "has the layers from " + begin +
          " to before " + end + "; give it at least one of the " + layers_.size();
    costs.push_back(merge_layers(
        layers().subspan(detail::index(begin), detail::index(end) - detail::index(begin))));
    bool const recomputes = !recompute.empty() && recompute[detail::index(s)];
    if (recomputes && !costs.back().recompute)
      throw error(
          errc::bad_argument,
          "is to recompute, but none of its layers says how long that takes",
          {.stage = s});
    if (!recomputes) costs.back().recompute.reset();
    costs.back() = at_speed(costs.back(), rank_speed(placement_.rank_of(s)));
  }
  return with_replicas(
      problem(placement_, microbatches_, std::move(costs), transfer_, memory_limits_), replicas_);
}

ZBPP_INLINE layered_problem with_layers(layered_problem model, std::vector<layer_costs> layers) {
  model.layers_ = std::move(layers);
  model.check();
  return model;
}

ZBPP_INLINE layered_problem with_memory_limits(layered_problem model, std::vector<bytes> limits) {
  model.memory_limits_ = std::move(limits);
  model.check();
  return model;
}

ZBPP_INLINE layered_problem with_placement(layered_problem model, placement const& placement) {
  model.placement_ = placement;
  model.check();
  return model;
}

ZBPP_INLINE layered_problem with_replicas(layered_problem model, replica_costs replicas) {
  model.replicas_ = replicas;
  model.check();
  return model;
}

ZBPP_INLINE layered_problem with_microbatches(layered_problem model, int microbatches) {
  model.microbatches_ = microbatches;
  model.check();
  return model;
}

}  // namespace zbpp
