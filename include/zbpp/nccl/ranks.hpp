// SPDX-License-Identifier: Apache-2.0
//
// A backend for runs of many processes, one rank and its GPU in each: passes are enqueued on the
// rank's stream, messages travel by NCCL, and what fails in one process ends the step in all.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/control.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/launcher.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/breaker.hpp>
#include <zbpp/nccl/error.hpp>
#include <zbpp/nccl/links.hpp>
#include <zbpp/nccl/pass_marks.hpp>
#include <zbpp/nccl/settings.hpp>
#include <zbpp/nccl/transport.hpp>
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

/// Runs the rank of this process; each of the others runs its own.
///
/// All ranks make their pipelines, and take their steps, in the same order. A failure on one rank,
/// an error of a communicator or a step that stands still ends the step of all: communicators are
/// aborted, and every rank gets the first failure; one that has run its part already, in its next
/// call. The run is over then, and every later call throws the same.
class ranks {
 public:
  using transport_type = transport;
  /// Whether arenas take their planned size from the device when the pipeline is made.
  static constexpr bool reserves_memory = true;

  class pass_observer;
  class executor;

  /// Takes part in a run, which must outlive the pipeline.
  explicit ranks(asio::rendezvous& run, ranks_settings settings = {})
      : run_(&run), settings_(std::move(settings)) {}

 private:
  asio::rendezvous* run_;
  ranks_settings settings_;
};

/// Counts time by the costs of what is issued, and shows the run how far the device is.
class ranks::pass_observer {
 public:
  pass_observer() = default;
  pass_observer(
      cuda::pass_observer issued,
      cuda::device_context& at,
      pass_marks& marks,
      asio::detail::progress_board& board) noexcept
      : issued_(issued), at_(&at), marks_(&marks), board_(&board) {}

  /// Begins a pass. @return its planned start
  /// @throws cuda_error
  ticks start(ticks arrival, pass const& what) {
    marks_->show(*board_);
    auto const planned = issued_.start(arrival, what);
    marks_->begin(at_->compute(), what);
    return planned;
  }
  /// Ends a pass. @return its planned end
  /// @throws cuda_error
  ticks finish(ticks cost) {
    auto const planned = issued_.finish(cost);
    marks_->end(at_->compute());
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
  cuda::device_context* at_ = nullptr;
  pass_marks* marks_ = nullptr;
  asio::detail::progress_board* board_ = nullptr;
};

/// Feeds the GPU of the rank of this process from the calling thread.
class ranks::executor {
 public:
  /// Checks with all ranks that they have the same plan, and gets the device ready.
  /// @throws error (bad_argument) unless there is a process for each rank, or when a setting does
  ///         not fit; (no_agreement) that says who differs in what; (refused_program) when the
  ///         program can come to a standstill on communicators laid out like this; cuda_error; the
  ///         failure of the run
  executor(nccl::ranks by, plan const& planned)
      : settings_(std::move(by.settings_)),
        part_(
            by.run_->control_channel(),
            planned,
            [this] {
              if (breaker_) breaker_->trip();
            },
            agreement(settings_)),
        shapes_(cuda::detail::shapes_of(planned.problem(), settings_.edges)),
        launcher_(
            settings_.device ? std::vector{*settings_.device} : std::vector<cuda::rank_device>{},
            part_.ranks(),
            planned,
            {settings_.run_ahead, settings_.traces, settings_.synchronizes}),
        marks_(cuda::on_device(context().device(), [&] {
          return pass_marks(planned.schedule().passes(part_.rank()).size());
        })) {
    // Forward passes alone wait in a cycle only where all passes do, so this covers evaluation.
    verify_or_throw(planned.program(), planned.problem(), layout_of(settings_));
  }
  executor(executor const&) = delete;
  executor& operator=(executor const&) = delete;
  ~executor() {
    for (auto const& mine : programs_) part_.channel().unwatch(&mine);
  }

  /// @return the rank of this process
  [[nodiscard]] std::span<int const> ranks() const noexcept { return part_.ranks(); }
  /// @return the memory of the rank, on its device
  [[nodiscard]] arena make_memory(int) { return arena(settings_.memory(context().device())); }
  /// @return where the passes of the rank run
  [[nodiscard]] pass_context context_of(int, arena& buffers) noexcept {
    return pass_context(buffers, backend_kind::cuda, &context());
  }
  /// @return what rings when a step fails
  [[nodiscard]] wakeup* wakeup_of(int rank) { return launcher_.wakeup_of(rank); }
  /// Starts the clock of the rank.
  void start_step() {
    launcher_.start_step();
    marks_.start_step();
  }
  /// @return the clock of the rank
  [[nodiscard]] pass_observer observer_of(int rank) noexcept {
    return {launcher_.observer_of(rank), context(), marks_, part_.channel().board()};
  }

