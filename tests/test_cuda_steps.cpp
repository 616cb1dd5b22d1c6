// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps that ranks on GPUs agree on: the norm is read from the device, steps follow one
// another without a stop, and the bits are those of one process, whatever a GPU runs first.
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <span>
#include <stdexcept>
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
  void measure(std::span<gradient_state> states, bool is_finite) const {
    for (std::size_t k = 0; k < states.size(); ++k)
      for (double const g : of->layers[k].gradient) states[k].sum_of_squares += g * g;
    if (!is_finite) states[0] = {std::numeric_limits<double>::infinity(), false};
  }
  void step(step_settings const& how) const {
    auto const rate = static_cast<float>(how.learning_rate) * how.factor();
    for (auto const& l : of->layers)
      for (std::size_t i = 0; i < l.gradient.size(); ++i)
        of->weights[l.weights][i] -= rate * l.gradient[i];
  }
  void clear() const {
    for (auto& l : of->layers) l.gradient.assign(l.gradient.size(), 0);
  }
};

// The same on the stream of the rank. The arithmetic runs when the GPU gets there.
class launched_descent {
 public:
  // @param infinite_in  the step in which the first gradient counts as infinite
  launched_descent(toy::stage_model& of, int infinite_in)
      : own_{&of}, infinite_in_(infinite_in), read_back_(of.layers.size()) {}

  [[nodiscard]] int layers() const { return own_.layers(); }
  void measure(std::span<gradient_state> states, pass_context ctx) {
    std::span const read_back(read_back_.data(), states.size());
    bool const is_finite = steps_++ != infinite_in_;
    launch(ctx, {{read_back.data(), read_back.size_bytes()}}, [this, read_back, is_finite] {
      std::ranges::fill(read_back, gradient_state{});
      own_.measure(read_back, is_finite);
    });
    zbpp::cuda::stream_of(ctx).synchronize();
    model::host_reads(read_back.data(), read_back.size_bytes());
    std::ranges::copy(read_back, states.begin());
  }
  void step(step_settings const& how, pass_context ctx) {
    launch(ctx, {}, [this, how] {
      before_ = own_.of->weights;
      own_.step(how);
      if (how.is_final) own_.clear();
    });
  }
  void commit(pass_context ctx) { skip(ctx); }
  void undo(pass_context ctx) {
    launch(ctx, {}, [this] { own_.of->weights = before_; });
  }
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
  int infinite_in_;
  int steps_ = 0;
  std::vector<std::vector<float>> before_;
  zbpp::cuda::pinned<gradient_state> read_back_;
};

// Uses all memory that is free when a pass ends, so that what a message gets was in use just now.
class stage : public toy::basic_hand_written<toy::launched_passes_with_scratch> {
 public:
  stage(toy::stage_model& of, int infinite_in) : basic_hand_written(of), own_(of, infinite_in) {}
  launched_descent& optimizer() { return own_; }

 private:
  launched_descent own_;
};

struct expected_failure : std::runtime_error {
  using runtime_error::runtime_error;
};

// Throws where one of the flows of all stages begins.
struct doomed_stage {
  stage* of;
  int* flows;
  int failing;

  zbpp::flow operator()(zbpp::microbatch mb) const {
    if ((*flows)++ == failing) throw expected_failure("this flow fails");
    return (*of)(mb);
  }
  launched_descent& optimizer() const { return of->optimizer(); }
};

// What a training runs into: where it clips, and which gradients are infinite.
struct trouble {
  double clip = 0;
  int infinite_in = -1;  // the step, on the last stage
};

constexpr int steps = 7;

struct outcome {
  std::vector<std::vector<double>> losses;
  std::vector<double> norms;
  toy::model given;
  int early = 0;    // ranks that stepped before they knew the norm
  int amended = 0;  // steps
};

zbpp::training_options options(double clip) {
  return {
      .clip = clip,
      .learning_rate =
          [](std::int64_t updates) { return 0.01 / (1.0 + static_cast<double>(updates)); },
      .window = {.steps = 4, .most_amended = 3}};
}

