// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank of several processes whose messages travel by MPI.
#include "meeting.hpp"
#include "ranks_apart.hpp"
#include "training.hpp"
#include "ways.hpp"
#include <zbpp/mpi/ranks.hpp>

#include <mpi.h>

namespace gpt {
namespace {

zbpp::mpi::rendezvous meet_by_mpi(zbpp::asio::rendezvous_settings const& settings) {
  try {
    return zbpp::mpi::rendezvous(MPI_COMM_WORLD, settings);
  } catch (zbpp::error const& wrong) {
    if (wrong.code() == zbpp::errc::bad_argument) throw setting_error(wrong.what());
    throw;
  }
}

}  // namespace

int train_over_mpi(options o) {
  auto meeting = meet_by_mpi(meeting_settings(o));
  return status_of("train_gpt", meeting.rank(), [&] {
    auto const& start = meeting.control_channel().start();
    o.ranks = ranks_of_pipeline(o, start);
    settle_ranks(o);
    ranks_apart<zbpp::mpi::ranks, zbpp::mpi::rendezvous> ranks(meeting, o);
    return take_part(meeting, [&] { return train(o, ranks); });
  });
}

}  // namespace gpt
