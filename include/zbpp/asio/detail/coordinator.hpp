// SPDX-License-Identifier: Apache-2.0
//
// The server of the control connections, in the process of rank 0: admits ranks, completes their
// collectives, detects lost ranks, decides which failure was first.
#pragma once

#include <zbpp/asio/detail/checked_settings.hpp>
#include <zbpp/asio/detail/client.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/detail/membership.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// Keeps the run together. Lives in the process of rank 0; used on the I/O thread alone.
class coordinator final : public connection_owner {
 public:
  /// Hands a frame to rank 0 itself; not from within the call that caused it.
  using local_sender = std::function<void(control_kind, control_connection::shared_bytes)>;

  /// Listens, and waits for the other ranks.
  /// @throws error (io_failed) when the address cannot be listened on
  coordinator(
      io_loop& by,
      launch const& start,
      rendezvous_settings const& settings,
      run_token const& token,
      tcp::endpoint const& endpoint,
      std::uint16_t data_port,
      local_sender to_local)
      : settings_(settings),
        to_local_(std::move(to_local)),
        members_(zbpp::detail::index(start.ranks)),
        rounds_(start.ranks),
        calls_(start.ranks),
        deadline_(by.io()),
        resolver_(by.io()),
        pulse_(by.io(), heartbeat_of(settings), [this](bool was_late) { beat(was_late); }),
        silence_(
            by.io(),
            settings.deadline,
            [this] { return longest_silence(members_); },
            [this] { give_up(); }),
        listener_(
            by,
            token,
            [this](tcp::socket socket, link_purpose purpose) {
              accept(std::move(socket), purpose);
            },
            {.endpoint = endpoint}) {
    place_ = place_text(start, listener_.endpoint());
    members_[0].data = {host_to_tell(settings), data_port};
    members_[0].has_come = true;
    deadline_.set(settings_.join_deadline, [this] {
      end_joining(missing_text(members_, settings_.join_deadline, place_, listener_.counts()));
    });
    pulse_.start();
    if (all_have_come())
      start_run();
    else
      check_listen_address(by.io(), start);
  }

  /// Receives a frame of a connection. @throws error (bad_format)
  void on_frame(
      control_connection& from, control_kind kind, std::span<std::byte const> payload) override {
    auto const rank = rank_of(members_, from);
    if (rank >= 0) return receive(rank, kind, payload);
    if (kind == control_kind::join) return join(from, read<join_request>(payload));
    // Else it waits to be refused.
    if (kind != control_kind::heartbeat && kind != control_kind::bye)
      throw error(errc::bad_format, "it did not begin by joining");
  }
  void on_lost(control_connection& from, std::string const& reason) override {
    auto const rank = rank_of(members_, from);
    pending_.remove(from);
    if (rank >= 0) lose(rank, reason, broken_text(reason));
  }

  /// Receives a frame of a rank; of rank 0, that of this process.
  /// @throws error (bad_format)
  void receive(int rank, control_kind kind, std::span<std::byte const> payload) {
    auto& from = member_of(rank);
    wire_reader reader(payload);
    switch (kind) {
      case control_kind::heartbeat: {
        progress_report told;
        fields(reader, told);
        told.rank = rank;
        from.progress = told;
        return;
      }
      case control_kind::call:
        if (state_ == state::running)
          call(rank, read<collective_call>(payload, settings_.largest_blob));
        return;
      case control_kind::report: {
        auto failure = read<rank_failure>(payload);
        auto const place = failure.location.rank;
        fail(std::move(failure), rank);
        if (place >= 0 && place < ranks()) look_at_leaving(place);
        return;
      }
      case control_kind::note: return begin_run(rank, read<rank_call>(payload));
      case control_kind::stopping:
        from.is_informed = true;
        from.has_ended = read<stop_progress>(payload) == stop_progress::ended || from.has_ended;
        return go_on_stopping();
      case control_kind::bye: return on_goodbye(rank);
      default: throw wrong_kind(kind, "only rank 0 sends");
    }
  }

  /// Notes that a rank begins to run a pipeline, or has destroyed one.
  void begin_run(int rank, rank_call const& call) {
    if (call.kind == call_kind::destroy_pipeline) {
      calls_.leave(rank, call.pipeline);
      look_at_leaving(rank);
    } else if (state_ == state::running) {
      note(rank, call);
    }
  }

  /// Sets what looks at everybody's progress with every heartbeat.
  void watch(watchdog call) { watchdog_ = std::move(call); }
  [[nodiscard]] std::uint16_t port() const noexcept { return listener_.endpoint().port(); }
  /// @return whether some other rank's connection is still open
  [[nodiscard]] bool is_connected() const noexcept {
    return has_connection(&control_connection::is_open);
  }
  /// @return whether frames for other ranks wait to be written
  [[nodiscard]] bool is_behind() const noexcept {
    return has_connection(&control_connection::is_behind);
  }
  /// Ends at once.
  void close() {
    pulse_.stop();
    silence_.stop();
    deadline_.cancel();
    resolver_.cancel();
    listener_.stop();
    each_connection([](control_connection& l) { l.close(); });
  }

