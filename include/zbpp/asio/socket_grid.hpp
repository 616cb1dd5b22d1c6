// SPDX-License-Identifier: Apache-2.0
//
// The groups of a rank of a grid over processes, for authors of backends: connections of their own
// between the members, whatever carries the messages of pipelines.
#pragma once

#include <zbpp/asio/settings.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/transport.hpp>

#include <memory>

namespace zbpp::asio {

class rendezvous;

/// Connects the rank of this process with the members of its groups: a `rank_grid` for the executor
/// of a backend with one rank per process.
///
/// Calls of groups do not depend on steps: they may be made in passes and between steps, by the
/// thread that runs the rank. While a call waits, its thread runs the sockets of the process. It
/// throws the failure of the run once there is one; between steps also where another member has
/// not come within `rendezvous_settings::collective_deadline`.
class socket_grid {
 public:
  /// @param layout  of the ranks of the run, the same on all of them
  /// @param wake    notified when something arrives or a connection is lost; outlives this
  socket_grid(
      rendezvous& run, grid_layout const& layout, wakeup& wake, tcp_settings const& settings = {});
  socket_grid(socket_grid const&) = delete;
  socket_grid& operator=(socket_grid const&) = delete;
  /// Closes all connections. Where the run has not failed, first waits until what was sent is in
  /// the kernel, at most `rendezvous_settings::deadline`, and for up to 250 ms until the others
  /// have read it.
  ~socket_grid();

  /// Connects the rank with the members of its groups; a collective call of the run. Blocks until
  /// they have come.
  /// @throws error, the failure of the run
  void connect();
  [[nodiscard]] rank_grid& grid() noexcept;
  /// Closes all connections, once the run has failed and every rank knows why.
  void close();

 private:
  struct parts;

  std::unique_ptr<parts> parts_;
};

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/socket_grid.ipp>
#endif
