// SPDX-License-Identifier: Apache-2.0
//
// What the questions are asked about: equal times and the paper's profiles, on each placement, and
// the plans that are compared.
#pragma once

#include "text.hpp"
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/io/line_chart.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/find_plan.hpp>

#include <support/planner_problems.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace questions {

using zbpp::bytes;
using zbpp::chart_curve;
using zbpp::chart_panel;
using zbpp::problem;
using zbpp::ticks;
using zbpp::test::even_bubble;
using zbpp::test::paper_rows;

/// States how a question is answered.
struct settings {
  bool quick = false;      ///< the cheapest cases only, whose lines are the same beside all others
  std::uint64_t seed = 1;  ///< of random times
};

/// Holds an answer: tables in Markdown, and a picture.
struct answer {
  std::string tables;
  std::string svg;
};

/// @throws std::logic_error when an answer contradicts itself
inline void expect(bool holds, std::string const& what) {
  if (!holds) throw std::logic_error(what);
}

/// Is a pipeline of even ranks, from which problems on several placements are made.
struct pipeline {
  std::string name;
  int ranks = 0;
  int microbatches = 0;
  zbpp::stage_costs share;  ///< of a rank: all its chunks
  zbpp::transfer_costs transfer = {};

  /// The problem of one chunk per rank.
  /// @param room  activations in microbatches that each rank has memory for; 0: no limit
  [[nodiscard]] problem linear(int room = 0) const {
    return on(zbpp::placement::linear(ranks), room);
  }
  /// The problem of two chunks per rank, on a V.
  [[nodiscard]] problem v(int room = 0) const { return on(zbpp::placement::v_shape(ranks), room); }
  /// The problem of two chunks per rank, one loop after the other.
  [[nodiscard]] problem looped(int room = 0) const {
    return on(zbpp::placement::looped(ranks, 2), room);
  }

  /// @return what all passes of a rank take
  [[nodiscard]] double work() const {
    auto const once = share.forward + share.backward_input + share.backward_weight;
    return static_cast<double>(once) * microbatches;
  }

 private:
  // Times and sizes are even where they are halved, but for nanoseconds.
  [[nodiscard]] problem on(zbpp::placement const& placement, int room) const {
    auto const pieces = placement.stages() / ranks;
    auto costs = share;
    for (auto* part : {&costs.forward, &costs.backward_input, &costs.backward_weight})
      *part /= pieces;
    for (auto* part : {&costs.activation, &costs.weight_gradient_input}) *part /= pieces;
    std::vector<bytes> limits;
    if (room > 0) limits.push_back(room * share.activation);
    return {placement, microbatches, costs, transfer, limits};
  }
};

/// F, B and W of 10 ms each, or as stated, and free messages; W needs half of the activation.
[[nodiscard]] inline pipeline unit_pipeline(
    int ranks, int microbatches, double forward = 10, double backward = 10, double weight = 10) {
  zbpp::stage_costs const share{
      .forward = zbpp::from_milliseconds(forward),
      .backward_input = zbpp::from_milliseconds(backward),
      .backward_weight = zbpp::from_milliseconds(weight),
      .activation = 1000,
      .weight_gradient_input = 500};
  return {"unit", ranks, microbatches, share};
}

/// A row of the paper.
[[nodiscard]] inline pipeline paper_pipeline(std::size_t row) {
  auto const& from = paper_rows[row];
  return {
      from.model,
      from.ranks,
      from.microbatches,
      zbpp::test::costs_with_memory(from),
      zbpp::from_milliseconds(from.transfer)};
}

/// Plans, and checks the plan against its simulation and its bound.
[[nodiscard]] inline zbpp::found_plan search(problem const& what) {
  auto found = zbpp::find_plan(what, {.placement = what.placement(), .seconds = 2.5});
  expect(
      found.cost == zbpp::cost(zbpp::simulate(found.schedule, what)),
      "a plan does not cost what it says");
  expect(found.cost >= found.bound.cost, "a plan costs less than its bound");
  return found;
}

/// @return what the order of a policy costs
template <class Policy>
[[nodiscard]] ticks cost_of(Policy const& policy, problem const& what) {
  return zbpp::cost(zbpp::simulate(policy(what), what));
}

/// @return the first cells of a line: model, p and m
[[nodiscard]] inline std::vector<std::string> names_of(pipeline const& each) {
  return {each.name, std::to_string(each.ranks), std::to_string(each.microbatches)};
}

/// @return curves of these names without points
[[nodiscard]] inline std::vector<chart_curve> named(std::vector<std::string> const& names) {
  std::vector<chart_curve> result;
  for (auto const& name : names) result.push_back({name});
  return result;
}

/// Makes a panel of curves without points.
[[nodiscard]] inline chart_panel panel_of(
    std::string title, std::string axis, std::vector<chart_curve> curves) {
  return {
      .title = std::move(title),
      .horizontal = {.title = std::move(axis)},
      .curves = std::move(curves)};
}

/// Appends a point to each curve, all at one place of the axis, with a label there.
inline void add_values(
    chart_panel& to, double at, std::string const& label, std::vector<double> const& values) {
  to.horizontal.labels.push_back({at, label});
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto& curve = to.curves[i];
    curve.points.push_back({at, values[i], curve.name + ": " + fixed_text(values[i], 2)});
  }
}

/// Appends a point to each curve, evenly spaced, with a label at their place of the axis.
inline void add_values(
    chart_panel& to, std::string const& label, std::vector<double> const& values) {
  add_values(to, static_cast<double>(to.horizontal.labels.size()), label, values);
}

/// Draws panels over vertical axes that begin at 0.
[[nodiscard]] inline std::string draw(
    std::string title, std::string unit, std::vector<chart_panel> panels) {
  return to_svg(zbpp::line_chart{
      .vertical = {.title = std::move(title), .unit = std::move(unit), .begins_at_zero = true},
      .panels = std::move(panels),
      .height = 400});
}

}  // namespace questions
