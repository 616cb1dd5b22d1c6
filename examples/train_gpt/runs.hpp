// SPDX-License-Identifier: Apache-2.0
//
// Runs of the training, by a plain loop or a pipeline: what each step lost and took, shown as it
// happens, saved now and then, and stopped after a step when the user interrupts.
#pragma once

#include "program.hpp"
#include "saving.hpp"
#include <zbpp/analysis/clock_offsets.hpp>
#include <zbpp/io/run_progress.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/interrupt.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/zbpp.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

using zbpp::interrupt;

/// Holds what a run gave: one value per step.
struct run_record {
  std::string name;
  std::int64_t first = 0;  ///< steps taken before, by another program
  std::vector<double> losses = {};
  std::vector<double> own_losses = {};  ///< of microbatches, those that this process knows
  std::vector<double> milliseconds = {};
  std::vector<zbpp::timeline> timelines = {};       ///< of a pipeline
  std::vector<zbpp::message_record> messages = {};  ///< of a pipeline that records them
  std::vector<std::vector<zbpp::rank_update>> updates =
      {};                          ///< by rank; empty where ranks do not agree
  std::vector<double> norms = {};  ///< of all gradients, where ranks agree
  step_counts counts = {};
  bool keeps_own_losses = false;
  bool keeps_times = false;  ///< whether to keep those of each step, of the ranks here
  /// A step of typical length on all ranks, from its first start; empty where it is not known.
  zbpp::timeline typical_step = {};
  zbpp::message_record typical_messages = {};   ///< those of that step; empty where not recorded
  std::vector<zbpp::clock_offset> clocks = {};  ///< of processes, as that step says
  std::uint64_t parameters = 0;                 ///< digest of those at the end
  bool is_identical = true;                     ///< to the sequential run, as far as it went
  std::optional<zbpp::plan> other_plan = {};    ///< that ran last, where plans changed
  std::size_t first_changed = 0;  ///< the step with which the first plan ended; of a run of more
  std::size_t last_changed = 0;   ///< the step with which the last plan began

  /// Takes in the outcome of a step.
  /// @param took  milliseconds
  void add(zbpp::step_result const& step, double took) {
    losses.push_back(step.loss());
    if (keeps_own_losses)
      own_losses.insert(own_losses.end(), step.losses.begin(), step.losses.end());
    milliseconds.push_back(took);
    counts.add(step.update);
    if (step.update.is_update) norms.push_back(step.update.norm);
    if (!keeps_times) return;
    timelines.push_back(step.measured);
    messages.push_back(step.messages);
    updates.push_back(step.ranks);
  }
  /// @return steps taken, those before among them
  [[nodiscard]] std::int64_t done() const { return first + std::ssize(losses); }
  /// @return the place of the step whose length is the median of all of the last plan but the first
  ///         few, which meet cold caches; of a run that took steps
  [[nodiscard]] std::size_t typical() const { return typical(last_changed, milliseconds.size()); }
  /// @return the same of steps from one to another
  [[nodiscard]] std::size_t typical(std::size_t begin, std::size_t end) const {
    std::vector<std::size_t> later(end - begin);
    std::iota(later.begin(), later.end(), begin);
    later.erase(later.begin(), later.begin() + std::min<std::ptrdiff_t>(3, std::ssize(later) / 2));
    auto const middle = later.begin() + std::ssize(later) / 2;
    std::ranges::nth_element(
        later, middle, {}, [&](std::size_t step) { return milliseconds[step]; });
    return *middle;
  }
  /// @return the mean loss of the last steps, at most ten; one step's loss says little
  [[nodiscard]] double last_loss() const {
    auto const count = std::min<std::ptrdiff_t>(10, std::ssize(losses));
    double total = 0.0;
    for (auto loss = losses.end() - count; loss != losses.end(); ++loss) total += *loss;
    return total / static_cast<double>(count);
  }
};

/// Says whether two numbers are the same bits; nan is the same as itself.
[[nodiscard]] inline bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

/// Says whether a run gave the bits of the losses of the reference, for all its steps.
[[nodiscard]] inline bool same_losses(run_record const& run, run_record const& reference) {
  return run.done() <= reference.done() &&
         std::equal(
             run.losses.begin(), run.losses.end(), reference.losses.begin() + run.first, same_bits);
}

/// Shows how far a run is, with its loss and its rate, and tells of losses that are no numbers.
class run_display {
 public:
  /// @param record  of the run; outlives the object
  /// @param steps   when the run ends
  run_display(run_record const& record, training const& how, std::int64_t steps)
      : record_(&record),
        tokens_of_step_(how.microbatches * how.model.tokens()),
        shown_(record.name, steps),
        alarm_("train_gpt", record.name) {}
  virtual ~run_display() = default;

