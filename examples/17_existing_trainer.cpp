// SPDX-License-Identifier: Apache-2.0
//
// A trainer that exists already, in the style of C (existing_trainer.hpp), as a pipeline: its
// functions become passes, its arrays stay where they are. Under six policies, with its AdamW in
// two places, and resumed halfway from a checkpoint, every weight has the bits of the plain loop.
// docs/adopting.md goes through it step by step.
#include "existing_trainer.hpp"
#include <zbpp/checkpoint/checkpoint.hpp>
#include <zbpp/plan.hpp>
#include <zbpp/runtime/measure.hpp>
#include <zbpp/zbpp.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

using namespace trainer;

// [kept
// What one microbatch keeps of one layer. The trainer has these arrays once; here several
// microbatches are under way, so each has its own, in the memory of its rank.
struct kept_layer {
  zbpp::buffer x;   // F to W
  zbpp::buffer h;   // F to W: B needs it for tanh, W for W2
  zbpp::buffer dy;  // B to W
  zbpp::buffer dh;  // B to W
};
// kept]

float* floats(zbpp::buffer const& b) { return b.as<float>().data(); }
zbpp::buffer make(zbpp::pass_context ctx, int count) {
  return ctx.allocate(static_cast<std::size_t>(count) * sizeof(float));
}

// [stage
struct stage {
  model* all;        // one for all stages: ranks are threads
  int first, count;  // layers

  zbpp::flow operator()(zbpp::microbatch mb) {
    std::vector<kept_layer> kept;
    kept.resize(static_cast<std::size_t>(count));
    zbpp::buffer y, logits, d;
    float *const w = all->w.data(), *const dw = all->d.data();
    int const step = int(mb.step()), m = mb.index();
    zbpp::buffer const in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      y = in;
      if (mb.is_first_stage()) embed(floats(y = make(ctx, tokens * channels)), w, step, m);
      for (int l = first; auto& k : kept) {
        k.x = std::exchange(y, ctx.allocate_edge(sizeof(float) * tokens * channels));
        k.h = make(ctx, tokens * hidden);
        layer_forward(floats(y), floats(k.h), floats(k.x), w + layer_at(l++));
      }
      if (!mb.is_last_stage()) return;
      logits = make(ctx, tokens * vocabulary);
      matmul(floats(logits), floats(y), w, tokens, channels, vocabulary);
      mb.report_loss(double(softmax_loss(floats(logits), step, m)));
    });
    co_await mb.send_activation(y);
    if (!mb.is_last_stage()) y.reset();  // the head needs it in W
    zbpp::buffer const back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      d = back;
      if (mb.is_last_stage()) {
        d = make(ctx, tokens * channels);
        matmul_backward_input(floats(d), floats(logits), w, tokens, channels, vocabulary);
      }
      for (int l = first + count; l-- > first;) {
        auto& k = kept[std::size_t(l - first)];
        auto const at = layer_at(l), half = at + layer_size / 2;
        k.dh = make(ctx, tokens * hidden);
        k.dy = std::exchange(d, ctx.allocate_edge(sizeof(float) * tokens * channels));
        matmul_backward_input(floats(k.dh), floats(k.dy), w + half, tokens, hidden, channels);
        tanh_backward(floats(k.dh), floats(k.h));
        matmul_backward_input(floats(d), floats(k.dh), w + at, tokens, channels, hidden);
        add(floats(d), floats(k.dy), tokens * channels);
      }
    });
    co_await mb.send_gradient(d);
    if (!mb.is_first_stage()) d.reset();  // the embedding needs it in W
    co_await zbpp::W([&] {
      if (mb.is_last_stage())
        matmul_backward_weight(
            all->d_head.data(), floats(logits), floats(y), tokens, channels, vocabulary);
      for (int l = first; auto const& k : kept) {
        auto const at = layer_at(l++), half = at + layer_size / 2;
        matmul_backward_weight(dw + half, floats(k.dy), floats(k.h), tokens, hidden, channels);
        matmul_backward_weight(dw + at, floats(k.dh), floats(k.x), tokens, channels, hidden);
      }
      if (mb.is_first_stage()) embed_backward(dw, floats(d), step, m);
    });
  }

  // Steps the layers of this stage, on its rank, after its last W.
  void update(zbpp::step_settings const& settings, zbpp::pass_context) {
    adamw(*all, layer_at(first), count * layer_size, int(settings.updates) + 1);
  }
};
// stage]

constexpr int steps = 4;

// Shares the layers among some stages.
std::vector<stage> stages_of(model& all, int count) {
  int const share = layers / count;
  std::vector<stage> stages;
  for (int s = 0; s < count; ++s) stages.push_back({&all, s * share, share});
  return stages;
}

