// SPDX-License-Identifier: Apache-2.0
//
// Runs the steps of the rank of a process: issues or replays them, one by one or behind others that
// are under way, waits for the device, and gives up together with all ranks when one fails.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/nccl/detail/abort_thread.hpp>
#include <zbpp/nccl/detail/device_end.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/nccl/detail/host_wait.hpp>
#include <zbpp/nccl/detail/rank_pass_observer.hpp>
#include <zbpp/nccl/detail/step_launcher.hpp>
#include <zbpp/nccl/detail/step_replay.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/failure.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Runs the steps of one rank. Used by the thread that runs steps, but for `start_abort`.
class step_runner {
 public:
  /// Makes events for the device of the rank. What it refers to outlives it.
  /// @param passes   of the rank in a step
  /// @param at_once  how many steps may be under way
  /// @throws cuda_error
  step_runner(
      asio::step_supervisor& supervisor,
      cuda::launcher& launcher,
      std::size_t passes,
      std::size_t at_once)
      : supervisor_(supervisor), launcher_(launcher), steps_(supervisor, launcher, wait_, at_once) {
    cuda::device_guard const here(context().device());
    turns_.reserve(at_once);
    for (std::size_t i = 0; i < at_once; ++i) turns_.push_back({device_progress(passes)});
    wait_.follow(turns_.front().progress);
  }

  /// Sets what ends messages when a step fails, once they are connected; must not throw.
  /// @throws std::system_error when the system has no more threads
  void abort_by(std::function<void()> action) { abort_thread_.emplace(std::move(action)); }
  /// Ends messages, since a step has failed. Does not block.
  void start_abort() noexcept {
    if (abort_thread_) abort_thread_->start();
  }
  /// @return what puts steps on the device
  [[nodiscard]] step_launcher& steps() noexcept { return steps_; }

  /// Gets ready for a run of steps.
  /// @param turn  of the step among those at once
  void start_run(std::size_t turn) noexcept {
    launcher_.start_run(turn);
    turns_[turn].progress.start_run();
    turn_ = turn;
  }
  /// @return what follows the passes of the run
  [[nodiscard]] rank_pass_observer observer() noexcept {
    return {
        launcher_.observer_of(supervisor_.rank()),
        context(),
        turns_[turn_].progress,
        wait_,
        board()};
  }

  /// Issues the steps of a run, or replays one, and waits until the device is done with them, or
  /// the run has failed.
  template <class Engine>
  void run(std::vector<Engine>& engines, rank_program const& what, step_status& status) {
    auto& engine = engines.front();
    begin(what, status, 0);
    supervisor_.announce(engine.statement());
    try {
      if (!status.has_failed()) run_step(engines, what, status);
      if (!status.has_failed()) launcher_.collect(engines);
    } catch (...) {
      engine.fail(std::current_exception());
    }
    end(*what.transport, engine.what_failed());
  }

  /// Issues a step, or replays it, behind those that are under way, and returns. If that fails,
  /// waits for those, and until the device is done.
  /// @param turn  of the step among those at once
  template <class Engine>
  void start(
      std::vector<Engine>& engines,
      rank_program const& what,
      step_status& status,
      std::size_t turn) {
    auto& engine = engines.front();
    if (under_way_ == 0) {
      begin(what, status, turn);
    } else {
      come_back();
      static_cast<void>(supervisor_.look());  // the status was reset
    }
    supervisor_.announce(engine.statement());
    try {
      if (!status.has_failed()) start_step(engines, what, status, turn);
    } catch (...) {
      engine.fail(std::current_exception());
    }
    if (status.has_failed()) {
      wait_for_whole_steps();
      give_up(*what.transport, engine.what_failed(), engine.step());
    } else {
      turns_[turn].number = engine.step();
      ++under_way_;
      leave();
    }
  }
  /// Waits until the step that was started first is done, and reads its losses; or until the device
  /// is done, when the run has failed.
  /// @param turn      of the step among those at once
  /// @param failures  gets in front what failed here
  /// @return whether the step is whole: it was done before this rank was told of a failure
  [[nodiscard]] bool finish(transport const& by, std::size_t turn, std::vector<failure>& failures) {
    if (is_over_ ? whole_ == 0 : !wait_for_whole_step(by, turn, failures)) {
      under_way_ = 0;  // those behind it are lost with it
      return false;
    }
    launcher_.collect_losses(turn);
    --under_way_;
    if (is_over_)
      --whole_;
    else if (under_way_ > 0)
      go_on();
    else
      end(by, {});
    return true;
  }

  /// Waits until the device is done with all that was issued, as far as it ever is.
  /// @param by  what has issued it; null for passes alone
  void settle_device(transport const* by = nullptr) noexcept {
    auto const is_busy = [&] { return by != nullptr && (by->is_busy() || steps_.is_busy()); };
    detail::settle_device(context(), is_busy, supervisor_.channel().settings().deadline);
  }

 private:
  // What is known of the last step of a turn.
  struct step_of_turn {
    device_progress progress;
    step_way way = step_way::issue;
    std::int64_t number = 0;
  };

