// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline has for each of its programs, to train or evaluate: engines, transport, results.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/detail/rank_setup.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/executor.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Says what a backend can do with a program.
struct backend_traits {
  bool reserves_memory = false;  ///< arenas take their planned size from the system at once
  bool agrees = false;           ///< its transport is an `agreeing_transport`
  bool repeats_steps = false;    ///< a `multi_step_transport`
  bool sums_in_place = false;    ///< a `summing_transport`
  bool acknowledges = false;     ///< an `acknowledging_transport`
};

/// Refers to what a program is run with; all of it outlives the run.
struct run_setup {
  zbpp::executor& executor;
  zbpp::problem const& problem;
  std::span<stage_ref const> stages;  ///< of the ranks of this process, rank after rank
  std::span<rank_memory> memory;      ///< of these ranks
  stall_options on_stall{};           ///< of training
  step_agreements* agreed = nullptr;  ///< of training
  callback<evaluation_output> const* outputs = nullptr;  ///< of an evaluation; null in training

  [[nodiscard]] bool is_training() const noexcept { return outputs == nullptr; }
};

/// Holds a verified program and the results of its steps, whatever the backend.
class program_run : public step_listener {
 public:
  /// Says which steps come next.
  struct steps_to_run {
    std::int64_t first = 0;
    std::int64_t count = 1;
    std::int64_t evaluation = 0;
    callback<step_result, after_step> on_step{};  ///< where ranks agree
    std::size_t turn = 0;    ///< of a step among those at once; where ranks agree there are none
    run_statement stated{};  ///< what ranks compare of them
  };

  program_run(program_run const&) = delete;
  program_run& operator=(program_run const&) = delete;
  virtual ~program_run() = default;

  /// Gets places and engines ready for steps to come.
  void begin(steps_to_run const& next);
  /// Runs them, and blocks until no engine runs.
  virtual void run() = 0;
  /// Begins a step among those at once, and returns; where the backend `starts_steps`.
  virtual void start() = 0;
  /// Blocks until such a step is done.
  /// @param failures  gets in front what failed here
  /// @return whether it is whole
  [[nodiscard]] virtual bool finish(std::size_t turn, std::vector<failure>& failures) = 0;
  /// Lets the stages get ready.
  virtual void warm_up() = 0;
  void on_decided(std::int64_t step) override;
  /// Calls back for steps that no rank is in any more, up to one of them.
  void call_back_until(std::int64_t step);

  [[nodiscard]] bool has_failed() const noexcept { return status_.has_failed(); }
  /// Adds what went wrong in this process, the first failure first.
  void note_failures(std::vector<failure>& failures) const;
  /// @return whether ranks agree on its steps
  [[nodiscard]] bool agrees() const noexcept { return agreements_ != nullptr; }
  /// @return how many results there are
  [[nodiscard]] std::size_t places() const noexcept { return results_.size(); }
  /// @return where the result of a step is, or that of a step among those at once
  [[nodiscard]] step_result& result_of(std::int64_t step) {
    return result_at(index(step - steps_.first) % results_.size());
  }
  [[nodiscard]] step_result& result_at(std::size_t turn) { return results_[turn]; }
  /// @return that of the step that ran last, where none are at once
  [[nodiscard]] step_result& last_result() {
    return agrees() ? result_of(agreements_->of(0)->state().steps - 1) : results_.front();
  }
  /// @return the state after the step that is called back for
  [[nodiscard]] training_state const& state_of_callback() const noexcept {
    return states_[index(called_back_ - steps_.first) % states_.size()];
  }

 protected:
  program_run(program program_to_run, run_setup const& setup, backend_traits const& traits);

  /// Makes places for results, once the transport is there.
  void make_places(run_setup const& setup);
  /// @return what the engine of a rank is made of
  /// @param here  the rank, counted among those of the process
  [[nodiscard]] rank_setup setup_of(run_setup const& setup, std::size_t here) const;
  [[nodiscard]] program const& code() const noexcept { return code_; }
  [[nodiscard]] traffic const& messages() const noexcept { return messages_; }
  [[nodiscard]] step_status& status() noexcept { return status_; }
  [[nodiscard]] std::size_t turn() const noexcept { return steps_.turn; }

 private:
  virtual void start_clocks() = 0;
  virtual void begin_engine(std::size_t here, engine_run const& run) = 0;
  [[nodiscard]] virtual failure const& failure_of(std::size_t here) const = 0;

  program code_;
  traffic messages_;
  step_status status_;
  std::vector<int> ranks_;  // of this process
  // Of steps in turn: where ranks agree they are one step apart at most; else of those at once.
  std::vector<step_result> results_;
  std::vector<training_state> states_;  // after these steps, where ranks agree
  std::int64_t called_back_ = -1;       // the last step with a callback, or the one that has it now
  step_agreements const* agreements_ = nullptr;  // null where ranks agree on nothing
  steps_to_run steps_;
};

/// Runs a program on a backend.
template <backend Backend>
class program_run_on final : public program_run {
 public:
  program_run_on(program program_to_run, run_setup const& setup, backend_traits const& traits)
      : program_run(std::move(program_to_run), setup, traits),
        executor_(&static_cast<executor_type&>(setup.executor)),
        transport_(executor_->make_transport(code(), messages(), setup.problem)) {
    auto const ranks = executor_->ranks();
    engines_.reserve(ranks.size());
    for (std::size_t here = 0; here < ranks.size(); ++here) {
      transport_->bind(ranks[here], setup.memory[here].buffers, executor_->wakeup_of(ranks[here]));
      engines_.emplace_back(setup_of(setup, here), *transport_, status());
    }
    make_places(setup);
    executor_->connect(*transport_);
  }

  void run() override {
    executor_->run(engines_, *transport_, status());
    end();
  }
  void start() override {
    if constexpr (starts_steps<Backend>) executor_->start(engines_, *transport_, status(), turn());
    end();
  }
  [[nodiscard]] bool finish(std::size_t turn, std::vector<failure>& failures) override {
    if constexpr (starts_steps<Backend>)
      return executor_->finish(*transport_, turn, failures);
    else
      return true;
  }
  void warm_up() override { executor_->warm_up(engines_); }

 private:
  using executor_type = typename Backend::executor;
  using transport_type = typename Backend::transport_type;

  void start_clocks() override {
    if constexpr (starts_steps<Backend>)
      executor_->start_run(turn());
    else
      executor_->start_run();
  }
  void begin_engine(std::size_t here, engine_run const& run) override {
    engines_[here].begin(run, executor_->observer_of(engines_[here].rank()));
  }
  [[nodiscard]] failure const& failure_of(std::size_t here) const override {
    return engines_[here].what_failed();
  }
  void end() {
    if (has_failed())
      for (auto& e : engines_) e.abandon();
    transport_->drain();
  }

  executor_type* executor_;
  std::unique_ptr<transport_type> transport_;
  std::vector<engine<transport_type, typename Backend::pass_observer>> engines_;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/program_run.ipp>
#endif