 private:
  enum class state { joining, running, stopping, over };

  [[nodiscard]] member_record& member_of(int rank) { return members_[zbpp::detail::index(rank)]; }
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] bool all_have_come() const {
    return std::ranges::all_of(members_, &member_record::has_come);
  }

  void send_all(control_kind kind, blob payload = {}) {
    auto const shared = std::make_shared<blob const>(std::move(payload));
    for (auto const& s : members_)
      if (s.to != nullptr) s.to->send(kind, shared);
    to_local_(kind, shared);
  }

  // Joining.

  // Ranks that go where rank 0 does not listen would never come.
  void check_listen_address(net::io_context& io, launch const& start) {
    auto const look =
        [this, &io, host = start.host](std::vector<net::ip::address> const& found, bool is_name) {
          if (state_ != state::joining) return;
          auto const text = unmet_text(
              io,
              {host, port(), is_name},
              found,
              listener_.endpoint().address(),
              !settings_.advertise.empty());
          if (!text.empty()) end_joining(text);
        };
    boost::system::error_code is_name;
    auto const address = net::ip::make_address(start.host, is_name);
    if (!is_name) return look({address}, false);
    resolver_.async_resolve(
        start.host,
        "",
        [look](boost::system::error_code const& failed, tcp::resolver::results_type const& all) {
          if (failed) return;  // other machines may know the name
          std::vector<net::ip::address> found;
          for (auto const& entry : all) found.push_back(entry.endpoint().address());
          look(found, true);
        });
  }

  void accept(tcp::socket socket, link_purpose purpose) {
    if (purpose != link_purpose::control) return;  // the socket closes
    auto const next = std::make_shared<control_connection>(std::move(socket), *this, most_join);
    next->start();
    pending_.add(next);
  }

  void join(control_connection& from, join_request request) {
    if (state_ != state::joining)
      return pending_.turn_away(
          from, ending_.empty() ? late_text(request.rank, members_.size(), place_) : ending_);
    auto wrong = mistake_in(request, from.name(), members_);
    if (wrong.empty()) {
      member_of(request.rank) = member_record(pending_.remove(from), std::move(request));
      from.expect(most_frame(1, settings_.largest_blob));
    } else if (mistake_.empty()) {
      // Ranks that come later are told, too, even after the longest pause between tries.
      mistake_ = std::move(wrong);
      deadline_.set(
          std::min(2 * longest_join_pause, deadline_.left()), [this] { end_joining(mistake_); });
    }
    if (all_have_come()) mistake_.empty() ? start_run() : end_joining(mistake_);
  }

  void start_run() {
    if (auto const wrong = unreachable_text(members_); !wrong.empty()) return end_joining(wrong);
    state_ = state::running;
    deadline_.cancel();
    each_connection([now = steady::now()](control_connection& l) { l.reset_silence(now); });
    silence_.start();
    send_all(control_kind::welcome, write(roster_of(members_)));
  }

  void end_joining(std::string const& text) {
    state_ = state::over;
    ending_ = text;
    deadline_.cancel();
    auto const refusal = write(rank_failure{{}, {}, errc::no_rendezvous, text});
    send_all(control_kind::stop, refusal);
    for (auto const& s : pending_) s->send(control_kind::stop, blob(refusal));
    finish_all();
  }

  // Running.
  void call(int rank, collective_call made) {
    auto const by = made.by;
    bool const is_call_of_user = made.kind != collective::maximum;
    auto const wrong = rounds_.add(rank, std::move(made));
    if (is_call_of_user) note(rank, by);
    if (!wrong.empty()) return fail({{}, {}, errc::no_agreement, wrong});
    look_at_leaving_all();
    look_at_rounds();
  }
  void look_at_rounds() {
    while (state_ == state::running && rounds_.is_complete()) {
      auto const too_large = rounds_.too_large();
      if (!too_large.empty()) return fail({{}, {}, errc::bad_argument, too_large});
      send_all(control_kind::outcome, write(rounds_.finish()));
    }
    auto const blocking = rounds_.blocking();
    if (state_ != state::running || std::exchange(limited_, blocking) == blocking) return;
    deadline_.cancel();
    if (blocking)
      deadline_.set(settings_.collective_deadline, [this, number = *blocking] {
        fail({{}, {}, errc::peer_failed, rounds_.late_text(number, settings_.collective_deadline)});
      });
  }

  // Compares a call with those of other ranks, and looks whether some rank will never make it.
  void note(int rank, rank_call const& call) {
    if (auto const text = calls_.note(rank, call); !text.empty())
      return fail({{}, {}, errc::no_agreement, text});
    look_at_leaving_all();
  }
  void look_at_leaving_all() {
    for (int rank = 0; rank < ranks(); ++rank) look_at_leaving(rank);
  }
  // A rank that leaves while others need it is the failure of the run. Where these notice it first,
  // its goodbye is still on the way: it is here before the verdict.
  void look_at_leaving(int rank) {
    bool const has_left = member_of(rank).has_left;
    std::string text;
    if (state_ == state::running) {
      text = calls_.callers_waiting_for(rank, has_left);
      if (text.empty()) text = rounds_.callers_waiting_for(rank, has_left, calls_);
    } else if (auto const by = failures_.noticed_by(rank); by && state_ == state::stopping) {
      if (has_left || calls_.has_left_pipeline_of(*by, rank)) text = left_text(calls_.last_of(*by));
      if (!text.empty()) failures_.add({{rank, -1, -1, -1}, {}, errc::peer_failed, text}, rank);
      return;
    }
    if (!text.empty()) fail({{rank, -1, -1, -1}, {}, errc::peer_failed, left_text(text)}, rank);
  }

  void on_goodbye(int rank) {
    auto& s = member_of(rank);
    if (state_ == state::joining) return lose(rank, "it gave up", {});
    s.has_left = true;
    s.has_ended = true;
    look_at_leaving(rank);
    if (s.to != nullptr) s.to->finish(std::chrono::seconds(1));
    if (rank == 0) {
      // This process ends: what is known is all that will be.
      if (state_ == state::stopping) return conclude();
      state_ = state::over;
      wire_writer last;
      send_all(control_kind::bye, last.put(calls_.calls_of(0)).take());
      finish_all();
    }
    go_on_stopping();
  }

  void lose(int rank, std::string const& reason, std::string const& text) {
    auto& s = member_of(rank);
    s.to = nullptr;
    s.has_ended = true;
    if (state_ == state::joining) {
      s = {};
      s.went = reason;
      return;
    }
    if (!s.has_left) fail({{rank, -1, -1, -1}, {}, errc::peer_failed, text});
    go_on_stopping();
  }

  // Takes a failure that a rank reports, or that rank 0 itself sees.
  void fail(rank_failure failure, int by = failure_list::nobody) {
    if (by == failure_list::nobody || failure.location.rank != by)
      failure = as_noticed(std::move(failure), 0, pulse_.suspension(), settings_.deadline);
    if (state_ != state::running && state_ != state::stopping) return;
    if (failures_.size() < most_failures * members_.size()) failures_.add(failure, by);
    if (state_ == state::stopping) return;
    state_ = state::stopping;
    silence_.stop();
    send_all(control_kind::stop, write(failure));
    deadline_.set(stop_limit_of(settings_), [this] { send_all_informed(); });
    go_on_stopping();
  }

  // First all are told, so that none uses what others compute without messages; then all end.
  void go_on_stopping() {
    if (state_ != state::stopping) return;
    if (std::ranges::all_of(members_, &member_record::has_ended)) return conclude();
    if (are_all_informed(members_)) send_all_informed();
  }

  void send_all_informed() {
    if (std::exchange(is_all_informed_sent_, true)) return;
    send_all(control_kind::all_informed);
    deadline_.set(stop_limit_of(settings_), [this] { conclude(); });
  }

  void conclude() {
    if (state_ != state::stopping) return;
    state_ = state::over;
    auto const failures = failures_.in_order();
    ending_ = zbpp::detail::joined("the run is over: ", to_error(failures.front()).what());
    send_all(control_kind::verdict, write(failures));
    finish_all();
  }

  void finish_all() {
    pulse_.stop();
    silence_.stop();
    deadline_.cancel();
    each_connection([](control_connection& l) { l.finish(std::chrono::seconds(1)); });
  }
  template <class Do>
  void each_connection(Do act) const {
    for (auto const& s : members_)
      if (s.to != nullptr) act(*s.to);
    for (auto const& s : pending_) act(*s);
  }
  [[nodiscard]] bool has_connection(bool (control_connection::*is_so)()
                                        const noexcept) const noexcept {
    bool has = false;
    each_connection([&](control_connection const& l) { has = has || (l.*is_so)(); });
    return has;
  }

  void beat(bool was_late) {
    send_heartbeats(members_, was_late);
    pending_.turn_away_late(mistake_.empty() ? "it did not say its rank in time" : mistake_);
    if (was_late || !watchdog_ || state_ != state::running) return;
    if (auto text = watchdog_(reports_of(members_)))
      fail({{}, {}, errc::stalled, std::move(*text)});
  }

  // Gives up all ranks that have been silent for too long.
  void give_up() {
    for (int rank : give_up_silent(members_, settings_.deadline))
      fail({{rank, -1, -1, -1}, {}, errc::peer_failed, silence_text(settings_.deadline)});
  }

  rendezvous_settings settings_;
  local_sender to_local_;
  std::string place_;
  std::vector<member_record> members_;
  pending_connections pending_;
  collective_rounds rounds_;
  std::optional<std::uint64_t> limited_;  // the round that has the deadline
  call_log calls_;
  timeout deadline_;  // of joining, of the collective, of telling all, of ending: one at a time
  tcp::resolver resolver_;  // of the host that ranks are told
  pulse pulse_;
  silence_limit silence_;
  watchdog watchdog_;

  state state_ = state::joining;
  std::string mistake_;  // of a rank that joined; all are told soon
  std::string ending_;   // told to ranks that come too late
  failure_list failures_;
  bool is_all_informed_sent_ = false;
  listener listener_;
};

}  // namespace zbpp::asio::detail
