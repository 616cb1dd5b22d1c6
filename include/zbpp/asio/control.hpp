// SPDX-License-Identifier: Apache-2.0
//
// What the processes of a run tell each other beside the data: a star of connections with rank 0 in
// the middle. Backends use it; `rendezvous` is what users see.
#pragma once

#include <zbpp/asio/agreement.hpp>
#include <zbpp/asio/detail/client.hpp>
#include <zbpp/asio/detail/connector.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/coordinator.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/detail/timers.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/reason.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

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

namespace zbpp::asio {

/// Holds a rank's place in a run: the connection to rank 0, where data connections come in, and the
/// io_loop of both.
///
/// One thread calls it, the one that runs steps, and not from a handler; what may be called by who
/// drives, or on the I/O thread only, says so. Once the run has failed every call throws its first
/// failure.
class control {
  using tcp = ::boost::asio::ip::tcp;

 public:
  /// Told of the first failure of the run, on the I/O thread; must not throw. It ends what runs
  /// here.
  /// @return whether `settle` will be called when that has ended
  using stop_call = detail::client::stop_call;
  /// Takes a data connection of another rank, which holds the token; called on the I/O thread.
  using guest_call = std::function<void(tcp::socket)>;

  /// Joins a run; blocks until all ranks are there.
  /// @throws error (no_rendezvous, refused_peer) when they do not find each other;
  ///         (io_failed) when an address cannot be listened on; (bad_argument) for wrong settings
  control(launch start, rendezvous_settings settings, run_token token)
      : start_(detail::checked(std::move(start))),
        settings_(detail::checked(std::move(settings))),
        token_(std::move(token)) {
    try {
      join();
    } catch (...) {
      shut();
      throw;
    }
  }
  control(control const&) = delete;
  control& operator=(control const&) = delete;
  /// Leaves the run, which is no failure unless another rank still needs this one. Waits at most a
  /// quarter of a second until rank 0 has read it (on rank 0: all others); rank 0 also for outcomes
  /// of collectives that are still on their way, at most the deadline of the settings.
  ~control() {
    try {
      settle();  // if something failed, all have to hear of it first
      if (!is_shut_) {
        wait(settings_.deadline, [&] { return !is_sending(); });
        auto const patience = std::min(settings_.deadline / 4, std::chrono::milliseconds(250));
        loop_.exclusively([&] { client_.say_bye(patience); });
        wait(patience, [&] { return !is_connected(); });
      }
    } catch (...) {
      // Whoever needs this rank finds its connection closed.
    }
    shut();
  }

  [[nodiscard]] int rank() const noexcept { return start_.rank; }
  [[nodiscard]] int ranks() const noexcept { return start_.ranks; }
  /// @return how this process was started
  [[nodiscard]] launch const& start() const noexcept { return start_; }
  [[nodiscard]] rendezvous_settings const& settings() const noexcept { return settings_; }
  /// @return what data connections are opened with
  [[nodiscard]] run_token const& token() const noexcept { return token_; }
  /// @return who is where
  [[nodiscard]] roster const& everybody() const noexcept { return client_.everybody(); }
  /// @return where data connections come in
  [[nodiscard]] listener const& data_gate() const noexcept { return *data_listener_; }
  /// @return who looks after the sockets; its own thread ends with the run
  [[nodiscard]] io_loop& loop() noexcept { return loop_; }
  /// @return where the step writes how far it is; any thread may use it
  [[nodiscard]] progress_board& board() noexcept { return client_.board(); }

  /// Sets what the first failure calls, at once if there is one; null for nothing.
  void on_stop(stop_call call) {
    loop_.exclusively([&] { client_.on_stop(std::move(call)); });
  }
  /// Sets what takes data connections, those too that have come already; null for nothing.
  void on_data_guest(guest_call call) {
    loop_.exclusively([&] {
      on_guest_ = std::move(call);
      if (!on_guest_) return;
      for (auto& socket : std::exchange(guests_, {})) on_guest_(std::move(socket));
    });
  }
  /// Sets what looks at the progress of all ranks with every heartbeat, on rank 0; elsewhere
  /// nothing. A text that it gives ends the run with `errc::stalled`. `owner` says whose it is.
  void watch(watchdog call, void const* owner = nullptr) {
    watcher_ = owner;
    if (coordinator_ != nullptr) loop_.exclusively([&] { coordinator_->watch(std::move(call)); });
  }
  /// @return who watches, or null
  [[nodiscard]] void const* watcher() const noexcept { return watcher_; }
  /// Ends the watch of this owner, if it is the one.
  void unwatch(void const* owner) {
    if (watcher_ == owner) watch(nullptr, nullptr);
  }
  /// Reports that something failed here, or that a peer (`at.rank`) seems lost. The first report to
  /// reach rank 0 is the failure of the run. Call only on the I/O thread.
  void report(rank_failure failure) { client_.report(std::move(failure)); }
  /// @return whether a failure has ended the run. Call only on the I/O thread
  [[nodiscard]] bool has_stopped() const noexcept {
    return client_.now() != detail::client::state::running;
  }

