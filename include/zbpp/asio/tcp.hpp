// SPDX-License-Identifier: Apache-2.0
//
// A backend for runs of many processes, one rank in each: passes run on the calling thread,
// messages travel by TCP, and what fails in one process ends the step in all of them.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/channel_links.hpp>
#include <zbpp/asio/detail/tcp_states.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/failure.hpp>

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::asio {

/// Runs the rank of this process; each of the others runs its own.
///
/// All ranks make their pipelines, and take their steps, in the same order. A failure on one rank
/// ends the step on every rank, at the latest `rendezvous_settings::deadline` after the current
/// pass. A rank that has already returned from `step()` gets the error from its next call; from
/// evaluations nothing comes back, so there it may be a later one. The run is over then, and every
/// later call throws the same failure.
class tcp {
 public:
  using transport_type = detail::tcp_transport;
  /// Whether arenas take their planned size from the system when the pipeline is made.
  static constexpr bool reserves_memory = true;

  class pass_observer;
  class executor;

  /// Takes part in a run, which must outlive the pipeline.
  explicit tcp(rendezvous& run, tcp_settings settings = {}) noexcept
      : control_(&run.control_channel()),
        connector_(&run.data_connections()),
        settings_(std::move(settings)) {}

 private:
  control* control_;
  detail::data_connector* connector_;
  tcp_settings settings_;
};

/// Reads the time since the step began, and notes how far this rank is.
class tcp::pass_observer {
 public:
  pass_observer() = default;
  explicit pass_observer(progress_board& board) noexcept
      : epoch_(std::chrono::steady_clock::now()), board_(&board) {}

  /// Begins a pass. @return its start
  [[nodiscard]] ticks start(ticks, pass const&) const noexcept {
    board_->start_pass();
    return now();
  }
  /// Ends a pass. @return its end
  [[nodiscard]] ticks finish(ticks) const noexcept {
    board_->enter(progress_phase::waiting);
    return now();
  }
  /// Notes that a step of a run begins, the next one or the same one anew.
  void begin_step(bool is_next) const noexcept { board_->begin_attempt(is_next); }
  /// @return when the rank goes on with what arrived
  [[nodiscard]] ticks reach(ticks) const noexcept { return now(); }
  /// @return 0: a message has arrived once it is here
  [[nodiscard]] static constexpr ticks arrival_of_send(ticks) noexcept { return 0; }
  /// @return true
  [[nodiscard]] static constexpr bool has_arrived(ticks) noexcept { return true; }

 private:
  [[nodiscard]] ticks now() const noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now() - epoch_)
        .count();
  }

  std::chrono::steady_clock::time_point epoch_;
  progress_board* board_ = nullptr;
};

/// Runs the rank of this process on the calling thread.
class tcp::executor {
 public:
  /// Checks with all ranks that they have the same plan.
  /// @throws error (bad_argument) unless there is a process for each rank; (no_agreement) that
  ///         says who differs in what; the failure of the run
  executor(tcp by, plan const& planned);
  executor(executor const&) = delete;
  executor& operator=(executor const&) = delete;
  ~executor();

  /// @return the rank of this process
  [[nodiscard]] std::span<int const> ranks() const noexcept { return part_.ranks(); }
  /// @return the wakeup that is notified when something arrives
  [[nodiscard]] wakeup* wakeup_of(int) noexcept { return &wakeup_; }
  /// @return the memory of the rank: the heap
  [[nodiscard]] static arena make_memory(int) { return arena(); }
  /// @return where its passes run: on the calling thread
  [[nodiscard]] static pass_context context_of(int, arena& memory) noexcept {
    return pass_context(memory);
  }
  /// The clock starts when it is made.
  static constexpr void start_run() noexcept {}
  /// @return the clock of the rank, which starts now
  [[nodiscard]] pass_observer observer_of(int) const noexcept {
    return pass_observer(control_->board());
  }

