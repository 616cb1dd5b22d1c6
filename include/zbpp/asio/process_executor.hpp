// SPDX-License-Identifier: Apache-2.0
//
// Runs one rank in this process, whatever carries its messages, for authors of backends: all that
// is not about messages. docs/own_wire.md shows a backend.
#pragma once

#include <zbpp/analysis/largest_messages.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/poll_thread.hpp>
#include <zbpp/asio/one_rank.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/rank_transport.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::asio {

/// Says what a transport is made for: the messages of a rank in a program.
struct rank_program {
  program const& code;
  traffic const& messages;
  problem const& costs;
  int rank;  ///< of this process in the pipeline
  pipeline_ranks const& ranks;
  wakeup& wake;
  int number;  ///< of the program, which all ranks make in the same order

  /// @return by channel, the largest declared message in bytes; 0 where no size is declared
  [[nodiscard]] std::vector<bytes> largest() const { return largest_messages(messages, costs); }
};

/// The base of a backend with one rank per process. A backend adds a `transport_type`, derived from
/// `rank_transport`, a `process_executor` of itself as `executor`, and
///
/// ```cpp
/// std::unique_ptr<transport_type> make_transport(asio::rank_program const& of);
/// ```
class process_backend {
 public:
  using pass_observer = progress_observer;
  /// Whether arenas take their planned size from the system when the pipeline is made.
  static constexpr bool reserves_memory = true;

  /// Takes part in a run, which must outlive the pipeline.
  explicit process_backend(rendezvous& run, tcp_settings settings = {}) noexcept
      : run_(&run), settings_(std::move(settings)) {}
  /// Takes part in a run that is a grid, each of whose pipelines has the ranks of a plan. All
  /// pipelines make the same calls in the same order; a failure in one ends all.
  process_backend(rendezvous& run, grid_layout layout, tcp_settings settings = {})
      : run_(&run), layout_(std::move(layout)), settings_(std::move(settings)) {}

  /// @return the grid that the run is; null where it is none
  [[nodiscard]] grid_layout const* layout() const noexcept { return layout_ ? &*layout_ : nullptr; }
  [[nodiscard]] rendezvous& run() const noexcept { return *run_; }
  /// @return those of what goes by sockets, and of all ranks
  [[nodiscard]] tcp_settings const& settings() const noexcept { return settings_; }
  /// @return which ranks of the run are those of the pipeline
  [[nodiscard]] pipeline_ranks places() const {
    return layout_ ? pipeline_ranks(*layout_, run_->rank(), run_->ranks()) : pipeline_ranks();
  }
  // A backend hides these where it needs more.

  /// Refuses settings that are out of range.
  static constexpr void check() noexcept {}
  /// @return how long a thread sleeps between calls of `poll_aside` of the transport, while the
  /// rank
  ///         runs; 0 where there is none
  [[nodiscard]] static constexpr std::chrono::microseconds poll_interval() noexcept { return {}; }

 private:
  rendezvous* run_;
  std::optional<grid_layout> layout_;
  tcp_settings settings_;
};

/// Says what a rank waits for that can go no further; for `wait` of a transport.
template <class Engine>
struct rank_wait {
  Engine const& engine;
  rank_transport const& messages;
  socket_states* states;  ///< null where ranks exchange none
  step_supervisor& supervisor;
  step_status const& status;
  wakeup const& wake;
  std::uint32_t heard;  ///< count of the wakeup before the engine went on
  bool is_done;         ///< whether the engine is
  bool waits_for_peer;  ///< whether the engine does: not between steps, nor for room in a channel

  /// @return whether the rank may go on: it was notified, the step has failed, or the engine waits
  ///         for nobody and what had to leave has left
  [[nodiscard]] bool is_over() const noexcept {
    if ((is_done || !waits_for_peer) && is_flushed()) return true;
    if (!is_done && !waits_for_peer && engine.may_send()) return true;
    return wake.load(std::memory_order_acquire) != heard || status.has_failed();
  }
  /// @return whether all messages and states have left
  [[nodiscard]] bool is_flushed() const noexcept {
    return messages.is_flushed() && (states == nullptr || states->is_flushed());
  }
  /// @return the channel whose message the rank waits for; `channel_map::none` where it does not
  [[nodiscard]] int channel() const noexcept {
    return is_done ? channel_map::none : engine.blocked_on();
  }
  /// @return likewise the channel of a state
  [[nodiscard]] int state() const noexcept {
    return is_done ? state_map::none : engine.blocked_by();
  }
  /// Writes states, and reports their connections that are lost, if the rank needs them.
  void poll_states() const {
    if (states != nullptr) states->poll(state());
  }

  // For a wait on the I/O thread.

  /// Reports connections of states that are lost, if the rank needs them.
  void report_states() const {
    if (states != nullptr) states->report_needed(state());
  }
  /// @return whether the run has failed, or this rank has told so
  [[nodiscard]] bool has_stopped() const { return supervisor.has_stopped(); }
};

