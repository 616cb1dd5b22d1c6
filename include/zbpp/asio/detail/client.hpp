// SPDX-License-Identifier: Apache-2.0
//
// The side of one rank in a run, and what it says of others that it has lost.
#pragma once

#include <zbpp/asio/detail/checked_settings.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

// What a rank says of another one that it has lost, beside what ranks say of themselves.

[[nodiscard]] inline std::string silence_text(std::chrono::milliseconds deadline) {
  return "has not been heard for " + seconds_text(deadline) +
         "; it is stopped, overloaded or cut off" + set_by("deadline");
}
[[nodiscard]] inline std::string broken_text(std::string const& reason) {
  return "its process has ended or its connection broke (" + reason + ")";
}

/// @param calls  calls of the ranks that remain, as text; may be empty
[[nodiscard]] inline std::string left_text(std::string const& calls) {
  return calls.empty() ? "left the run" : "left the run; " + calls;
}

/// @return the report for a peer failure seen here. If this process itself was suspended for at
///         least `deadline`, it reports that instead of blaming a peer.
[[nodiscard]] inline rank_failure as_noticed(
    rank_failure noticed,
    int rank,
    std::chrono::milliseconds suspension,
    std::chrono::milliseconds deadline) {
  bool const blames_others = noticed.code == errc::peer_failed && noticed.location.rank != rank;
  if (!blames_others || suspension < deadline) return noticed;
  return {
      {rank, -1, -1, -1},
      {},
      errc::peer_failed,
      "was suspended for " + seconds_text(suspension) + ", and the other ranks gave it up after " +
          seconds_text(deadline) + "; it was stopped or overloaded" + set_by("deadline")};
}

/// Adds a failure to those of a run. What one rank says of another is nothing new about a rank that
/// is known to have failed.
inline void attach(
    std::vector<rank_failure>& failures, rank_failure more, bool is_about_another_rank) {
  bool const is_known = std::any_of(failures.begin(), failures.end(), [&](auto const& known) {
    return known == more || (is_about_another_rank && more.code == errc::peer_failed &&
                             known.location.rank == more.location.rank);
  });
  if (!is_known) failures.push_back(std::move(more));
}

// A rank's side of a run, the same on every rank: it is let in, takes part in collectives, reports
// what goes wrong here, and learns what went wrong first.

/// The client end of the control connection of one rank: joins, reports local failures, and
/// receives rank 0's verdict. Rank 0 has one too, without a socket. Used on the I/O thread alone.
class client final : public connection_owner {
 public:
  /// Sends to rank 0 where that is this process.
  using local_sender = std::function<void(control_kind, blob)>;
  /// The same for what ranks note: at once, and without a copy.
  using local_note = std::function<void(rank_call const&)>;
  enum class state { joining, refused, running, stopping, over };

  client(net::io_context& io, int rank, rendezvous_settings const& settings)
      : rank_(rank),
        settings_(settings),
        progress_(board_, rank),
        pulse_(io, heartbeat_of(settings), [this](bool was_late) { beat(was_late); }),
        silence_(
            io, settings.deadline, [this] { return silence(); }, [this] { give_up_rank_0(); }),
        others_notice_(io) {}

  /// Connects to a coordinator in this process.
  void use(local_sender to_rank_0, local_note notes) {
    to_coordinator_ = std::move(to_rank_0);
    notes_ = std::move(notes);
    pulse_.start();
  }
  /// Connects to rank 0 by a connection, and asks to join.
  /// @param when_lost  told why, when the connection ends before the run is complete
  void use(
      std::shared_ptr<control_connection> to_rank_0,
      join_request const& request,
      std::function<void(std::string const&)> when_lost) {
    connection_ = std::move(to_rank_0);
    when_lost_ = std::move(when_lost);
    connection_->start();
    connection_->send(control_kind::join, write(request));
    pulse_.start();
    silence_.start();
  }

