// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline does with `ranks`: it makes communicators, issues steps, and ends them on all
// ranks when one fails. Included by ranks.hpp.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/one_rank.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/asio/socket_states.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/detail/step_graph.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/replay.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/connect.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/nccl/detail/replica_sums.hpp>
#include <zbpp/nccl/detail/step_runner.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/nccl/settings.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::nccl {

/// Issues the passes of this process's rank from the calling thread.
class ranks::executor : public asio::one_rank {
 public:
  /// Checks with all ranks that they have the same plan, and gets the device ready.
  /// @throws error (bad_argument) unless there is a process for each rank, or when a setting does
  ///         not fit; (no_agreement) that says which rank differs in what; (refused_program) when
  ///         the program can stall on communicators with this layout; cuda_error; a failed run
  executor(nccl::ranks by, plan const& planned)
      : one_rank(
            *by.run_,
            planned,
            {.on_all_informed = [this] { steps_.start_abort(); }},
            by.settings_.share_losses,
            detail::agreement_of(by.settings_),
            by.layout_ ? asio::pipeline_ranks(*by.layout_, by.run_->rank(), by.run_->ranks())
                       : asio::pipeline_ranks()),
        run_(by.run_),
        settings_(std::move(by.settings_)),
        shapes_(cuda::shapes_of(planned.problem(), settings_.edges)),
        launcher_(
            settings_.device ? std::vector{*settings_.device} : std::vector<cuda::rank_device>{},
            ranks(),
            planned,
            checked(supervisor(), settings_, planned)),
        steps_(
            supervisor(),
            launcher_,
            planned.schedule().passes(supervisor().rank()).size(),
            zbpp::detail::index(settings_.steps_at_once)) {
    // Forward passes alone can wait in a cycle only if all passes can, so this covers evaluation.
    verify_or_throw(planned.program(), planned.problem(), detail::layout_of(settings_));
    if (!by.layout_) return;
    prepare([&] {
      groups_ =
          std::make_unique<asio::socket_grid>(*run_, *by.layout_, *wakeup_of(supervisor().rank()));
      groups_->connect();
    });
  }

  [[nodiscard]] rank_grid* grid_of(int) noexcept override {
    return groups_ == nullptr ? nullptr : &groups_->grid();
  }
  [[nodiscard]] arena make_memory(int) override {
    return arena(settings_.memory(context().device()));
  }
  [[nodiscard]] pass_context context_of(int, arena& buffers) noexcept override {
    return pass_context(buffers, backend_kind::cuda, &context());
  }
  /// Makes the device of the rank current. @return what makes the one before current again
  [[nodiscard]] std::shared_ptr<void> enter(int) override {
    return std::make_shared<cuda::device_guard>(context().device());
  }
  [[nodiscard]] wakeup* wakeup_of(int rank) { return launcher_.wakeup_of(rank); }
  /// Gets the rank ready for a run of steps.
  /// @param turn  of the step among those at once
  void start_run(std::size_t turn = 0) noexcept { steps_.start_run(turn); }
  [[nodiscard]] pass_observer observer_of(int) noexcept { return steps_.observer(); }

