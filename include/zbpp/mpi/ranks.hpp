// SPDX-License-Identifier: Apache-2.0
//
// A backend for runs that `mpirun` or `srun` started, one rank in each process: passes run on the
// calling thread, messages travel by MPI, and what fails in one process ends the step in all.
#pragma once

#include <zbpp/asio/process_executor.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/mpi/detail/transport.hpp>
#include <zbpp/mpi/rendezvous.hpp>
#include <zbpp/mpi/settings.hpp>
#include <zbpp/runtime/backend.hpp>

#include <chrono>
#include <memory>

namespace zbpp::mpi {

/// Runs the rank of this process; each of the others runs its own.
///
/// All ranks make their pipelines, and take their steps, in the same order. A failure on one rank
/// ends the step on every rank, as with `asio::tcp`; then MPI_Finalize calls MPI_Abort.
class ranks : public asio::process_backend {
 public:
  using transport_type = detail::transport;
  using executor = asio::process_executor<ranks>;

  /// Takes part in a run, which must outlive the pipeline.
  explicit ranks(rendezvous& run, ranks_settings settings = {});
  /// Takes part in a run that is a grid, each of whose pipelines has the ranks of a plan, as
  /// `asio::tcp`. Calls of groups go by TCP.
  ranks(rendezvous& run, grid_layout layout, ranks_settings settings = {});

  /// Refuses settings out of range, and an MPI that gives its threads less than they need.
  /// @throws error (bad_argument)
  void check() const;
  [[nodiscard]] std::chrono::microseconds poll_interval() const noexcept {
    return settings_.progress_thread ? settings_.progress_interval : std::chrono::microseconds(0);
  }
  /// @return what carries the messages of this rank; MPI connects by itself
  [[nodiscard]] std::unique_ptr<detail::transport> make_transport(
      asio::rank_program const& of) const;

 private:
  rendezvous* meeting_;
  ranks_settings settings_;
};

}  // namespace zbpp::mpi

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/mpi/impl/ranks.ipp>
#else
#include <zbpp/runtime/detail/backend_link.hpp>

extern template class zbpp::detail::backend_of<zbpp::mpi::ranks>;
#endif