  /// Takes note of the last step of the record.
  virtual void note_step() {
    alarm_.note(record_->done(), record_->losses.back());
    show();
  }
  /// @return how many steps later all ranks have to stop together, to be told of
  [[nodiscard]] virtual std::int64_t until_stop() { return std::numeric_limits<int>::max(); }
  /// Takes note that all ranks have stopped.
  virtual void note_stop() {}
  /// Shows what else there is to tell.
  virtual void note(std::string const& text) { shown_.note(text); }

 protected:
  void show() {
    std::chrono::duration<double> const passed = std::chrono::steady_clock::now() - start_;
    auto const tokens = static_cast<double>(std::ssize(record_->losses) * tokens_of_step_);
    shown_.show(
        record_->done(),
        "loss " + zbpp::fixed_text(record_->losses.back(), 4) + "   " +
            zbpp::fixed_text(tokens / passed.count(), 0) + " tokens/s");
  }

 private:
  run_record const* record_;
  index tokens_of_step_;
  zbpp::run_progress shown_;
  divergence_alarm alarm_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Takes the steps of a run, to the end or until the user interrupts, and keeps checkpoints: one
/// whenever it is due, and one in the end.
/// @param pipe    has `run` and `state`, as pipelines do
/// @param steps   when the run ends
/// @param most    steps before ranks stop together: there it can be interrupted and saved
/// @param stages  those in this process
/// @param save    null to keep no checkpoints
template <class Pipeline>
void take_steps(
    Pipeline& pipe,
    run_record& record,
    run_display& display,
    std::int64_t steps,
    std::int64_t most,
    std::vector<chunk_stage>& stages,
    saver* save) {
  step_clock clock;
  bool is_stopped = interrupt::was_raised();
  while (record.done() < steps && !is_stopped) {
    auto const left = steps - record.done();
    auto const until_due = save != nullptr ? save->until_due(record.done()) : left;
    auto const due = record.done() + std::min(left, until_due);
    clock.start();
    pipe.run(std::min({most, due - record.done(), display.until_stop()}), [&](auto const& step) {
      record.add(step, clock.lap());
      display.note_step();
    });
    is_stopped = interrupt::was_raised();
    if (save != nullptr && (record.done() == due || is_stopped))
      display.note(save->save(pipe.state(), stages));
    display.note_stop();
  }
}

/// Is the plain loop of a trainer in the form of a pipeline.
struct plain_loop {
  sequential_trainer* trainer;
  std::function<void()> between;  ///< called before each microbatch; what it throws ends the run

  template <class Note>
  void run(std::int64_t steps, Note const& note) {
    for (; steps > 0; --steps) note(zbpp::step_result{{trainer->step(between)}, {}, {}, {}});
  }
  [[nodiscard]] static zbpp::training_state state() { return {}; }
};

/// Runs the reference.
/// @param between  called before each microbatch; what it throws ends the run
[[nodiscard]] inline run_record run_sequential(
    sequential_trainer& trainer, training const& how, std::function<void()> between = [] {}) {
  run_record record{"sequential"};
  run_display display(record, how, how.optimizer.steps);
  plain_loop loop{&trainer, std::move(between)};
  std::vector<chunk_stage> none;
  take_steps(loop, record, display, how.optimizer.steps, 1, none, nullptr);
  record.parameters = digest(trainer.model().parameters());
  return record;
}

/// Says how many steps a pipeline runs before its ranks stop together: there it can be interrupted
/// and saved. Own choice: about a second's worth, and enough for the stop not to count.
[[nodiscard]] inline std::int64_t steps_between_stops(zbpp::plan const& planned) {
  if (!zbpp::agrees_on_steps(planned.program())) return 1;  // they stop after each
  auto const step = std::max<zbpp::ticks>(zbpp::cost(planned.timeline()), 1);
  return std::clamp<std::int64_t>(zbpp::from_milliseconds(1000) / step, 8, 1000);
}

/// @return the sum of the digests of stages; of replicas, the first counts
[[nodiscard]] inline std::uint64_t digest(std::vector<chunk_stage> const& stages) {
  std::uint64_t sum = 0;
  for (auto const& s : stages)
    if (s.replica() == 0) sum += digest(s.model().parameters(), s.member() == 0);
  return sum;
}

/// Ends the record of a run on threads.
inline void conclude(run_record& record, std::vector<chunk_stage> const& stages) {
  record.parameters = digest(stages);
  if (record.timelines.empty()) return;
  record.typical_step = record.timelines[record.typical()];
  record.typical_messages = record.messages[record.typical()];
  from_first_start(record.typical_step, record.typical_messages);
}

/// Runs a plan on threads.
/// @param stages  of the plan, all of them
/// @param state   what the next step depends on, besides the stages
/// @param steps   when the run ends
/// @param save    keeps checkpoints; null to keep none
[[nodiscard]] inline run_record run_pipeline(
    zbpp::plan const& planned,
    training const& how,
    zbpp::threads const& backend,
    std::vector<chunk_stage>& stages,
    zbpp::training_state const& state,
    std::int64_t steps,
    saver* save) {
  zbpp::pipeline pipe(planned, backend, stages, options_of(how.optimizer));
  pipe.resume(state);
  run_record record{.name = planned.policy(), .first = state.steps, .keeps_times = true};
  run_display display(record, how, steps);
  take_steps(pipe, record, display, steps, steps_between_stops(planned), stages, save);
  conclude(record, stages);
  return record;
}

/// Tells all pipelines of a grid, from the first one, how many steps come next; 0 ends the run.
/// @param steps  of no meaning in the others
/// @return the number that the first one tells
inline std::int64_t agree_on_steps(zbpp::rank_grid& groups, std::int64_t steps = 0) {
  auto next = static_cast<float>(steps);  // at most a million, which a float holds
  if (groups.tensor().place() == 0) groups.data().broadcast({&next, 1}, 0);
  groups.tensor().broadcast({&next, 1}, 0);
  return static_cast<std::int64_t>(next);
}

/// Takes steps of a pipeline of a grid, and waits until those that share its stages have.
/// @param microbatches  of all replicas
/// @param note          called behind each step
/// @return the losses of all microbatches, step by step
template <class Note>
[[nodiscard]] std::vector<double> run_together(
    zbpp::pipeline<zbpp::threads>& pipe,
    zbpp::rank_grid& groups,
    std::int64_t steps,
    int microbatches,
    Note const& note) {
  auto const whole = static_cast<std::size_t>(microbatches);
  auto const replica = static_cast<std::size_t>(groups.data().place());
  std::vector<double> all;
  pipe.run(steps, [&](zbpp::step_result const& step) {
    auto const begin = all.size();
    all.resize(begin + whole, 0.0);
    std::ranges::copy(
        step.losses,
        all.begin() + static_cast<std::ptrdiff_t>(begin + replica * step.losses.size()));
    note(step);
  });
  groups.data().all_reduce(all);
  groups.tensor().barrier();
  return all;
}

/// Is the first pipeline of a grid, which leads the others and gets the losses of all replicas, in
/// the form of a pipeline without others.
struct leading_pipeline {
  zbpp::pipeline<zbpp::threads>* pipe;
  zbpp::rank_grid* groups;
  run_record* record;
  int microbatches;  // of all replicas

