// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are all in this process, on parts of one GPU or on a GPU each.
#pragma once

#include "options.hpp"
#include "runs.hpp"
#include "sites.hpp"

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
  /// @return where the reference runs
  [[nodiscard]] zbpp::cuda::site const& site() const { return where_.all().front(); }
  /// @return how many there are, and where
  [[nodiscard]] std::string description() const {
    return std::to_string(o_->ranks) + ", " +
           (o_->one_device_each ? "a device each" : "on one device") +
           ", multiprocessors of the first " + std::to_string(site().sm_count);
  }

  /// Measures the passes of all stages. @throws zbpp::error (device_failed)
  [[nodiscard]] measured_times measure(zbpp::placement const& where) const {
    return cuda::measure(o_->how, *on_, make_stages(o_->how, *on_, where), sites_of(where));
  }

  /// Runs a plan. @throws zbpp::error
  [[nodiscard]] run_record run(zbpp::plan const& planned) const {
    bool const times_passes = !o_->trace.empty();
    auto const& where = planned.what.where();
    run_record record{planned.policy};
    auto stages = make_stages(o_->how, *on_, where);
    {
      auto const sites = where_.all();
      zbpp::cuda::device backend;
      backend.sites.assign(sites.begin(), sites.end());
      backend.traces = times_passes;
      zbpp::pipeline pipe(planned, std::move(backend), stages);
      run_steps(record, o_->how, true, [&] {
        auto const& result = pipe.step();
        if (times_passes) record.measured = result.measured;
        return result.loss();
      });
    }
    record.parameters = parameters_of(stages, sites_of(where));
    return record;
  }

  /// Says whether a run gave the bits of the reference.
  [[nodiscard]] static bool is_identical(
      run_record const& run, run_record const& reference, zbpp::placement const&) {
    return cuda::is_identical(run, reference);
  }

 private:
  // One a stage.
  [[nodiscard]] std::vector<zbpp::cuda::site> sites_of(zbpp::placement const& where) const {
    std::vector<zbpp::cuda::site> sites;
    for (int s = 0; s < where.stages(); ++s)
      sites.push_back(where_.all()[static_cast<std::size_t>(where.rank_of(s))]);
    return sites;
  }

  options const* o_;
  text const* on_;
  rank_sites where_;
};

}  // namespace gpt::cuda