// Trains as one process would.
outcome train_alone(plan const& planned, trouble const& with, int count = steps) {
  outcome result;
  auto& all = result.given = toy::make_model(planned.problem().stages());
  std::set<std::pair<int, int>> fused;
  for (auto const& p : planned.schedule().passes().all())
    if (p.kind == zbpp::pass_kind::backward) fused.emplace(p.stage, p.microbatch);
  auto const is_fused = [&](int stage, int microbatch) {
    return fused.contains({stage, microbatch});
  };
  std::int64_t updates = 0;
  for (int step = 0; step < count; ++step) {
    result.losses.push_back(
        toy::reference_step(all, step, planned.problem().microbatches(), is_fused));
    for (auto& loss : result.losses.back()) loss = static_cast<double>(static_cast<float>(loss));
    std::vector<gradient_state> states;
    for (auto& s : all) {
      std::vector<gradient_state> of_stage(s.layers.size());
      descent{&s}.measure(of_stage, &s != &all.back() || step != with.infinite_in);
      states.insert(states.end(), of_stage.begin(), of_stage.end());
    }
    auto const verdict = zbpp::judge(states, with.clip, 1);
    result.norms.push_back(verdict.norm);
    auto const rate = options(with.clip).learning_rate(updates);
    for (auto& s : all) {
      if (verdict.is_finite)
        descent{&s}.step({.learning_rate = rate, .coefficient = verdict.coefficient});
      descent{&s}.clear();
    }
    updates += verdict.is_finite ? 1 : 0;
  }
  return result;
}

// Trains in three runs.
outcome train_on_gpus(plan const& planned, trouble const& with, zbpp::cuda::device backend) {
  outcome result;
  result.given = toy::make_model(planned.problem().stages());
  std::vector<stage> stages;
  for (auto& s : result.given)
    stages.emplace_back(s, &s == &result.given.back() ? with.infinite_in : -1);
  backend.edges = toy::edge_shapes(planned.problem());
  zbpp::pipeline pipe(planned, backend, stages, options(with.clip));
  for (int const length : {4, 1, steps - 5})
    pipe.run(length, [&](zbpp::step_result const& step) {
      result.losses.push_back(step.losses);
      result.norms.push_back(step.update.norm);
      for (auto const& rank : step.ranks) result.early += rank.is_early ? 1 : 0;
      result.amended += step.update.is_amended ? 1 : 0;
    });
  return result;
}

void check_bits(outcome const& found, outcome const& expected) {
  bool is_same = toy::is_same(found.norms, expected.norms) &&
                 found.losses.size() == expected.losses.size() &&
                 toy::is_same(found.given, expected.given);
  for (std::size_t i = 0; is_same && i < found.losses.size(); ++i)
    is_same = toy::is_same(found.losses[i], expected.losses[i]);
  CHECK(is_same);
  CHECK(first_of(model::faults()) == "");
  CHECK(first_of(model::leaks()) == "");
}

// Trains in both kinds of steps on one device and on several.
void check_kinds(
    zbpp::any_policy const& policy,
    problem const& what,
    std::uint64_t& seed,
    outcome& early_in_all) {
  INFO(name_of(policy, what));
  auto const planned = [&](step_kind kind) { return make_plan(policy, what, {.step = kind}); };
  auto const late = planned(step_kind::post_validated);
  auto norms = train_alone(late, {}).norms;
  std::ranges::sort(norms);
  for (auto const& with :
       {trouble{},
        trouble{.clip = 0.7 * norms.front()},
        trouble{.clip = norms[norms.size() / 2], .infinite_in = 2}}) {
    auto const expected = train_alone(late, with);
    for (bool const has_devices : {false, true})
      for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
        auto const ranks = what.ranks();
        model::reset({.seed = ++seed, .devices = ranks, .hosts = has_devices ? ranks : 1});
        zbpp::cuda::device backend{.traces = seed % 3 == 0};
        for (int r = 0; has_devices && r < ranks; ++r) backend.devices.push_back({.device = r});
        INFO("interleaving " << seed << ", clips at " << with.clip);
        auto const found = train_on_gpus(planned(kind), with, backend);
        check_bits(found, expected);
        if (kind == step_kind::synchronous) {
          CHECK(found.early == 0);
          CHECK(found.amended == 0);
        } else if (with.clip == 0) {
          CHECK(found.early == (steps - 3) * ranks);
          CHECK(found.amended == 0);
        }
        early_in_all.early += found.early;
        early_in_all.amended += found.amended;
      }
  }
}

}  // namespace

