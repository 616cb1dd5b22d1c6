// SPDX-License-Identifier: Apache-2.0
//
// A backend for runs of many processes, one rank in each: passes run on the calling thread,
// messages travel by TCP, and what fails in one process ends the step in all of them.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/one_rank.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/rank_grid.hpp>

#include <atomic>
#include <list>
#include <memory>
#include <optional>
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
  using pass_observer = progress_observer;
  /// Whether arenas take their planned size from the system when the pipeline is made.
  static constexpr bool reserves_memory = true;

  class executor;

  /// Takes part in a run, which must outlive the pipeline.
  explicit tcp(rendezvous& run, tcp_settings settings = {}) noexcept
      : run_(&run), settings_(std::move(settings)) {}
  /// Takes part in a run that is a grid, each of whose pipelines has the ranks of a plan. All
  /// pipelines make the same calls in the same order; a failure in one ends all.
  tcp(rendezvous& run, grid_layout layout, tcp_settings settings = {})
      : run_(&run), layout_(std::move(layout)), settings_(std::move(settings)) {}

  /// @return the grid that the run is; null where it is none
  [[nodiscard]] grid_layout const* layout() const noexcept { return layout_ ? &*layout_ : nullptr; }

 private:
  [[nodiscard]] pipeline_ranks ranks() const {
    return layout_ ? pipeline_ranks(*layout_, run_->rank(), run_->ranks()) : pipeline_ranks();
  }

  rendezvous* run_;
  std::optional<grid_layout> layout_;
  tcp_settings settings_;
};

/// Runs the rank of this process on the calling thread.
class tcp::executor : public one_rank {
 public:
  /// Checks with all ranks that they have the same plan.
  /// @throws error (bad_argument) unless there is a process for each rank; (no_agreement) that
  ///         says who differs in what; the failure of the run
  executor(tcp by, plan const& planned);

  [[nodiscard]] rank_grid* grid_of(int) noexcept override {
    return groups_ == nullptr ? nullptr : &groups_->grid();
  }
  [[nodiscard]] wakeup* wakeup_of(int) noexcept { return &wakeup_; }

  /// @return true: the rank has this process to itself
  [[nodiscard]] bool waits_idle() const noexcept override { return true; }

  [[nodiscard]] bool records_messages() const noexcept override {
    return settings_.records_messages;
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
    warm_up_after(settings_.on_thread_start, engines);
  }

  /// Runs the engine until it is done and all that it sent has left, or the run has failed.
  template <class Engine>
  void run(std::vector<Engine>& engines, detail::tcp_transport& transport, step_status& status) {
    auto& own = links_of(transport);
    auto& engine = engines.front();
    auto& part = supervisor();
    part.begin(*own.code, status);
    part.announce(engine.statement());
    for (;;) {
      // Read the wakeup counter before polling, so that a notification that comes during polling
      // ends the wait.
      auto const count = wakeup_.load(std::memory_order_acquire);
      auto const reached = engine.advance();
      if (reached == progress::failed || status.has_failed()) break;
      bool const is_done = reached == progress::done;
      if (is_done && transport.is_flushed()) break;
      // Between two steps of a run, and with a full channel of an evaluation, the engine waits for
      // nobody, but until what it sent has left.
      bool const is_between_steps = !is_done && !engine.waits_for_peer();
      note_wait(engine);
      transport.flush();
      control_channel().loop().run_until([&] {
        if ((is_done || is_between_steps) && transport.is_flushed()) return true;
        if (is_between_steps && engine.may_send()) return true;
        if (part.has_stopped() || status.has_failed()) return true;
        // First, since a last message and the end of its connection may arrive together.
        if (wakeup_.load(std::memory_order_acquire) != count) return true;
        own.connections.report_needed(is_done ? channel_map::none : engine.blocked_on());
        if (own.states != nullptr)
          own.states->report_needed(is_done ? state_map::none : engine.blocked_by());
        // If rank 0 has left, the report ended the run here; no other event would end this wait.
        return part.has_stopped();
      });
    }
    part.report(engine.what_failed());
    part.end();
  }

  /// Blocks until all ranks know all failures, and adds those of the others.
  void settle(std::vector<failure>& failures) override;

 private:
  // What one program has of connections.
  struct links {
    links(executor& owner, program const& runs, std::vector<channel> channels)
        : code(&runs),
          connections(
              *owner.run_, owner.wakeup_, std::move(channels), owner.supervisor().places()) {}

    program const* code;
    detail::channel_links connections;
    std::unique_ptr<socket_states> states;  // null where ranks exchange none
  };

  [[nodiscard]] links& links_of(detail::tcp_transport const& transport);

  rendezvous* run_;
  tcp_settings settings_;
  wakeup wakeup_{0};
  std::unique_ptr<socket_grid> groups_;  // null where the run is no grid
  std::list<links> links_;
};

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/tcp.ipp>
#endif
