// SPDX-License-Identifier: Apache-2.0
//
// Trainings of the toy network whose ranks, on the model of CUDA, agree on optimizer steps; and
// what one process makes of them.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/training.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_toy.hpp>
#include <support/cuda_training.hpp>
#include <support/plan_grid.hpp>
#include <support/thinned.hpp>
#include <support/toy_history.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace zbpp::test::gpu_steps {

/// What the first layer of each stage has, where that is tied.
inline constexpr bytes tied_size = (toy::width + 1) * toy::width * sizeof(float);

/// Gradient descent on a stage, as one process does it.
struct descent {
  toy::stage_model* of;

  [[nodiscard]] int layers() const { return static_cast<int>(of->layers.size()); }
  void measure(std::span<gradient_state> states, bool is_finite) const {
    for (std::size_t k = 0; k < states.size(); ++k)
      for (double const g : of->layers[k].gradient) states[k].sum_of_squares += g * g;
    if (!is_finite) states[0] = {std::numeric_limits<double>::infinity(), false};
  }
  void step(step_settings const& settings) const {
    auto const rate = static_cast<float>(settings.learning_rate) * settings.factor();
    for (auto const& l : of->layers)
      for (std::size_t i = 0; i < l.gradient.size(); ++i)
        of->weights[l.weights][i] -= rate * l.gradient[i];
  }
  void clear() const {
    for (auto& l : of->layers) l.gradient.assign(l.gradient.size(), 0);
  }
  [[nodiscard]] std::vector<float>& tied() const { return of->layers.front().gradient; }
};

/// The same on the stream of the rank. The arithmetic runs when the GPU gets there.
class launched_descent final : public optimizer {
 public:
  /// @param infinite_in  the step in which the first gradient counts as infinite
  /// @param ties         whether the first layer is tied
  launched_descent(toy::stage_model& of, int infinite_in, bool ties)
      : own_{&of},
        infinite_in_(infinite_in),
        ties_(ties),
        read_back_(of.layers.size()),
        tied_(own_.tied().size()) {}

  [[nodiscard]] int layers() const override { return own_.layers(); }
  void measure(std::span<gradient_state> states, pass_context ctx) override {
    std::span const read_back(read_back_.data(), states.size());
    bool const is_finite = steps_++ != infinite_in_;
    launch(ctx, {{read_back.data(), read_back.size_bytes()}}, [this, read_back, is_finite] {
      std::ranges::fill(read_back, gradient_state{});
      own_.measure(read_back, is_finite);
    });
    cuda::stream_of(ctx).synchronize();
    cuda_model::host_reads(read_back.data(), read_back.size_bytes());
    std::ranges::copy(read_back, states.begin());
  }
  void step(step_settings const& settings, pass_context ctx) override {
    launch(ctx, {}, [this, settings] {
      before_ = own_.of->weights;
      own_.step(settings);
      if (settings.is_final) own_.clear();
    });
  }
  void commit(pass_context ctx) override { skip(ctx); }
  void undo(pass_context ctx) override {
    launch(ctx, {}, [this] { own_.of->weights = before_; });
  }
  void skip(pass_context ctx) override {
    launch(ctx, {}, [this] { own_.clear(); });
  }
  [[nodiscard]] bool is_tied(int layer) const override { return ties_ && layer == 0; }
  [[nodiscard]] std::int64_t tied_weights() const override {
    return ties_ ? static_cast<std::int64_t>(own_.tied().size()) : 0;
  }
  void read_tied(std::span<float> copy, pass_context ctx) override {
    std::span const read_back(tied_.data(), copy.size());
    launch(ctx, {{read_back.data(), read_back.size_bytes()}}, [this, read_back] {
      std::ranges::copy(own_.tied(), read_back.begin());
    });
    cuda::stream_of(ctx).synchronize();
    cuda_model::host_reads(read_back.data(), read_back.size_bytes());
    std::ranges::copy(read_back, copy.begin());
  }
  void write_tied(std::span<float const> sum, pass_context ctx) override {
    std::span const given(tied_.data(), sum.size());
    std::ranges::copy(sum, given.begin());
    cuda_model::host_writes(given.data(), given.size_bytes());
    cuda::check(cuda_model::launch(
        cuda::stream_of(ctx), "optimizer", {{given.data(), given.size_bytes()}}, {}, [this, given] {
          std::ranges::copy(given, own_.tied().begin());
        }));
  }

