// SPDX-License-Identifier: Apache-2.0
//
// What a `control` is made of: the way to rank 0, and the parts that a rank has.
#pragma once

#include <zbpp/asio/detail/checked_settings.hpp>
#include <zbpp/asio/detail/client.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/coordinator.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/detail/socket_fwd.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

// How a rank reaches rank 0: it tries again and again, at growing intervals, until it has joined or
// one side gives up.

/// Connects a client to rank 0 in another process. Used on the I/O thread alone, and outlives what
/// runs in the io_context.
class connector {
 public:
  connector(
      net::io_context& io,
      launch const& start,
      rendezvous_settings const& settings,
      run_token const& token,
      std::uint16_t data_port,
      client& owner)
      : start_(start),
        settings_(settings),
        token_(token),
        data_port_(data_port),
        client_(&owner),
        resolver_(io),
        socket_(io),
        pause_(io),
        limit_(io) {
    reach();
  }

  /// Gives up.
  void close() {
    is_closed_ = true;
    pause_.cancel();
    give_up_attempt();
  }

  /// @return what to say when there is no time left: where, how often, and why not
  [[nodiscard]] std::string text(std::chrono::milliseconds waited) const {
    auto const place = host_and_port(start_.host, start_.port);
    std::string const tries = zbpp::detail::joined(tries_, tries_ == 1 ? " try" : " tries");
    return "did not reach rank 0 at " + place + " within " + seconds_text(waited) + " (" + tries +
           ", the last one: " + (reason_.empty() ? "still under way" : reason_) +
           "); start rank 0 there, listening on an address that this machine can reach" +
           set_by("join_deadline");
  }
  [[nodiscard]] bool has_asked() const noexcept { return has_asked_; }

 private:
  void reach() {
    if (is_closed_ || client_->now() != client::state::joining) return;
    ++tries_;
    is_late_ = false;
    limit_.expires_after(attempt_limit);
    limit_.async_wait([this](boost::system::error_code const& failed) {
      if (failed) return;
      is_late_ = true;
      give_up_attempt();
    });
    boost::system::error_code is_name;
    auto const address = net::ip::make_address(start_.host, is_name);
    if (!is_name) return connect({{address, start_.port}});
    resolver_.async_resolve(
        start_.host,
        std::to_string(start_.port),
        [this](boost::system::error_code const& failed, tcp::resolver::results_type const& found) {
          if (failed)
            return put_off("the name " + start_.host + " was not resolved: " + reason_of(failed));
          std::vector<tcp::endpoint> places;
          for (auto const& entry : found) places.push_back(entry.endpoint());
          connect(std::move(places));
        });
  }

  void connect(std::vector<tcp::endpoint> places) {
    places_ = std::move(places);
    // Where it cannot open a socket, async_connect says only that it was aborted.
    boost::system::error_code no_socket;
    socket_.open(places_.front().protocol(), no_socket);
    if (no_socket) return put_off(reason_of(no_socket));
    net::async_connect(
        socket_, places_, [this](boost::system::error_code failed, tcp::endpoint const&) {
          if (!failed) socket_.set_option(tcp::no_delay(true), failed);
          if (failed) return put_off(reason_of(failed));
          introduce_self();
        });
  }

  void introduce_self() {
    net::co_spawn(
        socket_.get_executor(),
        introduce(socket_, token_, link_purpose::control),
        [this](std::exception_ptr const& failed) {
          try {
            if (failed) std::rethrow_exception(failed);
            limit_.cancel();
            ask();
          } catch (error const& wrong) {
            if (wrong.code() == errc::refused_peer)
              client_->be_refused({{start_.rank, -1, -1, -1}, {}, wrong.code(), wrong.what()});
            put_off(wrong.what());
          } catch (std::exception const& wrong) {
            put_off(reason_of(wrong));
          }
        });
  }

  void put_off(std::string reason) {
    limit_.cancel();
    boost::system::error_code ignored;
    socket_.close(ignored);
    reason_ = is_late_ ? "no answer within " + seconds_text(attempt_limit) : std::move(reason);
    pause_.expires_after(next_pause());
    pause_.async_wait([this](boost::system::error_code const& failed) {
      if (!failed) reach();
    });
  }

  // Half of the interval is left to chance, so that ranks started at once do not call at once.
  [[nodiscard]] std::chrono::milliseconds next_pause() {
    auto const half = interval_ / 2;
    interval_ = std::min(interval_ * 2, longest_join_pause);
    return half + std::chrono::milliseconds(random_() % static_cast<unsigned>(half.count() + 1));
  }

  void ask() {
    join_request request;
    request.rank = start_.rank;
    request.ranks = start_.ranks;
    request.data = {host_to_tell(settings_), data_port_};
    has_asked_ = true;
    auto const most = most_frame(zbpp::detail::index(start_.ranks), settings_.largest_blob);
    auto to_rank_0 = std::make_shared<control_connection>(std::move(socket_), *client_, most);
    client_->use(std::move(to_rank_0), request, [this](std::string const& reason) {
      has_asked_ = false;
      put_off(reason);
    });
  }

