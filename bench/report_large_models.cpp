// SPDX-License-Identifier: Apache-2.0
//
// Prints the tables of docs/large_models.md: what find_plan chooses for large models whose costs
// are calculated from their published shapes and the data sheet of one GPU, beside handcrafted
// policies. Nothing here is measured; the page states every assumption.
#include <zbpp/plan.hpp>
#include <zbpp/planner/detail/bottleneck.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace zbpp;

namespace {

// NVIDIA H100 SXM and DGX H100 data sheets: BF16 without sparsity, HBM3, and InfiniBand per GPU.
constexpr double peak_flops = 989.4e12;
constexpr double memory_bandwidth = 3.35e12;
constexpr double network_bandwidth = 50e9;
// Assumptions of ours.
constexpr double reached = 0.5;          // of the peak, by every matrix product
constexpr double latency = 10e-6;        // of a message, in seconds
constexpr double memory_of_rank = 72e9;  // of 80 GB; the rest is for libraries and fragmentation

// Sizes per token are numbers, times per token FLOPs.
struct block_shape {
  double weights = 0;        // that a token uses
  double attention = 0;      // FLOPs of the forward pass beside those weights, for each token
  double kept = 0;           // numbers of two bytes from F to B, for each token
  double static_memory = 0;  // bytes on each GPU
};

struct model_shape {
  char const* title;
  int ranks, microbatches, tensor_parallel;
  double sequence, hidden, words;
  double bytes_a_weight;  // weights, gradients and the share of the optimizer's state
  std::vector<block_shape> blocks;
  int head_shards = 1;  // each a layer
  int embedding_shards = 1;
};

ticks nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
bytes whole(double size) { return std::llround(size); }

std::vector<layer_costs> layers_of(model_shape const& model) {
  auto const share = 1.0 / model.tensor_parallel;
  auto const time = [&](double flops_a_token) {
    return nanoseconds(model.sequence * flops_a_token * share / (peak_flops * reached));
  };
  auto const size = [&](double numbers) { return whole(2 * model.sequence * numbers * share); };
  auto const table = whole(model.words * model.hidden * share * model.bytes_a_weight);
  auto const look_up =
      nanoseconds(2 * 2 * model.sequence * model.hidden * share / memory_bandwidth);
  std::vector<layer_costs> layers(
      static_cast<std::size_t>(model.embedding_shards),
      {.forward = look_up / model.embedding_shards,
       .backward_weight = 2 * look_up / model.embedding_shards,
       .edge = size(model.hidden),
       .static_memory = table / model.embedding_shards});
  for (auto const& block : model.blocks)
    layers.push_back(
        {.forward = time(2 * block.weights + block.attention),
         .backward_input = time(2 * block.weights + 2 * block.attention),
         .backward_weight = time(2 * block.weights),
         .recompute = time(2 * block.weights + block.attention),
         .activation = size(block.kept),
         .weight_gradient_input = size(block.kept - model.hidden),
         .recompute_input = size(model.hidden),
         .edge = size(model.hidden),
         .static_memory = whole(block.static_memory)});
  auto const words = model.words / model.head_shards;
  auto const head = time(2 * model.hidden * words);
  layers.resize(
      layers.size() + static_cast<std::size_t>(model.head_shards),
      {.forward = head,
       .backward_input = head,
       .backward_weight = head,
       .activation = size(words + model.hidden),
       .weight_gradient_input = size(words + model.hidden),
       .edge = size(model.hidden + 6),  // and three numbers of four bytes of a softmax
       .static_memory = table / model.head_shards});
  layers.back().edge = 0;
  return layers;
}

// A block with `queries` and `keys` numbers a token, and `matrices` of hidden by `inner`: two with
// GeLU, three with a gate. What it keeps are the inputs of its norms and products.
block_shape dense(model_shape const& of, double queries, double keys, double inner, int matrices) {
  auto const h = of.hidden;
  auto const weights = 2 * h * queries + 2 * h * keys + matrices * h * inner;
  return {
      .weights = weights,
      .attention = 4 * of.sequence * queries,
      .kept = 4 * h + 2 * queries + 2 * keys + matrices * inner + (matrices == 2 ? h : 0),
      .static_memory = weights * of.bytes_a_weight / of.tensor_parallel};
}

problem problem_of(model_shape const& model, double limit = memory_of_rank) {
  auto const pairs = static_cast<std::size_t>(model.ranks) * static_cast<std::size_t>(model.ranks);
  return {
      layers_of(model),
      {.ranks = model.ranks,
       .microbatches = model.microbatches,
       .transfer = transfer_costs(
           model.ranks,
           std::vector<ticks>(pairs, nanoseconds(latency)),
           std::vector<double>(pairs, 1e9 / network_bandwidth)),
       .memory_limits = {whole(limit)}}};
}

double greatest_peak(plan const& made) {
  bytes most = 0;
  for (auto const& peak : peak_memory(made.program(), made.problem()))
    most = std::max(most, peak.total);
  return static_cast<double>(most) / 1e9;
}

std::string placement_of(placement const& where) {
  auto const chunks = where.stages() / where.ranks();
  return where.name() + (where.name() == "looped" ? " " + std::to_string(chunks) : "");
}

void print_row(std::string const& title, plan const& made, ticks best) {
  int recomputing = 0;
  for (auto const& c : made.problem().all_costs()) recomputing += c.recompute ? 1 : 0;
  auto const took = cost(made.timeline());
  auto const memory = greatest_peak(made);
  std::printf(
      "| %s | %s | %d of %d | ",
      title.c_str(),
      placement_of(made.problem().placement()).c_str(),
      recomputing,
      made.problem().stages());
  if (memory * 1e9 > memory_of_rank)
    std::printf("does not fit | | %.1f GB | |\n", memory);
  else
    std::printf(
        "%.1f ms | %.1f %% | %.1f GB | %+.1f %% |\n",
        to_milliseconds(took),
        100 * bubble_rate(made.timeline()),
        memory,
        100 * (static_cast<double>(took) / static_cast<double>(best) - 1));
}

// A policy on its cut with the least bottleneck, where no stage or every stage recomputes.
template <class Policy>
plan balanced(model_shape const& model, placement const& where, Policy const& decide, bool again) {
  auto const uncut = with_placement(problem_of(model), where);
  std::vector<layer_costs> layers(uncut.layers().begin(), uncut.layers().end());
  for (auto& c : layers) c.forward += again ? c.recompute.value_or(0) : 0;
  auto const first = zbpp::detail::bottleneck_partition(layers, where).first_layer;
  std::vector<bool> recompute(first.size());
  for (std::size_t s = 0; s < first.size(); ++s) {
    auto const end = s + 1 < first.size() ? layers.begin() + first[s + 1] : layers.end();
    recompute[s] = again && std::any_of(layers.begin() + first[s], end, [](layer_costs const& c) {
                     return c.recompute.has_value();
                   });
  }
  auto what = with_cut(uncut, first, recompute);
  auto order = decide(what);
  rows<pass> passes;  // an R in front of each B
  for (int rank = 0; rank < order.ranks(); ++rank) {
    for (auto const& p : order.passes(rank)) {
      if (p.makes_input_gradient() && what.costs(p.stage).recompute)
        passes.push({pass_kind::recompute, p.stage, p.microbatch});
      passes.push(p);
    }
    passes.end_row();
  }
  return make_plan(
      std::string(Policy::title),
      schedule(where, model.microbatches, std::move(passes)),
      std::move(what));
}

void report(model_shape const& model) {
  std::printf("\n### %s\n\n", model.title);
  std::printf(
      "%d ranks of %d GPUs each, %d microbatches of one sequence of %.0f tokens.\n\n",
      model.ranks,
      model.tensor_parallel,
      model.microbatches,
      model.sequence);
  auto const p = model.ranks;
  auto const found = find_plan(problem_of(model), {.seconds = 16});
  auto const chosen = make_plan("find_plan", found.schedule, found.problem);
  std::puts(
      "| plan | placement | stages that recompute | cost | bubble | memory | over find_plan |");
  std::puts("|---|---|---|---|---|---|---|");
  print_row("find_plan", chosen, found.cost);
  auto const layers = static_cast<int>(layers_of(model).size());
  for (bool again : {true, false}) {
    std::optional<plan> best;  // of the numbers of chunks; one that does not fit where none does
    bool best_fits = false;
    for (int chunks = 2; chunks <= std::min(8, layers / p); ++chunks) {
      auto made = balanced(model, placement::looped(p, chunks), interleaved{}, again);
      bool const fits = greatest_peak(made) * 1e9 <= memory_of_rank;
      bool const is_cheaper = best && cost(made.timeline()) < cost(best->timeline());
      if (best && (fits == best_fits ? !is_cheaper : best_fits)) continue;
      best = std::move(made);
      best_fits = fits;
    }
    if (best) print_row("1F1B-I", *best, found.cost);
  }
  for (bool again : {true, false})
    print_row("1F1B", balanced(model, placement::linear(p), one_f_one_b{}, again), found.cost);
  for (bool again : {true, false})
    print_row("ZB-H1", balanced(model, placement::linear(p), zb_h1{}, again), found.cost);
  for (bool again : {true, false})
    print_row("ZB-V", balanced(model, placement::v_shape(p), zb_v{}, again), found.cost);
  std::printf("\nNo plan costs less than %.1f ms", to_milliseconds(found.lower_bound));
  std::printf(
      ", none of this cut less than %.1f ms. Layers of each stage:",
      to_milliseconds(found.bound.cost));
  for (int s = 0; s < found.problem.stages(); ++s)
    std::printf(" %d", found.problem.end_layer(s) - found.problem.first_layer()[detail::index(s)]);
  std::puts(".");
  std::fflush(stdout);
}

// Weights and gradients take 2 + 4 bytes; 12 of the optimizer are split among `data_parallel`.
double bytes_of(double data_parallel) { return 6 + 12 / data_parallel; }

// Example 07.
model_shape wide_vocabulary(char const* title, int head_shards = 1, int embedding_shards = 1) {
  model_shape model{
      title, 8, 32, 1, 2048, 4096, 256 * 1024, bytes_of(1), {}, head_shards, embedding_shards};
  model.blocks.assign(32, dense(model, 4096, 4096, 4 * 4096, 2));
  return model;
}

// arXiv 2005.14165 table 2.1; batch of 1536 as in arXiv 2104.04473.
model_shape gpt_3() {
  model_shape model{"GPT-3 175B", 16, 64, 8, 2048, 12288, 50257, bytes_of(24), {}};
  model.blocks.assign(96, dense(model, 12288, 12288, 4 * 12288, 2));
  return model;
}

// arXiv 2407.21783 tables 3 and 4: 8 heads of 128 for keys.
model_shape llama_3() {
  model_shape model{"Llama 3 405B", 16, 16, 8, 8192, 16384, 128256, bytes_of(128), {}};
  model.blocks.assign(126, dense(model, 16384, 1024, 53248, 3));
  return model;
}

// arXiv 2412.19437 sections 3.2 and 4.2: 256 experts over 64 GPUs, of which a token uses 8, and one
// shared.
model_shape deepseek_v3() {
  constexpr double data_parallel = 128;
  constexpr double expert_parallel = 64;
  model_shape model{"DeepSeek-V3", 16, 128, 1, 4096, 7168, 129280, bytes_of(data_parallel), {}};
  auto const h = model.hidden;
  constexpr double heads = 128;
  constexpr double q_rank = 1536;
  constexpr double kv_rank = 512;
  constexpr double rope = 64;
  constexpr double head = 128;  // of values, and of queries and keys beside `rope`
  auto const weights = h * q_rank + q_rank * heads * (head + rope) + h * (kv_rank + rope) +
                       kv_rank * heads * 2 * head + heads * head * h;
  block_shape const attention{
      .weights = weights,
      .attention = 2 * model.sequence * heads * (head + rope + head),
      .kept = 4 * h + q_rank + kv_rank + rope + heads * (2 * (head + rope) + 2 * head),
      .static_memory = weights * model.bytes_a_weight};
  auto first = attention;
  first.weights += 3 * h * 18432;
  first.kept += 3 * 18432;
  first.static_memory += 3 * h * 18432 * model.bytes_a_weight;
  auto other = attention;
  constexpr double experts = 256;
  constexpr double used = 8;
  auto const expert = 3 * h * 2048;
  other.weights += (used + 1) * expert;
  other.kept += (used + 1) * 3 * 2048 + used * h;
  other.static_memory +=
      expert * model.bytes_a_weight +
      experts / expert_parallel * expert * bytes_of(data_parallel / expert_parallel);
  model.blocks.assign(61, other);
  std::fill_n(model.blocks.begin(), 3, first);
  return model;
}

void report_splits(std::vector<model_shape> const& models) {
  std::puts("\n| find_plan | limit | placement | cost | bubble | memory |");
  std::puts("|---|---|---|---|---|---|");
  for (double limit : {memory_of_rank, 40e9})
    for (auto const& model : models) {
      auto const found = find_plan(problem_of(model, limit), {.seconds = 8});
      auto const chosen = make_plan("find_plan", found.schedule, found.problem);
      std::printf(
          "| %s | %.0f GB | %s | %.1f ms | %.1f %% | %.1f GB |\n",
          model.title,
          limit / 1e9,
          placement_of(found.problem.placement()).c_str(),
          to_milliseconds(found.cost),
          100 * bubble_rate(chosen.timeline()),
          greatest_peak(chosen));
      std::fflush(stdout);
    }
}

}  // namespace

int main() {
  report(wide_vocabulary("A 256k vocabulary"));
  report(wide_vocabulary("A 256k vocabulary, its head split", 8));
  report_splits(
      {wide_vocabulary("nothing split"),
       wide_vocabulary("head split", 8),
       wide_vocabulary("head and embedding split", 8, 8)});
  report(gpt_3());
  report(llama_3());
  report(deepseek_v3());
}
