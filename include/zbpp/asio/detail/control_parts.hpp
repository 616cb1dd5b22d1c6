// SPDX-License-Identifier: Apache-2.0
//
// What a `control` is made of: the client of every rank, its way to rank 0, the coordinator on rank
// 0, and the listener for data connections.
#pragma once

#include <zbpp/asio/detail/boost_asio_fwd.hpp>
#include <zbpp/asio/detail/checked_settings.hpp>
#include <zbpp/asio/detail/client.hpp>
#include <zbpp/asio/detail/connector.hpp>
#include <zbpp/asio/detail/control_connection.hpp>
#include <zbpp/asio/detail/control_message.hpp>
#include <zbpp/asio/detail/coordinator.hpp>
#include <zbpp/asio/detail/handshake.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/detail/reason.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

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
    auto const where = bind_address(settings);
    data_listener_.emplace(
        loop_,
        token,
        [this](tcp::socket socket, link_purpose what) { accept(std::move(socket), what); },
        listener_settings{{where, 0}});
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
        tcp::endpoint(where, start.port),
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

  /// @return this rank's side of the run
  [[nodiscard]] client& member() noexcept { return member_; }
  [[nodiscard]] client const& member() const noexcept { return member_; }
  /// @return the server of the control connections, on rank 0; null elsewhere
  [[nodiscard]] coordinator* rank_0() const noexcept { return coordinator_.get(); }
  /// @return what reaches rank 0; null there
  [[nodiscard]] connector const* way_to_rank_0() const noexcept { return connector_.get(); }
  /// @return what accepts data connections, once this is open
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

  void accept(tcp::socket socket, link_purpose what) {
    if (what != link_purpose::data) return;  // the socket closes
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
