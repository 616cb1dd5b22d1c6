// SPDX-License-Identifier: Apache-2.0
//
// Compares the bf16 model of train_gpt_cuda with that of train_gpt, which is fp32 on the CPU: the
// same first parameters to the bit, gradients of every piece and losses of some steps within what
// bf16 rounds off. When a step is taken back, the loss is the one before it. Runs on a GPU or under
// the model of CUDA, as it is linked. Exit status 1 where something is off.
#include "train_gpt/sequential.hpp"
#include "train_gpt_cuda/sequential.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#ifdef ZBPP_CUDA_MODEL
#include <gpu_model/cuda/cuda_model.hpp>
#include <gpu_model/cuda/environment.hpp>
#endif

namespace gpt::cuda {
namespace {

/// Own choice: rounding to bf16 is off by 2^-9 at most, 0.2 %, and a gradient sees dozens of them
/// in a row, of random signs; 0.013 was measured under the model of CUDA.
constexpr double gradient_bound = 0.03;
/// Own choice, relative to the loss; 0.0003 was measured under the model of CUDA.
constexpr double loss_bound = 0.002;
#ifdef ZBPP_SLOW_BUILD  // a sanitizer, which makes each of them ten times as dear
constexpr int steps = 3;
#else
constexpr int steps = 6;
#endif

/// Knows the same training for both.
struct both {
  training here;
  gpt::training there;
};

both make(shape const& s, int microbatches, std::uint64_t seed) {
  both made;
  made.here = {s, {}, microbatches, seed};
  made.here.optimizer.base.steps = 40;
  made.there.model = s.of_text();
  made.there.optimizer = made.here.optimizer.base;
  made.there.microbatches = microbatches;
  made.there.seed = seed;
  return made;
}

zbpp::cuda::rank_device place_of(zbpp::cuda::stream_ref stream) {
  zbpp::cuda::rank_device place{.compute = stream, .sm_count = 16};
  zbpp::cuda::check(cudaGetDevice(&place.device));
  return place;
}

/// Gives |a - b| / |b| over a piece.
double distance(float const* a, float const* b, index size) {
  double off = 0.0;
  double all = 0.0;
  for (index i = 0; i < size; ++i) {
    auto const d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    off += d * d;
    all += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(off / all);
}

/// Moves biases, gammas and betas away from their first values, 0 and 1, where a product with them
/// could be forgotten.
void perturb(parameter_set& p, std::uint64_t seed) {
  for (auto const& e : p.entries()) {
    if (e.name.ends_with("weight") || e.name.ends_with("table")) continue;
    for (index i = 0; i < e.at.size; ++i)
      p.values()[static_cast<std::size_t>(e.at.offset + i)] +=
          0.3F * normal(random_bits(seed, e.at.offset, i));
  }
}

/// Puts values of train_gpt where the pieces of that part and name lie on the device.
std::vector<float> placed(
    weights const& there, parameter_set const& here, std::span<float const> from) {
  std::vector<float> to(there.size());
  for (auto const& e : there.entries()) {
    auto const piece = std::ranges::find_if(here.entries(), [&e](parameter_set::entry const& of) {
      return of.part == e.part && of.name == e.name && of.at.size == e.at.size;
    });
    if (piece == here.entries().end())
      throw setting_error("train_gpt has no " + std::string(e.name) + " of that size");
    std::copy_n(from.data() + piece->at.offset, e.at.size, to.data() + e.at.offset);
  }
  return to;
}

/// The same, and puts what belongs to queries, keys and values in the order of the model on the
/// device, where a head's three are neighbours: [heads, 3, head] instead of train_gpt's
/// [3, heads, head].
std::vector<float> by_heads(
    shape const& s,
    weights const& there,
    parameter_set const& here,
    std::span<float const> values) {
  auto const from = placed(there, here, values);
  auto to = from;
  for (auto const& e : there.entries()) {
    if (!e.name.starts_with("qkv")) continue;
    auto const row = e.at.size / (3 * s.width);  // of a weight; a bias has one element a row
    for (index which = 0; which < 3; ++which)
      for (index h = 0; h < s.heads; ++h)
        std::copy_n(
            from.data() + e.at.offset + (which * s.heads + h) * s.head() * row,
            s.head() * row,
            to.data() + e.at.offset + (h * 3 + which) * s.head() * row);
  }
  return to;
}

/// @return faults, told as they are found
int compare_gradients(both const& how, text const& on, zbpp::cuda::stream_ref stream) {
  int faults = 0;
  auto fp32 = whole_model(how.there.model, how.there.microbatches, how.there.seed);
  auto& expected = fp32.parameters();
  sequential_trainer trainer(how.here, on, place_of(stream));
  auto const& p = trainer.model().parameters();
  auto const first = p.values(stream);
  if (first != placed(p, expected, expected.values())) {
    std::printf("the first parameters are not those of train_gpt\n");
    ++faults;
  }
  perturb(expected, how.there.seed);
  p.assign(stream, by_heads(how.here.model, p, expected, expected.values()));
  auto const loss = accumulate_gradients(fp32, how.there, on, 0, [] {});
  auto const off_loss = std::abs(trainer.accumulate([] {}) - loss) / loss;
  if (!(off_loss <= loss_bound)) {
    std::printf("the loss is off by %.5f of its size; at most %.5f\n", off_loss, loss_bound);
    ++faults;
  }
  auto const found = p.gradients(stream);
  auto const right = by_heads(how.here.model, p, expected, expected.gradients());
  double worst = 0.0;
  for (auto const& e : p.entries()) {
    auto const off = distance(found.data() + e.at.offset, right.data() + e.at.offset, e.at.size);
    worst = std::max(worst, off);
    if (off <= gradient_bound) continue;  // a nan is a fault as well
    std::printf(
        "gradient of part %td, %s: off by %.4f of its size; at most %.4f\n",
        e.part,
        std::string(e.name).c_str(),
        off,
        gradient_bound);
    ++faults;
  }
  std::printf("gradients: off by %.4f of their size at most\n", worst);
  return faults;
}

/// @return faults, told as they are found
int compare_losses(both const& how, text const& on, zbpp::cuda::stream_ref stream) {
  int faults = 0;
  gpt::sequential_trainer fp32(how.there, on);
  sequential_trainer trainer(how.here, on, place_of(stream));
  auto const first_values = whole_model(how.there.model, 1, how.there.seed);
  auto const& p = trainer.model().parameters();
  auto const& wanted = first_values.parameters();
  p.assign(stream, by_heads(how.here.model, p, wanted, wanted.values()));
  double worst = 0.0;
  double first = 0.0;
  double last = 0.0;
  for (int i = 0; i < steps; ++i) {
    auto const expected = fp32.step();
    last = trainer.step([] {});
    if (i == 0) first = last;
    auto const off = std::abs(last - expected) / expected;
    worst = std::max(worst, off);
    if (off <= loss_bound) continue;
    std::printf("step %d: loss %.5f, on the CPU %.5f\n", i, last, expected);
    ++faults;
  }
  if (!(last < first)) {
    std::printf("the loss went from %.4f to %.4f; it has to fall\n", first, last);
    ++faults;
  }
  std::printf("losses: %.4f to %.4f, off by %.5f of their size at most\n", first, last, worst);
  return faults;
}

/// Takes a step back, and looks at the loss, which depends on the fp32 weights and their bf16
/// copies.
/// @return faults, told as they are found
int check_undo(both const& how, text const& on, zbpp::cuda::stream_ref stream) {
  sequential_trainer trainer(how.here, on, place_of(stream));
  auto const& p = trainer.model().parameters();
  chunk_optimizer rule(how.here.optimizer, p);
  rule.prepare(p);
  zbpp::cuda::device_context place(place_of(stream), 1, {}, {});
  zbpp::arena no_memory;
  zbpp::pass_context const at(no_memory, zbpp::backend_kind::cuda, &place);
  auto const loss = [&] { return trainer.accumulate([] {}); };
  auto const before = loss();
  rule.step({.learning_rate = 0.01, .is_final = false}, at);
  auto const stepped = loss();
  rule.undo(at);
  auto const after = loss();
  if (stepped != before && after == before) return 0;
  std::printf(
      "loss %.9f, %.9f after a step, %.9f when that was taken back\n", before, stepped, after);
  return 1;
}

#ifdef ZBPP_CUDA_MODEL

/// Holds how many kernels and products F, B and W of a microbatch launch.
using launch_counts = std::array<std::int64_t, 3>;

launch_counts launches_of(shape const& s, text const& on, zbpp::cuda::stream_ref stream) {
  chunk model({.model = s, .optimizer = {}, .microbatches = 1}, on, {0, s.layers});
  model.prepare(stream, 16);
  device_array<float> const loss(1);
  reused_memory memory;
  chunk_saved<reused_memory::tensor> keep;
  auto const count = [] {
    auto const so_far = zbpp::cuda_model::count("launch");
    zbpp::cuda_model::start_counting();
    return static_cast<std::int64_t>(so_far);
  };
  static_cast<void>(count());
  model.forward(memory, stream, keep, {0, 0}, nullptr, loss.data());
  auto const forward = count();
  model.backward_input(memory, stream, keep, {});
  auto const backward = count();
  model.backward_weight(stream, keep);
  auto const weight = count();
  stream.synchronize();
  return {forward, backward, weight};
}

/// A layer launches what docs/train_gpt_cuda.md says.
/// @return faults, told as they are found
int check_launches(text const& on, zbpp::cuda::stream_ref stream) {
  shape s{.layers = 1, .width = 64, .heads = 2, .context = 32, .sequences = 3};
  auto const one = launches_of(s, on, stream);
  s.layers = 2;
  auto const two = launches_of(s, on, stream);
  launch_counts layer{};
  for (std::size_t i = 0; i < layer.size(); ++i) layer[i] = two[i] - one[i];
  std::printf(
      "launches of a layer and microbatch: F %" PRId64 ", B %" PRId64 ", W %" PRId64
      " (expected F 15, B 23, W 7); of both ends: F %" PRId64 ", B %" PRId64 ", W %" PRId64 "\n",
      layer[0],
      layer[1],
      layer[2],
      one[0] - layer[0],
      one[1] - layer[1],
      one[2] - layer[2]);
  return layer == launch_counts{15, 23, 7} ? 0 : 1;
}

#endif

int compare_all(char const* path) {
  auto const on = read_text(path);
  // Heads are as wide as train_gpt's, which all have.
  shape const two_blocks{.layers = 2, .width = 64, .heads = 2, .context = 32, .sequences = 2};
  shape const deeper{.layers = 4, .width = 32, .heads = 1, .context = 72, .sequences = 2};
  int faults = 0;
  zbpp::cuda::stream const stream(zbpp::cuda::stream_priority::usual);
  for (auto const& how : {make(two_blocks, 3, 1), make(deeper, 2, 7)}) {
    faults += compare_gradients(how, on, stream);
    faults += compare_losses(how, on, stream);
  }
#ifdef ZBPP_CUDA_MODEL
  faults += check_launches(on, stream);
#endif
  return faults + check_undo(make(two_blocks, 3, 1), on, stream);
}

}  // namespace
}  // namespace gpt::cuda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "train_gpt_cuda_compare: name a text, such as README.md\n");
    return 2;
  }
  try {
#ifdef ZBPP_CUDA_MODEL
    zbpp::cuda_model::reset(zbpp::cuda_model::as_in_environment({}));
#endif
    int faults = gpt::cuda::compare_all(argv[1]);
#ifdef ZBPP_CUDA_MODEL
    for (auto const& fault : zbpp::cuda_model::faults()) {
      std::printf("%s\n", fault.c_str());
      ++faults;
    }
#endif
    return faults == 0 ? 0 : 1;
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "train_gpt_cuda_compare: %s\n", failed.what());
    return 1;
  }
}
