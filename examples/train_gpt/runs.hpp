// SPDX-License-Identifier: Apache-2.0
//
// Runs of the training, sequential and pipelined: what each step lost and took, shown as it
// happens, stopped after a step when the user interrupts.
#pragma once

#include "divergence.hpp"
#include "planning.hpp"
#include "saving.hpp"
#include "step_clock.hpp"
#include "step_kinds.hpp"
#include "table.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpt {

/// Notices the first interrupt (Ctrl-C); the second one ends the program as usual.
class interrupt {
 public:
  /// Starts to listen.
  static void listen() { std::signal(SIGINT, &interrupt::raise); }
  /// @return whether there was one
  [[nodiscard]] static bool was_raised() { return raised_ != 0; }

 private:
  static void raise(int) {
    raised_ = 1;
    std::signal(SIGINT, SIG_DFL);
  }

  static inline std::sig_atomic_t volatile raised_ = 0;
};

/// Shows how far a run is: on a terminal one line that is written over, else five lines.
class progress {
 public:
  /// @param first  steps taken before, by another program
  progress(std::string name, std::int64_t first, std::int64_t steps, index tokens_of_step)
      : name_(std::move(name)),
        first_(first),
        steps_(steps),
        tokens_of_step_(tokens_of_step),
        is_terminal_(::isatty(STDOUT_FILENO) != 0) {}
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;
  ~progress() {
    if (is_terminal_ && done_ > first_) std::printf("\n");
  }

  /// @return how many steps after `done` another fifth of a run is over, or all of it
  [[nodiscard]] static std::int64_t until_milestone(std::int64_t done, std::int64_t steps) {
    auto const fifth = std::max<std::int64_t>(steps / 5, 1);
    return std::min(steps - done, fifth - done % fifth);
  }

  /// Shows what else there is to tell, if anything; a terminal shows only how far the run is.
  void note(std::string const& text) const {
    if (is_terminal_ || text.empty()) return;
    std::printf("  %-10s %s\n", name_.c_str(), text.c_str());
    std::fflush(stdout);
  }

  /// Takes note of a step.
  /// @param done  steps taken so far
  /// @param loss  of this step
  void show(std::int64_t done, double loss) {
    done_ = done;
    if (!is_terminal_ && until_milestone(done - 1, steps_) > 1) return;
    std::chrono::duration<double> const passed = std::chrono::steady_clock::now() - start_;
    auto const rate = static_cast<double>((done_ - first_) * tokens_of_step_) / passed.count();
    std::printf(
        "%s  %-10s step %*lld of %lld   loss %.4f   %.0f tokens/s%s",
        is_terminal_ ? "\r" : "",
        name_.c_str(),
        static_cast<int>(std::to_string(steps_).size()),
        static_cast<long long>(done_),
        static_cast<long long>(steps_),
        loss,
        rate,
        is_terminal_ ? "  " : "\n");
    std::fflush(stdout);
  }

 private:
  std::string name_;
  std::int64_t first_;
  std::int64_t steps_;
  index tokens_of_step_;
  bool is_terminal_;
  std::int64_t done_ = first_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Holds what a run gave: one value per step.
struct run_record {
  std::string name;
  std::int64_t first = 0;  ///< steps taken before, by another program
  std::vector<double> losses = {};
  std::vector<double> milliseconds = {};
  std::vector<zbpp::timeline> timelines = {};  ///< of a pipeline
  std::vector<std::vector<zbpp::rank_update>> updates =
      {};                          ///< by rank; empty where ranks do not agree
  std::vector<double> norms = {};  ///< of all gradients, where ranks agree
  step_counts counts = {};
  std::uint64_t parameters = 0;  ///< digest of those at the end
  bool is_identical = true;      ///< to the sequential run, as far as it went

