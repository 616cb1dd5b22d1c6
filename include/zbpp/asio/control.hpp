// SPDX-License-Identifier: Apache-2.0
//
// The control connections of a run, for authors of backends: collective calls, failures and
// progress of the ranks, beside their messages. Users make a `rendezvous`, which has one.
#pragma once

#include <zbpp/asio/detail/socket_fwd.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/runtime/agreement.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio {

namespace detail {

class control_parts;
class listener;

}  // namespace detail

/// The failure of the run as it is thrown where this rank waits for another one within a pass. A
/// pass that throws it adds nothing to the failures of the run.
class run_failure final : public error {
 public:
  explicit run_failure(error const& first) : error(first) {}
};

/// Holds a rank's place in a run: the connection to rank 0, the listener for data connections, and
/// the io_loop of both.
///
/// One thread calls it, the one that runs steps, and not from a handler; what may be called only on
/// the I/O thread says so. Once the run has failed every call throws its first failure.
class control {
 public:
  /// Takes a data connection of another rank, which holds the token; called on the I/O thread.
  using connection_call = std::function<void(detail::accepted_socket)>;

  /// Joins a run; blocks until all ranks are there.
  /// @throws error (no_rendezvous, refused_peer) when they do not find each other;
  ///         (io_failed) when an address cannot be listened on; (bad_argument) for wrong settings
  control(launch start, rendezvous_settings settings, run_token token);
  control(control const&) = delete;
  control& operator=(control const&) = delete;
  ~control();
  /// Leaves the run, which is no failure unless another rank still needs this one. For up to 250 ms
  /// waits for rank 0 (on rank 0: for all others) to read the goodbye. Rank 0 first waits, up to
  /// `deadline`, until outcomes of collectives are written. Does nothing where it has left.
  void leave() noexcept;

  [[nodiscard]] int rank() const noexcept { return start_.rank; }
  [[nodiscard]] int ranks() const noexcept { return start_.ranks; }
  [[nodiscard]] launch const& start() const noexcept { return start_; }
  [[nodiscard]] rendezvous_settings const& settings() const noexcept { return settings_; }
  /// @return what data connections are opened with
  [[nodiscard]] run_token const& token() const noexcept { return token_; }
  [[nodiscard]] roster const& everybody() const noexcept;
  [[nodiscard]] detail::listener const& data_listener() const noexcept;
  /// @return what runs the sockets; its own thread ends with the run
  [[nodiscard]] io_loop& loop() noexcept { return loop_; }
  /// @return where the step writes how far it is; any thread may use it
  [[nodiscard]] progress_board& board() noexcept;

  /// Sets what the failure of the run calls, at once if there is one. Call only on the I/O thread.
  void on_failure(failure_calls calls);
  /// Sets what takes data connections, those too that have come already; null for nothing.
  void on_data_connection(connection_call call);
  /// Sets what looks at the progress of all ranks with every heartbeat, on rank 0; elsewhere
  /// nothing. A text that it gives ends the run with `errc::stalled`. `owner` says whose it is.
  void watch(watchdog call, void const* owner = nullptr);
  /// @return the owner of the current watchdog, or null
  [[nodiscard]] void const* watcher() const noexcept { return watcher_; }
  /// Sets the grid that the ranks form, whose coordinates failures name from now on; null for none.
  void lay_out(std::shared_ptr<grid_layout const> layout) noexcept { layout_ = std::move(layout); }
  /// Keeps the watchdog if this is its owner, and forgets whose it is.
  void disown_watchdog(void const* owner) noexcept {
    if (watcher_ == owner) watcher_ = nullptr;
  }
  /// Reports that something failed here, or that a peer (`at.rank`) seems lost. The first report to
  /// reach rank 0 is the failure of the run. Call only on the I/O thread.
  void report(rank_failure failure);
  /// @return whether a failure has ended the run. Call only on the I/O thread.
  [[nodiscard]] bool has_stopped() const noexcept;
  /// @return whether this rank has been told that a failure has ended the run; any thread may ask
  [[nodiscard]] bool is_told_of_failure() const noexcept;
  /// @return the first failure of the run; only where `has_stopped`. Call only on the I/O thread.
  [[nodiscard]] rank_failure first_failure() const;
  /// @return whether one has, and all reachable ranks know of it. Call only on the I/O thread.
  [[nodiscard]] bool are_all_informed() const noexcept;

