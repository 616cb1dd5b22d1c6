// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline does with `ranks`: it follows passes, makes communicators, issues steps, and ends
// them on all ranks when one fails. Included by ranks.hpp.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/detail/abort_thread.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/nccl/error.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/nccl/settings.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
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

/// Counts planned time by the costs of issued passes, and publishes how far the device has come.
class ranks::pass_observer {
 public:
  pass_observer() = default;
  pass_observer(
      cuda::pass_observer issued,
      cuda::device_context& context,
      detail::device_progress& progress,
      asio::progress_board& board) noexcept
      : issued_(issued), context_(&context), progress_(&progress), board_(&board) {}

  /// Begins a pass. @return its planned start
  /// @throws cuda_error
  ticks start(ticks arrival, pass const& what) {
    progress_->publish(*board_);
    auto const planned = issued_.start(arrival, what);
    progress_->begin(context_->compute(), what);
    return planned;
  }
  /// Ends a pass. @return its planned end
  /// @throws cuda_error
  ticks finish(ticks cost) {
    auto const planned = issued_.finish(cost);
    progress_->end(context_->compute());
    return planned;
  }
  /// @return when a message that is sent now will arrive, as planned
  [[nodiscard]] ticks arrival_of_send(ticks transfer) const noexcept {
    return issued_.arrival_of_send(transfer);
  }
  /// @return true: the device waits for the message, the host does not
  [[nodiscard]] static constexpr bool has_arrived(ticks) noexcept { return true; }
  /// @return the planned end of the last pass
  [[nodiscard]] ticks now() const noexcept { return issued_.now(); }

