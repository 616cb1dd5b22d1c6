// SPDX-License-Identifier: Apache-2.0
//
// Carries states of gradients between processes, for authors of backends: connections of their own,
// so that they never wait behind an activation, whatever carries those.
#pragma once

#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace zbpp {

class problem;

namespace asio {

class rendezvous;

namespace detail {

class run_transport;

}  // namespace detail

/// Moves the states of the rank of this process: a `state_link` for the transport of a backend with
/// one rank per process. The thread that runs the rank uses it.
///
/// A backend makes one for each program that `exchanges_states`, connects it in `connect`, gives it
/// as `states()` of its transport. While its rank waits it calls `poll`, or `flush`, and then
/// `report_needed` on the I/O thread.
class socket_states final : public state_link {
 public:
  /// @param program  what exchanges the states
  /// @param wake     notified when a state arrives or a connection is lost; outlives this
  /// @param ranks    which ranks of the run are those of the program
  socket_states(
      rendezvous& run,
      program const& program,
      problem const& problem,
      wakeup& wake,
      tcp_settings settings = {},
      pipeline_ranks const& ranks = {});
  socket_states(socket_states const&) = delete;
  socket_states& operator=(socket_states const&) = delete;
  ~socket_states() override;

  /// Connects the rank with those that it exchanges states with; a collective call. Blocks until
  /// they have come.
  /// @throws error, the failure of the run
  void connect();
  /// Closes all connections, once the run has failed and every rank knows why.
  void close();

  void send(int channel, std::span<std::byte const> state, ticks arrival) override;
  [[nodiscard]] ticks arrival(int channel) const noexcept override;
  void take(int channel, std::vector<std::byte>& state) override;
  [[nodiscard]] bool begin_step(int rank) override;
  void drain() override;

  /// Writes what was sent, as far as that does not block, and reports a needed connection as lost.
  /// @param awaited  `engine::blocked_by()`; none where the rank waits for no state
  void poll(int awaited);
  /// Writes what was sent, as far as possible without blocking.
  void flush();
  [[nodiscard]] bool is_flushed() const noexcept;
  /// Reports a lost connection, if something has not left by it, or a state is awaited there that
  /// has not arrived. Call only on the I/O thread.
  /// @param awaited  as for `poll`
  void report_needed(int awaited);

 private:
  arena memory_;
  std::unique_ptr<detail::run_transport> transport_;
};

}  // namespace asio
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/socket_states.ipp>
#endif