  template <class Note>
  void run(std::int64_t steps, Note const& note) {
    agree_on_steps(*groups, steps);
    auto const first = record->losses.size();
    auto const all = run_together(*pipe, *groups, steps, microbatches, note);
    auto own = all.begin();
    for (auto& loss : std::span(record->losses).subspan(first)) {
      loss = std::accumulate(own, own + microbatches, 0.0) / microbatches;
      own += microbatches;
    }
  }
  [[nodiscard]] zbpp::training_state state() const { return pipe->state(); }
};

/// Runs a plan on threads by a grid: by replicas of the model, which add their gradients up, and by
/// members of tensor groups, which share the stages of each.
/// @param stages  of the first replica, of its members in turn; the other parameters are as for
///                `run_pipeline`
[[nodiscard]] inline run_record run_grid(
    zbpp::plan const& planned,
    training const& how,
    text const& on,
    zbpp::threads const& backend,
    std::vector<chunk_stage>& stages,
    zbpp::training_state const& state,
    saver* save) {
  auto const steps = how.optimizer.steps;
  auto const members = static_cast<int>(how.model.members);
  auto const& problem = planned.problem();
  run_record record{.name = planned.policy(), .first = state.steps, .keeps_times = true};
  run_display display(record, how, steps);
  zbpp::in_process_grid grid(how.layout_of(problem.ranks()).stated());
  grid.run([&](zbpp::grid_place const& place) {
    auto own_backend = backend;
    own_backend.place = place;
    auto& groups = *place.grid_of(0);
    auto const first = stages_of_member(stages, members, place.tensor());
    std::vector<chunk_stage> copies;
    if (place.data() > 0) {
      for (int s = 0; s < problem.stages(); ++s)
        copies.emplace_back(how, on, problem.stages(), s, place.data(), place.tensor());
      copy_state(first, copies);
    }
    groups.data().barrier();  // the first replica may change its stages now
    auto own = place.data() == 0 ? first : std::span(copies);
    zbpp::pipeline pipe(planned, own_backend, own, options_of(how.optimizer));
    pipe.resume(state);
    if (place.data() == 0 && place.tensor() == 0) {
      leading_pipeline loop{&pipe, &groups, &record, how.microbatches};
      take_steps(loop, record, display, steps, steps_between_stops(planned), stages, save);
      agree_on_steps(groups, 0);
      return;
    }
    while (auto const next = agree_on_steps(groups))
      static_cast<void>(run_together(pipe, groups, next, how.microbatches, [](auto&) {}));
  });
  conclude(record, stages);
  return record;
}

}  // namespace gpt
