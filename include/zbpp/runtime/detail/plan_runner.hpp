// SPDX-License-Identifier: Apache-2.0
//
// Runs one plan after another on the same stages, also for other numbers of microbatches: the
// pipeline of each is made between two steps, with the training state of the one before.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/plans_by_count.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/group.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/training.hpp>

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Owns the pipeline of the moment.
template <backend Backend>
class plan_runner {
 public:
  /// @param stages  must outlive it
  /// @param counts  finds plans for other numbers of microbatches
  plan_runner(
      plan const& first,
      Backend backend,
      std::vector<stage_ref> stages,
      training_options const& training,
      plans_by_count counts)
      : backend_(std::move(backend)),
        stages_(std::move(stages)),
        training_(training),
        counts_(std::move(counts)) {
    if constexpr (states_times<Backend>)
      if (!backend_.stated) backend_.stated = first.problem();
    pipeline_ = make(first);
  }

  /// @throws error (bad_argument) when neither another plan nor the one before could run
  [[nodiscard]] pipeline<Backend>& current() {
    require(
        pipeline_ != nullptr,
        "there is no pipeline: neither a new plan nor the one before it runs");
    return *pipeline_;
  }

  /// Runs another plan from the next step on. The pipeline before gives its memory back first.
  /// @throws what the pipeline throws that cannot be made; then the plan before goes on
  void run(plan const& next) {
    auto const state = current().state();
    auto const before = pipeline_->planned();
    bool const has_compared = pipeline_->has_compared_weights_;  // which stay what they are
    pipeline_.reset();
    try {
      pipeline_ = make(next);
    } catch (...) {
      auto const refused = std::current_exception();
      try {
        pipeline_ = make(before);
        resume(state, has_compared);
      } catch (...) {  // for the same reason, such as a run of processes that is over
        pipeline_.reset();
        std::rethrow_exception(refused);
      }
      throw;
    }
    resume(state, has_compared);
    runs_count_ = false;
  }

  /// @return the groups of pipelines of a grid that run one plan with this one, and wait for it
  [[nodiscard]] std::vector<group*> partners() {
    auto& grid = own_grid();
    bool const reduces = reduces_gradients(current().planned().program());
    std::vector<group*> all{&grid.tensor(), reduces ? &grid.data() : &grid.expert()};
    std::erase_if(all, [](group const* one) { return one->size() == 1; });
    return all;
  }
  /// @return the longest step that a partner measured: others wait for it. A collective call
  /// @throws error (no_agreement) when they ran other passes
  [[nodiscard]] timeline longest(timeline own) {
    for (auto* const members : partners()) {
      members->compare(std::as_bytes(own.all()), parts_);
      std::optional<timeline> found;  // the first of those, which all members find
      for (auto const& bytes : parts_) {
        if (bytes.size() != own.all().size_bytes())
          throw error(errc::no_agreement, "pipelines of a grid ran different numbers of passes");
        auto other = own;
        auto const* from = bytes.data();
        for (int rank = 0; rank < other.ranks(); ++rank) {
          auto const to = other[rank];
          std::memcpy(to.data(), std::exchange(from, from + to.size_bytes()), to.size_bytes());
        }
        if (!found || cost(other) > cost(*found)) found = std::move(other);
      }
      own = std::move(*found);
    }
    return own;
  }
  /// Ends the steps of the partners, which would wait for this pipeline.
  void fail(std::exception_ptr const& why) { own_grid().fail(why); }

  /// Finds the plan for a number of microbatches, and keeps it.
  void prepare(problem const& usual, int microbatches) {
    static_cast<void>(counts_.plan_for(usual, microbatches));
  }
  /// Runs the plan for a number of microbatches from the next step on.
  void run(problem const& usual, int microbatches) {
    auto const& planned = counts_.plan_for(usual, microbatches);
    if (current().planned().schedule() != planned.schedule()) run(planned);
    runs_count_ = true;
  }
  [[nodiscard]] bool is_running() const noexcept { return pipeline_ != nullptr; }
  /// @return whether the plan of the moment is one for another number of microbatches
  [[nodiscard]] bool runs_count() const noexcept { return runs_count_; }

 private:
  void resume(training_state const& state, bool has_compared_weights) {
    pipeline_->resume(state);
    pipeline_->has_compared_weights_ = has_compared_weights;
  }
  // All ranks of a pipeline have the partners of its first one.
  [[nodiscard]] rank_grid& own_grid() {
    return grid_of<Backend>(current().executor_, current().executor_.ranks().front());
  }
  [[nodiscard]] std::unique_ptr<pipeline<Backend>> make(plan const& planned) {
    return std::make_unique<pipeline<Backend>>(planned, backend_, stages_, training_);
  }

  Backend backend_;
  std::vector<stage_ref> stages_;
  training_options training_;
  plans_by_count counts_;
  std::unique_ptr<pipeline<Backend>> pipeline_;
  bool runs_count_ = false;
  std::vector<std::vector<std::byte>> parts_;  // of the partners, for a moment
};

}  // namespace zbpp::detail
