// SPDX-License-Identifier: Apache-2.0
//
// The ways to train, by where the ranks are. A program has one source for each: training.cpp,
// processes.cpp and mpi_processes.cpp, or one that stands in for some of them.
#pragma once

#include "options.hpp"

namespace gpt {

/// Trains on threads of this process.
/// @return the exit status
/// @throws setting_error, zbpp::error, std::runtime_error
[[nodiscard]] int train_on_threads(options const& o);

#ifdef GPT_HAS_ASIO

/// Trains as the rank that the launcher says this process is. What goes wrong is told on standard
/// error, on every rank.
/// @return the exit status
[[nodiscard]] int train_in_processes(options o);

#else

/// Refuses: the library was built without processes.
/// @throws setting_error
[[noreturn]] inline int train_in_processes(options const&) {
  throw setting_error(
      "--transport tcp: this program was built without zbpp::asio, which needs Boost 1.81 and "
      "OpenSSL 3.0 (Debian and Ubuntu: libboost1.81-dev, libssl-dev); configure again with them");
}

#endif
#ifdef GPT_HAS_MPI

/// As `train_in_processes`, as the rank that MPI says this process is.
/// @throws setting_error, zbpp::error where it cannot meet the others
[[nodiscard]] int train_over_mpi(options o);

#else

/// Refuses: the library was built without MPI.
/// @throws setting_error
[[noreturn]] inline int train_over_mpi(options const&) {
  throw setting_error(
      "--transport mpi: this program was built without zbpp::mpi, which needs zbpp::asio and Open "
      "MPI or MPICH (Debian and Ubuntu: openmpi-bin and libopenmpi-dev, or libmpich-dev); "
      "configure again with them");
}

#endif

}  // namespace gpt
