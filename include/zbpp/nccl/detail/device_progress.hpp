// SPDX-License-Identifier: Apache-2.0
//
// Follows how far a rank's GPU has come in a step, by events around passes, and waits for it: never
// for long at a time, since the device, NCCL or another rank may end the step.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace zbpp::nccl::detail {

/// Records where passes of a step begin and end on a stream. For the thread that runs steps.
class device_progress {
 public:
  /// Makes the events for up to `passes` per step, for the current device. @throws cuda_error
  explicit device_progress(std::size_t passes) {
    for (std::size_t i = 0; i < 2 * passes; ++i)
      events_.push_back({cuda::event(cuda::event_kind::order), mark::end, {}});
  }

  /// Forgets the events of the run before.
  void start_run() noexcept { issued_ = seen_ = last_wait_ = 0; }
  /// Gets ready for another step of a run; blocks until the passes before are done.
  /// @throws cuda_error when what ran there failed
  void begin_step(cuda::device_context const& context, asio::progress_board& board) {
    if (issued_ > 0) {
      // The events of passes cost no interrupt, so the host blocks on this one.
      context.compute().record(context.end());
      context.end().synchronize();
    }
    publish(board);
    start_run();
  }
  /// Notes that a pass is about to be issued. @throws cuda_error
  void begin(cuda::stream_ref on, pass const& of) {
    // W and R wait for no message: they begin where the pass before them ends. Of a pair, the first
    // waits for both.
    waits_ =
        of.kind != pass_kind::backward_weight && of.kind != pass_kind::recompute && !of.is_paired;
    begun_ = of;
    if (!waits_) return;
    record(on, mark::begin);
    last_wait_ = issued_;
  }
  /// Notes that it was issued. @throws cuda_error
  void end(cuda::stream_ref on) { record(on, waits_ ? mark::end : mark::both); }

  /// Publishes how far the device has come.
  /// @throws cuda_error when what ran there failed
  void publish(asio::progress_board& board) {
    for (; seen_ < issued_ && events_[seen_].event.view().is_complete(); ++seen_) {
      if (events_[seen_].marks != mark::end)
        board.enter(asio::progress_phase::in_pass, to_instruction(events_[seen_].of));
      if (events_[seen_].marks != mark::begin) board.enter(asio::progress_phase::waiting);
    }
  }
  /// @return whether a pass may still wait for a message, as far as was published
  [[nodiscard]] bool is_waiting() const noexcept { return seen_ < last_wait_; }

 private:
  enum class mark : std::uint8_t { begin, end, both };
  struct recorded_event {
    cuda::event event;
    mark marks;
    pass of;
  };

  void record(cuda::stream_ref on, mark marks) {
    on.record(events_[issued_].event);
    events_[issued_].of = begun_;
    events_[issued_++].marks = marks;
  }

  std::vector<recorded_event> events_;
  std::size_t issued_ = 0;
  std::size_t seen_ = 0;
  std::size_t last_wait_ = 0;  // how many were issued when the last pass began that waits
  bool waits_ = false;
  pass begun_;  // last
};

/// Waits in the steps of one rank. Used by the thread that runs steps.
class host_wait {
 public:
  /// What it refers to outlives it.
  explicit host_wait(asio::step_supervisor& supervisor) noexcept : supervisor_(supervisor) {}

