// SPDX-License-Identifier: Apache-2.0
//
// Runs of the training, sequential and pipelined: what each step lost and took, shown as it
// happens, stopped after a step when the user interrupts.
#pragma once

#include "planning.hpp"
#include "table.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
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
  progress(std::string name, std::int64_t steps, index tokens_of_step)
      : name_(std::move(name)),
        steps_(steps),
        tokens_of_step_(tokens_of_step),
        is_terminal_(::isatty(STDOUT_FILENO) != 0) {}
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;
  ~progress() {
    if (is_terminal_ && done_ > 0) std::printf("\n");
  }

  /// Takes note of a step.
  void show(double loss) {
    ++done_;
    if (!is_terminal_ && done_ != steps_ && done_ % std::max<std::int64_t>(steps_ / 5, 1) != 0)
      return;
    std::chrono::duration<double> const passed = std::chrono::steady_clock::now() - start_;
    auto const rate = static_cast<double>(done_ * tokens_of_step_) / passed.count();
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
  std::int64_t steps_;
  index tokens_of_step_;
  bool is_terminal_;
  std::int64_t done_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Holds what a run gave, a value a step.
struct run_record {
  std::string name;
  std::vector<double> losses;
  std::vector<double> milliseconds;
  std::vector<zbpp::timeline> timelines = {};  ///< of a pipeline
  bool is_identical = true;                    ///< to the sequential run, as far as it went

  /// @return the timeline whose cost is the median; of a run that has one
  [[nodiscard]] zbpp::timeline const& typical() const {
    auto const shorter = [](zbpp::timeline const* a, zbpp::timeline const* b) {
      return zbpp::cost(*a) < zbpp::cost(*b);
    };
    std::vector<zbpp::timeline const*> all;
    for (auto const& line : timelines) all.push_back(&line);
    auto const middle = all.begin() + std::ssize(all) / 2;
    std::nth_element(all.begin(), middle, all.end(), shorter);
    return **middle;
  }
  /// @return the mean loss of the last steps, at most ten; one step's loss says little
  [[nodiscard]] double last_loss() const {
    auto const count = std::min<std::ptrdiff_t>(10, std::ssize(losses));
    double total = 0.0;
    for (auto loss = losses.end() - count; loss != losses.end(); ++loss) total += *loss;
    return total / static_cast<double>(count);
  }
};

/// Runs steps until there are enough or the user interrupts.
/// @param step  runs one and returns its loss
template <class Step>
[[nodiscard]] run_record run_steps(std::string const& name, training const& how, Step step) {
  run_record record{name, {}, {}};
  progress shown(name, how.optimizer.steps, how.microbatches * how.model.tokens());
  for (std::int64_t i = 0; i < how.optimizer.steps && !interrupt::was_raised(); ++i) {
    auto const start = std::chrono::steady_clock::now();
    record.losses.push_back(step(record));
    std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - start;
    record.milliseconds.push_back(took.count());
    shown.show(record.losses.back());
  }
  return record;
}

/// Runs the reference.
[[nodiscard]] inline run_record run_sequential(sequential_trainer& trainer, training const& how) {
  return run_steps("sequential", how, [&](run_record&) { return trainer.step(); });
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

/// Runs a plan on threads and compares it with the reference: the losses of all steps, and the
/// parameters where both ended at the same step.
[[nodiscard]] inline run_record run_pipeline(
    zbpp::plan const& planned,
    training const& how,
    text const& on,
    run_record const& reference,
    sequential_trainer const& trained) {
  auto stages = make_stages(how, on, planned.what.where());
  zbpp::pipeline pipe(planned, zbpp::threads{}, stages);
  auto record = run_steps(planned.policy, how, [&](run_record& so_far) {
    auto const& result = pipe.step();
    so_far.timelines.push_back(result.measured);
    return result.loss();
  });
  auto const steps = record.losses.size();
  record.is_identical =
      steps <= reference.losses.size() &&
      std::equal(record.losses.begin(), record.losses.end(), reference.losses.begin(), same_bits);
  if (steps == reference.losses.size() && !same_parameters(stages, trained.model()))
    record.is_identical = false;
  return record;
}

}  // namespace gpt
