// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are all in this process, on parts of one GPU or on a GPU each.
#pragma once

#include "options.hpp"
#include "runs.hpp"
#include <zbpp/analysis/message_times.hpp>

#include <ranges>
#include <string>
#include <utility>

namespace gpt::cuda {

/// Says how all stages of a plan run.
class ranks_here {
 public:
  /// @param o  outlives the object
  /// @throws zbpp::error when there are too few devices or multiprocessors, or (device_failed)
  explicit ranks_here(options const& o) : o_(&o), where_(o.ranks, o.one_device_each, o.whole_gpu) {}

  /// @return whether this process tells the user
  [[nodiscard]] static constexpr bool tells() { return true; }
  /// @return whether it shows the steps of a plan
  [[nodiscard]] static constexpr bool shows(zbpp::placement const&) { return true; }
  /// Is there for ranks that are apart: here none can fail by itself.
  static constexpr void check() noexcept {}
  /// @return what connects processes
  [[nodiscard]] static constexpr void* meeting() { return nullptr; }
  /// @return where the reference runs
  [[nodiscard]] zbpp::cuda::rank_device const& device() const { return where_.all().front(); }
  /// @return how many there are, and where
  [[nodiscard]] std::string description() const {
    return std::to_string(o_->ranks) + ", " +
           (o_->one_device_each ? "a device each" : "on one device") +
           ", multiprocessors of the first " + std::to_string(device().sm_count);
  }

  /// @return the stages that are here
  [[nodiscard]] static auto own_stages(zbpp::placement const& placement) {
    return std::views::iota(0, placement.stages());
  }
  /// @return what runs them
  [[nodiscard]] zbpp::cuda::device backend(
      bool times_passes,
      zbpp::cuda::replay replay = zbpp::cuda::replay::none,
      int steps_at_once = 1) const {
    zbpp::cuda::device made;
    made.devices = where_.all();
    made.traces = times_passes;
    made.on_fallback = tell_fallback;
    made.replay = replay;
    made.steps_at_once = steps_at_once;
    return made;
  }
  /// Measures steps. @throws zbpp::error
  template <class Pipeline>
  [[nodiscard]] zbpp::problem measure(Pipeline& pipe) const {
    return zbpp::measure(pipe, measuring(o_->one_device_each));
  }
  /// Says whether a run gave the bits of the reference.
  [[nodiscard]] static bool is_identical(run_record const& run, run_record const& reference) {
    return cuda::is_identical(run, reference);
  }
  /// @return the passes of all ranks on one clock, from the first start
  [[nodiscard]] static zbpp::timeline gather(zbpp::plan const& planned, zbpp::timeline measured) {
    zbpp::align_clocks(measured, planned.problem().placement());
    return zbpp::from_first_start(std::move(measured));
  }
  /// Lets all processes know the losses, which one has.
  static void share(run_record&, zbpp::placement const&) {}

 private:
  options const* o_;
  rank_devices where_;
};

}  // namespace gpt::cuda