// [arrays
// What a checkpoint holds. Names are those of the whole model, so that any split finds them.
std::vector<zbpp::checkpoint::array> arrays_of(model& all) {
  using zbpp::checkpoint::array_of;
  return {
      array_of("w", std::span(all.w)),
      array_of("mean", std::span(all.mean)),
      array_of("square", std::span(all.square)),
      array_of("updates", std::span(&all.updates, 1))};
}
// arrays]

struct outcome {
  model trained;
  std::vector<double> losses;
};

// Trains half of the steps and ends; begins again with a new model, and goes on from the
// checkpoint.
outcome train(zbpp::plan const& plan, bool stages_step, std::filesystem::path const& path) {
  outcome result;
  for (int run = 0; run < 2; ++run) {
    auto& all = result.trained = model();
    auto stages = stages_of(all, plan.problem().stages());
    auto& losses = result.losses;
    // [steps
    zbpp::pipeline pipe{plan, zbpp::threads{}, stages};
    zbpp::checkpoint::run_folder folder(path, {.split = {{"--policy", plan.policy()}}});
    pipe.resume(folder.resume(arrays_of(all)));  // where there is a checkpoint
    for (int i = 0; i < steps / 2; ++i) {
      losses.push_back(pipe.step().loss());
      sum_tied(all);  // no pass runs now, so the trainer may step what stages share
      adamw(all, 0, stages_step ? table : parameters, ++all.updates);
    }
    bool const is_saved = folder.save(pipe.state(), [&](int) { return arrays_of(all); });
    // steps]
    if (!is_saved) break;  // a number is not finite
  }
  return result;
}

// An empty folder that goes with the object.
struct scratch_folder {
  std::filesystem::path path;
  scratch_folder() {
    auto name = (std::filesystem::temp_directory_path() / "zbpp-trainer-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder: " + name);
    path = name;
  }
  scratch_folder(scratch_folder const&) = delete;
  scratch_folder& operator=(scratch_folder const&) = delete;
  ~scratch_folder() { std::filesystem::remove_all(path); }
};

}  // namespace

int main() {
  model plain;
  std::vector<double> plain_losses;
  for (int i = 0; i < steps; ++i) plain_losses.push_back(plain_step(plain, i));

  // [costs
  constexpr zbpp::bytes row = tokens * sizeof(float);
  zbpp::stage_costs const layer{
      .forward = 2,
      .backward_input = 2,
      .backward_weight = 1,
      .activation = row * (channels + hidden),                 // x and h: F to B
      .weight_gradient_input = row * 2 * (channels + hidden),  // all four: B to W
      .output_gradient = row * (channels + hidden),            // dy and dh, which B adds for W
      .edge = row * channels};
  // costs]
  zbpp::problem const line(zbpp::placement::linear(4), microbatches, layer);
  bool is_same = true;
  auto const check = [&](auto const& policy, zbpp::problem const& problem) {
    for (auto const kind : {zbpp::step_kind::none, zbpp::step_kind::unchecked}) {
      scratch_folder const checkpoints;
      auto const plan = zbpp::make_plan(policy, problem, {.step = kind});
      auto const [all, losses] = train(plan, kind != zbpp::step_kind::none, checkpoints.path);
      bool const right = losses == plain_losses &&
                         std::memcmp(all.w.data(), plain.w.data(), parameters * sizeof(float)) == 0;
      std::printf(
          "%-12s loss %.6f to %.6f, weights %s\n",
          plan.policy().c_str(),
          losses.front(),
          losses.back(),
          right ? "identical to the last bit" : "DIFFERENT");
      is_same = is_same && right;
    }
  };
  check(zbpp::gpipe{}, line);
  check(zbpp::one_f_one_b{}, line);
  check(zbpp::interleaved{}, zbpp::problem(zbpp::placement::looped(2, 2), microbatches, layer));
  check(zbpp::zb_v{}, zbpp::problem(zbpp::placement::v_shape(2), microbatches, layer));
  check(zbpp::zb_h1{}, line);
  // [measured
  model copy;  // measuring trains it
  auto stages = stages_of(copy, 4);
  zbpp::pipeline trial{zbpp::make_plan(zbpp::zb_h1{}, line), zbpp::threads{}, stages};
  auto const problem = zbpp::measure(trial, {.steps = 5});
  check(zbpp::greedy_auto{.search = {.seconds = 0.1}}, problem);
  // measured]
  return is_same && plain_losses.back() < plain_losses.front() ? 0 : 1;
}
