// SPDX-License-Identifier: Apache-2.0
//
// Where ranks are, and runs of the training, sequential and pipelined: what each step lost and
// took, and whether the bits are the same.
#pragma once

#include "planning.hpp"
#include "saving.hpp"
#include "train_gpt/program.hpp"
#include <zbpp/cuda/partition.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/io/run_progress.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/io/text_table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Tells which way messages take that cannot go from GPU to GPU.
inline void tell_fallback(std::string const& line) {
  std::fprintf(stderr, "train_gpt_cuda: %s\n", line.c_str());
}

/// Owns the streams of the ranks of this process.
class rank_devices {
 public:
  /// @param one_device_each  else ranks share the current device
  /// @param whole_gpu        whether they share all of it, and not equal parts
  /// @throws zbpp::error when there are too few devices or multiprocessors, or (device_failed)
  rank_devices(int ranks, bool one_device_each, bool whole_gpu) {
    int current = 0;
    zbpp::cuda::check(cudaGetDevice(&current));
    if (!one_device_each && !whole_gpu && ranks > 1) {
      cut(current, ranks);
      return;
    }
    devices_ = zbpp::cuda::one_device_per_rank(ranks);
    if (!one_device_each)
      for (auto& device : devices_) device.device = current;
    own_streams();
  }
  /// Gives the rank of a process all of a device.
  /// @throws zbpp::error (device_failed)
  explicit rank_devices(zbpp::cuda::rank_device const& only) : devices_{only} { own_streams(); }

  /// @return one per rank, each with a stream
  [[nodiscard]] std::vector<zbpp::cuda::rank_device> const& all() const { return devices_; }

 private:
  void cut(int device, int parts) try {
    parts_.emplace(device, parts);
    devices_ = parts_->devices();
  } catch (zbpp::error const& cannot) {
    throw zbpp::error(cannot.code()) + cannot.what() + "; --whole-gpu lets ranks share all of it";
  }
  void own_streams() {
    for (auto& device : devices_) {
      zbpp::cuda::device_guard const here(device.device);
      streams_.emplace_back(zbpp::cuda::stream_priority::usual);
      device.compute = streams_.back().view();
      zbpp::cuda::check(
          cudaDeviceGetAttribute(&device.sm_count, cudaDevAttrMultiProcessorCount, device.device));
    }
  }

  std::optional<zbpp::cuda::partition> parts_;
  std::vector<zbpp::cuda::stream> streams_;
  std::vector<zbpp::cuda::rank_device> devices_;
};

/// Holds parameters that follow one another in the model.
struct parameter_run {
  std::size_t first = 0;  ///< place in the model
  std::vector<float> values;
};

/// Holds what a run gave: one value per step.
struct run_record {
  std::string title;
  std::int64_t first = 0;  ///< steps taken before, by another program
  std::vector<double> losses = {};
  std::vector<double> milliseconds = {};
  std::vector<parameter_run> parameters = {};  ///< at the end, of the stages that are here
  std::optional<zbpp::timeline> measured =
      {};  ///< of the last step, of all ranks, where passes were timed
  step_counts counts = {};
  // Of steps that are replayed:
  std::int64_t issued = 0;    ///< how many the host enqueued, and captured
  std::int64_t replayed = 0;  ///< how many it launched as graphs that it had

  /// @return steps taken, those before among them
  [[nodiscard]] std::int64_t done() const { return first + std::ssize(losses); }
};

/// Records the steps of a run as they end, and shows some of them.
class step_recorder {
 public:
  /// Begins the first step.
  /// @param record  outlives the object
  /// @param shows   whether lines tell of it
  step_recorder(run_record& record, training const& how, bool shows)
      : record_(&record),
        tokens_(static_cast<double>(how.microbatches * how.model.tokens())),
        operations_(tokens_ * how.model.operations_of_token()),
        alarm_("train_gpt_cuda", record.title) {
    if (shows) shown_.emplace(record.title, how.optimizer.base.steps);
  }

