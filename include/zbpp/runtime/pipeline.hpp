// SPDX-License-Identifier: Apache-2.0
//
// A pipeline: a verified plan, the stages that do the work, and a backend that runs them, step
// after step. A program that `verify` refuses never runs.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/stage.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// True if `Stages` does not own its stages: a container by name, a view, or a container of
/// `stage_ref`.
template <class Stages>
concept refers_to_stages =
    std::is_lvalue_reference_v<Stages> || std::ranges::borrowed_range<Stages> ||
    std::same_as<std::ranges::range_value_t<Stages>, stage_ref>;

}  // namespace detail

/// Holds what a step gave. It belongs to the pipeline and is overwritten by the next step.
struct step_result {
  /// As reported, one per microbatch; not a number where none was, as in a process without the last
  /// stage.
  std::vector<double> losses;
  timeline measured;  ///< when each pass ran; empty for ranks of other processes

  /// @return the mean loss, summed in ascending microbatch; not a number when one is missing
  [[nodiscard]] double loss() const noexcept {
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  }
};

/// Runs the steps of a plan.
/// @tparam Backend  `threads` or `virtual_time`, or one of a component (`asio::tcp`)
template <backend Backend>
class pipeline {
 public:
  /// Verifies the plan and gets everything ready.
  ///
  /// @param stages  the stages of the ranks that run in this process (most backends: of all), in
  ///                the order of the model: a container of one stage type or of `stage_ref`. They
  ///                must outlive the pipeline. Ranks run at once, so one object may serve two
  ///                stages of one rank only.
  /// @throws error (refused_program) with every fault that `verify` finds; (bad_argument) unless
  ///         there are as many as stages; what the backend throws
  template <class Stages>
  pipeline(plan const& planned, Backend backend, Stages&& stages)
    requires detail::refers_to_stages<Stages>
      : pipeline(detail::refer_to(stages), planned, std::move(backend)) {}
  pipeline(pipeline const&) = delete;
  pipeline& operator=(pipeline const&) = delete;
  ~pipeline();

  /// Runs one optimizer step's worth of microbatches, and the optimizer steps of stages that have
  /// one.
  ///
  /// Blocks until the ranks of this process have stopped; their flows are destroyed and their
  /// buffers returned. Ranks in other processes may still be running. Allocates nothing after the
  /// first time.
  ///
  /// After a failure, a backend whose ranks all run in this process can step again (on GPUs, if
  /// CUDA can continue); the stages must first undo what W added up, or what an optimizer step
  /// changed. With one process per rank (`asio::tcp`, `nccl::ranks`) the run is over, and every
  /// later call throws the same failure.
  /// @throws what a pass threw first, or error (wrong_flow, wrong_size), or what failed in another
  ///         process; see `failures()`
  step_result const& step();

  /// Runs the forward passes only. What a rank sends stays in its memory until the end, because
  /// no gradient comes back that would tell that it was consumed.
  /// @throws as `step`
  step_result const& evaluate();

  /// @return every failure of the last step, the first one first; empty when it succeeded
  [[nodiscard]] std::vector<failure> const& failures() const noexcept { return failures_; }
  /// @return how many steps were completed
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// @return the plan it runs
  [[nodiscard]] plan const& planned() const noexcept { return plan_; }
  /// @return what a rank's arena holds, and the most it held in the last step
  /// @throws error (bad_argument) when the rank does not run in this process
  [[nodiscard]] arena_usage const& memory(int rank) const;

 private:
  using transport_type = typename Backend::transport_type;
  using engine_type = engine<transport_type, typename Backend::pass_observer>;

  struct run_state;  // engines, transport and result of one program, training or evaluation

  pipeline(std::vector<stage_ref> const& stages, plan const& planned, Backend backend);

  void run(run_state& what);
  [[noreturn]] void report(run_state const& what);

  plan plan_;
  typename Backend::executor executor_;
  std::vector<stage_ref> stages_;  // rank after rank
  std::vector<rank_memory> memory_;
  std::unique_ptr<run_state> training_;
  std::unique_ptr<run_state> evaluation_;
  std::vector<failure> failures_;
  std::int64_t steps_ = 0;
};

template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&) -> pipeline<Backend>;