  /// Ends the run on this rank, where nothing runs any more: reports `own`, if there is something,
  /// and blocks until all ranks know all failures, but not longer than the deadline and a second.
  /// Afterwards sockets of the run are closed and the io_loop's thread has ended.
  /// @return the failures of the run, the first one first; none: the run goes on
  std::vector<rank_failure> settle(std::optional<rank_failure> own = {});
  /// @throws error, the first failure of the run, if it has one
  void check();

  /// Says which call of the user collective calls belong to from now on; with nothing, each is one
  /// of the user. Messages name that call. @return what it was before
  std::optional<rank_call> name_calls(std::optional<rank_call> call) noexcept {
    return std::exchange(call_, call);
  }
  /// Tells rank 0 that a pipeline of this rank begins to run. All ranks begin the same, in the same
  /// order as their collective calls; that they do not is the failure of the run. Blocks nobody.
  void begin_run(rank_call const& call);
  /// Notes that the pipeline no longer runs.
  void end_run();
  /// @return the number of a new pipeline, from 1; all ranks make theirs in the same order
  [[nodiscard]] std::int32_t number_pipeline() noexcept { return ++pipelines_; }
  /// Tells rank 0 that a pipeline is destroyed here, before its connections close.
  void leave_pipeline(std::int32_t number);

  /// Makes a collective call; all ranks make the same ones in the same order.
  /// @param part  of this rank; for a broadcast that of the root counts
  /// @return for an all_gather the parts of all ranks; for a broadcast the part of the root
  /// @throws error (bad_argument) when the part is too large or the root is no rank; the failure of
  ///         the run, such as (peer_failed) when a rank does not come in time, or (no_agreement)
  ///         when ranks make different calls
  std::vector<blob> collect(collective kind, std::span<std::byte const> part = {}, int root = 0);

  /// Tells all ranks what this one asks for after a step, and does not block; `decision` follows.
  /// @throws the failure of the run
  void propose(after_step next);
  /// Blocks until all ranks have proposed something for that step.
  /// @return the most that one of them asks for
  /// @throws the failure of the run
  after_step decision();

  /// Checks that all ranks hold the same as rank 0; a collective call. The run goes on if not.
  /// @param of_some  what only the ranks of a group have to agree on
  /// @param first    the first rank of that group
  /// @throws error (no_agreement), the same on all ranks, that says what differs; as `collect`
  void agree(
      std::span<agreement_item const> own,
      std::span<agreement_item const> of_some = {},
      int first = 0);

 private:
  void join();
  [[nodiscard]] rank_failure placed(rank_failure failure) const;
  [[nodiscard]] std::vector<rank_failure> failures() const;
  void drain();
  void shut() noexcept;

  launch start_;
  rendezvous_settings settings_;
  run_token token_;
  // Declared before the parts, which use its io_context and go first.
  io_loop loop_;
  std::unique_ptr<detail::control_parts> parts_;
  void const* watcher_ = nullptr;
  std::optional<rank_call> call_;  // that collective calls belong to
  std::int32_t pipelines_ = 0;
  std::shared_ptr<grid_layout const> layout_;  // null where the ranks form none
  bool is_shut_ = false;
};

/// Names the call of the user that collective calls belong to, as long as it lives.
class call_name {
 public:
  call_name(control& run, rank_call const& call) noexcept
      : control_(&run), before_(run.name_calls(call)) {}
  call_name(call_name const&) = delete;
  call_name& operator=(call_name const&) = delete;
  ~call_name() { control_->name_calls(before_); }

 private:
  control* control_;
  std::optional<rank_call> before_;
};

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/control.ipp>
#endif
