// SPDX-License-Identifier: Apache-2.0
//
// Runs of the training, sequential and pipelined: what each step lost and took, and whether the
// bits are the same.
#pragma once

#include "planning.hpp"
#include "train_gpt/divergence.hpp"
#include "train_gpt/table.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Holds what a run gave, a value a step.
struct run_record {
  std::string title;
  std::vector<double> losses = {};
  std::vector<double> milliseconds = {};
  std::vector<float> parameters = {};           ///< at the end, in the order of the model
  std::optional<zbpp::timeline> measured = {};  ///< of the last step, where passes were timed
};

/// Runs steps.
/// @param shows  whether a line tells of some of them
/// @param step   runs one and returns its loss
template <class Step>
void run_steps(run_record& record, training const& how, bool shows, Step step) {
  auto const steps = how.optimizer.base.steps;
  auto const milestone = std::max<std::int64_t>(steps / 5, 1);
  auto const tokens = static_cast<double>(how.microbatches * how.model.tokens());
  divergence_alarm alarm("train_gpt_cuda", record.title);
  for (std::int64_t i = 0; i < steps; ++i) {
    auto const start = std::chrono::steady_clock::now();
    record.losses.push_back(step());
    std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - start;
    record.milliseconds.push_back(took.count());
    if (shows) alarm.note(i + 1, record.losses.back());
    if (!shows || ((i + 1) % milestone != 0 && i + 1 != steps)) continue;
    std::printf(
        "  %-12s step %lld of %lld   loss %.4f   %.0f tokens/s\n",
        record.title.c_str(),
        static_cast<long long>(i + 1),
        static_cast<long long>(steps),
        record.losses.back(),
        tokens / took.count() * 1e3);
    std::fflush(stdout);
  }
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
  sequential_trainer trainer(how, on, at.compute, at.sm_count);
  run_steps(record, how, shows, [&] { return trainer.step(between); });
  record.parameters = trainer.model().parameters().values(at.compute);
  return record;
}

/// @return the parameters of stages, one after the other
/// @param devices  one per stage, each with the stream that it ran on
/// @throws zbpp::cuda::cuda_error
[[nodiscard]] inline std::vector<float> parameters_of(
    std::vector<chunk_stage>& stages, std::span<zbpp::cuda::rank_device const> devices) {
  std::vector<float> all;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    zbpp::cuda::device_guard const here(devices[s].device);
    auto const values = stages[s].model().parameters().values(devices[s].compute);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
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

/// Lines up what the runs gave.
class outcome {
 public:
  /// Adds the reference.
  void add(run_record const& run) {
    lines_.add({run.title, "", fixed(run.losses.back(), 4), "", time_of(run)});
  }
  /// Adds a run of a plan.
  /// @param identical  nothing: it was not compared
  void add(run_record const& run, zbpp::plan const& planned, std::optional<bool> identical) {
    lines_.add(
        {run.title,
         planned.problem().placement().name(),
         fixed(run.losses.back(), 4),
         !identical   ? ""
         : *identical ? "yes"
                      : "NO",
         time_of(run),
         run.measured ? percent(zbpp::bubble_rate(*run.measured)) : "",
         percent(zbpp::bubble_rate(planned.timeline()))});
  }
  /// Adds a policy that could not run.
  void add(contender const& none) { lines_.add(none.title, none.why_not); }

  /// @return the table
  [[nodiscard]] std::string text() const { return lines_.text(); }

 private:
  [[nodiscard]] static std::string time_of(run_record const& run) {
    return fixed(median(run.milliseconds), 2);
  }

  table lines_{
      {"policy", "placement", "loss at end", "identical", "step ms", "bubble measured", "planned"}};
};

}  // namespace gpt::cuda
