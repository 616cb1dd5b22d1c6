// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are all in this process, on parts of one GPU or on a GPU each.
#pragma once

#include "devices.hpp"
#include "options.hpp"
#include "runs.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
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

  /// Measures the passes of all stages. @throws zbpp::error (device_failed)
  [[nodiscard]] measured_times measure(zbpp::placement const& placement) const {
    return cuda::measure(o_->how, *on_, make_stages(o_->how, *on_, placement), sites_of(placement));
  }

  /// Runs a plan. @throws zbpp::error
  [[nodiscard]] run_record run(contender const& one) const {
    bool const times_passes = !o_->trace.empty();
    auto const& where = one.plan->problem().placement();
    run_record record{one.title};
    auto stages = make_stages(o_->how, *on_, where);
    {
      auto const devices = where_.all();
      zbpp::cuda::device backend;
      backend.devices.assign(devices.begin(), devices.end());
      backend.traces = times_passes;
      zbpp::pipeline pipe(
          *one.plan, std::move(backend), stages, options_of(o_->how.optimizer.base));
      run_steps(pipe, record, o_->how, true, [&](zbpp::step_result const& step) {
        if (times_passes) record.measured = from_its_start(step.measured);
      });
    }
    record_stages(record, stages, sites_of(where));
    return record;
  }

  /// Says whether a run gave the bits of the reference.
  [[nodiscard]] static bool is_identical(
      run_record const& run, run_record const& reference, zbpp::placement const&) {
    return cuda::is_identical(run, reference);
  }

 private:
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