  /// Ends a step, and begins the next.
  void add(double loss) {
    auto const took = clock_.lap();
    record_->losses.push_back(loss);
    record_->milliseconds.push_back(took);
    if (!shown_) return;
    alarm_.note(record_->done(), loss);
    std::array<char, 96> rates{};
    auto const each = "loss %.4f   %.0f tokens/s   %.3g TFLOP/s";
    auto const per_ms = tokens_ / took;
    std::snprintf(rates.data(), rates.size(), each, loss, per_ms * 1e3, operations_ / took * 1e-9);
    shown_->show(record_->done(), rates.data());
  }
  /// Shows what else there is to tell, and begins a step.
  void note(std::string const& text) {
    if (shown_) shown_->note(text);
    clock_.start();
  }

 private:
  run_record* record_;
  double tokens_;
  double operations_;
  divergence_alarm alarm_;
  std::optional<zbpp::run_progress> shown_;
  gpt::step_clock clock_;
};

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
  record.parameters.push_back({0, trainer.model().parameters().values(at.compute)});
  return record;
}

/// Runs so many steps of a pipeline, one by one, or each while as many others run as is said.
/// @param each  called with the result of each
template <class Pipeline, class Each>
void run_steps(Pipeline& pipe, std::int64_t count, int at_once, Each const& each) {
  if (at_once == 1) {
    pipe.run(count, each);
    return;
  }
  std::deque<zbpp::started_step> begun;
  for (std::int64_t i = 0; i < count; ++i) {
    begun.push_back(pipe.step_async());
    if (std::ssize(begun) < at_once) continue;
    each(begun.front().get());
    begun.pop_front();
  }
  for (auto const& last : begun) each(last.get());
}

/// Trains the stages of a plan that are here, and saves them now and then where the user wants it.
/// @param to_run  the stages, as they are or as replayed_stage
/// @throws zbpp::error; setting_error for checkpoints that cannot be used
template <class Ranks, class Stage>
void train_stages(
    options const& o,
    text const& on,
    Ranks const& ranks,
    zbpp::plan const& planned,
    std::vector<chunk_stage>& stages,
    std::vector<Stage>& to_run,
    run_record& record) {
  auto const& placement = planned.problem().placement();
  auto const backend = ranks.backend(
      times_passes(o),
      o.how.replays ? zbpp::cuda::replay::step : zbpp::cuda::replay::none,
      o.how.steps_at_once);
  // The settings of steps that are replayed are in device memory.
  auto const rule = o.how.replays ? zbpp::training_options() : options_of(o.how.optimizer.base);
  zbpp::pipeline pipe(planned, backend, to_run, rule);
  auto const steps = o.how.optimizer.base.steps;
  std::optional<saver> saves;
  if (!o.checkpoint.empty()) {
    saves.emplace(o, on, placement, stages, ranks.meeting());
    pipe.resume(saves->begin());
    record.first = pipe.state().steps;
  }
  step_recorder recorder(record, o.how, ranks.shows(placement));
  if (o.resume) recorder.note(saves->resumed_text());
  while (record.done() < steps) {
    auto next = steps - record.done();
    if (saves) next = std::min(next, saves->until_due(record.done()));
    run_steps(pipe, next, o.how.steps_at_once, [&](zbpp::step_result const& step) {
      recorder.add(step.loss());
      record.counts.add(step.update);
      if (times_passes(o)) record.measured = step.measured;
    });
    if (saves) recorder.note(saves->save(pipe.state()));
  }
}

/// Runs a plan on the ranks that are here.
/// @throws zbpp::error; setting_error for checkpoints that cannot be used
template <class Ranks>
[[nodiscard]] run_record run_plan(
    options const& o, text const& on, Ranks const& ranks, contender const& one) {
  auto const& placement = one.plan->problem().placement();
  run_record record{one.title};
  auto stages = make_stages(o.how, on, placement, ranks.own_stages(placement));
  if (o.how.replays) {
    std::vector<replayed_stage> replayed(stages.begin(), stages.end());
    train_stages(o, on, ranks, *one.plan, stages, replayed, record);
    record.issued = stages.front().flows() / o.how.microbatches;
    record.replayed = std::ssize(record.losses) - record.issued;
  } else {
    train_stages(o, on, ranks, *one.plan, stages, stages, record);
  }
  ranks.share(record, placement);
  if (record.measured) record.measured = ranks.gather(*one.plan, *record.measured);
  chunk const whole(o.how, on, {0, o.how.model.layers});
  for (auto const& s : stages) {
    auto const part = s.model().parameters().entries().front().part;
    auto const first = std::ranges::find(whole.parameters().entries(), part, &weights::entry::part);
    record.parameters.push_back({static_cast<std::size_t>(first->at.offset), s.parameters()});
  }
  return record;
}

