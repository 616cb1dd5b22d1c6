// SPDX-License-Identifier: Apache-2.0
//
// Runs of the training, sequential and pipelined: what each step lost and took, and whether the
// bits are the same.
#pragma once

#include "planning.hpp"
#include "train_gpt/divergence.hpp"
#include "train_gpt/step_clock.hpp"
#include "train_gpt/step_kinds.hpp"
#include "train_gpt/table.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Holds what a run gave: one value per step.
struct run_record {
  std::string title;
  std::vector<double> losses = {};
  std::vector<double> milliseconds = {};
  std::vector<float> parameters = {};           ///< at the end, in the order of the model
  std::optional<zbpp::timeline> measured = {};  ///< of the last step, where passes were timed
  step_counts counts = {};
  // Of what is replayed, the passes on the ranks of this process, or steps:
  std::int64_t issued = 0;    ///< how many the host enqueued, and captured
  std::int64_t replayed = 0;  ///< how many it launched as graphs that it had
};

/// Counts the times of a step from its start; where ranks do not stop between steps, they go on
/// from one step to the next.
[[nodiscard]] inline zbpp::timeline from_its_start(zbpp::timeline const& step) {
  auto start = step[0].front().start;
  for (auto const& timed : step.all()) start = std::min(start, timed.start);
  zbpp::timeline moved;
  for (int rank = 0; rank < step.ranks(); ++rank) {
    for (auto const& timed : step[rank])
      moved.push({timed.pass, timed.start - start, timed.end - start});
    moved.end_row();
  }
  return moved;
}

/// Records the steps of a run as they end, and shows some of them.
class step_recorder {
 public:
  /// Begins the first step.
  /// @param record  outlives the object
  /// @param shows   whether a line tells of some of them
  step_recorder(run_record& record, training const& how, bool shows)
      : record_(&record),
        shows_(shows),
        steps_(how.optimizer.base.steps),
        tokens_(static_cast<double>(how.microbatches * how.model.tokens())),
        operations_(tokens_ * how.model.operations_of_token()),
        alarm_("train_gpt_cuda", record.title) {}

  /// Ends a step, and begins the next.
  void add(double loss) {
    auto const took = clock_.lap();
    record_->losses.push_back(loss);
    record_->milliseconds.push_back(took);
    if (!shows_) return;
    auto const done = std::ssize(record_->losses);
    alarm_.note(done, loss);
    if (done % std::max<std::int64_t>(steps_ / 5, 1) != 0 && done != steps_) return;
    std::printf(
        "  %-12s  step %lld of %lld   loss %.4f   %.0f tokens/s   %.3g TFLOP/s\n",
        record_->title.c_str(),
        static_cast<long long>(done),
        static_cast<long long>(steps_),
        loss,
        tokens_ / took * 1e3,
        operations_ / took * 1e-9);
    std::fflush(stdout);
  }

 private:
  run_record* record_;
  bool shows_;
  std::int64_t steps_;
  double tokens_;
  double operations_;
  divergence_alarm alarm_;
  gpt::step_clock clock_;
};

/// @return how the steps of a pipeline are taken; the settings of steps that are replayed are in
///         device memory
[[nodiscard]] inline zbpp::training_options options_of(training const& how) {
  if (how.replay == replay_kind::step) return {};
  return gpt::options_of(how.optimizer.base);
}

/// Runs all steps of a pipeline, one by one, or each while as many others run as is said.
/// @param each  called with the result of each, when it is recorded
template <class Pipeline, class Each>
void run_steps(
    Pipeline& pipe, run_record& record, training const& how, bool shows, Each const& each) {
  step_recorder recorder(record, how, shows);
  auto const note = [&](zbpp::step_result const& step) {
    recorder.add(step.loss());
    record.counts.add(step.update);
    each(step);
  };
  if (how.steps_at_once == 1) {
    pipe.run(how.optimizer.base.steps, note);
    return;
  }
  std::deque<zbpp::started_step<Pipeline>> begun;
  for (std::int64_t i = 0; i < how.optimizer.base.steps; ++i) {
    begun.push_back(pipe.step_async());
    if (std::ssize(begun) < how.steps_at_once) continue;
    note(begun.front().get());
    begun.pop_front();
  }
  for (auto const& last : begun) note(last.get());
}

/// Runs the reference.
/// @param between  called before each microbatch; what it throws ends the run
/// @throws zbpp::error (device_failed)
template <class Between>
[[nodiscard]] run_record run_sequential(
    training const& how,
    text const& on,
    zbpp::cuda::rank_device const& at,
    bool shows,
    Between const& between) {
  zbpp::cuda::device_guard const here(at.device);
  run_record record{"sequential"};
  sequential_trainer trainer(how, on, at);
  step_recorder recorder(record, how, shows);
  for (std::int64_t i = 0; i < how.optimizer.base.steps; ++i) recorder.add(trainer.step(between));
  record.parameters = trainer.model().parameters().values(at.compute);
  return record;
}