  /// Receives a frame of rank 0.
  /// @throws error (bad_format)
  void on_frame(
      control_connection&, control_kind kind, std::span<std::byte const> payload) override {
    receive(kind, payload);
  }
  /// As above, where rank 0 is this process.
  void receive(control_kind kind, std::span<std::byte const> payload) {
    switch (kind) {
      case control_kind::heartbeat: return;
      case control_kind::welcome: return start(read<roster>(payload));
      case control_kind::outcome:
        return take(read<collective_outcome>(payload, settings_.largest_blob));
      case control_kind::stop:
        return state_ == state::joining ? be_refused(read<rank_failure>(payload))
                                        : stop(read<rank_failure>(payload));
      case control_kind::all_informed: return note_all_informed();
      case control_kind::verdict: end(read_failures(payload)); return note_all_informed();
      case control_kind::bye:
        last_call_ = read_number<std::uint64_t>(payload);
        return lose_coordinator({}, left());
      default: throw wrong_kind(kind, "is for rank 0");
    }
  }
  void on_lost(control_connection&, std::string const& reason) override {
    lose_coordinator(reason, broken_text(reason));
  }

  /// Ends the attempt to join, for a reason of this side.
  void be_refused(rank_failure why) {
    if (state_ != state::joining) return;
    failures_ = {std::move(why)};
    state_ = state::refused;
    leave(std::chrono::seconds(1));
  }

  /// Tells rank 0 that something failed here, or that a peer seems lost.
  void report(rank_failure failure) {
    if (state_ != state::running && state_ != state::stopping) return;
    attach(own_, failure, failure.location.rank != rank_);
    if (coordinator_left_) return end_alone({0, -1, -1, -1}, left());
    send(control_kind::report, write(failure));
  }
  /// Says that nothing runs here any more: rank 0 need not wait for further failures of this rank.
  void settle() {
    if (state_ == state::stopping && !is_settled_) tell(stop_progress::ended);
    is_settled_ = true;
  }

  /// Begins a collective; once `has_outcome`, `take_outcome` gives what came of it.
  /// @param by  the call of the user that makes it
  void call(collective kind, int root, std::span<std::byte const> part, rank_call const& by) {
    outcome_.reset();
    ++calls_;
    pending_ = by;
    awaited_ = sequence_;
    send_call({0, kind, root, blob(part.begin(), part.end()), by});
  }
  /// Notes that a pipeline begins to run, which all ranks do in the same order. Blocks nobody: what
  /// is wrong with it is the failure of the run.
  void begin_run(rank_call const& by) {
    if (state_ != state::running) return;
    ++calls_;
    run_ = by;
    is_running_ = true;
    if (!coordinator_left_)
      note(by);
    else if (calls_ > last_call_)
      end_alone({0, -1, -1, -1}, left());
  }
  /// Notes that it no longer runs.
  void end_run() noexcept { is_running_ = false; }
  /// Notes that this rank has destroyed a pipeline, whose connections close after this.
  void leave_pipeline(std::int32_t pipeline) {
    if (state_ == state::running && !coordinator_left_)
      note({.kind = call_kind::destroy_pipeline, .pipeline = pipeline});
  }
  [[nodiscard]] bool has_outcome() const noexcept { return outcome_.has_value(); }
  [[nodiscard]] std::vector<blob> take_outcome() {
    pending_.reset();
    auto outcome = std::exchange(outcome_, {});
    return std::move(outcome->parts);
  }

  /// Tells rank 0 what this rank asks for after a step; `decision` gives what comes of it.
  void propose(after_step next) {
    decision_.reset();
    proposal_ = sequence_;
    send_call({0, collective::maximum, 0, write(next), run_});
  }
  [[nodiscard]] std::optional<after_step> decision() const noexcept { return decision_; }

  /// Ends the run for this rank by what it knows itself.
  void end_alone(location const& at, std::string const& text) {
    if (state_ != state::running && state_ != state::stopping) return;
    std::vector<rank_failure> known;
    if (first_) known.push_back(*first_);
    // What this rank knows of itself, what is certain, what it concluded about others.
    for (auto const& f : own_)
      if (f.location.rank == rank_) attach(known, f, false);
    rank_failure noticed{at, {}, errc::peer_failed, text};
    noticed = as_noticed(std::move(noticed), rank_, pulse_.suspension(), settings_.deadline);
    attach(known, noticed, noticed.location.rank != rank_);
    for (auto const& f : own_) attach(known, f, f.location.rank != rank_);
    if (state_ == state::running) stop(known.front());
    end(std::move(known));
    // Nobody says when the others know. Where rank 0 is gone, they notice it like this one.
    others_notice_.set(linger_of(settings_), [this] { note_all_informed(); });
  }

