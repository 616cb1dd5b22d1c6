// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a test meet by MPI.
#pragma once

#include <zbpp/mpi/rendezvous.hpp>

#include <chrono>
#include <mpi.h>

namespace zbpp::test {

/// Meets the other ranks of a communicator; patient enough for a busy machine.
[[nodiscard]] inline mpi::rendezvous meet(MPI_Comm among = MPI_COMM_WORLD) {
  asio::rendezvous_settings settings;
  settings.collective_deadline = std::chrono::seconds(60);
  settings.deadline = std::chrono::seconds(30);
  return mpi::rendezvous(among, settings);
}

}  // namespace zbpp::test