/// Runs the rank of this process on the calling thread: the executor of a backend with one rank per
/// process, whose transport says by `flush` and `wait` how a rank waits.
template <class Backend>
class process_executor : public one_rank {
 public:
  /// Checks with all ranks that they have the same plan.
  /// @throws error (bad_argument) unless there is a process for each rank; (no_agreement) that
  ///         says who differs in what; what `check` of the backend throws; the failure of the run
  process_executor(Backend by, plan const& planned)
      : one_rank(
            by.run(),
            planned,
            {.on_failure = [this](rank_failure const&) { notify(&wakeup_); }},
            by.settings().share_losses,
            {},
            by.places()),
        by_(std::move(by)) {
    prepare([&] {
      by_.check();
      if (by_.poll_interval() > std::chrono::microseconds(0)) aside_.emplace(by_.poll_interval());
      if (by_.layout() == nullptr) return;
      groups_ = std::make_unique<socket_grid>(by_.run(), *by_.layout(), wakeup_, by_.settings());
      groups_->connect();
    });
  }

  [[nodiscard]] rank_grid* grid_of(int) noexcept override {
    return groups_ == nullptr ? nullptr : &groups_->grid();
  }
  [[nodiscard]] wakeup* wakeup_of(int) noexcept { return &wakeup_; }
  /// @return true: the rank has this process to itself
  [[nodiscard]] bool waits_idle() const noexcept override { return true; }
  [[nodiscard]] bool records_messages() const noexcept override {
    return by_.settings().records_messages;
  }

  /// @return what carries the messages of this rank; not connected yet
  [[nodiscard]] std::unique_ptr<typename Backend::transport_type> make_transport(
      program const& program, traffic const& messages, problem const& problem) {
    auto const& ranks = supervisor().places();
    auto const number = static_cast<int>(parts_.size());
    auto& own = parts_.emplace_back(program_part{&program, nullptr, nullptr});
    auto made = by_.make_transport(
        {program, messages, problem, supervisor().rank(), ranks, wakeup_, number});
    if (exchanges_states(program)) {
      own.states = std::make_unique<socket_states>(
          by_.run(), program, problem, wakeup_, by_.settings(), ranks);
      made->link_states(*own.states);
    }
    return made;
  }
  /// Connects this rank with its neighbours; blocks until they have come.
  /// @throws error, the failure of the run
  void connect(typename Backend::transport_type& messages) {
    auto& own = parts_.back();
    supervisor().watch(*own.code);
    call_name const named(control_channel(), supervisor().connecting(parts_.size() == 1));
    messages.connect();
    if (own.states != nullptr) own.states->connect();
    own.messages = &messages;  // last: a transport that is not connected does not stay
  }
  /// Lets the stages of the rank get ready.
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    warm_up_after(by_.settings().on_thread_start, engines);
  }

  /// Runs the engine until it is done and all that it sent has left, or the run has failed.
  template <class Engine>
  void run(
      std::vector<Engine>& engines,
      typename Backend::transport_type& messages,
      step_status& status) {
    auto& own = *std::ranges::find(parts_, &messages, &program_part::messages);
    auto& engine = engines.front();
    auto& part = supervisor();
    part.begin(*own.code, status);
    part.announce(engine.statement());
    if (aside_) aside_->serve([&messages] { messages.poll_aside(); });
    std::exception_ptr failed;
    try {
      run_steps(engine, own, status);
    } catch (...) {
      failed = std::current_exception();
    }
    if (aside_) aside_->serve({});
    part.report({{.rank = part.rank()}, {}, failed});
    part.report(engine.what_failed());
    part.end();
  }

  /// Blocks until all ranks know all failures, and adds those of the others.
  void settle(std::vector<failure>& failures) override {
    one_rank::settle(failures);
    for (auto const& each : parts_) {
      if (each.messages != nullptr) each.messages->close();
      if (each.states != nullptr) each.states->close();
    }
    if (groups_ != nullptr) groups_->close();
  }

 private:
  // What belongs to one program.
  struct program_part {
    program const* code;
    typename Backend::transport_type* messages;  // null until it is connected
    std::unique_ptr<socket_states> states;       // null where ranks exchange none
  };

  template <class Engine>
  void run_steps(Engine& engine, program_part& own, step_status& status) {
    for (;;) {
      // Read before polling, so that a notification that comes during polling ends the wait.
      auto const heard = wakeup_.load(std::memory_order_acquire);
      auto const reached = engine.advance();
      if (reached == progress::failed || status.has_failed()) return;
      bool const is_done = reached == progress::done;
      rank_wait<Engine> const until{
          engine,
          *own.messages,
          own.states.get(),
          supervisor(),
          status,
          wakeup_,
          heard,
          is_done,
          engine.waits_for_peer()};
      if (is_done && until.is_flushed()) return;
      note_wait(engine);
      own.messages->flush();
      if (own.states != nullptr) own.states->flush();
      own.messages->wait(until);
    }
  }

  Backend by_;
  wakeup wakeup_{0};
  std::unique_ptr<socket_grid> groups_;  // null where the run is no grid
  std::list<program_part> parts_;
  std::optional<detail::poll_thread> aside_;
};

}  // namespace zbpp::asio