  /// Ends the run on this rank, where nothing runs any more: reports `own`, if there is something,
  /// and blocks until all ranks know all failures, but not longer than the deadline and a second.
  /// Afterwards sockets of the run are closed and the io_loop's thread has ended.
  /// @return the failures of the run, the first one first; none when nothing has failed, and then
  ///         the run goes on
  std::vector<rank_failure> settle(std::optional<rank_failure> own = {}) {
    if (is_shut_) return client_.failures();
    bool const goes_on = loop_.exclusively([&] {
      if (own)
        client_.report(std::move(*own));
      else if (!has_stopped())
        return true;
      client_.settle();
      return false;
    });
    if (goes_on) return {};
    wait(settings_.deadline, [&] { return is_over(); });
    loop_.exclusively([&] {
      client_.end_alone(
          {0, -1, -1, -1},
          "does not say why the run failed within " + seconds_text(settings_.deadline));
    });
    if (coordinator_ != nullptr) drain();
    shut();
    return client_.failures();
  }
  /// @throws error, the first failure of the run, if it has one
  void check() {
    auto const failures = settle();
    if (!failures.empty()) throw to_error(failures.front());
  }

  /// Makes a collective call; all ranks make the same ones in the same order.
  /// @param part  of this rank; for a broadcast that of the root counts
  /// @return for an all_gather the parts of all ranks; for a broadcast the part of the root
  /// @throws error (bad_argument) when the part is too large or the root is no rank; the failure of
  ///         the run, such as (peer_failed) when a rank does not come in time, or (no_agreement)
  ///         when ranks make different calls
  std::vector<blob> collect(collective kind, std::span<std::byte const> part = {}, int root = 0) {
    if (part.size() > settings_.largest_blob)
      throw error(
          errc::bad_argument,
          std::string(to_string(kind)) + " of " + std::to_string(part.size()) +
              " bytes; rendezvous_settings::largest_blob allows " +
              std::to_string(settings_.largest_blob));
    if (root < 0 || root >= ranks())
      throw error(
          errc::bad_argument,
          std::string(to_string(kind)) + " from rank " + std::to_string(root) +
              "; ranks go from 0 to " + std::to_string(ranks() - 1));
    check();
    loop_.exclusively([&] { client_.call(kind, root, part); });
    auto const limit = settings_.collective_deadline + settings_.deadline;
    wait(limit, [&] { return client_.has_outcome() || has_stopped(); });
    std::optional<std::vector<blob>> outcome;
    loop_.exclusively([&] {
      if (client_.has_outcome())
        outcome = client_.take_outcome();
      else if (!has_stopped())
        client_.end_alone(
            {0, -1, -1, -1},
            "has not answered a call of " + std::string(to_string(kind)) + " within " +
                seconds_text(limit));
    });
    if (!outcome) check();
    return std::move(*outcome);
  }

  /// Checks that all ranks hold the same as rank 0; a collective call. The run goes on if not.
  /// @throws error (no_agreement), on all ranks the same, that says whose differs and in what; as
  ///         `collect`
  void agree(std::span<agreement_item const> mine) {
    wire_writer to;
    to.put(static_cast<std::uint32_t>(mine.size()));
    for (auto const& item : mine) item.put(to);
    auto const parts = collect(collective::all_gather, to.bytes());
    auto const read = [](blob const& part) {
      wire_reader from(part);
      return detail::get_list(from, [&] { return agreement_item::get(from); });
    };
    auto const first = read(parts.front());
    std::string text;
    for (std::size_t r = 1; r < parts.size(); ++r) {
      auto const who = "rank " + std::to_string(r);
      auto const differs = differences(read(parts[r]), first, "at " + who, "at rank 0");
      if (!differs.empty())
        text += (text.empty() ? "" : "; ") + who + " differs from rank 0 in: " + differs;
    }
    if (!text.empty())
      throw error(errc::no_agreement, text + "; start all ranks with the same problem and plan");
  }

