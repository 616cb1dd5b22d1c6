// SPDX-License-Identifier: Apache-2.0
//
// What pipelines of toy stages whose ranks are processes are compared by: losses, outputs,
// gradients and memory, those of threads to begin with.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/threads.hpp>

#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_objects.hpp>

#include <array>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace zbpp::test {

/// Holds what the ranks of a run give together.
struct outcome {
  toy::history given{};  ///< losses of steps and of an evaluation; the model, of all gradients
  std::vector<float> outputs{};  ///< of the evaluation
  /// By rank, in bytes: most of activations and of edges in steps, and of edges in the evaluation.
  std::vector<std::array<zbpp::bytes, 3>> peaks{};
};

/// @return what differs; nothing where all is the same
[[nodiscard]] inline std::string difference(outcome const& a, outcome const& b) {
  if (!toy::is_same(a.outputs, b.outputs)) return "outputs of the evaluation";
  return a.peaks == b.peaks ? difference(a.given, b.given) : "memory";
}

/// Is a stage whose edges carry objects.
class packing_stage {
 public:
  explicit packing_stage(toy::stage_model& stage)
      : passes_(std::make_unique<toy::packing_passes>(stage)), flow_(*passes_) {}
  zbpp::flow operator()(zbpp::microbatch mb) { return flow_(mb); }

 private:
  std::unique_ptr<toy::packing_passes> passes_;
  zbpp::as_flow<toy::packing_passes> flow_;
};

/// Runs two steps and an evaluation, and adds what the ranks that are here give.
template <class Pipeline>
void add_run(
    Pipeline& pipe,
    toy::model const& all,
    std::span<int const> ranks,
    outcome& to,
    std::mutex& mutex) {
  using zbpp::detail::index;
  auto const& placement = pipe.planned().problem().placement();
  outcome own{.peaks = std::vector<std::array<zbpp::bytes, 3>>(index(placement.ranks()))};
  for (int i = 0; i < 2; ++i) own.given.losses.push_back(pipe.step().losses);
  for (int r : ranks) {
    auto const& used = pipe.memory(r);
    own.peaks[index(r)] = {used.most(zbpp::purpose::activation), used.most(zbpp::purpose::edge)};
  }
  auto const evaluated = pipe.evaluate([&](zbpp::evaluation_output const& out) {
    auto const parts = toy::unpack(out.message, out.context);
    for (auto const& each : parts.buffers())
      for (float value : each.template as<float>()) own.outputs.push_back(value);
  });
  own.given.losses.push_back(evaluated.losses);
  std::lock_guard const lock(mutex);
  to.given.models.resize(1, all);
  to.peaks.resize(own.peaks.size());
  for (int r : ranks) {
    own.peaks[index(r)][2] = pipe.memory(r).most(zbpp::purpose::edge);
    to.peaks[index(r)] = own.peaks[index(r)];
    for (int s : placement.stages_of(r)) to.given.models[0][index(s)] = all[index(s)];
    if (r != placement.rank_of(placement.stages() - 1)) continue;  // others have no losses
    to.given.losses = own.given.losses;
    to.outputs = own.outputs;
  }
}

/// @return what the ranks give on threads of this process
[[nodiscard]] inline outcome on_threads(zbpp::plan const& planned) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<toy::hand_written> stages(all.begin(), all.end());
  zbpp::pipeline pipe(planned, zbpp::threads{}, stages);
  std::vector<int> ranks(zbpp::detail::index(planned.problem().ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  outcome result;
  std::mutex mutex;
  add_run(pipe, all, ranks, result, mutex);
  return result;
}

}  // namespace zbpp::test
