// SPDX-License-Identifier: Apache-2.0
//
// The problems on which the planner is judged: the paper's profiles with memory limits, limits
// below those of 1F1B, V placements, and uneven pipelines.
#pragma once

#include <zbpp/model/problem.hpp>

#include <support/paper.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

namespace zbpp::test {

/// The memory limits of the sweep, in activations a rank over ranks.
inline constexpr std::array<double, 9> sweep_limits{1, 1.125, 1.25, 1.5, 1.75, 1.875, 2, 2.5, 3};

/// Random numbers that are the same everywhere; the problems below are what they are by seed.
class plain_random {
 public:
  explicit plain_random(std::uint64_t seed) : engine_(seed) {}
  [[nodiscard]] double real(double low, double high) {
    return low + (high - low) * (static_cast<double>(engine_() >> 11) * 0x1p-53);
  }
  [[nodiscard]] int integer(int low, int high) {
    return low + static_cast<int>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 engine_;
};

/// The costs of a stage with what it keeps: 34h + 5as from F to B, 32h from B to W.
/// @source arXiv 2401.10241v1 tables 1 and 3
[[nodiscard]] inline stage_costs costs_with_memory(paper_row const& row) {
  std::string_view const model = row.model;
  auto const small = model == "1.5B";
  bytes const hidden = small ? 2304 : row.ranks == 8 ? 4096 : row.ranks == 16 ? 5120 : 6144;
  bytes const heads = small ? 24 : row.ranks == 8 ? 32 : row.ranks == 16 ? 40 : 48;
  auto costs = row.costs();
  costs.activation = 34 * hidden + 5 * heads * 1024;
  costs.weight_gradient_input = 32 * hidden;
  return costs;
}

/// A row of the paper with room for `times_ranks` times as many activations as there are ranks.
/// @param jitter  changes each time by up to 1%; nullptr for none
[[nodiscard]] inline problem paper_problem(
    paper_row const& row, double times_ranks, plain_random* jitter = nullptr) {
  auto const costs = costs_with_memory(row);
  std::vector<stage_costs> stages(static_cast<std::size_t>(row.ranks), costs);
  if (jitter != nullptr)
    for (auto& c : stages)
      for (auto* time : {&c.forward, &c.backward_input, &c.backward_weight})
        *time += std::llround(static_cast<double>(*time) * jitter->real(-0.01, 0.01));
  auto const room = std::llround(times_ranks * row.ranks);
  return {
      placement::linear(row.ranks),
      row.microbatches,
      stages,
      from_milliseconds(row.transfer),
      {room * costs.activation}};
}

/// A row of the paper on a V, each stage cut in half; W keeps half of the activation.
[[nodiscard]] inline problem paper_problem_on_v(paper_row const& row, double times_ranks) {
  auto costs = row.costs(2);
  costs.activation = 1000;
  costs.weight_gradient_input = 500;
  auto const room = static_cast<bytes>(times_ranks * row.ranks) * 2;
  return {
      placement::v_shape(row.ranks),
      row.microbatches,
      costs,
      from_milliseconds(row.transfer),
      {room * costs.activation}};
}

/// Holds one row of table 8, with the profile worked out from its other columns: shares of F + B +
/// W.
/// @source arXiv 2401.10241v1 table 8
struct table_8_row {
  char const* model;
  int ranks;
  int microbatches;
  double weight_share;
  double transfer_share;
  double bubble_zb_v;

  /// The problem on a V, F as long as B, with the memory of 1F1B.
  [[nodiscard]] problem on_v() const {
    constexpr double all = 30e6;
    stage_costs costs;
    costs.forward = costs.backward_input = std::llround(all * (1 - weight_share) / 4);
    costs.backward_weight = std::llround(all * weight_share / 2);
    costs.activation = 1000;
    costs.weight_gradient_input = 500;
    return {
        placement::v_shape(ranks),
        microbatches,
        costs,
        std::llround(all * transfer_share),
        {2 * ranks * costs.activation}};
  }
};

inline constexpr std::array<table_8_row, 9> table_8{{
    {"6.2B", 16, 48, 0.2520, 0.0209, 0.0697},
    {"6.2B", 16, 64, 0.2520, 0.0209, 0.0533},
    {"6.2B", 16, 128, 0.2520, 0.0209, 0.0274},
    {"14.6B", 24, 72, 0.2765, 0.02005, 0.0638},
    {"14.6B", 24, 96, 0.2765, 0.02005, 0.0483},
    {"14.6B", 24, 192, 0.2765, 0.02005, 0.0250},
    {"28.3B", 32, 96, 0.2745, 0.0167, 0.0593},
    {"28.3B", 32, 128, 0.2745, 0.0167, 0.0451},
    {"28.3B", 32, 256, 0.2745, 0.0167, 0.0236},
}};

/// @param of  gives a time of the stage from the mean of all; called for F, B and W in turn
/// @return a stage with such times, whose W needs half of its activation
template <class Of>
[[nodiscard]] stage_costs planner_stage(
    Of const& of, double forward, double backward, double weight) {
  stage_costs c;
  c.forward = of(forward);
  c.backward_input = of(backward);
  c.backward_weight = of(weight);
  c.activation = 1000;
  c.weight_gradient_input = 500;
  return c;
}

/// An uneven pipeline: p from 2 to 16, m from p to 8p, stages within 30%, the first and the last
/// longer by 1.3, room for p to 2p microbatches, transfers up to 0.3 of F.
/// @param kind  l linear, v on a V, o looped with two chunks
[[nodiscard]] inline problem uneven_problem(plain_random& random, char kind) {
  auto const p = random.integer(2, 16);
  auto const m = random.integer(p, 8 * p);
  auto const placement = kind == 'l'   ? placement::linear(p)
                         : kind == 'v' ? placement::v_shape(p)
                                       : placement::looped(p, 2);
  auto const chunks = placement.stages() / p;
  auto const forward = random.real(5e6, 20e6) / chunks;
  auto const backward = forward * random.real(0.8, 1.2);
  auto const weight = forward * random.real(0.4, 1.0);
  std::vector<stage_costs> stages;
  for (int s = 0; s < placement.stages(); ++s) {
    auto const ends = s == 0 || s + 1 == placement.stages() ? 1.3 : 1.0;
    auto const of = [&](double mean) { return std::llround(mean * ends * random.real(0.7, 1.3)); };
    stages.push_back(planner_stage(of, forward, backward, weight));
  }
  auto const room = static_cast<bytes>(random.real(1, 2) * p * chunks * 1000);
  return {placement, m, stages, std::llround(forward * random.real(0, 0.3)), {room}};
}

/// @return 1 - work / cost of even ranks
[[nodiscard]] inline double even_bubble(problem const& problem, ticks cost) {
  double work = 0;
  for (int s : problem.placement().stages_of(0)) {
    auto const& c = problem.costs(s);
    work += static_cast<double>(c.forward + c.backward_input + c.backward_weight);
  }
  return 1 - work * problem.microbatches() / static_cast<double>(cost);
}

}  // namespace zbpp::test