 private:
  template <class Work>
  static void launch(pass_context ctx, std::initializer_list<cuda_model::range> writes, Work work) {
    cuda::check(cuda_model::launch(cuda::stream_of(ctx), "optimizer", {}, writes, std::move(work)));
  }

  descent own_;
  int infinite_in_;
  bool ties_;
  int steps_ = 0;
  std::vector<std::vector<float>> before_;
  cuda::pinned<gradient_state> read_back_;
  cuda::pinned<float> tied_;
};

/// A stage with that optimizer.
template <class Passes>
class optimized_stage : public toy::basic_hand_written<Passes> {
 public:
  optimized_stage(toy::stage_model& of, int infinite_in, bool ties = false)
      : toy::basic_hand_written<Passes>(of), own_(of, infinite_in, ties) {}
  launched_descent& optimizer() { return own_; }

 private:
  launched_descent own_;
};

struct expected_failure : std::runtime_error {
  using runtime_error::runtime_error;
};

/// Throws where one of the flows that count together begins.
template <class Stage>
struct doomed_stage {
  Stage* of;
  std::atomic<int>* flows;
  int failing;

  flow operator()(microbatch mb) const {
    if ((*flows)++ == failing) throw expected_failure("this flow fails");
    return (*of)(mb);
  }
  launched_descent& optimizer() const { return of->optimizer(); }
};

/// @return whether weights are the same; a step that failed leaves some gradients behind
[[nodiscard]] inline bool has_same_weights(toy::stage_model const& a, toy::stage_model const& b) {
  return std::ranges::equal(
      a.weights, b.weights, [](auto const& x, auto const& y) { return toy::is_same(x, y); });
}

/// What a training runs into: where it clips, and which gradients are infinite.
struct trouble {
  double clip = 0;
  int infinite_in = -1;  ///< the step, on the last stage
  agreement_interval agreement{};

  /// @return the step in which the first gradient of a stage is infinite
  [[nodiscard]] int infinite_of(int stage, int stages) const noexcept {
    return stage + 1 == stages ? infinite_in : -1;
  }
};

/// Steps of a training; the last before each of its pauses is one for which all ranks wait.
inline constexpr int count = 7;
inline constexpr int runs = 3;

/// What a training gives, and what was seen of it.
struct outcome {
  std::vector<std::vector<double>> losses;
  std::vector<double> norms;
  toy::model given;
  int early = 0;    ///< ranks that stepped before they knew the norm
  int amended = 0;  ///< steps

  /// Takes note of a step.
  void add(step_result const& step) {
    losses.push_back(step.losses);
    norms.push_back(step.update.norm);
    for (auto const& rank : step.ranks) early += rank.is_early ? 1 : 0;
    amended += step.update.is_amended ? 1 : 0;
  }
  /// Trains in two runs, the first of which pauses to evaluate.
  template <class Backend>
  void train(pipeline<Backend>& pipe) {
    auto const note = [&](step_result const& step) { add(step); };
    pipe.run(5, note, {.pause_every = 4, .on_pause = [&] { pipe.evaluate(); }});
    pipe.run(count - 5, note);
  }
  friend bool operator==(outcome const& a, outcome const& b) {
    bool is_same = toy::is_same(a.norms, b.norms) && a.losses.size() == b.losses.size() &&
                   toy::is_same(a.given, b.given);
    for (std::size_t i = 0; is_same && i < a.losses.size(); ++i)
      is_same = toy::is_same(a.losses[i], b.losses[i]);
    return is_same;
  }
};

