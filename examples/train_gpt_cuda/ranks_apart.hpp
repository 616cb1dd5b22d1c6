// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes, each with a GPU, and NCCL between them; this one has one of them. All
// do the same in the same order, and know in the end what all found out.
#pragma once

#include "devices.hpp"
#include "options.hpp"
#include "runs.hpp"
#include "train_gpt/checksum.hpp"
#include "train_gpt/gathered_timeline.hpp"
#include "train_gpt/meeting.hpp"
#include <zbpp/nccl/ranks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
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

/// Runs the stages of this rank.
class ranks_apart {
 public:
  /// Checks that all ranks were started alike.
  /// @param o   outlives the object, as do the others
  /// @throws zbpp::error (no_agreement) that names the options that differ; setting_error;
  ///         zbpp::error, the failure of the run
  ranks_apart(zbpp::asio::rendezvous& meeting, options const& o, text const& on)
      : meeting_(&meeting), o_(&o), on_(&on), where_({.device = device_of(meeting, o)}) {
    meeting.agree(settings());
  }

  /// @return whether this process tells the user
  [[nodiscard]] bool tells() const { return meeting_->rank() == 0; }
  /// Throws the failure of the run, if it has failed; called now and then during long work.
  void check() const { meeting_->check(); }
  /// @return where the rank is, and its reference runs
  [[nodiscard]] zbpp::cuda::rank_device const& device() const { return where_.all().front(); }
  /// @return how many there are, and where
  [[nodiscard]] std::string description() const {
    return std::to_string(meeting_->ranks()) +
           ", a process and a device each, multiprocessors of the first " +
           std::to_string(device().sm_count);
  }

  /// Measures passes and messages in steps of a policy, on all ranks.
  /// @throws zbpp::error, the failure of the run
  [[nodiscard]] zbpp::problem measure(
      zbpp::any_policy const& policy, zbpp::problem const& stated) const {
    auto const plan = measuring_plan(policy, stated, receive_ahead_of(*o_));
    auto stages = own_stages(timed(o_->how), stated.placement());
    zbpp::pipeline pipe(plan, zbpp::nccl::ranks(*meeting_, settings_of(true)), stages, {});
    auto const steps = measured_steps(
        pipe,
        [&](std::int64_t own) {
          auto most = own;
          auto const parts = meeting_->all_gather(zbpp::asio::wire_writer().put(own).bytes());
          for (auto const& part : parts)
            most = std::max(most, zbpp::asio::wire_reader(part).template get<std::int64_t>());
          return most;
        },
        [&](zbpp::timeline const& own) {
          return gather_timeline(*meeting_, plan.schedule(), own);
        });
    return measured_problem(steps, stated);
  }

  /// Runs a plan; the rank with the last stage shows how far it is.
  /// @return the losses on all ranks, and the parameters of the own stages
  /// @throws zbpp::error, the failure of the run
  [[nodiscard]] run_record run(contender const& one) const {
    auto const& where = one.plan->problem().placement();
    auto const root = where.rank_of(where.stages() - 1);
    run_record record{one.title};
    auto stages = own_stages(o_->how, where);
    auto with = settings_of(false);
    with.replay = replay_of(o_->how);
    with.steps_at_once = o_->how.steps_at_once;
    train_stages(o_->how, stages, [&](auto& all) {
      zbpp::pipeline pipe(*one.plan, zbpp::nccl::ranks(*meeting_, with), all, options_of(o_->how));
      bool const shows = meeting_->rank() == root;
      run_steps(pipe, record, o_->how, shows, [](zbpp::step_result const&) {});
    });
    share_losses(*meeting_, root, 0, record.losses);
    record_stages(record, o_->how, stages, own_sites(where));
    return record;
  }

  /// Says whether a run gave the bits of the reference on all ranks; where this one did not, it
  /// tells.
  /// @throws zbpp::error, the failure of the run
  [[nodiscard]] bool is_identical(
      run_record const& run, run_record const& reference, zbpp::placement const& placement) const {
    bool const same = cuda::is_identical(run, own_part(reference, placement));
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

 private:
  [[nodiscard]] zbpp::nccl::ranks_settings settings_of(bool times_passes) const {
    zbpp::nccl::ranks_settings made;
    made.device = device();
    made.traces = times_passes;
    return made;
  }
  [[nodiscard]] std::vector<chunk_stage> own_stages(
      training const& how, zbpp::placement const& placement) const {
    return make_stages(how, *on_, placement, placement.stages_of(meeting_->rank()));
  }
  [[nodiscard]] std::vector<zbpp::cuda::rank_device> own_sites(
      zbpp::placement const& placement) const {
    return std::vector(placement.stages_of(meeting_->rank()).size(), device());
  }

  // The reference with the parameters of the own stages alone.
  [[nodiscard]] run_record own_part(
      run_record const& reference, zbpp::placement const& placement) const {
    auto part = reference;
    part.parameters.clear();
    auto first = reference.parameters.begin();
    auto stages = make_stages(o_->how, *on_, placement);
    for (int s = 0; s < placement.stages(); ++s) {
      auto const& parameters = stages[static_cast<std::size_t>(s)].model().parameters();
      auto const last = first + static_cast<std::ptrdiff_t>(parameters.size());
      if (placement.rank_of(s) == meeting_->rank())
        part.parameters.insert(part.parameters.end(), first, last);
      first = last;
    }
    return part;
  }

  [[nodiscard]] std::vector<zbpp::asio::agreement_item> settings() const {
    auto const number = [](auto value) { return std::to_string(value); };
    auto const& s = o_->how.model;
    auto const& adam = o_->how.optimizer;
    std::string policies;
    for (auto const& name : o_->policies) policies += (policies.empty() ? "" : ",") + name;
    std::vector<std::pair<char const*, std::string>> const all{
        {"--text",
         number(on_->bytes().size()) + " bytes, checksum " +
             hex(checksum_of(std::as_bytes(on_->bytes())))},
        {"--policy", policies},
        {"--microbatches", number(o_->how.microbatches)},
        {"--layers", number(s.layers)},
        {"--heads", number(s.heads)},
        {"--width", number(s.width)},
        {"--context", number(s.context)},
        {"--batch", number(s.sequences)},
        {"--steps", number(adam.base.steps)},
        {"--learning-rate", exact(adam.base.learning_rate)},
        {"--weight-decay", exact(adam.weight_decay)},
        {"--clip", exact(adam.base.clip)},
        {"--step", names_of(o_->kinds, ",")},
        {"--seed", number(o_->how.seed)},
        {"--replay", number(static_cast<int>(o_->how.replay))},
        {"--steps-at-once", number(o_->how.steps_at_once)},
        {"--measure", o_->measure ? "yes" : "no"},
        // Products may add in another order on another GPU, and messages carry the bits around.
        {"--check", o_->check ? number(device().sm_count) + " multiprocessors" : "no"}};
    std::vector<zbpp::asio::agreement_item> items;
    for (auto const& [name, value] : all) items.push_back(zbpp::asio::make_item(name, value));
    return items;
  }

  zbpp::asio::rendezvous* meeting_;
  options const* o_;
  text const* on_;
  rank_devices where_;
};

}  // namespace gpt::cuda