  /// Says goodbye, which is no failure here, and receives nothing more.
  void say_bye(std::chrono::milliseconds linger) {
    if (state_ == state::running || state_ == state::joining) send(control_kind::bye);
    leave(linger);
  }
  /// Ends at once.
  void close() {
    stop_clocks();
    others_notice_.cancel();
    note_all_informed();  // as far as this rank will ever know
    if (connection_ != nullptr) connection_->close();
  }

  /// Sets the function that the end of the run calls; calls it at once where the run has ended.
  void on_failure(failure_calls calls) {
    calls_of_failure_ = std::move(calls);
    if (calls_of_failure_.on_failure && first_) calls_of_failure_.on_failure(*first_);
    if (calls_of_failure_.on_all_informed && are_all_informed_) calls_of_failure_.on_all_informed();
  }

  [[nodiscard]] state now() const noexcept { return state_; }
  [[nodiscard]] bool are_all_informed() const noexcept { return are_all_informed_; }
  /// @return whether this rank knows that the run has failed; any thread may ask
  [[nodiscard]] bool is_told_of_failure() const noexcept {
    return is_told_of_failure_.load(std::memory_order_acquire);
  }
  /// @return what ended the run, or refused this rank, as far as it is known; where something has
  [[nodiscard]] rank_failure first_failure() const {
    return !failures_.empty() ? failures_.front() : first_.value_or(rank_failure{});
  }
  /// @return whether the other end may still be reading what was sent last
  [[nodiscard]] bool is_connected() const noexcept {
    return connection_ != nullptr && connection_->is_open();
  }
  [[nodiscard]] roster const& everybody() const noexcept { return roster_; }
  [[nodiscard]] std::vector<rank_failure> const& failures() const noexcept { return failures_; }
  [[nodiscard]] progress_board& board() noexcept { return board_; }

 private:
  void send(control_kind kind, blob payload = {}) {
    if (connection_ != nullptr)
      connection_->send(kind, std::move(payload));
    else if (to_coordinator_)
      to_coordinator_(kind, std::move(payload));
  }

  void start(roster all) {
    if (state_ != state::joining) throw error(errc::bad_format, "a roster in a run that has one");
    if (zbpp::detail::index(rank_) >= all.ranks.size())
      throw error(errc::bad_format) + "a roster of " + all.ranks.size() + " ranks for rank " +
          rank_;
    roster_ = std::move(all);
    auto& coordinator = roster_.ranks.front();
    if (coordinator.host.empty())
      coordinator.host =
          connection_ != nullptr ? connection_->address().to_string() : settings_.bind;
    state_ = state::running;
  }

  void send_call(collective_call made) {
    made.sequence = sequence_++;
    if (coordinator_left_)
      end_alone({0, -1, -1, -1}, left());
    else
      send(control_kind::call, write(made));
  }
  // At once and without a copy, since each step begins so.
  void note(rank_call const& call) {
    if (connection_ != nullptr) {
      wire_.clear();
      fields(wire_, call);
      connection_->send_small(control_kind::note, wire_.bytes());
    } else if (notes_) {
      notes_(call);
    }
  }
  void tell(stop_progress reached) { send(control_kind::stopping, write(reached)); }

  void take(collective_outcome outcome) {
    if (state_ != state::running) return;
    if (outcome.sequence == proposal_ && outcome.parts.size() == 1) {
      decision_ = read<after_step>(outcome.parts.front());
      proposal_.reset();
    } else if (outcome.sequence == awaited_) {
      outcome_ = std::move(outcome);
      awaited_.reset();
    } else {
      throw error(errc::bad_format, "an answer to another collective call");
    }
  }

  void stop(rank_failure first) {
    if (state_ != state::running) return;
    state_ = state::stopping;
    first_ = std::move(first);
    is_told_of_failure_.store(true, std::memory_order_release);
    if (calls_of_failure_.on_failure)
      calls_of_failure_.on_failure(*first_);
    else
      is_settled_ = true;  // nothing runs here
    tell(is_settled_ ? stop_progress::ended : stop_progress::informed);
  }

