// SPDX-License-Identifier: Apache-2.0
//
// A backend for runs that `mpirun` or `srun` started, one rank in each process: passes run on the
// calling thread, messages travel by MPI, and what fails in one process ends the step in all.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/one_rank.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/mpi/detail/progress_thread.hpp>
#include <zbpp/mpi/detail/transport.hpp>
#include <zbpp/mpi/rendezvous.hpp>
#include <zbpp/mpi/settings.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/state_link.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::mpi {

/// Runs the rank of this process; each of the others runs its own.
///
/// All ranks make their pipelines, and take their steps, in the same order. A failure on one rank
/// ends the step on every rank, as with `asio::tcp`; then MPI_Finalize calls MPI_Abort.
class ranks {
 public:
  using transport_type = detail::transport;
  using pass_observer = asio::progress_observer;
  /// Whether arenas take their planned size from the system when the pipeline is made.
  static constexpr bool reserves_memory = true;

  class executor;

  /// Takes part in a run, which must outlive the pipeline.
  explicit ranks(rendezvous& run, ranks_settings settings = {}) noexcept
      : run_(&run), settings_(std::move(settings)) {}
  /// Takes part in a run that is a grid, each of whose pipelines has the ranks of a plan, as
  /// `asio::tcp`. Calls of groups go by TCP.
  ranks(rendezvous& run, grid_layout layout, ranks_settings settings = {})
      : run_(&run), layout_(std::move(layout)), settings_(std::move(settings)) {}

  /// @return the grid that the run is; null where it is none
  [[nodiscard]] grid_layout const* layout() const noexcept { return layout_ ? &*layout_ : nullptr; }

 private:
  rendezvous* run_;
  std::optional<grid_layout> layout_;
  ranks_settings settings_;
};

namespace detail {

/// Refuses settings out of range, and an MPI that gives its threads less than they need.
/// @throws error (bad_argument)
void check_settings(ranks_settings const& settings);

/// Waits in turns of two kinds: at once as long as it was made for, then with a sleep between.
class polling_pause {
 public:
  explicit polling_pause(std::chrono::microseconds spin) noexcept
      : end_of_spin_(std::chrono::steady_clock::now() + spin) {}

  /// Waits for a turn; lets another thread or process have the core meanwhile.
  void wait() noexcept {
    if (!is_spinning_) return std::this_thread::sleep_for(std::chrono::microseconds(20));
    std::this_thread::yield();
    is_spinning_ = std::chrono::steady_clock::now() < end_of_spin_;
  }
  [[nodiscard]] bool sleeps() const noexcept { return !is_spinning_; }

 private:
  std::chrono::steady_clock::time_point end_of_spin_;
  bool is_spinning_ = true;
};

}  // namespace detail

/// Runs the rank of this process on the calling thread.
class ranks::executor : public asio::one_rank {
 public:
  /// Checks with all ranks that they have the same plan.
  /// @throws error (bad_argument) unless there is a process for each rank, or when MPI gives its
  ///         threads less than the settings need, or a setting is out of range; (no_agreement) that
  ///         says who differs in what; the failure of the run
  executor(mpi::ranks by, plan const& planned);

  [[nodiscard]] rank_grid* grid_of(int) noexcept override {
    return groups_ == nullptr ? nullptr : &groups_->grid();
  }
  [[nodiscard]] wakeup* wakeup_of(int) noexcept { return &wakeup_; }
  /// @return true: the rank has this process to itself
  [[nodiscard]] bool waits_idle() const noexcept override { return true; }

  [[nodiscard]] bool records_messages() const noexcept override {
    return settings_.records_messages;
  }

  [[nodiscard]] std::unique_ptr<detail::transport> make_transport(
      program const& program, traffic const& messages, problem const& problem);
  /// Connects what carries states of gradients, where ranks exchange some; blocks until they have
  /// come. MPI connects by itself.
  /// @throws error, the failure of the run
  void connect(detail::transport&);

  /// Lets the stages of the rank get ready.
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    warm_up_after(settings_.on_thread_start, engines);
  }

  /// Runs the engine until it is done and all that it sent has left, or the run has failed.
  template <class Engine>
  void run(std::vector<Engine>& engines, detail::transport& transport, step_status& status) {
    auto& own = part_of(transport);
    auto& engine = engines.front();
    auto& part = supervisor();
    part.begin(*own.code, status);
    part.announce(engine.statement());
    serving const aside(progress_thread_, transport);
    try {
      run_steps(engine, own, transport, status);
    } catch (std::exception const&) {
      part.report({{.rank = part.rank()}, {}, std::current_exception()});
    }
    part.report(engine.what_failed());
    part.end();
  }

  /// Blocks until all ranks know all failures, and adds those of the others.
  void settle(std::vector<failure>& failures) override;

 private:
  // What one program has beside its transport.
  struct program_part {
    program const* code;
    detail::transport const* messages;
    std::unique_ptr<asio::socket_states> states;  // null where ranks exchange none
  };
  // Has the progress thread, where there is one, poll a transport.
  class serving {
   public:
    serving(std::optional<detail::progress_thread>& by, detail::transport& active) : by_(by) {
      if (by_) by_->serve(&active);
    }
    serving(serving const&) = delete;
    serving& operator=(serving const&) = delete;
    ~serving() {
      if (by_) by_->serve(nullptr);
    }

   private:
    std::optional<detail::progress_thread>& by_;
  };

  [[nodiscard]] program_part& part_of(detail::transport const& transport);

  template <class Engine>
  void run_steps(
      Engine& engine, program_part& own, detail::transport& transport, step_status& status) {
    auto const is_flushed = [&] {
      return transport.is_flushed() && (own.states == nullptr || own.states->is_flushed());
    };
    for (;;) {
      // Read before polling, so that a notification that comes during polling ends the wait.
      auto const count = wakeup_.load(std::memory_order_acquire);
      auto const reached = engine.advance();
      if (reached == progress::failed || status.has_failed()) return;
      bool const is_done = reached == progress::done;
      if (is_done && is_flushed()) return;
      // Between two steps of a run, and with a full channel of an evaluation, the engine waits for
      // nobody, but until what it sent has left.
      bool const is_between_steps = !is_done && !engine.waits_for_peer();
      note_wait(engine);
      auto const awaited = is_done ? state_map::none : engine.blocked_by();
      if (own.states != nullptr) own.states->flush();
      detail::polling_pause pause(settings_.spin);
      for (;;) {
        transport.poll();
        if ((is_done || is_between_steps) && is_flushed()) break;
        if (is_between_steps && engine.may_send()) break;
        if (wakeup_.load(std::memory_order_acquire) != count || status.has_failed()) break;
        if (own.states != nullptr && pause.sleeps()) own.states->poll(awaited);
        pause.wait();
      }
    }
  }

  rendezvous* run_;
  ranks_settings settings_;
  wakeup wakeup_{0};
  std::unique_ptr<asio::socket_grid> groups_;  // null where the run is no grid
  std::list<program_part> parts_;
  std::optional<detail::progress_thread> progress_thread_;
};

}  // namespace zbpp::mpi

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/mpi/impl/ranks.ipp>
#endif
