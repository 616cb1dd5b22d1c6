// SPDX-License-Identifier: Apache-2.0
//
// Models as layers to cut: random ones, placements to cut them for, and every cut there is, with
// what it gives the ranks, found without the library.
#pragma once

#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>

#include <support/seeded.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Layers like a model's: mostly alike, some light, some heavy; or all different.
[[nodiscard]] inline std::vector<layer_costs> random_layers(seeded_random& random, int count) {
  bool const alike = random.chance(0.4);
  std::vector<layer_costs> layers;
  for (int i = 0; i < count; ++i) {
    bool const is_block = alike && i > 0 && i + 1 < count;
    auto const most = is_block ? 0 : random.chance(0.3) ? 200 : 40;
    auto const size = [&](int usual) { return usual + random.integer(0, most); };
    layer_costs c{
        .forward = size(20),
        .backward_input = size(20),
        .backward_weight = size(10),
        .recompute = size(15),
        .activation = size(40),
        .recompute_input = 5,
        .edge = size(3),
        .static_memory = size(60),
        .workspace = size(4)};
    c.weight_gradient_input = c.activation / 2;
    if (!is_block && random.chance(0.3)) c.recompute.reset();
    if (!is_block && random.chance(0.3))
      c.backward_fused = std::max(c.backward_input, c.backward_weight) +
                         std::min(c.backward_input, c.backward_weight) / 2;
    layers.push_back(c);
  }
  return layers;
}

/// Speeds of ranks that differ; or, more often, none.
[[nodiscard]] inline std::vector<double> random_speeds(seeded_random& random, int ranks) {
  std::vector<double> speeds;
  if (random.chance(0.7)) return speeds;
  for (int rank = 0; rank < ranks; ++rank)
    speeds.push_back(static_cast<double>(random.integer(20, 150)) / 100);
  return speeds;
}

[[nodiscard]] inline placement random_placement(seeded_random& random) {
  switch (random.integer(0, 4)) {
    case 0: return placement::linear(static_cast<int>(random.integer(1, 4)));
    case 1: return placement::v_shape(static_cast<int>(random.integer(1, 3)));
    case 2: return placement::looped(2, static_cast<int>(random.integer(2, 3)));
    case 3: return placement::looped(3, 2);
    default: break;
  }
  std::vector<int> ranks{0, 1, 2};
  for (auto more = random.integer(0, 3); more > 0; --more)
    ranks.push_back(static_cast<int>(random.integer(0, 2)));
  random.shuffle(std::span(ranks));
  return placement::custom(ranks);
}

/// Calls `visit(first_layer)` for every way to cut `layers` layers into `stages` stages, found by
/// looking at every set of boundaries.
template <class Visit>
void for_each_composition(int layers, int stages, Visit visit) {
  for (unsigned set = 0; set < 1U << (layers - 1); ++set) {
    std::vector<int> first{0};
    for (int i = 1; i < layers; ++i)
      if ((set >> (i - 1) & 1U) != 0) first.push_back(i);
    if (static_cast<int>(first.size()) == stages) visit(first);
  }
}

/// What a cut gives the rank with the most, added layer by layer.
[[nodiscard]] inline std::pair<ticks, bytes> greatest_load(
    std::vector<layer_costs> const& layers,
    placement const& placement,
    std::vector<int> const& first) {
  std::vector<ticks> work(static_cast<std::size_t>(placement.ranks()));
  std::vector<bytes> memory(work.size());
  int stage = 0;
  for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
    if (stage + 1 < placement.stages() && first[static_cast<std::size_t>(stage) + 1] == i) ++stage;
    auto const rank = static_cast<std::size_t>(placement.rank_of(stage));
    auto const& c = layers[static_cast<std::size_t>(i)];
    work[rank] += c.forward + c.backward_fused.value_or(c.backward_input + c.backward_weight);
    memory[rank] += c.static_memory + c.activation;
  }
  return {
      *std::max_element(work.begin(), work.end()), *std::max_element(memory.begin(), memory.end())};
}

}  // namespace zbpp::test
