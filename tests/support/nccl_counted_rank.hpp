// SPDX-License-Identifier: Apache-2.0
//
// A rank of the toy network in a run over NCCL whose steps can be replayed, what one process makes
// of the same steps, and what is checked when a run has failed.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/nccl/settings.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_replay.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/padded_toy.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// A rank with its stages of the toy network. Each may come to harm when the host issues one of its
/// forward passes.
class counted_rank {
 public:
  using on_forward_call = std::function<void(int issued)>;  // by a stage, before this one
  using change_call = std::function<void(nccl::ranks_settings&)>;

  counted_rank(
      plan const& planned,
      asio::rendezvous& meeting,
      on_forward_call on_forward = {},
      change_call const& change = {})
      : here_(meeting.rank()),
        all_(toy::make_model(planned.problem().stages())),
        mine_(planned.problem().placement().stages_of(meeting.rank())) {
    for (int const s : mine_) {
      auto const stage = zbpp::detail::index(s);
      passes_.emplace_back(all_[stage], toy::counted::counters->at(stage)).on_forward(on_forward);
      stages_.emplace_back(passes_.back());
    }
    auto settings = settings_of(planned, meeting.rank());
    if (change) change(settings);
    pipe_.emplace(planned, nccl::ranks(meeting, std::move(settings)), stages_);
  }

  [[nodiscard]] pipeline<nccl::ranks>& pipe() noexcept { return *pipe_; }
  /// Ends the pipeline.
  void leave() { pipe_.reset(); }
  /// @return whether the stages have the gradients of the reference after a step
  [[nodiscard]] bool has_gradients_of(toy::history const& expected, int step) const {
    for (int const s : mine_) {
      auto const stage = zbpp::detail::index(s);
      if (!toy::is_same(
              toy::model{all_[stage]},
              toy::model{expected.models[zbpp::detail::index(step)][stage]}))
        return false;
    }
    return true;
  }
  /// @return whether losses are those of the reference in a step, where the last stage is here
  [[nodiscard]] bool are_losses_of(
      std::vector<double> const& losses, toy::history const& expected, int step) const {
    bool const is_last = zbpp::detail::index(mine_.back()) + 1 == all_.size();
    return !is_last || toy::is_same(losses, expected.losses[zbpp::detail::index(step)]);
  }

 private:
  class fragile : public toy::padded_passes<toy::basic_passes<toy::counted>> {
   public:
    using padded_passes::padded_passes;

    void on_forward(on_forward_call does) { on_forward_ = std::move(does); }
    message forward(saved& kept, message const& in, microbatch mb, pass_context ctx) {
      if (on_forward_) on_forward_(issued_++);
      return padded_passes::forward(kept, in, mb, ctx);
    }

   private:
    on_forward_call on_forward_;
    int issued_ = 0;
  };
  using passes = toy::counted_passes<fragile>;

  // As a process would have it: a fault of another device is none of this one's.
  cuda::device_guard here_;
  toy::model all_;
  std::span<int const> mine_;  // stages, in the plan
  std::deque<passes> passes_;  // stages refer to them
  std::vector<as_flow<passes>> stages_;
  std::optional<pipeline<nccl::ranks>> pipe_;
};

/// The numbers of the steps, in memory of the devices of all stages' ranks.
class step_counters {
 public:
  explicit step_counters(placement const& placement) {
    for (int s = 0; s < placement.stages(); ++s) all_.emplace_back(placement.rank_of(s));
  }

 private:
  std::vector<toy::step_counter> all_;
  toy::counted::in_use counts_{all_};
};

/// @return what one process makes of some steps, whose gradients add up
[[nodiscard]] inline toy::history adding_reference(plan const& planned, int count) {
  auto all = toy::make_model(planned.problem().stages());
  toy::fused_passes const is_fused(planned);
  toy::history result;
  for (int i = 0; i < count; ++i) {
    result.losses.push_back(
        toy::device_reference_step(all, i, planned.problem().microbatches(), is_fused));
    result.models.push_back(all);
  }
  return result;
}

/// Checks that all ranks of a run that has failed were told the same, and that nothing is left.
inline void check_told(std::vector<std::string> const& reports, std::string const& part) {
  for (auto const& text : reports) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  }
  // What passes do with the messages of an aborted communicator is garbage, and in no order, in any
  // number.
  for (auto const& fault : cuda_model::faults())
    if (!fault.starts_with("race") && !fault.starts_with("uninitialised") &&
        !fault.starts_with("and "))
      FAIL_CHECK(fault);
  CHECK(first_of(cuda_model::leaks()) == "");
}

}  // namespace zbpp::test