  /// @return what carries the messages of this rank; the first time makes and connects the
  ///         communicators together with the other ranks
  /// @throws error, the failure of the run
  [[nodiscard]] std::unique_ptr<transport> make_transport(
      program const& code, traffic const& messages, problem const& problem) {
    auto needs = cuda::detail::needs_of(code, messages, shapes_, slot_filling::by_receptions);
    if (links_ == nullptr) or_fail([&] { make_links(messages.channels()); });
    std::vector<cuda::device_context*> contexts(zbpp::detail::index(problem.ranks()));
    contexts[zbpp::detail::index(part_.rank())] = &context();
    auto made = std::make_unique<transport>(links_, std::move(contexts), std::move(needs));
    // A program that could not be made ready is gone, and may have stood at the same place.
    programs_.remove_if([&](running const& gone) {
      if (gone.transport != made.get()) return false;
      part_.channel().unwatch(&gone);
      return true;
    });
    programs_.push_back({&code, made.get()});
    return made;
  }
  /// Communicators are connected already.
  static void connect(transport&) noexcept {}
  /// Lets the stages of the rank get ready.
  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    or_fail([&] { launcher_.warm_up(engines); });
  }

  /// Issues the step and waits until the device is done with it, or the run has failed.
  template <class Engine>
  void run(std::vector<Engine>& engines, transport& transport, step_status& status) {
    auto& engine = engines.front();
    auto const& mine = *std::ranges::find(programs_, &transport, &running::transport);
    part_.begin(&mine, *mine.code, status);
    if (!status.has_failed()) launcher_.issue(engines);
    try {
      if (!status.has_failed()) wait(transport, status);
      if (!status.has_failed()) launcher_.collect(engines);
    } catch (...) {
      engine.fail(std::current_exception());
    }
    if (status.has_failed()) {
      part_.report(engine.what_failed());
      if (breaker_) breaker_->finish();
      settle_device(transport);
    }
    part_.end();
  }

  /// Blocks until all ranks know all failures, and adds those of the others.
  void settle(std::vector<failure>& failures) { part_.settle(failures); }

 private:
  struct running {
    program const* code = nullptr;
    nccl::transport const* transport = nullptr;
  };

  [[nodiscard]] cuda::device_context& context() noexcept { return launcher_.at(part_.rank()); }

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
        asio::detail::make_item(
            "communicators",
            std::string(settings.adopted != nullptr ? "adopted, " : "") +
                std::string(to_string(layout_of(settings)))),
        asio::detail::make_item("edges", shapes.empty() ? "one buffer each" : shapes),
        asio::detail::make_item("most_ctas", std::to_string(settings.most_ctas))};
  }

  // Ends the run where something outside a step throws here, and throws the run's first failure.
  template <class Work>
  void or_fail(Work const& work) {
    try {
      work();
    } catch (...) {
      std::vector<failure> failures{{{.rank = part_.rank()}, {}, std::current_exception()}};
      part_.settle(failures);
      std::rethrow_exception(failures.front().why);
    }
  }

  void make_links(std::vector<channel> const& channels) {
    auto& run = part_.channel();
    auto const limited = limited_pause(
        settings_.init_deadline,
        "it was not made within ranks_settings::init_deadline; a rank has not come, or NCCL finds "
        "no way to it (NCCL_DEBUG=INFO tells)");
    auto const pause = [&](std::chrono::microseconds time) {
      if (part_.look()) run.check();
      limited(time);
    };
    local_rank const here{part_.rank(), context().device()};
    if (settings_.adopted != nullptr) {
      links_ = std::make_shared<links>(channels, here, run.ranks(), settings_.adopted, pause);
    } else {
      auto how = wire(channels, run.ranks(), settings_.layout);
      auto const ids = exchange_ids(how);
      links_ = std::make_shared<links>(
          channels, std::vector{here}, std::move(how), ids, settings_.most_ctas, pause);
    }
    breaker_.emplace([all = links_.get()] { all->abort(); });
  }

  // Every rank gives the ids that it makes, in the order of the communicators.
  [[nodiscard]] std::vector<ncclUniqueId> exchange_ids(wiring const& how) {
    std::vector<ncclUniqueId> mine;
    for (auto const& one : how.communicators)
      if (one.ranks.front() == part_.rank()) check(ncclGetUniqueId(&mine.emplace_back()));
    auto const parts =
        part_.channel().collect(asio::collective::all_gather, std::as_bytes(std::span(mine)));
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

  // Never blocks for long: what ends the step may come from the device, from NCCL or from afar.
  void wait(transport& transport, step_status& status) {
    auto& board = part_.channel().board();
    transport.mark_end();
    detail::poll(
        [&] {
          if (part_.look() || status.has_failed()) return true;
          marks_.show(board);
          if (context().end().is_complete()) {
            board.enter(asio::detail::progress_phase::sending);
            if (transport.is_done()) return true;
          }
          links_->check_errors();
          return false;
        },
        [](std::chrono::microseconds time) { std::this_thread::sleep_for(time); });
  }

  // Waits until the device is done with what was issued, whether it succeeded or not. What hangs
  // there now is a kernel of a pass: nobody can end that, and waiting longer does not help.
  void settle_device(transport const& transport) noexcept {
    auto const end = std::chrono::steady_clock::now() + part_.channel().settings().deadline;
    auto const is_busy = [](cudaStream_t on) { return cudaStreamQuery(on) == cudaErrorNotReady; };
    while ((is_busy(context().compute()) || transport.is_busy()) &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    cudaGetLastError();  // it was told already
  }

  ranks_settings settings_;
  asio::step_supervisor part_;
  std::vector<cuda::message_shape> shapes_;
  cuda::launcher launcher_;
  pass_marks marks_;
  std::list<running> programs_;  // their addresses say whose a watch is
  std::shared_ptr<links> links_;
  std::optional<breaker> breaker_;  // goes first: it refers to the links
};

}  // namespace zbpp::nccl
