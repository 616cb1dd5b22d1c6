// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of a run meet that `mpirun` or `srun` started: those of a communicator of MPI,
// without a token, an address or a port.
#pragma once

#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>

#include <mpi.h>

namespace zbpp::mpi {

class rendezvous;

namespace detail {

struct at_finalize;
/// Holds a duplicate of a communicator, so that no message of the user's can be taken for one of
/// zbpp's. Calls for it return their errors.
class own_communicator {
 public:
  /// Initializes MPI for all threads, unless the program has done so.
  /// @throws error (bad_argument) when MPI is finalized; (io_failed) when MPI refuses
  explicit own_communicator(MPI_Comm among);
  own_communicator(own_communicator const&) = delete;
  own_communicator& operator=(own_communicator const&) = delete;
  ~own_communicator();

  [[nodiscard]] MPI_Comm get() const noexcept { return own_; }

 private:
  MPI_Comm own_ = MPI_COMM_NULL;
};

}  // namespace detail

/// Holds a process's place among the ranks of a communicator. It is an `asio::rendezvous`, so
/// whatever takes one takes this: collective calls, agreements, failures and heartbeats go by TCP
/// as there, and messages of pipelines by MPI (`mpi::ranks`).
///
/// It initializes MPI, for all threads, where the program has not, and then also finalizes it when
/// the program exits. Destroy it before a call of MPI_Finalize of your own. Where the run has
/// failed, MPI_Finalize waits up to a second for all ranks to come there, then ends with MPI_Abort,
/// so that `mpirun` gives a status other than 0. One that is alive then, as when a pass calls
/// `std::exit`, leaves the run there; in a step that is the failure of the run.
class rendezvous : private detail::own_communicator, public asio::rendezvous {
 public:
  /// Meets the other ranks of a communicator; a collective call of MPI. Ranks on one machine meet
  /// at its loopback address; else rank 0 listens on all addresses, and others come to its
  /// MPI_Get_processor_name, unless the settings say where to listen and what to advertise.
  /// @throws error (no_rendezvous, io_failed, bad_argument) as `asio::rendezvous`;
  ///         (bad_argument) when MPI is finalized; (io_failed) when MPI refuses
  explicit rendezvous(MPI_Comm among = MPI_COMM_WORLD, asio::rendezvous_settings settings = {});
  rendezvous(rendezvous const&) = delete;
  rendezvous& operator=(rendezvous const&) = delete;
  ~rendezvous();

  /// @return the communicator of zbpp's own, with the ranks of the user's
  [[nodiscard]] MPI_Comm communicator() const noexcept { return get(); }
  /// Takes tags for a transport; all ranks make theirs in the same order. @return the first
  /// @throws error (bad_argument) when all tags are in use
  [[nodiscard]] int take_tags(int count);

 private:
  detail::at_finalize* ending_;
  int next_tag_ = 0;
};

}  // namespace zbpp::mpi

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/mpi/impl/rendezvous.ipp>
#endif
