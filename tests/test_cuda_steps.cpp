// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps on GPUs for which all ranks wait: the norm is read from the device, and the bits
// are those of one process, whatever a GPU runs first.
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace test_cuda_steps {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
using zbpp::gradient_state;
using zbpp::pass_context;
using zbpp::plan;
using zbpp::problem;
using zbpp::step_kind;
using zbpp::step_settings;

namespace {

// Gradient descent on a stage, as one process does it.
struct descent {
  toy::stage_model* of;

  [[nodiscard]] int layers() const { return static_cast<int>(of->layers.size()); }
  void measure(std::span<gradient_state> states) const {
    for (std::size_t k = 0; k < states.size(); ++k)
      for (double const g : of->layers[k].gradient) states[k].sum_of_squares += g * g;
  }
  void step(step_settings const& how) const {
    auto const rate = static_cast<float>(how.learning_rate) * how.factor();
    for (auto const& l : of->layers)
      for (std::size_t i = 0; i < l.gradient.size(); ++i)
        of->weights[l.weights][i] -= rate * l.gradient[i];
    clear();
  }
  void clear() const {
    for (auto& l : of->layers) l.gradient.assign(l.gradient.size(), 0);
  }
};

// The same on the stream of the rank. The arithmetic runs when the GPU gets there.
class launched_descent {
 public:
  explicit launched_descent(toy::stage_model& of) : own_{&of}, read_back_(of.layers.size()) {}

  [[nodiscard]] int layers() const { return own_.layers(); }
  void measure(std::span<gradient_state> states, pass_context ctx) {
    std::span const read_back(read_back_.data(), states.size());
    launch(ctx, {{read_back.data(), read_back.size_bytes()}}, [this, read_back] {
      std::ranges::fill(read_back, gradient_state{});
      own_.measure(read_back);
    });
    zbpp::cuda::stream_of(ctx).synchronize();
    model::host_reads(read_back.data(), read_back.size_bytes());
    std::ranges::copy(read_back, states.begin());
  }
  void step(step_settings const& how, pass_context ctx) {
    CHECK(how.is_final);
    launch(ctx, {}, [this, how] { own_.step(how); });
  }
  void commit(pass_context) { FAIL_CHECK("no step is early on a GPU"); }
  void undo(pass_context) { FAIL_CHECK("no step is early on a GPU"); }
  void skip(pass_context ctx) {
    launch(ctx, {}, [this] { own_.clear(); });
  }

 private:
  template <class Work>
  static void launch(pass_context ctx, std::initializer_list<model::range> writes, Work work) {
    zbpp::cuda::check(
        model::launch(zbpp::cuda::stream_of(ctx), "optimizer", {}, writes, std::move(work)));
  }

  descent own_;
  zbpp::cuda::pinned<gradient_state> read_back_;
};

struct stage : toy::launched_stage {
  explicit stage(toy::stage_model& of) : toy::launched_stage(of), own(of) {}
  launched_descent& optimizer() { return own; }

  launched_descent own;
};

struct outcome {
  toy::history given;
  std::vector<double> norms;
};

zbpp::training_options options(double clip) {
  return {.clip = clip, .learning_rate = [](std::int64_t updates) {
            return 0.01 / (1.0 + static_cast<double>(updates));
          }};
}

// Trains as one process would.
outcome train_alone(plan const& planned, double clip) {
  outcome result;
  auto all = toy::make_model(planned.problem().stages());
  std::set<std::pair<int, int>> fused;
  for (auto const& p : planned.schedule().passes().all())
    if (p.kind == zbpp::pass_kind::backward) fused.emplace(p.stage, p.microbatch);
  auto const is_fused = [&](int stage, int microbatch) {
    return fused.contains({stage, microbatch});
  };
  for (int step = 0; step < toy::steps; ++step) {
    result.given.losses.push_back(
        toy::reference_step(all, step, planned.problem().microbatches(), is_fused));
    std::vector<gradient_state> states;
    for (auto& s : all) {
      descent const own{&s};
      std::vector<gradient_state> of_stage(s.layers.size());
      own.measure(of_stage);
      states.insert(states.end(), of_stage.begin(), of_stage.end());
    }
    auto const verdict = zbpp::judge(states, clip, 1);
    result.norms.push_back(verdict.norm);
    for (auto& s : all)
      descent{&s}.step(
          {.learning_rate = options(clip).learning_rate(step), .coefficient = verdict.coefficient});
    result.given.models.push_back(all);
  }
  result.given = toy::in_single_precision(std::move(result.given));
  return result;
}

outcome train_on_gpus(plan const& planned, double clip, zbpp::cuda::device backend) {
  outcome result;
  auto all = toy::make_model(planned.problem().stages());
  std::vector<stage> stages;
  for (auto& s : all) stages.emplace_back(s);
  backend.edges = toy::edge_shapes(planned.problem());
  zbpp::pipeline pipe(planned, backend, stages, options(clip));
  pipe.run(toy::steps, [&](zbpp::step_result const& step) {
    result.given.losses.push_back(step.losses);
    result.norms.push_back(step.update.norm);
    result.given.models.push_back(all);
    CHECK(step.update.is_update);
    CHECK_FALSE(step.update.is_post_validated);
  });
  return result;
}

}  // namespace

TEST_CASE(
    "ranks on GPUs agree on steps with the bits of one process, whatever runs first", "[cuda]") {
  std::uint64_t seed = 0;
  for (int ranks : thinned<std::vector<int>>({1, 2, 3, 4}, {1, 3}))
    for (auto const& where : placements_to_run(ranks))
      for (auto const& policy : grid_policies()) {
        problem const what(where, 2 * ranks, launched_costs(), 87);
        if (!is_supported(policy, what)) continue;
        INFO(name_of(policy, what));
        auto const planned = make_plan(policy, what, {.step = step_kind::synchronous});
        auto const free = train_alone(planned, 0);
        for (double const clip : {0.0, 0.7 * free.norms.front()}) {
          auto const expected = train_alone(planned, clip);
          for (bool const has_devices : {false, true}) {
            model::reset({.seed = ++seed, .devices = ranks, .hosts = has_devices ? ranks : 1});
            zbpp::cuda::device backend;
            for (int r = 0; has_devices && r < ranks; ++r) backend.devices.push_back({.device = r});
            auto const found = train_on_gpus(planned, clip, backend);
            CHECK(found.norms == expected.norms);
            bool const is_same = found.given == expected.given;
            CHECK(is_same);
            CHECK(first_of(model::faults()) == "");
            CHECK(first_of(model::leaks()) == "");
          }
        }
      }
}

TEST_CASE("a step with a gradient that is not finite is skipped on GPUs", "[cuda]") {
  model::reset({});
  problem const what(zbpp::placement::linear(2), 3, launched_costs(), 87);
  auto const planned = make_plan(zbpp::zb_h1{}, what, {.step = step_kind::synchronous});
  auto all = toy::make_model(2);
  all[1].weights[0][0] = std::numeric_limits<float>::infinity();
  auto const before = all;
  std::vector<stage> stages;
  for (auto& s : all) stages.emplace_back(s);
  zbpp::cuda::device backend;
  backend.edges = toy::edge_shapes(what);
  zbpp::pipeline pipe(planned, backend, stages, options(1));
  auto const& result = pipe.step();
  CHECK(result.update.is_skipped);
  CHECK(toy::is_same(all, before));
  CHECK(pipe.state().updates == 0);
  CHECK(pipe.state().steps == 1);
}

TEST_CASE("validating afterwards is refused on GPUs with what to do", "[cuda]") {
  model::reset({});
  problem const what(zbpp::placement::linear(2), 3, launched_costs(), 87);
  auto const planned = make_plan(zbpp::zb_h1{}, what, {.step = step_kind::post_validated});
  auto all = toy::make_model(2);
  std::vector<stage> stages;
  for (auto& s : all) stages.emplace_back(s);
  CHECK(
      refusal([&] {
        zbpp::cuda::device backend;
        backend.edges = toy::edge_shapes(what);
        zbpp::pipeline const pipe(planned, backend, stages);
      }) == "on this backend ranks begin no step before the last one is final; lower the plan with "
            "step_kind::synchronous");
}

}  // namespace test_cuda_steps
