// SPDX-License-Identifier: Apache-2.0
//
// A pipeline: a verified plan, the stages that do the work, and a backend that runs them, step
// after step. A program that `verify` refuses never runs.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/plan.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Holds for what does not take its stages along when it goes: a container by name, a view, or a
/// container of `stage_ref`.
template <class Stages>
concept refers_to_stages =
    std::is_lvalue_reference_v<Stages> || std::ranges::borrowed_range<Stages> ||
    std::same_as<std::ranges::range_value_t<Stages>, stage_ref>;

}  // namespace detail

/// Holds what a step gave. It belongs to the pipeline and is overwritten by the next step.
struct step_result {
  std::vector<double> losses;  ///< as reported, one a microbatch; not a number where none was
  timeline measured;           ///< when each pass ran

  /// @return the mean loss, summed in ascending microbatch; not a number when one is missing
  [[nodiscard]] double loss() const noexcept {
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  }
};

/// Runs the steps of a plan.
/// @tparam Backend  `threads` or `virtual_time`
template <class Backend>
class pipeline {
 public:
  /// Verifies the plan and gets everything ready.
  ///
  /// @param stages  all stages of the model in order: a container of one stage type or of
  ///                `stage_ref`. They must outlive the pipeline. Ranks run at once, so one object
  ///                may serve two stages of one rank only.
  /// @throws error (refused_program) with every fault that `verify` finds; (bad_argument) unless
  ///         there are as many as stages
  template <class Stages>
  pipeline(plan const& planned, Backend backend, Stages&& stages)
    requires detail::refers_to_stages<Stages>
      : plan_(verified(planned)),
        stages_(refer_to(stages, planned.what.stages())),
        crew_(backend, planned.what.ranks()),
        memory_(detail::index(planned.what.ranks())) {
    training_ = std::make_unique<rig>(*this, plan_.code, true);
    if constexpr (Backend::reserves_memory) {
      auto const peaks = peak_memory(plan_.code, plan_.what, training_->messages);
      for (std::size_t r = 0; r < memory_.size(); ++r)
        memory_[r].buffers.reserve(peaks[r].activations + peaks[r].edges);
    }
  }
  pipeline(pipeline const&) = delete;
  pipeline& operator=(pipeline const&) = delete;
  ~pipeline() = default;

  /// Runs one optimizer step's worth of microbatches, and the optimizer steps of stages that have
  /// one.
  ///
  /// Blocks until all ranks have stopped: flows destroyed, buffers back, channels empty. Allocates
  /// nothing after the first time.
  /// @throws what a pass threw first, or error (wrong_flow, wrong_size); see `failures()`. The next
  ///         step works; what W added up or an optimizer step changed before the failure is the
  ///         stages' own to undo.
  step_result const& step() {
    run(*training_);
    ++steps_;
    return training_->result;
  }

  /// Runs the forward passes only. What a rank sends stays in its memory until the end: no gradient
  /// comes back that would tell of its consumption.
  /// @throws as `step`
  step_result const& evaluate() {
    if (evaluation_ == nullptr)
      evaluation_ = std::make_unique<rig>(*this, forward_only(plan_.code), false);
    run(*evaluation_);
    return evaluation_->result;
  }

  /// @return every failure of the last step, the first one first; empty when it succeeded
  [[nodiscard]] std::vector<failure> const& failures() const noexcept { return failures_; }
  /// @return how many steps were completed
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// @return the plan it runs
  [[nodiscard]] plan const& planned() const noexcept { return plan_; }
  /// @return what a rank's arena holds, and the most it held in the last step
  [[nodiscard]] arena_usage const& memory(int rank) const noexcept {
    return memory_[detail::index(rank)].buffers.usage();
  }

 private:
  using engine_type = engine<in_process, typename Backend::clock>;

  // What runs one program: engines and channels.
  struct rig {
    rig(pipeline& owner, program program_to_run, bool is_training)
        : code(std::move(program_to_run)),
          messages(code),
          carrier(code.ranks(), messages.channels()) {
      auto const ranks = code.ranks();
      engines.reserve(detail::index(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        auto& memory = owner.memory_[detail::index(rank)];
        carrier.bind(rank, memory.buffers, owner.crew_.bell_of(rank));
        engines.emplace_back(
            rank,
            code,
            messages,
            owner.plan_.what,
            owner.stages_,
            memory,
            carrier,
            status,
            is_training);
        for (auto const& i : code.instructions(rank))
          if (i.is_pass()) result.measured.push({i.as_pass(), 0, 0});
        result.measured.end_row();
      }
      result.losses.resize(detail::index(code.microbatches()));
    }

    program code;
    traffic messages;
    in_process carrier;
    step_status status;
    step_result result;
    std::vector<engine_type> engines;
  };

  template <class Stages>
  [[nodiscard]] static std::vector<stage_ref> refer_to(Stages& stages, int needed) {
    std::vector<stage_ref> all;
    for (auto& one : stages) {
      static_assert(
          std::constructible_from<stage_ref, decltype(one)>,
          "a pipeline takes a container of stages or of stage_ref; for pointers, stage_ref(*p)");
      all.push_back(stage_ref(one));
    }
    if (all.size() != detail::index(needed))
      throw error(
          errc::bad_argument,
          "the pipeline got " + std::to_string(all.size()) + " stages; its placement has " +
              std::to_string(needed));
    return all;
  }

  // A circle of waits among the forward passes alone would be one of the verified program, too.
  [[nodiscard]] static program forward_only(program const& code) {
    rows<pass> forwards;
    for (int rank = 0; rank < code.ranks(); ++rank) {
      for (auto const& i : code.instructions(rank))
        if (i.kind == instruction_kind::forward) forwards.push(i.as_pass());
      forwards.end_row();
    }
    return lower(
        {code.where(), code.microbatches(), std::move(forwards)}, {.optimizer_steps = false});
  }

  [[nodiscard]] static plan const& verified(plan const& planned) {
    verify_or_throw(planned.code, planned.what);
    return planned;
  }

  void run(rig& what) {
    failures_.clear();
    what.status.reset();
    auto& losses = what.result.losses;
    std::fill(losses.begin(), losses.end(), std::numeric_limits<double>::quiet_NaN());
    auto const clock = crew_.start_clock();
    for (auto& e : what.engines) e.begin(steps_, clock, losses, what.result.measured[e.rank()]);
    crew_.run(what.engines);
    if (what.status.has_failed())
      for (auto& e : what.engines) e.abandon();
    what.carrier.drain();
    if (what.status.has_failed()) report(what);
  }

  [[noreturn]] void report(rig const& what) {
    auto add = [this](engine_type const& e) {
      if (e.what_failed().why) failures_.push_back(e.what_failed());
    };
    auto const& first = what.engines[detail::index(what.status.first())];
    add(first);
    for (auto const& e : what.engines)
      if (&e != &first) add(e);
    std::rethrow_exception(first.what_failed().why);
  }

  plan plan_;
  std::vector<stage_ref> stages_;
  typename Backend::crew crew_;
  std::vector<rank_memory> memory_;
  std::unique_ptr<rig> training_;
  std::unique_ptr<rig> evaluation_;
  std::vector<failure> failures_;
  std::int64_t steps_ = 0;
};

template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&) -> pipeline<Backend>;

}  // namespace zbpp