/// @param agrees  whether ranks agree on steps, some of which may be validated afterwards
[[nodiscard]] inline training_options options(double clip, bool agrees = true) {
  return {
      .clip = clip,
      .learning_rate =
          [](std::int64_t updates) { return 0.01 / (1.0 + static_cast<double>(updates)); },
      .window = agrees ? validation_window{.steps = 4, .most_amended = 3} : validation_window{}};
}

/// @return those of a training with some trouble
[[nodiscard]] inline training_options options(trouble const& with) {
  auto all = options(with.clip);
  all.agreement = with.agreement;
  return all;
}

/// Gives stages with tied weights the sum of their gradients, lowest stage first.
inline void sum_tied(toy::model& all, std::vector<int> const& stages) {
  if (stages.empty()) return;
  auto const of = [&](int s) -> auto& { return descent{&all[zbpp::detail::index(s)]}.tied(); };
  auto sum = of(stages.front());
  for (std::size_t k = 1; k < stages.size(); ++k)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of(stages[k])[i];
  for (int s : stages) of(s) = sum;
}

/// Trains as one process would.
[[nodiscard]] inline outcome train_alone(
    plan const& planned, trouble const& with, int length = count) {
  outcome result;
  auto& all = result.given = toy::make_model(planned.problem().stages());
  toy::fused_passes const is_fused(planned);
  std::int64_t updates = 0;
  auto const at_once = steps_at_once(planned.program());
  int unagreed = 0;  // steps to come
  for (int step = 0; step < length; ++step) {
    result.losses.push_back(
        toy::device_reference_step(all, step, planned.problem().microbatches(), is_fused));
    auto const tied = planned.problem().tied_stages();
    sum_tied(all, tied);
    std::vector<gradient_state> states;
    for (int s = 0; s < planned.problem().stages(); ++s) {
      auto& own = all[zbpp::detail::index(s)];
      std::vector<gradient_state> of_stage(own.layers.size());
      descent{&own}.measure(of_stage, &own != &all.back() || step != with.infinite_in);
      bool const is_counted =
          tied.empty() || s == tied.front() || planned.problem().costs(s).tied == 0;
      states.insert(states.end(), of_stage.begin() + (is_counted ? 0 : 1), of_stage.end());
    }
    bool const is_agreed = unagreed == 0;
    auto const verdict = judge(states, with.clip, 1);
    result.norms.push_back(is_agreed ? verdict.norm : 0);
    auto const rate = options(with.clip).learning_rate(updates);
    for (std::size_t s = 0; s < all.size(); ++s) {
      bool const is_alone = !is_agreed || at_once[s];
      bool const is_finite =
          is_alone ? s + 1 != all.size() || step != with.infinite_in : verdict.is_finite;
      auto const coefficient = is_alone ? 1 : verdict.coefficient;
      if (is_finite) descent{&all[s]}.step({.learning_rate = rate, .coefficient = coefficient});
      descent{&all[s]}.clear();
    }
    updates += !is_agreed || verdict.is_finite ? 1 : 0;
    bool const is_far =
        verdict.is_finite && verdict.norm < with.agreement.share * with.clip && is_agreed;
    unagreed = !is_agreed ? unagreed - 1 : is_far ? with.agreement.every - 1 : 0;
  }
  return result;
}

/// @return no trouble, gradients that are always clipped, and some that are, one of them infinite
[[nodiscard]] inline std::vector<trouble> troubles_of(plan const& planned) {
  auto norms = train_alone(planned, {}).norms;
  std::ranges::sort(norms);
  return {{}, {.clip = 0.7 * norms.front()}, {.clip = norms[norms.size() / 2], .infinite_in = 2}};
}

/// @param turn  another number for each plan
/// @return the same, of which there is one for each plan under sanitizers
[[nodiscard]] inline std::vector<trouble> troubles_in_turn(plan const& planned, std::size_t turn) {
  auto const all = troubles_of(planned);
  return is_slow_build ? std::vector{all[turn % all.size()]} : all;
}

