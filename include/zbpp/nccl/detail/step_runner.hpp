// SPDX-License-Identifier: Apache-2.0
//
// Runs the steps of the rank of a process: issues or replays them, one by one or after others that
// are under way, waits for the device, and gives up together with all ranks when one fails.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/one_rank.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/detail/step_graph.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/connect.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/nccl/detail/replica_sums.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/nccl/error.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Waits until the device is done with what was issued, whether it succeeded or not. After the
/// abort only a kernel of a pass can hang, which nothing can end, so the wait has a limit.
/// @param is_busy  whether anything runs there but on the streams of passes
template <class IsBusy>
void settle_device(
    cuda::device_context const& context,
    IsBusy const& is_busy,
    std::chrono::milliseconds limit) noexcept {
  auto const end = std::chrono::steady_clock::now() + limit;
  while ((context.is_busy() || is_busy()) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  cudaGetLastError();  // the step has reported it
}

/// A pass that was enqueued after a receive runs on what its slot holds when the receive is given
/// up. If it faults, CUDA does not go on in this process, which has to know.
/// @param known  what the rank reports already
/// @return that as a failure of the rank; nothing when CUDA goes on, or when it is known
[[nodiscard]] inline std::optional<failure> loss_of_device(
    cuda::device_context const& context, int rank, std::span<failure const> known) {
  auto const state = cudaStreamQuery(context.compute());
  if (state == cudaSuccess || state == cudaErrorNotReady) return {};
  cudaGetLastError();
  auto const tells = [state](failure const& one) {
    try {
      std::rethrow_exception(one.exception);
    } catch (cuda::cuda_error const& e) {
      return e.native() == state;
    } catch (...) {
      return false;
    }
  };
  if (std::ranges::any_of(known, tells)) return {};
  cuda::cuda_error const lost(
      state,
      zbpp::detail::joined("a pass that was under way when the step failed has faulted with ") +
          cudaGetErrorName(state) +
          "; CUDA does not go on in this process, so end it and start the run anew");
  return failure{{.rank = rank}, {}, std::make_exception_ptr(lost)};
}

/// @return whether NCCL says that another rank is gone, or that the way there is broken
[[nodiscard]] inline bool has_lost_peer(failure const& own) {
  if (own.exception == nullptr) return false;
  try {
    std::rethrow_exception(own.exception);
  } catch (nccl_error const& e) {
    return e.native() == ncclRemoteError;
  } catch (...) {
    return false;
  }
}

/// Holds a program of a rank, and what carries its messages.
struct rank_program {
  program const* code = nullptr;
  detail::transport* transport = nullptr;
  std::unique_ptr<asio::socket_states> states;  // null where ranks exchange none
  std::unique_ptr<replica_sums> sums;           // null where there is nothing to add up
};

/// Issues the steps of one rank, or replays them. Used by the thread that runs steps.
class step_launcher {
 public:
  /// What it refers to outlives it.
  /// @param at_once  how many steps may be under way
  step_launcher(
      asio::step_supervisor& supervisor,
      cuda::launcher& launcher,
      host_wait& wait,
      std::size_t at_once) noexcept
      : supervisor_(supervisor), launcher_(launcher), wait_(wait), at_once_(at_once) {}

  /// Replays the steps of a program, which trains; makes what that takes. @throws cuda_error
  void replay_with(transport& trains) {
    replay_ =
        &trains.replay_with(supervisor_.rank(), std::make_unique<step_replay>(context(), at_once_));
  }
  [[nodiscard]] bool replays() const noexcept { return replay_ != nullptr; }
  /// Makes what puts the steps of a program in order on the device, if it was not made.
  /// @throws cuda_error
  void put_in_order(transport const& trains) {
    if (!order_)
      order_.emplace(std::vector{&context()}, at_once_, trains.streams_of(supervisor_.rank()));
  }

  /// Says how all ranks run a step. They agree with no step under way: those before are issued, or
  /// of another graph, and a rank that waits for others in a collective call follows no device.
  /// @param turn    of the step among those at once
  /// @param before  of the step under way that was issued last, if there is one
  /// @return the way; of no meaning when the step has failed
  /// @throws cuda_error; nccl_error; the failure of the run
  template <class Engine>
  [[nodiscard]] step_way choose(
      std::vector<Engine> const& engines, std::size_t turn, std::optional<std::size_t> before) {
    if (replay_ == nullptr) return step_way::issue;
    if (!engines.front().is_training()) {
      replay_->unsettle();
      return step_way::issue;
    }
    if (replay_->is_settled(turn)) return step_way::replay;
    if (before && !wait_.until([&] { return is_done(*before); })) return step_way::issue;
    return agree_on_step(supervisor_.channel(), *replay_, engines, turn);
  }

  /// Issues steps where none is under way, and waits until the device is done, or one failed.
  /// @throws cuda_error; nccl_error
  template <class Engine>
  void issue_alone(
      std::vector<Engine>& engines, rank_program const& active, step_status const& status) {
    launcher_.issue(engines, wait_of(engines.front(), active));
    if (!status.has_failed()) wait_.until_done(context(), *active.transport, active.states.get());
  }
  /// Issues a step after those that are under way, unless it fails.
  /// @param turn  of the step among those at once
  /// @throws cuda_error; nccl_error
  template <class Engine>
  void issue_behind(
      std::vector<Engine>& engines,
      rank_program const& active,
      step_status const& status,
      std::size_t turn) {
    order_->run(turn, [&] {
      launcher_.issue_in_order(engines, wait_of(engines.front(), active));
      return !status.has_failed();
    });
  }
  /// Launches a step after those that are under way; captures it first, unless it is a replay.
  /// @param turn  of the step among those at once
  /// @throws as `step_graph::start`
  template <class Engine>
  void launch(
      step_way way,
      std::vector<Engine>& engines,
      transport& by,
      step_status const& status,
      std::size_t turn) {
    replay_->start(way, engines, *order_, turn, [&] {
      launcher_.issue_in_order(engines);
      by.drain();
      return !status.has_failed();
    });
  }
  /// Lets what callers enqueue from now on wait for the end of a step. @throws cuda_error
  void hold_callers(std::size_t turn) const { order_->hold_callers(turn); }

  /// @return whether a step is done that was launched, or issued after others
  /// @throws cuda_error
  [[nodiscard]] bool is_done(std::size_t turn) const { return order_->is_done(turn); }
  [[nodiscard]] bool is_busy() const noexcept { return order_ && order_->is_busy(); }
  /// Drops all graphs.
  void discard() noexcept {
    if (replay_ != nullptr) replay_->discard();
  }

 private:
  [[nodiscard]] cuda::device_context& context() noexcept {
    return launcher_.at(supervisor_.rank());
  }
  // @return what waits where an engine waits for other ranks
  template <class Engine>
  [[nodiscard]] auto wait_of(Engine& engine, rank_program const& active) {
    return [&](wakeup const& wake, std::uint32_t seen) {
      auto& board = supervisor_.channel().board();
      try {
        if (engine.at()) board.wait(asio::wait_of(engine));
        wait_.until_informed(
            engine.blocked_by(),
            engine.waits_for_replicas() || engine.is_ending(),
            active.states.get(),
            wake,
            seen);
      } catch (...) {
        engine.fail(std::current_exception());
      }
      board.wait({});
    };
  }

  asio::step_supervisor& supervisor_;
  cuda::launcher& launcher_;
  host_wait& wait_;
  std::size_t at_once_;
  std::optional<cuda::detail::step_order> order_;  // where steps are started or replayed
  step_replay* replay_ = nullptr;                  // of the transport that trains
};

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
  [[nodiscard]] step_launcher& steps() noexcept { return steps_; }

  /// Gets ready for a run of steps.
  /// @param turn  of the step among those at once
  void start_run(std::size_t turn) noexcept {
    launcher_.start_run(turn);
    turns_[turn].progress.start_run();
    turn_ = turn;
  }
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
  void run(std::vector<Engine>& engines, rank_program const& active, step_status& status) {
    auto& engine = engines.front();
    begin(active, status, 0);
    supervisor_.announce(engine.statement());
    try {
      if (!status.has_failed()) run_step(engines, active, status);
      if (!status.has_failed()) launcher_.collect(engines);
    } catch (...) {
      engine.fail(std::current_exception());
    }
    end(*active.transport, engine.what_failed());
  }

  /// Issues a step, or replays it, after those that are under way, and returns. If that fails,
  /// waits for those, and until the device is done.
  /// @param turn  of the step among those at once
  template <class Engine>
  void start(
      std::vector<Engine>& engines,
      rank_program const& active,
      step_status& status,
      std::size_t turn) {
    auto& engine = engines.front();
    if (under_way_ == 0) {
      begin(active, status, turn);
    } else {
      resume_reporting();
      static_cast<void>(supervisor_.look());  // the status was reset
    }
    supervisor_.announce(engine.statement());
    try {
      if (!status.has_failed()) start_step(engines, active, status, turn);
    } catch (...) {
      engine.fail(std::current_exception());
    }
    if (status.has_failed()) {
      count_completed_steps();
      give_up(*active.transport, engine.what_failed(), engine.step());
    } else {
      turns_[turn].number = engine.step();
      ++under_way_;
      pause_reporting();
    }
  }
  /// Waits until the step that was started first is done, and reads its losses; or until the device
  /// is done, when the run has failed.
  /// @param turn      of the step among those at once
  /// @param failures  gets in front what failed here
  /// @return whether the step is whole: it was done before this rank was told of a failure
  [[nodiscard]] bool finish(transport const& by, std::size_t turn, std::vector<failure>& failures) {
    if (is_over_ ? completed_ == 0 : !wait_for_completion(by, turn, failures)) {
      under_way_ = 0;  // those after it are lost with it
      return false;
    }
    launcher_.collect_losses(turn);
    --under_way_;
    if (is_over_)
      --completed_;
    else if (under_way_ > 0)
      follow_next_step();
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

  void begin(rank_program const& active, step_status& status, std::size_t turn) {
    supervisor_.begin(*active.code, status);
    board().enter(asio::progress_phase::waiting);  // for its device
    wait_.start_run(*active.transport, status);
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
  void run_step(
      std::vector<Engine>& engines, rank_program const& active, step_status const& status) {
    auto const way = steps_.choose(engines, 0, {});
    if (way == step_way::issue) return steps_.issue_alone(engines, active, status);
    board().enter(asio::progress_phase::replaying);
    steps_.launch(way, engines, *active.transport, status, 0);
    if (!status.has_failed()) wait_.until([this] { return steps_.is_done(0); });
  }
  template <class Engine>
  void start_step(
      std::vector<Engine>& engines,
      rank_program const& active,
      step_status const& status,
      std::size_t turn) {
    auto const before = under_way_ > 0 ? std::optional(turn_of(under_way_ - 1)) : std::nullopt;
    auto const way = steps_.choose(engines, turn, before);
    if (status.has_failed()) return;
    if (way == step_way::issue) {
      steps_.issue_behind(engines, active, status, turn);
    } else {
      if (!before) board().enter(asio::progress_phase::replaying);
      steps_.launch(way, engines, *active.transport, status, turn);
    }
    if (status.has_failed()) return;
    steps_.hold_callers(turn);
    turns_[turn].way = way;
  }

  // Between two calls with steps under way the rank is outside, since its host follows no device.
  void pause_reporting() noexcept {
    phase_ = board().read().phase;
    board().enter(asio::progress_phase::outside);
  }
  void resume_reporting() noexcept { board().enter(phase_); }
  // Follows the device in the next step from now on, since the first one is done.
  void follow_next_step() {
    first_ = turn_of(1);
    auto& now = turns_[first_];
    wait_.follow(now.progress);
    board().begin_attempt(true);
    bool const is_issued = now.way == step_way::issue;
    board().enter(is_issued ? asio::progress_phase::waiting : asio::progress_phase::replaying);
    pause_reporting();
  }

  // No rank gives up messages before this one is told of the failure. So a step that is done before
  // then has run with all its messages; asks in this order.
  [[nodiscard]] bool is_completed(std::size_t turn) {
    return steps_.is_done(turn) && !supervisor_.look();
  }
  [[nodiscard]] bool wait_for_completion(
      transport const& by, std::size_t turn, std::vector<failure>& failures) {
    resume_reporting();
    try {
      if (is_completed(turn) || wait_.until([&] { return is_completed(turn); })) return true;
    } catch (...) {
      failures.insert(
          failures.begin(), {{.rank = supervisor_.rank()}, {}, std::current_exception()});
    }
    give_up(by, failures.empty() ? failure{} : failures.front(), turns_[turn].number);
    return false;
  }
  // Waits for steps before the one that has failed, and counts those that are whole.
  void count_completed_steps() {
    completed_ = 0;
    auto const are_all = [&] {
      while (completed_ < under_way_ && is_completed(turn_of(completed_))) ++completed_;
      return completed_ == under_way_;
    };
    try {
      if (!are_all()) wait_.for_steps_before(are_all);
    } catch (...) {  // the device or NCCL has failed as well, later
    }
  }

  // Ends the steps of a run that has failed.
  void give_up(transport const& by, failure const& own, std::optional<std::int64_t> step = {}) {
    // Where a rank is gone, the run can name it, and its neighbours in NCCL cannot.
    if (has_lost_peer(own)) wait_.until_others_report();
    supervisor_.report(own, step);
    wait_.until_all_informed();
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
  bool is_over_ = true;        // whether the run has failed, or no step has begun
  std::size_t completed_ = 0;  // of those under way when the run failed, from the first one on
  std::optional<abort_thread> abort_thread_;
};

}  // namespace zbpp::nccl::detail