  /// @return what carries the messages of this rank; the first time makes and connects
  ///         communicators together with the other ranks
  /// @throws error (refused_program) when the program can deadlock on the hardware queues of a
  ///         device; (bad_argument) when messages could hold all SMs; the failure of the run
  [[nodiscard]] std::unique_ptr<detail::transport> make_transport(
      program const& program, traffic const& messages, problem const& problem) {
    asio::call_name const named(control_channel(), supervisor().connecting(programs_.empty()));
    auto communicators = communicators_.lock();
    if (communicators == nullptr)
      supervisor().or_fail([&] {
        communicators = detail::make_pipeline_communicators(
            control_channel(), supervisor().places(), context(), program, messages, settings_);
        communicators_ = communicators;
        steps_.abort_by([all = communicators.get()] { all->abort(); });
      });
    std::vector const filling(messages.channels().size(), cuda::slot_filling::by_receives);
    std::vector<cuda::device_context*> contexts(zbpp::detail::index(problem.ranks()));
    contexts[zbpp::detail::index(supervisor().rank())] = &context();
    auto made = std::make_unique<detail::transport>(
        std::move(communicators),
        std::move(contexts),
        cuda::needs_of(program, messages, shapes_, filling),
        settings_.synchronizes);
    // A transport whose program could not be prepared is gone; its address may be in use again.
    programs_.remove_if(
        [&](detail::rank_program const& gone) { return gone.transport == made.get(); });
    auto& added = programs_.emplace_back(detail::rank_program{&program, made.get(), {}, {}});
    auto const* const by = made->communicators().sums_of(control_channel().rank());
    if (by != nullptr && reduces_gradients(program)) {
      added.sums = std::make_unique<detail::replica_sums>(made->communicators(), *by, context());
      made->link_sums(supervisor().rank(), *added.sums);
    }
    // The first program is the one that trains.
    if (programs_.size() == 1) {
      bool const replays = settings_.replay == cuda::replay::step;
      if (replays) steps_.steps().replay_with(*made);
      if (replays || settings_.steps_at_once > 1) steps_.steps().put_in_order(*made);
    }
    if (exchanges_states(program)) {
      added.states = std::make_unique<asio::socket_states>(
          *run_,
          program,
          problem,
          *wakeup_of(supervisor().rank()),
          asio::tcp_settings(),
          supervisor().places());
      made->link_states(*added.states);
    }
    return made;
  }
  /// Connects what carries states of gradients, where there is one; communicators of
  /// messages are connected when they are made, those of sums by `replica_sums`.
  /// @throws error, the failure of the run
  void connect(detail::transport&) {
    supervisor().watch(*programs_.back().code);
    asio::call_name const named(control_channel(), supervisor().connecting(programs_.size() == 1));
    if (auto const& states = programs_.back().states; states != nullptr)
      supervisor().or_fail([&] { states->connect(); });
  }
  /// Lets the stages of the rank get ready.
  /// @throws error (bad_argument) when one has an optimizer and steps are replayed; what a stage
  ///         throws; the failure of the run
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    prepare([&] {
      auto const& engine = engines.front();
      if (steps_.steps().replays())
        cuda::detail::refuse_optimizer(engine.rank(), engine.has_optimizer());
      launcher_.warm_up(engines);
      if (auto const& sums = programs_.front().sums; sums != nullptr) {
        sums->compare(groups_->grid().data());
        sums->connect(detail::pause_in_run(
            control_channel(),
            settings_.init_deadline,
            "the first sums over replicas do not end within ranks_settings::init_deadline; set "
            "NCCL_DEBUG=INFO to see what NCCL waits for"));
      }
    });
  }

  /// Issues the steps of a run, or replays one, and waits until the device is done with them, or
  /// the run has failed.
  template <class Engine>
  void run(std::vector<Engine>& engines, detail::transport& transport, step_status& status) {
    steps_.run(engines, at(transport), status);
  }
  [[nodiscard]] int steps_at_once() const noexcept override { return settings_.steps_at_once; }
  /// Issues a step, or replays it, after those that are under way, and returns.
  /// @param turn  of the step among those at once
  /// @throws error (bad_argument) where ranks exchange states of gradients
  template <class Engine>
  void start(
      std::vector<Engine>& engines,
      detail::transport& transport,
      step_status& status,
      std::size_t turn) {
    auto const& active = at(transport);
    zbpp::detail::require(
        active.states == nullptr,
        "step_async() is called where weights are tied, for whose gradients the host waits in "
        "every "
        "step; call step()");
    steps_.steps().put_in_order(transport);
    steps_.start(engines, active, status, turn);
  }
  /// Blocks until the step that was started first is done, and reads its losses; or until the
  /// device is done, when the run has failed.
  /// @param failures  gets in front what failed here
  /// @return whether the step is whole
  [[nodiscard]] bool finish(
      detail::transport const& transport, std::size_t turn, std::vector<failure>& failures) {
    return steps_.finish(transport, turn, failures);
  }

  /// Blocks until all ranks know all failures, and adds those of other ranks.
  void settle(std::vector<failure>& failures) override {
    steps_.settle_device();  // what optimizers take back
    if (!std::exchange(is_over_, true))
      if (auto lost = detail::loss_of_device(context(), supervisor().rank(), failures)) {
        supervisor().report(*lost);
        failures.push_back(*std::move(lost));
      }
    one_rank::settle(failures);
    for (auto const& each : programs_)
      if (each.states != nullptr) each.states->close();
    if (groups_ != nullptr) groups_->close();
  }

 private:
  // Refuses, on all ranks, what one of them sets. @return how its work is launched
  [[nodiscard]] static cuda::launch_settings checked(
      asio::step_supervisor& supervisor, ranks_settings const& settings, plan const& planned) {
    cuda::launch_settings const launched{
        .traces = settings.traces,
        .synchronizes = settings.synchronizes,
        .steps_at_once = settings.steps_at_once};
    supervisor.or_fail([&] {
      static_cast<void>(
          cuda::detail::checked_steps_at_once(settings.steps_at_once, settings.traces));
      if (settings.device) cuda::detail::check_confined(*settings.device);
      detail::check_deadline(settings);
      zbpp::detail::require(
          settings.adopted == nullptr || supervisor.places().layout() == nullptr,
          "a communicator is adopted in a grid, whose pipelines need one each; let zbpp make its "
          "own");
      if (settings.replay == cuda::replay::step) detail::check_replay(settings, launched, planned);
    });
    return launched;
  }

  [[nodiscard]] cuda::device_context& context() noexcept {
    return launcher_.at(supervisor().rank());
  }
  [[nodiscard]] detail::rank_program const& at(detail::transport const& transport) const {
    return *std::ranges::find(programs_, &transport, &detail::rank_program::transport);
  }

  asio::rendezvous* run_;
  ranks_settings settings_;
  std::vector<cuda::message_shape> shapes_;
  cuda::launcher launcher_;
  std::unique_ptr<asio::socket_grid> groups_;  // null where the run is no grid
  std::list<detail::rank_program> programs_;
  // Transports own them: they go before the memory of their messages, which NCCL may have mapped
  // into other processes for a graph.
  std::weak_ptr<detail::communicator_set> communicators_;
  detail::step_runner steps_;
  bool is_over_ = false;  // whether the run has failed, and all ranks have been told of the device
};

}  // namespace zbpp::nccl