  [[nodiscard]] cuda::device_context& context() noexcept {
    return launcher_.at(supervisor_.rank());
  }
  [[nodiscard]] asio::progress_board& board() const noexcept {
    return supervisor_.channel().board();
  }
  // @return the turn of a step under way, of which the first is 0
  [[nodiscard]] std::size_t turn_of(std::size_t step) const noexcept {
    return (first_ + step) % turns_.size();
  }

  void begin(rank_program const& what, step_status& status, std::size_t turn) {
    supervisor_.begin(&what, *what.code, status);
    wait_.start_run(what.transport->communicators(), status);
    wait_.follow(turns_[turn].progress);
    status_ = &status;
    first_ = turn;
    is_over_ = false;
  }
  // Ends a step that has succeeded, unless another rank has failed meanwhile: an abort that has
  // begun has to be finished.
  void end(transport const& by, failure const& own) {
    // Looks once more: messages to a process that was suspended may be what others made after they
    // had given it up.
    if (!supervisor_.look() && !status_->has_failed()) supervisor_.end();
    if (status_->has_failed()) give_up(by, own);
  }

  template <class Engine>
  void run_step(std::vector<Engine>& engines, rank_program const& what, step_status const& status) {
    auto const way = steps_.choose(engines, 0, {});
    if (way == step_way::issue) return steps_.issue_alone(engines, what, status);
    board().enter(asio::progress_phase::replaying);
    steps_.launch(way, engines, *what.transport, status, 0);
    if (!status.has_failed()) wait_.until([this] { return steps_.is_done(0); });
  }
  template <class Engine>
  void start_step(
      std::vector<Engine>& engines,
      rank_program const& what,
      step_status const& status,
      std::size_t turn) {
    auto const before = under_way_ > 0 ? std::optional(turn_of(under_way_ - 1)) : std::nullopt;
    auto const way = steps_.choose(engines, turn, before);
    if (status.has_failed()) return;
    if (way == step_way::issue) {
      steps_.issue_behind(engines, what, status, turn);
    } else {
      if (!before) board().enter(asio::progress_phase::replaying);
      steps_.launch(way, engines, *what.transport, status, turn);
    }
    if (status.has_failed()) return;
    steps_.hold_callers(turn);
    turns_[turn].way = way;
  }

  // Between two calls with steps under way the rank is outside, since its host follows no device.
  void leave() noexcept {
    phase_ = board().read().phase;
    board().enter(asio::progress_phase::outside);
  }
  void come_back() noexcept { board().enter(phase_); }
  // Follows the device in the next step from now on, since the first one is done.
  void go_on() {
    first_ = turn_of(1);
    auto& now = turns_[first_];
    wait_.follow(now.progress);
    board().begin_attempt(true);
    if (now.way != step_way::issue) board().enter(asio::progress_phase::replaying);
    leave();
  }

  // No rank gives up messages before this one is told. So what is done while it is not told has run
  // with all of them; asks in this order.
  [[nodiscard]] bool is_whole(std::size_t turn) {
    return steps_.is_done(turn) && !supervisor_.look();
  }
  [[nodiscard]] bool wait_for_whole_step(
      transport const& by, std::size_t turn, std::vector<failure>& failures) {
    come_back();
    try {
      if (is_whole(turn) || wait_.until([&] { return is_whole(turn); })) return true;
    } catch (...) {
      failures.insert(
          failures.begin(), {{.rank = supervisor_.rank()}, {}, std::current_exception()});
    }
    give_up(by, failures.empty() ? failure{} : failures.front(), turns_[turn].number);
    return false;
  }
  // Waits for steps before the one that has failed, and counts those that are whole.
  void wait_for_whole_steps() {
    whole_ = 0;
    auto const are_all = [&] {
      while (whole_ < under_way_ && is_whole(turn_of(whole_))) ++whole_;
      return whole_ == under_way_;
    };
    try {
      if (!are_all()) wait_.for_steps_before(are_all);
    } catch (...) {  // the device or NCCL has failed as well, later
    }
  }

  // Ends the steps of a run that has failed.
  void give_up(transport const& by, failure const& own, std::optional<std::int64_t> step = {}) {
    supervisor_.report(own, step);
    wait_.until_all_told();
    steps_.discard();
    if (abort_thread_) abort_thread_->finish();
    settle_device(&by);
    supervisor_.end();
    is_over_ = true;
  }

  asio::step_supervisor& supervisor_;
  cuda::launcher& launcher_;
  std::vector<step_of_turn> turns_;
  host_wait wait_{supervisor_};
  step_launcher steps_;
  std::size_t turn_ = 0;  // of the run that is issued
  step_status const* status_ = nullptr;
  std::size_t under_way_ = 0;                                   // steps
  std::size_t first_ = 0;                                       // turn of the first of them
  asio::progress_phase phase_ = asio::progress_phase::outside;  // when the host went away
  bool is_over_ = true;    // whether the run has failed, or no step has begun
  std::size_t whole_ = 0;  // of those under way when the run failed, from the first one on
  std::optional<abort_thread> abort_thread_;
};

}  // namespace zbpp::nccl::detail
