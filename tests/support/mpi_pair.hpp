// SPDX-License-Identifier: Apache-2.0
//
// Two ranks that send each other messages by MPI, both in this process.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/mpi/detail/channel_ends.hpp>
#include <zbpp/mpi/detail/transport.hpp>
#include <zbpp/mpi/rendezvous.hpp>

#include <support/both_ends.hpp>

#include <array>
#include <memory>
#include <vector>

namespace zbpp::test {

/// Is both ends of the transports of two ranks that MPI joins.
class mpi_pair : public both_ends<mpi::detail::transport> {
 public:
  static constexpr bool is_polled = true;

  mpi_pair(
      std::vector<channel> const& channels,
      bytes largest,
      mpi::detail::send_mode mode = mpi::detail::send_mode::plain,
      mpi::ranks_settings settings = {})
      : both_ends(channels) {
    for (int rank : {0, 1})
      set_end(
          rank,
          std::make_unique<mpi::detail::transport>(
              own_.get(),
              0,
              rank,
              std::array{0, 0},
              channels,
              std::vector<bytes>(channels.size(), largest),
              mode,
              settings));
  }

 private:
  mpi::detail::own_communicator own_{MPI_COMM_SELF};
};

}  // namespace zbpp::test