/// Measures passes and messages in steps of a policy, with B and W apart, that are issued, since
/// nothing within a replayed step can be timed.
/// @throws zbpp::error
template <class Ranks>
[[nodiscard]] zbpp::problem measure_problem(
    options const& o,
    text const& on,
    Ranks const& ranks,
    zbpp::any_policy const& policy,
    zbpp::problem const& stated) {
  auto const& placement = stated.placement();
  auto stages = make_stages(o.how, on, placement, ranks.own_stages(placement));
  auto const plan = zbpp::make_plan(
      "measuring",
      zbpp::split_backward(policy(stated)),
      stated,
      {.receive_ahead = receive_ahead_of(o)});
  zbpp::pipeline pipe(plan, ranks.backend(true), stages, {});
  return ranks.measure(pipe);
}

/// Says whether a run gave the bits of the reference: the loss of every step, and every parameter
/// at the end.
[[nodiscard]] inline bool is_identical(run_record const& run, run_record const& reference) {
  auto const same =
      []<class Value>(
          std::vector<Value> const& own, std::vector<Value> const& all, std::size_t first) {
        return first + own.size() <= all.size() &&
               std::ranges::equal(
                   std::as_bytes(std::span(own)),
                   std::as_bytes(std::span(all).subspan(first, own.size())));
      };
  auto const& all = reference.parameters.front().values;
  return run.done() == reference.done() &&
         same(run.losses, reference.losses, static_cast<std::size_t>(run.first)) &&
         std::ranges::all_of(
             run.parameters, [&](parameter_run const& p) { return same(p.values, all, p.first); });
}

/// Is what there is to tell of a policy.
struct result {
  contender const* of;
  std::optional<run_record> run;  ///< of those that run
  std::optional<bool> identical;  ///< whether it gave the bits of the reference; none: not compared
};

/// Lines up what the runs gave. Where steps are replayed: how many were not, and how many were.
/// Where the norm of all gradients decides about steps: how many were taken before it was known,
/// and did not hold.
[[nodiscard]] inline std::string outcome(
    training const& how,
    std::optional<run_record> const& reference,
    std::vector<result> const& results) {
  bool const agrees = how.optimizer.base.needs_norm;
  auto const loss_of = [](run_record const& r) { return zbpp::fixed_text(r.losses.back(), 4); };
  auto const time_of = [](run_record const& r) {
    return zbpp::fixed_text(median(r.milliseconds), 2);
  };
  std::vector<std::string> columns{
      "policy", "placement", "loss at end", "identical", "step ms", "bubble measured", "planned"};
  if (how.replays) append(columns, {"issued", "replayed"});
  if (agrees) append(columns, step_counts::columns());
  zbpp::text_table lines(std::move(columns));
  if (reference) lines.add({reference->title, "", loss_of(*reference), "", time_of(*reference)});
  for (auto const& [of, run, identical] : results) {
    if (!run || run->losses.empty()) {
      lines.add({of->title}, run ? "took all its steps before" : of->why_not);
      continue;
    }
    std::vector<std::string> cells{
        of->title,
        of->plan->problem().placement().name(),
        loss_of(*run),
        !identical   ? ""
        : *identical ? "yes"
                     : "NO",
        time_of(*run),
        run->measured ? percent(zbpp::bubble_rate(*run->measured)) : "",
        percent(zbpp::bubble_rate(of->plan->timeline()))};
    if (how.replays) append(cells, {std::to_string(run->issued), std::to_string(run->replayed)});
    if (agrees) append(cells, run->counts.cells());
    lines.add(std::move(cells));
  }
  return lines.text(2);
}

}  // namespace gpt::cuda