template <backend Backend>
struct pipeline<Backend>::run_state {
  run_state(pipeline& owner, program program_to_run, bool is_training);

  program code;
  traffic messages;
  std::unique_ptr<transport_type> transport;
  step_status status;
  step_result result;
  std::vector<engine_type> engines;
};

template <backend Backend>
pipeline<Backend>::run_state::run_state(pipeline& owner, program program_to_run, bool is_training)
    : code(std::move(program_to_run)),
      messages(code),
      transport(owner.executor_.make_transport(code, messages, owner.plan_.problem())) {
  auto const here = owner.executor_.ranks();
  std::span<stage_ref const> stages = owner.stages_;
  engines.reserve(here.size());
  for (int rank = 0; rank < code.ranks(); ++rank) {
    if (engines.size() < here.size() && here[engines.size()] == rank) {
      auto& memory = owner.memory_[engines.size()];
      auto const chunks = code.placement().stages_of(rank).size();
      transport->bind(rank, memory.buffers, owner.executor_.wakeup_of(rank));
      engines.emplace_back(
          rank,
          code,
          messages,
          owner.plan_.problem(),
          stages.first(chunks),
          memory,
          owner.executor_.context_of(rank, memory.buffers),
          *transport,
          status,
          is_training);
      stages = stages.subspan(chunks);
      for (auto const& i : code.instructions(rank))
        if (i.is_pass()) result.measured.push({i.as_pass(), 0, 0});
    }
    result.measured.end_row();
  }
  result.losses.resize(detail::index(code.microbatches()));
  owner.executor_.connect(*transport);
}

template <backend Backend>
pipeline<Backend>::pipeline(
    std::vector<stage_ref> const& stages, plan const& planned, Backend backend)
    : plan_(detail::verified(planned)),
      executor_(backend, plan_),
      stages_(detail::by_rank(stages, plan_.problem().placement(), executor_.ranks())),
      memory_(executor_.ranks().size()) {
  for (std::size_t here = 0; here < memory_.size(); ++here)
    memory_[here].buffers = executor_.make_memory(executor_.ranks()[here]);
  if constexpr (Backend::reserves_memory) detail::reserve_peaks(plan_, executor_.ranks(), memory_);
  training_ = std::make_unique<run_state>(*this, plan_.program(), true);
  executor_.warm_up(training_->engines);
}

template <backend Backend>
pipeline<Backend>::~pipeline() = default;

template <backend Backend>
step_result const& pipeline<Backend>::step() {
  run(*training_);
  ++steps_;
  return training_->result;
}

template <backend Backend>
step_result const& pipeline<Backend>::evaluate() {
  if (evaluation_ == nullptr)
    evaluation_ = std::make_unique<run_state>(*this, detail::forward_only(plan_.program()), false);
  run(*evaluation_);
  return evaluation_->result;
}

template <backend Backend>
arena_usage const& pipeline<Backend>::memory(int rank) const {
  auto const all = executor_.ranks();
  auto const found = std::ranges::find(all, rank);
  detail::require(found != all.end(), "memory() takes a rank that runs in this process");
  return memory_[detail::index(found - all.begin())].buffers.usage();
}

template <backend Backend>
void pipeline<Backend>::run(run_state& what) {
  failures_.clear();
  what.status.reset();
  auto& losses = what.result.losses;
  std::fill(losses.begin(), losses.end(), std::numeric_limits<double>::quiet_NaN());
  executor_.start_step();
  for (auto& e : what.engines)
    e.begin(steps_, executor_.observer_of(e.rank()), losses, what.result.measured[e.rank()]);
  executor_.run(what.engines, *what.transport, what.status);
  if (what.status.has_failed())
    for (auto& e : what.engines) e.abandon();
  what.transport->drain();
  if (what.status.has_failed()) report(what);
}

template <backend Backend>
void pipeline<Backend>::report(run_state const& what) {
  for (auto const& e : what.engines)
    if (e.what_failed().exception) failures_.push_back(e.what_failed());
  // The subrange that std::ranges gives does not compile with clang 14.
  std::stable_partition(failures_.begin(), failures_.end(), [&](failure const& f) {
    return f.location.rank == what.status.first();
  });
  executor_.settle(failures_);
  std::rethrow_exception(failures_.front().exception);
}

}  // namespace zbpp