  /// Gets ready for the steps of a run.
  void start_run(transport& messages, step_status const& status) noexcept {
    messages_ = &messages;
    status_ = &status;
  }
  /// Follows the device in a step from now on: of those under way, in the one that was begun first.
  void follow(device_progress& step) noexcept { progress_ = &step; }
  /// Publishes how far the device is in the step that is followed.
  /// @throws cuda_error when what ran there failed
  void publish() const { progress_->publish(supervisor_.channel().board()); }
  /// Runs socket handlers and publishes how far the device is until `done()` holds or the step has
  /// failed. @return whether the step goes on
  /// @throws cuda_error; nccl_error
  template <class Done>
  bool until(Done const& done) {
    until(done, [this] { return supervisor_.look() || status_->has_failed(); });
    return !status_->has_failed();
  }
  /// The same for steps before one that failed here: until `done()` holds or the run is over.
  /// @throws cuda_error; nccl_error
  template <class Done>
  void for_steps_before(Done const& done) {
    until(done, [this] { return supervisor_.look(); });
  }
  /// Waits until nothing that was issued waits for a message or a sum any more: what is left takes
  /// the device only. @return whether the step goes on
  /// @throws cuda_error; nccl_error
  bool until_messages_are_here() {
    return until([this] { return !progress_->is_waiting() && messages_->are_sums_done(); });
  }
  /// Waits until a rank has told what this one is blocked by, if it is, or something else has
  /// notified it; sends states meanwhile.
  /// @param channel   of the state; none where it waits for no state
  /// @param replicas  whether it waits for its replicas; if for neither, it is between two steps
  ///                  and waits only until what it sent has left
  /// @param states    null where ranks exchange none
  /// @throws cuda_error; nccl_error
  void until_informed(
      int channel,
      bool replicas,
      asio::socket_states* states,
      wakeup const& wake,
      std::uint32_t seen) {
    auto const is_over = [&] {
      if (wake.load(std::memory_order_acquire) != seen) return true;
      bool const is_informed = channel == state_map::none && !replicas;
      return is_informed && (states == nullptr || states->is_flushed());
    };
    if (states != nullptr) states->flush();
    until([&] {
      if (is_over()) return true;
      // A last state and the end of its connection may arrive together: the state goes first.
      if (states != nullptr)
        supervisor_.channel().loop().exclusively([&] {
          if (!is_over()) states->report_needed(channel);
        });
      return false;
    });
  }
  /// Waits until the device is done with all that was issued, and states have left.
  /// @param states  null where ranks exchange none
  /// @throws cuda_error; nccl_error
  void until_done(
      cuda::device_context const& context, transport& messages, asio::socket_states* states) {
    messages.mark_end();
    until([&] {
      if (!context.end().is_complete()) return false;
      supervisor_.channel().board().enter(asio::progress_phase::sending);
      if (states == nullptr || states->is_flushed()) return messages.is_done();
      states->flush();
      supervisor_.channel().loop().exclusively([&] { states->report_needed(state_map::none); });
      return false;
    });
  }
  /// Waits until another rank has reported a failure, but not longer than a second.
  void until_others_report() {
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    poll([&] { return supervisor_.look() || std::chrono::steady_clock::now() > end; }, pause);
  }
  /// Waits until all ranks know of the failure of the run, but not longer than its deadline. Only
  /// then may a rank give up messages: passes that run without them compute garbage or fault, here
  /// and where their results go, and no rank takes that for a step or for the first failure.
  void until_all_informed() {
    auto& run = supervisor_.channel();
    auto const end = std::chrono::steady_clock::now() + run.settings().deadline;
    auto const are_all_informed = [&run] { return run.are_all_informed(); };
    poll(
        [&] {
          return run.loop().exclusively(are_all_informed) || std::chrono::steady_clock::now() > end;
        },
        pause);
  }

 private:
  static void pause(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

  template <class Done, class Over>
  void until(Done const& done, Over const& over) {
    poll(
        [&] {
          if (over()) return true;
          publish();
          if (done()) return true;
          messages_->communicators().check_errors();
          return false;
        },
        pause,
        std::chrono::microseconds(50));
  }

  asio::step_supervisor& supervisor_;
  device_progress* progress_ = nullptr;  // of the step that is followed
  transport* messages_ = nullptr;
  step_status const* status_ = nullptr;
};

/// Counts planned time by the costs of issued passes, and records their times on the device.
class rank_pass_observer : public cuda::pass_observer {
 public:
  rank_pass_observer() = default;
  rank_pass_observer(
      cuda::pass_observer issued,
      cuda::device_context& context,
      device_progress& progress,
      host_wait& wait,
      asio::progress_board& board) noexcept
      : pass_observer(issued),
        context_(&context),
        progress_(&progress),
        wait_(&wait),
        board_(&board) {}

  /// Begins a pass. @return its planned start
  /// @throws cuda_error
  ticks start(ticks arrival, pass const& of) {
    auto const planned = pass_observer::start(arrival, of);
    // During a capture the host may ask for no event, and later for none that the graph records.
    if (!context_->is_captured()) {
      wait_->publish();
      progress_->begin(context_->compute(), of);
    }
    return planned;
  }
  /// Ends a pass. @return its planned end
  /// @throws cuda_error
  ticks finish(ticks cost) {
    auto const planned = pass_observer::finish(cost);
    if (!context_->is_captured()) progress_->end(context_->compute());
    return planned;
  }
  /// Begins the next step of a run, or the same one again; blocks until the passes before are done.
  /// @throws cuda_error; nccl_error
  void begin_step(bool is_next) const {
    if (!wait_->until_messages_are_here()) return;
    progress_->begin_step(*context_, *board_);
    pass_observer::begin_step(is_next);
    board_->begin_attempt(is_next);
    board_->enter(asio::progress_phase::waiting);
  }
  /// Blocks until no pass waits for a message. @return whether the step goes on
  /// @throws cuda_error; nccl_error
  [[nodiscard]] bool await_messages() const { return wait_->until_messages_are_here(); }

 private:
  cuda::device_context* context_ = nullptr;
  device_progress* progress_ = nullptr;
  host_wait* wait_ = nullptr;
  asio::progress_board* board_ = nullptr;
};

}  // namespace zbpp::nccl::detail