 private:
  void join() {
    loop_.exclusively([&] { open(); });
    if (coordinator_ != nullptr && settings_.on_listening)
      settings_.on_listening(coordinator_->port());
    auto const is_refused = [&] { return client_.now() == detail::client::state::refused; };
    auto const is_joining = [&] { return client_.now() == detail::client::state::joining; };
    auto const further = settings_.join_deadline + settings_.deadline;
    wait(
        coordinator_ != nullptr ? further : settings_.join_deadline, [&] { return !is_joining(); });
    // Rank 0 may have started later than this one, and knows more about who is missing.
    if (connector_ != nullptr)
      wait(further, [&] { return !is_joining() || !connector_->has_asked(); });
    if (coordinator_ != nullptr && loop_.exclusively([&] { return is_refused(); })) drain();
    loop_.exclusively([&] {
      if (is_refused()) throw to_error(client_.failures().front());
      if (!is_joining()) return;
      auto const waited = settings_.join_deadline;
      throw error(errc::no_rendezvous, connector_->text(waited), {start_.rank, -1, -1, -1});
    });
  }

  void open() {
    auto const where = detail::bind_address(settings_);
    data_listener_.emplace(
        loop_,
        token_,
        [this](tcp::socket socket, link_purpose what) { greet(std::move(socket), what); },
        listener_settings{{where, 0}});
    auto const data_port = data_listener_->endpoint().port();
    if (start_.rank != 0) {
      connector_ = std::make_unique<detail::connector>(
          loop_.io(), start_, settings_, token_, data_port, client_);
      return;
    }
    // Rank 0 talks to itself by way of the io_context, in the order in which frames are sent.
    client_.use([this](detail::control_kind kind, blob payload) {
      post([this, kind, bytes = std::move(payload)] { coordinator_->receive(0, kind, bytes); });
    });
    coordinator_ = std::make_unique<detail::coordinator>(
        loop_,
        start_,
        settings_,
        token_,
        tcp::endpoint(where, start_.port),
        data_port,
        [this](detail::control_kind kind, detail::control_connection::shared_bytes payload) {
          post([this, kind, bytes = std::move(payload)] { client_.receive(kind, *bytes); });
        });
  }

  template <class Work>
  void post(Work work) {
    ::boost::asio::post(loop_.io(), [this, does = std::move(work)] {
      try {
        does();
      } catch (std::exception const& wrong) {
        client_.end_alone({0, -1, -1, -1}, detail::reason_of(wrong));
      }
    });
  }

  void greet(tcp::socket socket, link_purpose what) {
    if (what != link_purpose::data) return;  // the socket closes
    if (on_guest_) return on_guest_(std::move(socket));
    // Two connections a pair of ranks would be a lot already.
    if (guests_.size() < 2 * zbpp::detail::index(ranks())) guests_.push_back(std::move(socket));
  }

  // Blocks until `done` holds, which only the I/O thread calls, or some time has passed.
  template <class Predicate>
  void wait(std::chrono::milliseconds time, Predicate done) {
    detail::run_for(loop_, time, std::move(done));
  }

  // Who closes a socket too early takes back what is under way, such as a verdict.
  void drain() {
    wait(std::chrono::seconds(1), [&] { return !is_connected(); });
  }

  [[nodiscard]] bool is_over() const noexcept {
    return client_.now() == detail::client::state::over;
  }
  [[nodiscard]] bool is_connected() const noexcept {
    return coordinator_ != nullptr ? coordinator_->is_connected() : client_.is_connected();
  }

  // As rank 0, in a run that is sound.
  [[nodiscard]] bool is_sending() const noexcept {
    return coordinator_ != nullptr && client_.now() == detail::client::state::running &&
           coordinator_->is_behind();
  }

  // Closes everything; nobody drives afterwards.
  void shut() noexcept {
    if (is_shut_) return;
    is_shut_ = true;
    loop_.exclusively([&] {
      if (data_listener_) data_listener_->stop();
      guests_.clear();
      if (connector_ != nullptr) connector_->close();
      if (coordinator_ != nullptr) coordinator_->close();
      client_.close();
    });
    loop_.stop();
  }

  launch start_;
  rendezvous_settings settings_;
  run_token token_;
  // Declared first: what follows has to go before its io_context, when nobody drives.
  io_loop loop_;
  detail::client client_{loop_.io(), start_.rank, settings_};
  guest_call on_guest_;
  std::vector<tcp::socket> guests_;  // data connections that came before there was a call for them
  std::optional<listener> data_listener_;
  std::unique_ptr<detail::coordinator> coordinator_;  // on rank 0
  std::unique_ptr<detail::connector> connector_;      // elsewhere
  void const* watcher_ = nullptr;
  bool is_shut_ = false;
};

}  // namespace zbpp::asio
