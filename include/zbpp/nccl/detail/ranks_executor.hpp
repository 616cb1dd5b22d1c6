// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline does with `ranks`: it makes communicators, issues steps, and ends them on all
// ranks when one fails. Included by ranks.hpp.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/detail/tcp_states.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/abort_thread.hpp>
#include <zbpp/nccl/detail/agreement.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/device_end.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/nccl/detail/host_wait.hpp>
#include <zbpp/nccl/detail/make_carriers.hpp>
#include <zbpp/nccl/detail/rank_pass_observer.hpp>
#include <zbpp/nccl/detail/step_replay.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/nccl/settings.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::nccl {

/// Issues the passes of this process's rank from the calling thread.
class ranks::executor {
 public:
  /// Checks with all ranks that they have the same plan, and gets the device ready.
  /// @throws error (bad_argument) unless there is a process for each rank, or when a setting does
  ///         not fit; (no_agreement) that says which rank differs in what; (refused_program) when
  ///         the program can stall on communicators with this layout; cuda_error; the failure of
  ///         the run
  executor(nccl::ranks by, plan const& planned)
      : settings_(std::move(by.settings_)),
        connector_(&by.run_->data_connections()),
        supervisor_(
            by.run_->control_channel(),
            planned,
            [this] {
              if (abort_thread_) abort_thread_->start();
            },
            detail::agreement_of(settings_)),
        shapes_(cuda::shapes_of(planned.problem(), settings_.edges)),
        launcher_(
            settings_.device ? std::vector{*settings_.device} : std::vector<cuda::rank_device>{},
            supervisor_.ranks(),
            planned,
            {settings_.run_ahead, settings_.traces, settings_.synchronizes},
            settings_.on_thread_start),
        progress_(cuda::on_device(context().device(), [&] {
          return detail::device_progress(planned.schedule().passes(supervisor_.rank()).size());
        })) {
    // Forward passes alone can wait in a cycle only if all passes can, so this covers evaluation.
    verify_or_throw(planned.program(), planned.problem(), detail::layout_of(settings_));
    if (settings_.replay == cuda::replay::step)
      supervisor_.or_fail([&] { detail::check_replay(settings_, planned); });
  }
  executor(executor const&) = delete;
  executor& operator=(executor const&) = delete;
  ~executor() {
    for (auto const& mine : programs_) supervisor_.channel().unwatch(&mine);
  }

  /// @return the rank of this process
  [[nodiscard]] std::span<int const> ranks() const noexcept { return supervisor_.ranks(); }
  /// @return the memory of the rank, on its device
  [[nodiscard]] arena make_memory(int) { return arena(settings_.memory(context().device())); }
  /// @return the context in which the passes of the rank run
  [[nodiscard]] pass_context context_of(int, arena& buffers) noexcept {
    return pass_context(buffers, backend_kind::cuda, &context());
  }
  /// Makes the device of the rank current. @return what makes the one before current again
  [[nodiscard]] cuda::device_guard enter(int) { return cuda::device_guard(context().device()); }
  /// @return the wakeup that is notified when a step fails
  [[nodiscard]] wakeup* wakeup_of(int rank) { return launcher_.wakeup_of(rank); }
  /// Gets the rank ready for a run of steps.
  void start_run() {
    launcher_.start_run();
    progress_.start_run();
  }
  /// @return what follows the passes of the rank
  [[nodiscard]] pass_observer observer_of(int rank) noexcept {
    return {
        launcher_.observer_of(rank), context(), progress_, wait_, supervisor_.channel().board()};
  }