/// Trains all stages in this process.
template <class Stage, class Backend>
[[nodiscard]] outcome train_on(plan const& planned, trouble const& with, Backend backend) {
  outcome result;
  auto const stages_of_model = planned.problem().stages();
  result.given = toy::make_model(stages_of_model);
  std::vector<Stage> stages;
  for (int s = 0; s < stages_of_model; ++s)
    stages.emplace_back(
        result.given[zbpp::detail::index(s)],
        with.infinite_of(s, stages_of_model),
        planned.problem().costs(s).tied > 0);
  backend.edges = toy::edge_shapes(planned.problem());
  pipeline pipe(planned, backend, stages, options(with));
  result.train(pipe);
  return result;
}

/// @return the costs of some stages, every second of which has tied weights
[[nodiscard]] inline std::vector<stage_costs> tied_costs(int stages) {
  std::vector<stage_costs> all(zbpp::detail::index(stages), launched_costs());
  for (std::size_t s = 0; s < all.size(); s += 2) all[s].tied = tied_size;
  return all;
}

/// Calls `visit(plan, trouble)` for plans whose stages step at once or without agreement.
template <class Visit>
void for_each_case_without_agreement(Visit visit) {
  for (int ranks : thinned<std::vector<int>>({1, 2, 3}, {3}))
    for (auto const& placement : placements_to_run(ranks))
      for (auto const& policy : grid_policies()) {
        problem const model(placement, 2 * ranks, launched_costs(), 87);
        if (!is_supported(policy, model)) continue;
        INFO(name_of(policy, model));
        std::vector<int> first;  // ranks go on where these are all they have
        for (int s = 0; s < placement.stages(); ++s)
          if (s < ranks || s % 2 == 0) first.push_back(s);
        auto const norm = train_alone(make_plan(policy, model), {}).norms.front();
        for (auto const& lowering :
             {lower_options{.step = step_kind::synchronous, .at_once = {0}},
              lower_options{.step = step_kind::synchronous, .at_once = first},
              lower_options{.step = step_kind::synchronous},
              lower_options{.step = step_kind::post_validated}}) {
          auto const planned = make_plan(policy, model, lowering);
          visit(planned, trouble{.clip = 0.7 * norm, .infinite_in = 2});
          visit(
              planned,
              trouble{.clip = 4 * norm, .infinite_in = 2, .agreement = {.every = 3, .share = 0.9}});
        }
      }
}

/// Calls `visit(policy, problem)` for every policy and placement; in every second case some stages
/// have tied weights.
template <class Visit>
void for_each_case(Visit visit) {
  int number = 0;
  for (int ranks : thinned<std::vector<int>>({1, 2, 3, 4}, {3}))
    for (auto const& placement : placements_to_run(ranks))
      for (auto const& policy : grid_policies()) {
        problem const model =
            number++ % 2 == 0 ? problem(placement, 2 * ranks, launched_costs(), 87)
                              : problem(placement, 2 * ranks, tied_costs(placement.stages()), 87);
        if (!is_supported(policy, model)) continue;
        INFO(name_of(policy, model));
        visit(policy, model);
      }
}

/// Checks bits, and that steps were early where they could be, and nowhere else.
inline void check(
    outcome const& found, outcome const& expected, plan const& planned, trouble const& with) {
  bool const is_same = found == expected;
  CHECK(is_same);
  CHECK(first_of(cuda_model::faults()) == "");
  CHECK(first_of(cuda_model::leaks()) == "");
  bool const is_late = validates_step_before(planned.program());
  if (!is_late || with.clip == 0) CHECK(found.amended == 0);
  auto const at_once = steps_at_once(planned.program());
  bool const goes_on = std::ranges::find(at_once, true) != at_once.end();
  if (!is_late && !goes_on) CHECK(found.early == 0);
  if (is_late && with.clip == 0) CHECK(found.early == (count - runs) * planned.problem().ranks());
}

}  // namespace zbpp::test::gpu_steps