 private:
  cuda::pass_observer issued_;
  cuda::device_context* context_ = nullptr;
  detail::device_progress* progress_ = nullptr;
  asio::progress_board* board_ = nullptr;
};

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
        supervisor_(
            by.run_->control_channel(),
            planned,
            [this] {
              if (abort_thread_) abort_thread_->start();
            },
            agreement(settings_)),
        shapes_(cuda::shapes_of(planned.problem(), settings_.edges)),
        launcher_(
            settings_.device ? std::vector{*settings_.device} : std::vector<cuda::rank_device>{},
            supervisor_.ranks(),
            planned,
            {settings_.run_ahead, settings_.traces, settings_.synchronizes}),
        progress_(cuda::on_device(context().device(), [&] {
          return detail::device_progress(planned.schedule().passes(supervisor_.rank()).size());
        })) {
    // Forward passes alone can wait in a cycle only if all passes can, so this covers evaluation.
    verify_or_throw(planned.program(), planned.problem(), layout_of(settings_));
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
  /// @return the wakeup that is notified when a step fails
  [[nodiscard]] wakeup* wakeup_of(int rank) { return launcher_.wakeup_of(rank); }
  /// Gets the rank ready for a run of steps.
  void start_run() {
    launcher_.start_run();
    progress_.start_run();
  }
  /// @return what follows the passes of the rank
  [[nodiscard]] pass_observer observer_of(int rank) noexcept {
    return {launcher_.observer_of(rank), context(), progress_, supervisor_.channel().board()};
  }

  /// @return what carries the messages of this rank; the first time makes and connects the
  ///         communicators together with the other ranks
  /// @throws error, the failure of the run
  [[nodiscard]] std::unique_ptr<detail::transport> make_transport(
      program const& program, traffic const& messages, problem const& problem) {
    auto needs = cuda::needs_of(program, messages, shapes_, cuda::slot_filling::by_receives);
    if (communicators_ == nullptr) or_fail([&] { make_communicators(messages.channels()); });
    std::vector<cuda::device_context*> contexts(zbpp::detail::index(problem.ranks()));
    contexts[zbpp::detail::index(supervisor_.rank())] = &context();
    auto made =
        std::make_unique<detail::transport>(communicators_, std::move(contexts), std::move(needs));
    // A transport whose program could not be prepared is destroyed; its address may be in use
    // again.
    programs_.remove_if([&](running const& gone) {
      if (gone.transport != made.get()) return false;
      supervisor_.channel().unwatch(&gone);
      return true;
    });
    programs_.push_back({&program, made.get()});
    return made;
  }
  /// Does nothing, since communicators are connected when they are made.
  static void connect(detail::transport&) noexcept {}
  /// Lets the stages of the rank get ready.
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    or_fail([&] { launcher_.warm_up(engines); });
  }

  /// Issues the step and waits until the device is done with it, or the run has failed.
  template <class Engine>
  void run(std::vector<Engine>& engines, detail::transport& transport, step_status& status) {
    auto& engine = engines.front();
    auto const& mine = *std::ranges::find(programs_, &transport, &running::transport);
    supervisor_.begin(&mine, *mine.program, status);
    if (!status.has_failed()) launcher_.issue(engines);
    try {
      if (!status.has_failed()) wait(transport, status);
      if (!status.has_failed()) launcher_.collect(engines);
    } catch (...) {
      engine.fail(std::current_exception());
    }
    if (status.has_failed()) {
      supervisor_.report(engine.what_failed());
      if (abort_thread_) abort_thread_->finish();
      settle_device(transport);
    }
    supervisor_.end();
  }

  /// Blocks until all ranks know all failures, and adds those of other ranks.
  void settle(std::vector<failure>& failures) { supervisor_.settle(failures); }

 private:
  struct running {
    zbpp::program const* program = nullptr;
    nccl::detail::transport const* transport = nullptr;
  };

  [[nodiscard]] cuda::device_context& context() noexcept {
    return launcher_.at(supervisor_.rank());
  }

  [[nodiscard]] static channel_layout layout_of(ranks_settings const& settings) noexcept {
    return settings.adopted != nullptr ? channel_layout::one_per_rank : settings.layout;
  }
  [[nodiscard]] static std::vector<asio::agreement_item> agreement(ranks_settings const& settings) {
    std::string shapes;
    for (auto const& edge : settings.edges) {
      shapes += shapes.empty() ? "" : ", ";
      for (auto const part : edge) shapes += std::to_string(part) + " ";
    }
    return {
        asio::make_item(
            "communicators",
            std::string(settings.adopted != nullptr ? "adopted, " : "") +
                std::string(to_string(layout_of(settings)))),
        asio::make_item("edges", shapes.empty() ? "one buffer each" : shapes),
        asio::make_item("most_ctas", std::to_string(settings.most_ctas))};
  }

  // Ends the run when something outside a step throws, and throws the run's first failure.
  template <class Work>
  void or_fail(Work const& work) {
    try {
      work();
    } catch (...) {
      std::vector<failure> failures{{{.rank = supervisor_.rank()}, {}, std::current_exception()}};
      supervisor_.settle(failures);
      std::rethrow_exception(failures.front().exception);
    }
  }

  void make_communicators(std::vector<channel> const& channels) {
    auto& run = supervisor_.channel();
    auto const limited = limited_pause(
        settings_.init_deadline,
        "it was not made within ranks_settings::init_deadline; see whether all ranks have started, "
        "and set NCCL_DEBUG=INFO to see whether NCCL reaches them");
    auto const pause = [&](std::chrono::microseconds time) {
      if (supervisor_.look()) run.check();
      limited(time);
    };
    detail::local_rank const here{supervisor_.rank(), context().device()};
    if (settings_.adopted != nullptr) {
      communicators_ = std::make_shared<detail::communicator_set>(
          channels, here, run.ranks(), settings_.adopted, pause);
    } else {
      auto how = detail::map_communicators(channels, run.ranks(), settings_.layout);
      auto const ids = exchange_ids(how);
      communicators_ = std::make_shared<detail::communicator_set>(
          channels, std::vector{here}, std::move(how), ids, settings_.most_ctas, pause);
    }
    abort_thread_.emplace([all = communicators_.get()] { all->abort(); });
  }

  // Every rank contributes the ids that it makes, in the order of the communicators.
  [[nodiscard]] std::vector<ncclUniqueId> exchange_ids(detail::communicator_map const& how) {
    std::vector<ncclUniqueId> mine;
    for (auto const& one : how.communicators)
      if (one.ranks.front() == supervisor_.rank()) check(ncclGetUniqueId(&mine.emplace_back()));
    auto const parts =
        supervisor_.channel().collect(asio::collective::all_gather, std::as_bytes(std::span(mine)));
    std::vector<std::size_t> next(parts.size(), 0);
    std::vector<ncclUniqueId> ids;
    for (auto const& one : how.communicators) {
      auto const maker = zbpp::detail::index(one.ranks.front());
      auto& id = ids.emplace_back();
      if (parts[maker].size() < next[maker] + sizeof(id))
        throw error(
            errc::no_agreement,
            "rank " + std::to_string(maker) + " has made " +
                std::to_string(parts[maker].size() / sizeof(id)) +
                " ids of communicators, which are too few; start all ranks with the same plan");
      std::memcpy(&id, parts[maker].data() + next[maker], sizeof(id));
      next[maker] += sizeof(id);
    }
    return ids;
  }

  // Never blocks for long: what ends the step may come from the device, NCCL or another rank.
  void wait(detail::transport& transport, step_status& status) {
    auto& board = supervisor_.channel().board();
    transport.mark_end();
    detail::poll(
        [&] {
          if (supervisor_.look() || status.has_failed()) return true;
          progress_.publish(board);
          if (context().end().is_complete()) {
            board.enter(asio::progress_phase::sending);
            if (transport.is_done()) return true;
          }
          communicators_->check_errors();
          return false;
        },
        [](std::chrono::microseconds time) { std::this_thread::sleep_for(time); });
  }

  // Waits until the device is done with what was issued, whether it succeeded or not. After the
  // abort only a kernel of a pass can hang, which nothing can end, so the wait has a limit.
  void settle_device(detail::transport const& transport) noexcept {
    auto const end = std::chrono::steady_clock::now() + supervisor_.channel().settings().deadline;
    auto const is_busy = [](cudaStream_t on) { return cudaStreamQuery(on) == cudaErrorNotReady; };
    while ((is_busy(context().compute()) || transport.is_busy()) &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    cudaGetLastError();  // the step has reported it
  }

  ranks_settings settings_;
  asio::step_supervisor supervisor_;
  std::vector<cuda::message_shape> shapes_;
  cuda::launcher launcher_;
  detail::device_progress progress_;
  std::list<running> programs_;  // their addresses identify watches
  std::shared_ptr<detail::communicator_set> communicators_;
  std::optional<detail::abort_thread>
      abort_thread_;  // destroyed first: it refers to the communicators
};

}  // namespace zbpp::nccl
