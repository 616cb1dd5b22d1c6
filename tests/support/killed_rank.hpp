// SPDX-License-Identifier: Apache-2.0
//
// A rank that ends as by a kill of its process, where ranks are threads of one process: the system
// closes its connection, nothing of what its device was given runs any more, and neither its
// threads nor its destructors do anything while other ranks are there.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/rendezvous.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/sockets_of_process.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <arpa/inet.h>
#include <cstdint>
#include <future>
#include <latch>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <sys/socket.h>

namespace zbpp::test {

/// Is what a killed rank throws once the others have ended.
struct killed {};

/// Ends one of the ranks of a run. Ranks call rank 0 at addresses that differ, by which their
/// connections are known.
class rank_killer {
 public:
  explicit rank_killer(int ranks) : ended_(ranks) {}

  /// @return settings of the run with which its ranks may call at any address of this machine
  [[nodiscard]] static asio::rendezvous_settings settings_of(asio::rendezvous_settings settings) {
    settings.bind = "0.0.0.0";
    return settings;
  }
  /// @return for `run_ranks`
  [[nodiscard]] static std::string host_of(int rank) {
    return "127.0.0." + std::to_string(first + rank);
  }

  /// Breaks the connections of this rank, which lives on.
  static void cut_off(asio::rendezvous& run) { break_connections_of(run.rank()); }
  /// Ends this rank, on its own thread, of which the model of CUDA knows by `host`.
  /// @param device  of the rank; none: what it was given runs on, as it may for a while
  /// @throws killed, when the other ranks have ended
  [[noreturn]] void kill(
      asio::rendezvous& run,
      std::optional<int> device,
      std::unique_ptr<cuda_model::host_thread>& host) {
    note_end();
    std::promise<void> is_held;  // what runs its sockets, so that it does not learn of their end
    boost::asio::post(run.control_channel().loop().io(), [&] {
      is_held.set_value();
      ended_.wait();
    });
    is_held.get_future().wait();
    if (device) cuda_model::stop_device(*device);
    host.reset();
    break_connections_of(run.rank());
    ended_.wait();
    host = std::make_unique<cuda_model::host_thread>();
    throw killed();
  }
  /// Notes that a rank has ended, which was not killed.
  void note_end() { ended_.count_down(); }

 private:
  static constexpr int first = 20;  // of the addresses

  // Which rank is meant by an address; below 0 for none.
  static int rank_at(sockaddr_storage const& end) {
    if (end.ss_family != AF_INET) return -1;
    auto const address = ntohl(reinterpret_cast<sockaddr_in const&>(end).sin_addr.s_addr);
    return static_cast<int>(address - (std::uint32_t{127} << 24U)) - first;
  }
  // The ends that are its own: those that called, or on rank 0 those that were called.
  static void break_connections_of(int rank) {
    for_sockets([=](int s, sockaddr_storage const& here, sockaddr_storage const& there) {
      if (rank == 0 ? rank_at(here) > 0 : rank_at(there) == rank) break_connection(s);
    });
  }

  std::latch ended_;
};

}  // namespace zbpp::test