  /// @return what carries the messages of this rank; the first time finds out together with the
  ///         other ranks who reaches whose slots, and makes and connects communicators for the rest
  /// @throws error (refused_program) when the program can stand still on the hardware queues of a
  ///         device; (bad_argument) when messages could hold all multiprocessors; the failure of
  ///         the run
  [[nodiscard]] std::unique_ptr<detail::transport> make_transport(
      program const& program, traffic const& messages, problem const& problem) {
    auto communicators = communicators_.lock();
    if (communicators == nullptr)
      supervisor_.or_fail([&] {
        auto& run = supervisor_.channel();
        detail::make_copying(
            run, context().device(), program, messages, shapes_, settings_, copying_);
        communicators =
            detail::make_rest(run, context(), program, messages, *copying_.peers, settings_);
        communicators_ = communicators;
        abort_thread_.emplace([peers = copying_.peers.get(), all = communicators.get()] {
          peers->abort();
          all->abort();
        });
      });
    auto needs = cuda::needs_of(
        program, messages, shapes_, detail::filling_of(*copying_.peers), copying_.held);
    std::vector<cuda::device_context*> contexts(zbpp::detail::index(problem.ranks()));
    contexts[zbpp::detail::index(supervisor_.rank())] = &context();
    auto made = std::make_unique<detail::transport>(
        std::move(communicators),
        copying_.peers,
        std::move(contexts),
        std::move(needs),
        settings_.synchronizes);
    // A transport whose program could not be prepared is destroyed; its address may be in use
    // again.
    programs_.remove_if([&](running const& gone) {
      if (gone.transport != made.get()) return false;
      supervisor_.channel().unwatch(&gone);
      return true;
    });
    // The first program is the one that trains.
    if (settings_.replay == cuda::replay::step && programs_.empty())
      replay_ =
          &made->replay_with(supervisor_.rank(), std::make_unique<detail::step_replay>(context()));
    auto& mine = programs_.emplace_back(running{&program, made.get(), nullptr});
    if (exchanges_states(program)) {
      mine.states = std::make_unique<asio::detail::tcp_states>(
          state_map(program),
          supervisor_.channel(),
          *connector_,
          *wakeup_of(supervisor_.rank()),
          problem.tied_size(),
          asio::tcp_settings{});
      made->link_states(*mine.states);
    }
    return made;
  }
  /// Connects what carries states of gradients, where there is one; communicators are connected
  /// when they are made.
  /// @throws error, the failure of the run
  void connect(detail::transport&) {
    if (auto const& states = programs_.back().states; states != nullptr)
      supervisor_.or_fail([&] { states->connect(); });
  }
  /// Lets the stages of the rank get ready.
  /// @throws error (bad_argument) when one has an optimizer and steps are replayed; what a stage
  ///         throws; the failure of the run
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    supervisor_.or_fail([&] {
      auto const& engine = engines.front();
      if (replay_ != nullptr) cuda::detail::refuse_optimizer(engine.rank(), engine.has_optimizer());
      launcher_.warm_up(engines);
    });
  }

  /// Issues the steps of a run, or replays one, and waits until the device is done with them, or
  /// the run has failed.
  template <class Engine>
  void run(std::vector<Engine>& engines, detail::transport& transport, step_status& status) {
    auto& engine = engines.front();
    auto const& mine = *std::ranges::find(programs_, &transport, &running::transport);
    supervisor_.begin(&mine, *mine.code, status);
    wait_.start_run(transport.communicators(), status);
    try {
      if (!status.has_failed()) run_step(engines, transport, mine.states.get(), status);
      if (!status.has_failed()) launcher_.collect(engines);
    } catch (...) {
      engine.fail(std::current_exception());
    }
    // First, since another rank may fail until then, and an abort that has begun has to be
    // finished.
    if (!status.has_failed()) supervisor_.end();
    if (status.has_failed()) give_up(engine.what_failed(), transport);
  }

  /// Blocks until all ranks know all failures, and adds those of other ranks.
  void settle(std::vector<failure>& failures) {
    settle_device([] { return false; });  // what optimizers take back
    if (auto lost = detail::loss_of_device(context(), supervisor_.rank(), failures)) {
      supervisor_.report(*lost);
      failures.push_back(*std::move(lost));
    }
    supervisor_.settle(failures);
    for (auto const& each : programs_)
      if (each.states != nullptr) each.states->transport().close();
  }

 private:
  struct running {
    program const* code = nullptr;
    nccl::detail::transport const* transport = nullptr;
    std::unique_ptr<asio::detail::tcp_states> states;  // null where ranks exchange none
  };

  [[nodiscard]] cuda::device_context& context() noexcept {
    return launcher_.at(supervisor_.rank());
  }

  template <class Engine>
  void run_step(
      std::vector<Engine>& engines,
      detail::transport& transport,
      asio::detail::tcp_states* states,
      step_status const& status) {
    auto const way = replay_ == nullptr
                         ? detail::step_way::issue
                         : detail::agree_on_step(supervisor_.channel(), *replay_, engines);
    if (way == detail::step_way::issue) {
      issue(engines, states);
      if (!status.has_failed()) await_end(transport, states);
      return;
    }
    supervisor_.channel().board().enter(asio::progress_phase::replaying);
    replay_->start(way, engines, [&] {
      launcher_.issue_in_order(engines);
      transport.drain();
      return !status.has_failed();
    });
    if (!status.has_failed()) wait_.until([this] { return replay_->is_done(); });
  }
  template <class Engine>
  void issue(std::vector<Engine>& engines, asio::detail::tcp_states* states) {
    auto& engine = engines.front();
    launcher_.issue(engines, [&](wakeup const& wake, std::uint32_t seen) {
      try {
        await_state(engine.blocked_by(), states, wake, seen);
      } catch (...) {
        engine.fail(std::current_exception());
      }
    });
  }

  // Waits until a rank has told what this one is blocked by, if it is; runs socket handlers
  // meanwhile.
  void await_state(
      int channel, asio::detail::tcp_states* states, wakeup const& wake, std::uint32_t seen) {
    auto const is_over = [&] {
      if (wake.load(std::memory_order_acquire) != seen) return true;
      // Between two steps the rank waits for nobody, but until what it sent has left.
      return channel == state_map::none && (states == nullptr || states->transport().is_flushed());
    };
    if (states != nullptr) states->transport().flush();
    wait_.until([&] {
      if (is_over()) return true;
      // A last state and the end of its connection may arrive together: the state goes first.
      if (states != nullptr)
        supervisor_.channel().loop().exclusively([&] {
          if (!is_over()) states->report_needed(channel);
        });
      return false;
    });
  }

  void await_end(detail::transport& transport, asio::detail::tcp_states* states) {
    transport.mark_end();
    wait_.until([&] {
      if (!context().end().is_complete()) return false;
      supervisor_.channel().board().enter(asio::progress_phase::sending);
      if (states == nullptr || states->transport().is_flushed()) return transport.is_done();
      states->transport().flush();
      supervisor_.channel().loop().exclusively([&] { states->report_needed(state_map::none); });
      return false;
    });
  }

  // Ends a step that has failed.
  void give_up(failure const& own, detail::transport const& transport) {
    supervisor_.report(own);
    wait_.until_stopped();
    if (replay_ != nullptr) replay_->discard();
    if (abort_thread_) abort_thread_->finish();
    settle_device(
        [&] { return transport.is_busy() || (replay_ != nullptr && replay_->is_busy()); });
    supervisor_.end();
  }

  template <class IsBusy>
  void settle_device(IsBusy const& is_busy) noexcept {
    detail::settle_device(context(), is_busy, supervisor_.channel().settings().deadline);
  }

  ranks_settings settings_;
  asio::detail::data_connector* connector_;
  asio::step_supervisor supervisor_;
  std::vector<cuda::message_shape> shapes_;
  cuda::launcher launcher_;
  detail::device_progress progress_;
  detail::host_wait wait_{supervisor_, progress_};
  std::list<running> programs_;  // their addresses identify watches
  detail::copying_carriers copying_;
  // Transports own them: they go before the memory of their messages, which NCCL may have mapped
  // into other processes for a graph.
  std::weak_ptr<detail::communicator_set> communicators_;
  detail::step_replay* replay_ = nullptr;  // of the transport that trains
  std::optional<detail::abort_thread> abort_thread_;
};

}  // namespace zbpp::nccl