TEST_CASE(
    "ranks on GPUs agree on steps with the bits of one process, whatever runs first", "[cuda]") {
  auto seed = run_seed();
  outcome all;
  for (int ranks : thinned<std::vector<int>>({1, 2, 3, 4}, {1, 3}))
    for (auto const& where : placements_to_run(ranks))
      for (auto const& policy : grid_policies()) {
        problem const what(where, 2 * ranks, launched_costs(), 87);
        if (is_supported(policy, what)) check_kinds(policy, what, seed, all);
      }
  CHECK(all.early > thinned(1000, 200));
  CHECK(all.amended > thinned(100, 20));
}

TEST_CASE("a failure at any flow leaves the weights of whole steps on GPUs", "[cuda]") {
  problem const what(zbpp::placement::linear(3), 6, launched_costs(), 87);
  auto const planned = make_plan(zbpp::zb_h1{}, what, {.step = step_kind::post_validated});
  constexpr int flows_of_step = 3 * 6;
  std::set<std::int64_t> ends;
  for (int failing = 0; failing < 3 * flows_of_step; failing += thinned(1, 5)) {
    INFO("the flow that fails is number " << failing);
    model::reset({.seed = 5});
    auto all = toy::make_model(3);
    std::vector<stage> stages;
    for (auto& s : all) stages.emplace_back(s, -1);
    int flows = 0;
    std::vector<doomed_stage> doomed;
    for (auto& s : stages) doomed.push_back({&s, &flows, failing});
    zbpp::pipeline pipe(
        planned, zbpp::cuda::device{.edges = toy::edge_shapes(what)}, doomed, options(0));
    CHECK_THROWS_AS(pipe.run(steps), expected_failure);
    ends.insert(pipe.steps());
    auto const expected = train_alone(planned, {}, static_cast<int>(pipe.steps()));
    bool is_same = true;
    for (std::size_t s = 0; s < all.size(); ++s)
      for (std::size_t k = 0; k < all[s].weights.size(); ++k)
        is_same = is_same && toy::is_same(all[s].weights[k], expected.given[s].weights[k]);
    CHECK(is_same);
    CHECK(first_of(model::faults()) == "");
  }
  CHECK(ends == std::set<std::int64_t>{0, 1, 2});
}

TEST_CASE("a kernel's fault ends a run of steps with CUDA's error", "[cuda]") {
  problem const what(zbpp::placement::linear(2), 3, launched_costs(), 87);
  auto const planned = make_plan(zbpp::zb_h1{}, what, {.step = step_kind::post_validated});
  for (std::uint64_t kernel = 0; kernel < 400; kernel += thinned(7U, 31U)) {
    INFO("kernel " << kernel);
    model::reset({.seed = 5});
    auto all = toy::make_model(2);
    std::vector<stage> stages;
    for (auto& s : all) stages.emplace_back(s, -1);
    zbpp::pipeline pipe(
        planned, zbpp::cuda::device{.edges = toy::edge_shapes(what)}, stages, options(0));
    model::kernel_fault(kernel);
    CHECK_THROWS_AS(pipe.run(steps), zbpp::cuda::cuda_error);
    static_cast<void>(model::take_faults());
  }
}

}  // namespace test_cuda_steps
