// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are all in this process, on parts of one GPU or on a GPU each.
#pragma once

#include "devices.hpp"
#include "options.hpp"
#include "runs.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpt::cuda {

/// Runs all stages of a plan.
class ranks_here {
 public:
  /// @param o   outlives the object, as does the text
  /// @throws zbpp::error when there are too few devices or multiprocessors, or (device_failed)
  ranks_here(options const& o, text const& on)
      : o_(&o), on_(&on), where_(o.ranks, o.one_device_each) {}

  /// @return whether this process tells the user
  [[nodiscard]] static constexpr bool tells() { return true; }
  /// Is there for ranks that are apart: here none can fail by itself.
  static constexpr void check() noexcept {}
  /// @return where the reference runs
  [[nodiscard]] zbpp::cuda::rank_device const& device() const { return where_.all().front(); }
  /// @return how many there are, and where
  [[nodiscard]] std::string description() const {
    return std::to_string(o_->ranks) + ", " +
           (o_->one_device_each ? "a device each" : "on one device") +
           ", multiprocessors of the first " + std::to_string(device().sm_count);
  }

  /// Measures passes and messages in steps of a policy. @throws zbpp::error
  [[nodiscard]] zbpp::problem measure(
      zbpp::any_policy const& policy, zbpp::problem const& stated) const {
    auto const& where = stated.placement();
    auto stages = make_stages(timed(o_->how), *on_, where);
    zbpp::pipeline pipe(
        measuring_plan(policy, stated, receive_ahead_of(*o_)), backend(true), stages, {});
    auto const as_it_is = [](std::int64_t steps) { return steps; };
    auto const steps = measured_steps(pipe, as_it_is, [&](zbpp::timeline line) {
      // Devices count from events of their own.
      if (o_->one_device_each) align_clocks(line, where, stated.microbatches());
      return line;
    });
    return measured_problem(steps, stated);
  }

  /// Runs a plan. @throws zbpp::error
  [[nodiscard]] run_record run(contender const& one) const {
    bool const times_passes = !o_->trace.empty();
    auto const& where = one.plan->problem().placement();
    run_record record{one.title};
    auto stages = make_stages(o_->how, *on_, where);
    auto with = backend(times_passes);
    with.replay = replay_of(o_->how);
    with.steps_at_once = o_->how.steps_at_once;
    train_stages(o_->how, stages, [&](auto& all) {
      zbpp::pipeline pipe(*one.plan, with, all, options_of(o_->how));
      run_steps(pipe, record, o_->how, true, [&](zbpp::step_result const& step) {
        if (times_passes) record.measured = from_its_start(step.measured);
      });
    });
    record_stages(record, o_->how, stages, sites_of(where));
    return record;
  }

  /// Says whether a run gave the bits of the reference.
  [[nodiscard]] static bool is_identical(
      run_record const& run, run_record const& reference, zbpp::placement const&) {
    return cuda::is_identical(run, reference);
  }

 private:
  [[nodiscard]] zbpp::cuda::device backend(bool times_passes) const {
    auto const devices = where_.all();
    zbpp::cuda::device made;
    made.devices.assign(devices.begin(), devices.end());
    made.traces = times_passes;
    return made;
  }

  // One per stage.
  [[nodiscard]] std::vector<zbpp::cuda::rank_device> sites_of(
      zbpp::placement const& placement) const {
    std::vector<zbpp::cuda::rank_device> devices;
    for (int s = 0; s < placement.stages(); ++s)
      devices.push_back(where_.all()[static_cast<std::size_t>(placement.rank_of(s))]);
    return devices;
  }

  options const* o_;
  text const* on_;
  rank_devices where_;
};

}  // namespace gpt::cuda