/// Records what the stages of a run have at its end.
/// @param devices  one per stage, each with the stream that it ran on
/// @throws zbpp::cuda::cuda_error
inline void record_stages(
    run_record& record,
    training const& how,
    std::vector<chunk_stage>& stages,
    std::span<zbpp::cuda::rank_device const> devices) {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    zbpp::cuda::device_guard const here(devices[s].device);
    auto const values = stages[s].model().parameters().values(devices[s].compute);
    record.parameters.insert(record.parameters.end(), values.begin(), values.end());
    record.issued += stages[s].graphs().captures();
    record.replayed += stages[s].graphs().replays();
  }
  if (how.replay != replay_kind::step) return;
  record.issued = stages.front().flows() / how.microbatches;
  record.replayed = how.optimizer.base.steps - record.issued;
}

/// Calls `train(stages)`, with stages whose steps can be replayed where that is asked for.
template <class Train>
void train_stages(training const& how, std::vector<chunk_stage>& stages, Train const& train) {
  if (how.replay != replay_kind::step) return train(stages);
  std::vector<replayed_stage> replayed(stages.begin(), stages.end());
  train(replayed);
}

/// @return how the pipelines of a training replay steps
[[nodiscard]] inline zbpp::cuda::replay replay_of(training const& how) {
  return how.replay == replay_kind::step ? zbpp::cuda::replay::step : zbpp::cuda::replay::none;
}

/// @return the training whose passes are timed: nothing within a replayed step can be, and replayed
///         passes come nearest
[[nodiscard]] inline training timed(training how) {
  if (how.replay == replay_kind::step) how.replay = replay_kind::pass;
  return how;
}

/// Says whether two runs gave the same bits: every loss, and every parameter at the end.
[[nodiscard]] inline bool is_identical(run_record const& a, run_record const& b) {
  auto const same_loss = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  };
  auto const same_value = [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  };
  return std::equal(
             a.losses.begin(), a.losses.end(), b.losses.begin(), b.losses.end(), same_loss) &&
         std::equal(
             a.parameters.begin(),
             a.parameters.end(),
             b.parameters.begin(),
             b.parameters.end(),
             same_value);
}

/// @return the median
[[nodiscard]] inline double median(std::vector<double> values) {
  auto const middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Lines up what the runs gave. Where passes or steps are replayed: how many were not, and how many
/// were. Where the norm of all gradients decides about steps: how many were taken before it was
/// known, and did not hold.
class outcome {
 public:
  explicit outcome(training const& how)
      : replay_(how.replay),
        agrees_(how.optimizer.base.needs_norm),
        lines_(columns(replay_, agrees_)) {}

  /// Adds the reference.
  void add(run_record const& run) {
    lines_.add({run.title, "", fixed(run.losses.back(), 4), "", time_of(run)});
  }
  /// Adds a run of a plan.
  /// @param identical  nothing: it was not compared
  void add(run_record const& run, contender const& of, std::optional<bool> identical) {
    std::vector<std::string> cells{
        of.title,
        of.plan->problem().placement().name(),
        fixed(run.losses.back(), 4),
        !identical   ? ""
        : *identical ? "yes"
                     : "NO",
        time_of(run),
        run.measured ? percent(zbpp::bubble_rate(*run.measured)) : "",
        percent(zbpp::bubble_rate(of.plan->timeline()))};
    if (replay_ != replay_kind::none)
      append(cells, {std::to_string(run.issued), std::to_string(run.replayed)});
    if (agrees_) append(cells, run.counts.cells());
    lines_.add(std::move(cells));
  }
  /// Adds a policy that could not run.
  void add(contender const& none) { lines_.add(none.title, none.why_not); }

  /// @return the table
  [[nodiscard]] std::string text() const { return lines_.text(); }

 private:
  [[nodiscard]] static std::string time_of(run_record const& run) {
    return fixed(median(run.milliseconds), 2);
  }

  [[nodiscard]] static std::vector<std::string> columns(replay_kind replay, bool agrees) {
    std::vector<std::string> names{
        "policy", "placement", "loss at end", "identical", "step ms", "bubble measured", "planned"};
    if (replay != replay_kind::none)
      append(names, {replay == replay_kind::pass ? "captured" : "issued", "replayed"});
    if (agrees) append(names, step_counts::columns());
    return names;
  }

  replay_kind replay_;
  bool agrees_;
  table lines_;
};

}  // namespace gpt::cuda
