// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes, each with a GPU, and NCCL between them; this one has one of them. All
// do the same in the same order, and know in the end what all found out.
#pragma once

#include "options.hpp"
#include "runs.hpp"
#include "train_gpt/meeting.hpp"
#include <zbpp/asio/measure.hpp>
#include <zbpp/nccl/ranks.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Chooses the device of a rank: what the user says, else devices in turn by the local rank.
/// @throws setting_error when there is no such device; zbpp::error (device_failed)
[[nodiscard]] inline int device_of(zbpp::asio::rendezvous const& meeting, options const& o) {
  int devices = 0;
  zbpp::cuda::check(cudaGetDeviceCount(&devices));
  if (o.device && *o.device >= devices)
    throw setting_error(
        "--device is " + std::to_string(*o.device) + "; this machine has " +
        std::to_string(devices) + " devices, numbered from 0");
  if (o.device) return *o.device;
  return (meeting.local_rank() < 0 ? meeting.rank() : meeting.local_rank()) % devices;
}

/// Says how the stages of this rank run; as ranks_here does.
class ranks_apart {
 public:
  /// Checks that all ranks were started alike.
  /// @param meeting  outlives the object, as do the options
  /// @throws zbpp::error (no_agreement) that names the options that differ; setting_error;
  ///         zbpp::error, the failure of the run
  ranks_apart(zbpp::asio::rendezvous& meeting, options const& o, text const& on)
      : meeting_(&meeting), where_({.device = device_of(meeting, o)}) {
    meeting.agree(agreement(o, on));
  }

  /// @return whether this process tells the user
  [[nodiscard]] bool tells() const { return meeting_->rank() == 0; }
  /// @return whether it shows the steps of a plan: it has the last stage
  [[nodiscard]] bool shows(zbpp::placement const& placement) const {
    return meeting_->rank() == root(placement);
  }
  /// Throws the failure of the run, if it has failed; called now and then during long work.
  void check() const { meeting_->check(); }
  /// @return what connects processes
  [[nodiscard]] zbpp::asio::rendezvous* meeting() const { return meeting_; }
  /// @return where the rank is, and its reference runs
  [[nodiscard]] zbpp::cuda::rank_device const& device() const { return where_.all().front(); }
  /// @return how many there are, and where
  [[nodiscard]] std::string description() const {
    return std::to_string(meeting_->ranks()) +
           ", a process and a device each, multiprocessors of the first " +
           std::to_string(device().sm_count);
  }

  /// @return the stages that are here
  [[nodiscard]] auto own_stages(zbpp::placement const& placement) const {
    return placement.stages_of(meeting_->rank());
  }
  /// @return what runs them
  [[nodiscard]] zbpp::nccl::ranks backend(
      bool times_passes,
      zbpp::cuda::replay replay = zbpp::cuda::replay::none,
      int steps_at_once = 1) const {
    zbpp::nccl::ranks_settings made;
    made.device = device();
    made.traces = times_passes;
    made.replay = replay;
    made.steps_at_once = steps_at_once;
    return zbpp::nccl::ranks(*meeting_, made);
  }
  /// Measures steps. @throws zbpp::error, the failure of the run
  template <class Pipeline>
  [[nodiscard]] zbpp::problem measure(Pipeline& pipe) const {
    return zbpp::asio::measure(*meeting_, pipe, measuring(true));
  }
  /// Says whether a run gave the bits of the reference on all ranks; where this one did not, it
  /// tells.
  /// @throws zbpp::error, the failure of the run
  [[nodiscard]] bool is_identical(run_record const& run, run_record const& reference) const {
    bool const same = cuda::is_identical(run, reference);
    if (!same)
      std::fprintf(
          stderr,
          "train_gpt_cuda: rank %d: %s gave other bits than the sequential run\n",
          meeting_->rank(),
          run.title.c_str());
    auto const parts = meeting_->all_gather(
        zbpp::asio::wire_writer().put(static_cast<std::uint8_t>(same)).bytes());
    return std::ranges::all_of(parts, [](auto const& part) {
      return zbpp::asio::wire_reader(part).template get<std::uint8_t>() != 0;
    });
  }
  /// @return the passes of all ranks on one clock, from the first start
  /// @throws zbpp::error, the failure of the run
  [[nodiscard]] zbpp::timeline gather(
      zbpp::plan const& planned, zbpp::timeline const& measured) const {
    return zbpp::asio::gather_timeline(*meeting_, planned.schedule(), measured);
  }
  /// Lets all processes know the losses, which one has.
  /// @throws zbpp::error, the failure of the run
  void share(run_record& run, zbpp::placement const& placement) const {
    auto const all = meeting_->broadcast(std::as_bytes(std::span(run.losses)), root(placement));
    zbpp::asio::wire_reader from(all);
    for (auto& loss : run.losses) loss = from.get<double>();
    from.expect_end();
  }

 private:
  [[nodiscard]] static int root(zbpp::placement const& placement) {
    return placement.rank_of(placement.stages() - 1);
  }

  [[nodiscard]] std::vector<zbpp::agreement_item> agreement(
      options const& o, text const& on) const {
    auto all = settings_of(o, on);
    auto const add = [&](char const* name, std::string value) {
      all.emplace_back(name, std::move(value));
    };
    std::string policies;
    for (auto const& name : o.policies) policies += (policies.empty() ? "" : ",") + name;
    add("--policy", policies);
    add("--step", names_of(o.kinds, ","));
    add("--replay", o.how.replays ? "step" : "none");
    add("--steps-at-once", std::to_string(o.how.steps_at_once));
    add("--measure", o.measure ? "yes" : "no");
    add("passes are timed", times_passes(o) ? "yes" : "no");
    // Products may add in another order on another GPU, and messages carry the bits around.
    add("--check", o.check ? std::to_string(device().sm_count) + " multiprocessors" : "no");
    add("--checkpoint", o.checkpoint.empty() ? "no" : "yes");
    add("--every", std::to_string(o.every));
    add("--resume", o.resume ? "yes" : "no");
    std::vector<zbpp::agreement_item> items;
    for (auto const& [name, value] : all) items.push_back(zbpp::make_item(name, value));
    return items;
  }

  zbpp::asio::rendezvous* meeting_;
  rank_devices where_;
};

}  // namespace gpt::cuda