  /// @return what carries the messages of this rank; not connected yet
  [[nodiscard]] std::unique_ptr<detail::tcp_transport> make_transport(
      program const& program, traffic const& messages, problem const& problem);
  /// Connects the channels of this rank with those of its neighbours; blocks until they have come.
  /// @throws error, the failure of the run
  void connect(detail::tcp_transport& transport);

  /// Lets the stages of the rank get ready.
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    call_name const named(*control_, part_.making());
    part_.or_fail([&] {
      if (settings_.on_thread_start) settings_.on_thread_start(ranks());
      engines.front().warm_up();
    });
  }

  /// Runs the engine until it is done and all that it sent has left, or the run has failed.
  template <class Engine>
  void run(std::vector<Engine>& engines, detail::tcp_transport& transport, step_status& status) {
    auto& mine = links_of(transport);
    auto& engine = engines.front();
    part_.begin(&mine, *mine.code, status);
    part_.announce(engine.statement());
    auto& board = control_->board();
    for (;;) {
      // Read the wakeup counter before polling, so that a notification that comes during polling
      // ends the wait.
      auto const heard = wakeup_.load(std::memory_order_acquire);
      auto const reached = engine.advance();
      if (reached == progress::failed || status.has_failed()) break;
      bool const is_done = reached == progress::done;
      if (is_done && transport.is_flushed()) break;
      // Between two steps of a run, and with a full channel of an evaluation, the engine waits for
      // nobody, but until what it sent has left.
      bool const is_between_steps = !is_done && engine.blocked_on() == channel_map::none &&
                                    engine.blocked_by() == state_map::none;
      board.enter(is_done ? progress_phase::sending : progress_phase::waiting);
      transport.flush();
      control_->loop().run_until([&] {
        if ((is_done || is_between_steps) && transport.is_flushed()) return true;
        if (is_between_steps && engine.may_send()) return true;
        if (part_.has_stopped() || status.has_failed()) return true;
        // Before lost connections are reported: a last message and the end of its connection may
        // arrive together.
        if (wakeup_.load(std::memory_order_acquire) != heard) return true;
        mine.connections.report_needed(is_done ? channel_map::none : engine.blocked_on());
        if (mine.states != nullptr)
          mine.states->report_needed(is_done ? state_map::none : engine.blocked_by());
        // If rank 0 has left, the report ended the run on this thread; no other event would end
        // this wait.
        return part_.has_stopped();
      });
    }
    part_.report(engine.what_failed());
    part_.end();
  }

  /// @return whether the losses of a step are given to all ranks
  [[nodiscard]] bool shares_losses() const noexcept { return settings_.share_losses; }
  /// Gives them to all ranks; blocks until those of the last stage's rank are here.
  void share_losses(std::span<double> losses, int from) { part_.share(losses, from); }
  /// Tells all ranks what this one asks for behind a step; does not block.
  void propose(after_step next) { control_->propose(next); }
  /// Blocks until all ranks have proposed something. @return the most that one of them asks for
  [[nodiscard]] after_step decision() { return control_->decision(); }
  /// Blocks until all ranks know all failures, and adds those of the others.
  void settle(std::vector<failure>& failures);
  /// Tells the others that the pipeline is destroyed here.
  void leave() { part_.leave(); }

 private:
  // What one program has of connections.
  struct links {
    links(executor& of, program const& what, std::vector<channel> channels)
        : code(&what), connections(*of.control_, *of.connector_, of.wakeup_, std::move(channels)) {}

    program const* code;
    detail::channel_links connections;
    std::unique_ptr<detail::tcp_states> states;  // null where ranks exchange none
  };

  [[nodiscard]] links& links_of(detail::tcp_transport const& transport);

  control* control_;
  detail::data_connector* connector_;
  tcp_settings settings_;
  step_supervisor part_;
  wakeup wakeup_{0};
  std::list<links> links_;
};

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/tcp.ipp>
#endif