  /// Takes in the outcome of a step of a pipeline.
  /// @param took  milliseconds
  void add(zbpp::step_result const& step, double took) {
    losses.push_back(step.loss());
    milliseconds.push_back(took);
    if (step.update.is_update) norms.push_back(step.update.norm);
    counts.add(step.update);
  }
  /// Takes in the times of a step all of whose ranks are here.
  void add_times(zbpp::step_result const& step) {
    timelines.push_back(step.measured);
    updates.push_back(step.ranks);
  }
  /// @return steps taken, those before among them
  [[nodiscard]] std::int64_t done() const { return first + std::ssize(losses); }
  /// @return the place of the step whose cost is the median; of a run that has timelines
  [[nodiscard]] std::size_t typical() const {
    std::vector<std::size_t> all(timelines.size());
    std::iota(all.begin(), all.end(), 0);
    auto const middle = all.begin() + std::ssize(all) / 2;
    std::nth_element(all.begin(), middle, all.end(), [&](std::size_t a, std::size_t b) {
      return zbpp::cost(timelines[a]) < zbpp::cost(timelines[b]);
    });
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

/// Shows how far a run is, and tells of losses that are no numbers.
class run_display {
 public:
  /// @param record  of the run; outlives the object
  /// @param steps   when the run ends
  run_display(run_record const& record, training const& how, std::int64_t steps)
      : record_(&record),
        shown_(record.name, record.first, steps, how.microbatches * how.model.tokens()),
        alarm_("train_gpt", record.name) {}

  /// Takes note of the last step of the record.
  void show_step() {
    alarm_.note(record_->done(), record_->losses.back());
    shown_.show(record_->done(), record_->losses.back());
  }
  /// Shows what else there is to tell, if anything.
  void note(std::string const& text) const { shown_.note(text); }

 private:
  run_record const* record_;
  progress shown_;
  divergence_alarm alarm_;
};

/// Says how many steps a pipeline runs before its ranks stop together: there it can be interrupted
/// and saved. Own choice: about a second's worth, and enough for the stop not to count.
[[nodiscard]] inline std::int64_t steps_between_stops(zbpp::plan const& planned) {
  if (!zbpp::agrees_on_steps(planned.program())) return 1;  // they stop after each
  auto const step = std::max<zbpp::ticks>(zbpp::cost(planned.timeline()), 1);
  return std::clamp<std::int64_t>(zbpp::from_milliseconds(1000) / step, 8, 1000);
}

/// Says whether two numbers are the same bits; nan is the same as itself.
[[nodiscard]] inline bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

/// Says whether stages hold the bits of the whole model's parameters.
[[nodiscard]] inline bool same_parameters(
    std::vector<chunk_stage> const& stages, chunk const& whole) {
  auto const all = whole.parameters().entries();
  auto reference = all.begin();
  for (auto const& s : stages) {
    auto const& own = s.model().parameters();
    for (auto const& e : own.entries()) {
      if (reference == all.end() || reference->at.size != e.at.size) return false;
      auto const* const a = own.value(e.at);
      auto const* const b = whole.parameters().value(reference->at);
      bool const same = std::equal(a, a + e.at.size, b, [](float x, float y) {
        return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
      });
      if (!same) return false;
      ++reference;
    }
  }
  return reference == all.end();
}

/// Trains stages until they have taken `steps` steps or the user interrupts, and shows how far it
/// is.
/// @param stages  of the plan, all of them
/// @param state   what the next step depends on, besides the stages
/// @param save   keeps checkpoints; null to keep none
[[nodiscard]] inline run_record run_pipeline(
    zbpp::plan const& planned,
    training const& how,
    std::vector<chunk_stage>& stages,
    zbpp::training_state const& state,
    std::int64_t steps,
    saver* save) {
  zbpp::pipeline pipe(planned, zbpp::threads{}, stages, options_of(how.optimizer));
  pipe.resume(state);
  run_record record{planned.policy(), state.steps};
  run_display display(record, how, steps);
  auto const most = steps_between_stops(planned);
  step_clock clock;
  while (record.done() < steps && !interrupt::was_raised()) {
    auto const done = record.done();
    auto const until_saved = save != nullptr ? save->until_due(done) : steps;
    clock.start();
    pipe.run(std::min({steps - done, most, until_saved}), [&](zbpp::step_result const& step) {
      record.add(step, clock.lap());
      record.add_times(step);
      display.show_step();
    });
    if (save != nullptr && record.done() == done + until_saved)
      display.note(save->save(pipe.state(), stages));
  }
  if (save != nullptr && record.done() > save->last())
    static_cast<void>(save->save(pipe.state(), stages));
  for (auto const& s : stages) record.parameters += digest(s.model().parameters());
  return record;
}

/// Says whether a run gave the bits of the losses of the reference, for all its steps.
[[nodiscard]] inline bool same_losses(run_record const& run, run_record const& reference) {
  return run.done() <= reference.done() &&
         std::equal(
             run.losses.begin(), run.losses.end(), reference.losses.begin() + run.first, same_bits);
}

/// Says whether a run gave the bits of the reference: the losses of all its steps, and the
/// parameters where both ended at the same step.
[[nodiscard]] inline bool is_identical(
    run_record const& run,
    std::vector<chunk_stage> const& stages,
    run_record const& reference,
    sequential_trainer const& trained) {
  return same_losses(run, reference) &&
         (run.done() < reference.done() || same_parameters(stages, trained.model()));
}

}  // namespace gpt