  void give_up_attempt() {
    resolver_.cancel();
    limit_.cancel();
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  static constexpr std::chrono::milliseconds attempt_limit{5000};

  launch start_;
  rendezvous_settings settings_;
  run_token token_;
  std::uint16_t data_port_;
  client* client_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  net::steady_timer pause_;
  net::steady_timer limit_;
  std::vector<tcp::endpoint> places_;
  std::minstd_rand random_{std::random_device{}()};
  std::chrono::milliseconds interval_{10};
  int tries_ = 0;
  bool is_late_ = false;
  std::string reason_;
  bool has_asked_ = false;
  bool is_closed_ = false;
};

// What a `control` is made of: the client of every rank, its way to rank 0, the coordinator on rank
// 0, and the listener for data connections.

/// Connects a rank with rank 0, and accepts its data connections. Used on the I/O thread alone.
class control_parts {
 public:
  using connection_call = std::function<void(accepted_socket)>;

  /// Opens nothing yet.
  control_parts(io_loop& by, launch const& start, rendezvous_settings const& settings)
      : loop_(by), member_(by.io(), start.rank, settings), most_early_(2 * index_of(start.ranks)) {}
  control_parts(control_parts const&) = delete;
  control_parts& operator=(control_parts const&) = delete;
  ~control_parts() = default;

  /// Listens, and begins to join.
  /// @throws error (io_failed, bad_argument) as `listener`
  void open(launch const& start, rendezvous_settings const& settings, run_token const& token) {
    auto const address = bind_address(settings);
    data_listener_.emplace(
        loop_,
        token,
        [this](tcp::socket socket, link_purpose purpose) { accept(std::move(socket), purpose); },
        listener_settings{{address, 0}});
    auto const data_port = data_listener_->endpoint().port();
    if (start.rank != 0) {
      connector_ =
          std::make_unique<connector>(loop_.io(), start, settings, token, data_port, member_);
      return;
    }
    // Rank 0 talks to itself by way of the io_context, in the order in which frames are sent. Where
    // the coordinator cannot be made, the first of them may still be on their way.
    member_.use(
        [this](control_kind kind, blob payload) {
          post([this, kind, bytes = std::move(payload)] {
            if (coordinator_ != nullptr) coordinator_->receive(0, kind, bytes);
          });
        },
        [this](rank_call const& call) { coordinator_->begin_run(0, call); });
    coordinator_ = std::make_unique<coordinator>(
        loop_,
        start,
        settings,
        token,
        tcp::endpoint(address, start.port),
        data_port,
        [this](control_kind kind, control_connection::shared_bytes payload) {
          post([this, kind, bytes = std::move(payload)] { member_.receive(kind, *bytes); });
        });
  }

  /// Sets what takes data connections, and hands those on that have come already.
  void on_data_connection(connection_call call) {
    on_data_ = std::move(call);
    if (!on_data_) return;
    for (auto& socket : std::exchange(early_, {})) on_data_(std::move(socket));
  }

  [[nodiscard]] client& member() noexcept { return member_; }
  [[nodiscard]] client const& member() const noexcept { return member_; }
  /// @return the server of the control connections, on rank 0; null elsewhere
  [[nodiscard]] coordinator* rank_0() const noexcept { return coordinator_.get(); }
  /// @return what reaches rank 0; null there
  [[nodiscard]] connector const* way_to_rank_0() const noexcept { return connector_.get(); }
  [[nodiscard]] listener const& data_listener() const noexcept { return *data_listener_; }

  [[nodiscard]] bool is_joining() const noexcept { return member_.now() == client::state::joining; }
  [[nodiscard]] bool is_refused() const noexcept { return member_.now() == client::state::refused; }
  [[nodiscard]] bool is_over() const noexcept { return member_.now() == client::state::over; }
  [[nodiscard]] bool has_stopped() const noexcept {
    return member_.now() != client::state::running;
  }
  /// @return whether another end may still read what was sent last
  [[nodiscard]] bool is_connected() const noexcept {
    return coordinator_ != nullptr ? coordinator_->is_connected() : member_.is_connected();
  }
  /// @return whether this is rank 0 of a sound run, and has frames to write
  [[nodiscard]] bool is_sending() const noexcept {
    return coordinator_ != nullptr && !has_stopped() && coordinator_->is_behind();
  }

  /// Closes everything.
  void close() {
    if (data_listener_) data_listener_->stop();
    early_.clear();
    if (connector_ != nullptr) connector_->close();
    if (coordinator_ != nullptr) coordinator_->close();
    member_.close();
  }

 private:
  static std::size_t index_of(int ranks) noexcept { return zbpp::detail::index(ranks); }

  template <class Work>
  void post(Work work) {
    ::boost::asio::post(loop_.io(), [this, does = std::move(work)] {
      try {
        does();
      } catch (std::exception const& wrong) {
        member_.end_alone({0, -1, -1, -1}, reason_of(wrong));
      }
    });
  }

  void accept(tcp::socket socket, link_purpose purpose) {
    if (purpose != link_purpose::data) return;  // the socket closes
    if (on_data_) return on_data_(std::move(socket));
    if (early_.size() < most_early_) early_.push_back(std::move(socket));
  }

  io_loop& loop_;
  client member_;
  std::size_t most_early_;  // two connections per pair of ranks would be a lot already
  connection_call on_data_;
  std::vector<tcp::socket> early_;  // data connections that came before there was a call for them
  std::optional<listener> data_listener_;
  std::unique_ptr<coordinator> coordinator_;  // on rank 0
  std::unique_ptr<connector> connector_;      // elsewhere
};

}  // namespace zbpp::asio::detail
