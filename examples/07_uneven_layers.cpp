// SPDX-License-Identifier: Apache-2.0
//
// Uneven layers: a model whose head over 256k words is as heavy as five blocks. Cut evenly, the
// last rank holds up all others; `find_plan` cuts it for the policy that will run it, and where
// memory is short also chooses the stages that recompute.
#include <zbpp/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

using namespace zbpp;

namespace {

constexpr std::int64_t hidden = 4096;
constexpr std::int64_t words = 256 * 1024;
constexpr std::int64_t sequence = 2048;
constexpr int blocks = 32;
constexpr int ranks = 8;
constexpr int microbatches = 32;
constexpr bytes gibibyte = bytes{1} << 30;

constexpr ticks time_of(std::int64_t flops) { return flops / 300'000; }  // at 300 TFLOP/s

// FLOPs and sizes per microbatch of one sequence: arXiv 2401.10241 table 1 with fused attention for
// a block, arXiv 2411.05288 for the head; 16 bytes a parameter for weights and optimizer.
std::vector<layer_costs> layers_of_model() {
  constexpr auto tokens = sequence * hidden;
  layer_costs const embedding{
      .forward = 50'000,
      .backward_weight = 100'000,
      .edge = 2 * tokens,
      .static_memory = 16 * hidden * words};
  layer_costs const block{
      .forward = time_of(tokens * (24 * hidden + 4 * sequence)),
      .backward_input = time_of(tokens * (24 * hidden + 8 * sequence)),
      .backward_weight = time_of(tokens * 24 * hidden),
      .recompute = time_of(tokens * (24 * hidden + 4 * sequence)),
      .activation = 34 * tokens,
      .weight_gradient_input = 32 * tokens,
      .recompute_input = 2 * tokens,
      .edge = 2 * tokens,
      .static_memory = 16 * 12 * hidden * hidden};
  layer_costs const head{
      .forward = time_of(2 * tokens * words),
      .backward_input = time_of(2 * tokens * words),
      .backward_weight = time_of(2 * tokens * words),
      .activation = 2 * sequence * words + 2 * tokens,
      .weight_gradient_input = 2 * sequence * words + 2 * tokens,
      .static_memory = 16 * hidden * words};
  std::vector<layer_costs> layers(blocks + 2, block);
  layers.front() = embedding;
  layers.back() = head;
  return layers;
}

problem model(std::vector<layer_costs> layers, bytes limit) {
  return {
      std::move(layers),
      {.ranks = ranks,
       .microbatches = microbatches,
       .transfer = from_milliseconds(0.4),
       .memory_limits = {limit}}};
}

// The same number of blocks for every stage; the embedding goes with the first, the head with the
// last.
std::vector<int> even_cut(int stages) {
  std::vector<int> first{0};
  for (int s = 1; s < stages; ++s) first.push_back(1 + s * blocks / stages);
  return first;
}

ticks show(char const* title, plan const& made) {
  bytes most = 0;
  for (auto const& peak : peak_memory(made.program(), made.problem()))
    most = std::max(most, peak.total);
  auto const took = cost(made.timeline());
  std::printf(
      "  %-10s  %7.1f ms  bubble %4.1f%%  %4.1f GiB  layers",
      title,
      to_milliseconds(took),
      100 * bubble_rate(made.timeline()),
      static_cast<double>(most) / static_cast<double>(gibibyte));
  auto const& cut = made.problem();
  for (int s = 0; s < cut.stages(); ++s)
    std::printf(" %d", cut.end_layer(s) - cut.first_layer()[static_cast<std::size_t>(s)]);
  std::printf("\n");
  return took;
}

// Whether cutting for the policy beats cutting evenly, and is no worse than the least bottleneck.
template <class Policy>
bool compare(Policy const& decide, placement const& placement) {
  auto const uncut = with_placement(model(layers_of_model(), 80 * gibibyte), placement);
  std::printf("%s\n", std::string(Policy::title).c_str());
  auto const even = even_cut(placement.stages());
  plan_choices choices{.placement = placement, .policy = decide};
  auto const found = find_plan(uncut, choices);
  choices.most_cuts = 1;  // its start, of least work
  auto const balanced = find_plan(uncut, choices);
  auto const even_cost = show("even", make_plan(decide, with_cut(uncut, even)));
  auto const balanced_cost = show("bottleneck", make_plan(decide, balanced.problem));
  auto const plan = make_plan(std::string(Policy::title), found.schedule, found.problem);
  auto const found_cost = show("best cut", plan);
  return verify(plan.program(), found.problem).empty() && found_cost <= balanced_cost &&
         4 * found_cost < 3 * even_cost;
}

// Whether memory that is too short for every cut tried is enough once some stages recompute.
bool recompute_to_fit() {
  constexpr bytes limit = 26 * gibibyte;
  std::printf("ZB-H1 within 26 GiB\n");
  auto keeping = layers_of_model();
  for (auto& layer : keeping) layer.recompute.reset();
  bool refused = false;
  plan_choices const choices{.placement = placement::linear(ranks), .policy = zb_h1{}};
  try {
    (void)find_plan(model(keeping, limit), choices);
  } catch (error const& nothing_fits) {
    std::printf("  keeping all activations, %s\n", nothing_fits.what());
    refused = true;
  }
  auto const found = find_plan(model(layers_of_model(), limit), choices);
  auto const plan = make_plan("ZB-H1", found.schedule, found.problem);
  show("best cut", plan);
  std::printf("  recompute ");
  int recomputing = 0;
  for (auto const& stage : found.problem.all_costs()) {
    recomputing += stage.recompute ? 1 : 0;
    std::printf(" %s", stage.recompute ? "yes" : "no");
  }
  std::printf("\n");
  return refused && verify(plan.program(), found.problem).empty() && recomputing > 0;
}

}  // namespace

int main() {
  bool good = compare(one_f_one_b{}, placement::linear(ranks));
  good = compare(zb_h1{}, placement::linear(ranks)) && good;
  good = compare(zb_v{}, placement::v_shape(ranks)) && good;
  return recompute_to_fit() && good ? 0 : 1;
}