  void note_all_informed() {
    if (!first_ || std::exchange(are_all_informed_, true)) return;
    if (calls_of_failure_.on_all_informed) calls_of_failure_.on_all_informed();
  }

  void end(std::vector<rank_failure> failures) {
    if (state_ == state::running) stop(failures.front());
    if (state_ != state::stopping) return;
    state_ = state::over;
    failures_ = std::move(failures);
    leave(std::chrono::seconds(1));
  }

  void lose_coordinator(std::string const& reason, std::string const& text) {
    bool const left = reason.empty();
    if (state_ == state::joining) {
      stop_clocks();
      close_connection();
      if (when_lost_) when_lost_(left ? text : reason);
    } else if (left && state_ == state::running && !needs_coordinator() && calls_ <= last_call_) {
      coordinator_left_ = true;  // a failure only if this rank needs it again
      leave(std::chrono::seconds(1));
    } else {
      end_alone({0, -1, -1, -1}, text);
    }
  }

  [[nodiscard]] bool waits_for_outcome() const noexcept { return pending_ && !outcome_; }
  // Whether a call or a report waits for what rank 0 makes of it.
  [[nodiscard]] bool needs_coordinator() const noexcept {
    return waits_for_outcome() || proposal_ || !own_.empty();
  }
  // What is wrong where rank 0 said goodbye and is needed.
  [[nodiscard]] std::string left() const {
    if (!waits_for_outcome() && !is_running_ && !proposal_) return left_text({});
    auto const& call = waits_for_outcome() ? *pending_ : run_;
    return left_text("rank " + std::to_string(rank_) + " called " + call.name());
  }

  void beat(bool was_late) {
    auto const now = steady::now();
    if (connection_ != nullptr && was_late) connection_->reset_silence(now);
    if (connection_ != nullptr && connection_->is_behind()) return;
    wire_writer to;
    fields(to, progress_.read(now));
    send(control_kind::heartbeat, to.take());
  }

  [[nodiscard]] steady::duration silence() const {
    return connection_ == nullptr ? steady::duration::zero() : steady::now() - connection_->heard();
  }
  void give_up_rank_0() {
    auto const text = silence_text(settings_.deadline);
    close_connection();
    lose_coordinator(text, text);
  }

  void leave(std::chrono::milliseconds linger) {
    stop_clocks();
    if (connection_ != nullptr) connection_->finish(linger);
  }
  void close_connection() {
    if (connection_ != nullptr) connection_->close();
  }
  void stop_clocks() {
    pulse_.stop();
    silence_.stop();
  }

  int rank_;
  rendezvous_settings settings_;
  progress_board board_;
  progress_reader progress_;
  pulse pulse_;
  silence_limit silence_;
  timeout others_notice_;  // that rank 0 is gone
  local_sender to_coordinator_;
  local_note notes_;
  std::shared_ptr<control_connection> connection_;
  std::function<void(std::string const&)> when_lost_;
  failure_calls calls_of_failure_;

  state state_ = state::joining;
  roster roster_;
  std::uint64_t sequence_ = 0;
  std::uint64_t calls_ = 0;           // collective ones, and those that ran a pipeline
  std::optional<rank_call> pending_;  // the collective one whose outcome was not taken
  rank_call run_;                     // of the pipeline that ran last
  bool is_running_ = false;           // it still does
  wire_writer wire_;                  // for one call after the other
  std::optional<collective_outcome> outcome_;
  std::optional<after_step> decision_;
  std::optional<std::uint64_t> awaited_;   // the call without an outcome that blocks this rank
  std::optional<std::uint64_t> proposal_;  // that without a decision
  bool coordinator_left_ = false;
  std::uint64_t last_call_ = 0;  // of rank 0, where it has left
  bool is_settled_ = false;
  bool are_all_informed_ = false;  // of `first_`
  std::optional<rank_failure> first_;
  std::atomic<bool> is_told_of_failure_{false};  // `first_` is set
  std::vector<rank_failure> own_;
  std::vector<rank_failure> failures_;
};

}  // namespace zbpp::asio::detail
