// SPDX-License-Identifier: Apache-2.0
//
// Whether passes find a multiprocessor while messages wait. A communicator runs one kernel at a
// time, so a rank's messages hold at most `most_ctas` for each of its communicators; one more, and
// nothing is left that could end the wait.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/nccl/detail/communicator_map.hpp>

#include <string>

namespace zbpp::nccl::detail {

/// Refuses settings with which waiting messages can hold all multiprocessors of a rank.
/// @param made      those of the run
/// @param sm_count  those that its passes have
/// @throws error (bad_argument)
inline void check_multiprocessors(
    communicator_map const& made, int rank, int most_ctas, int sm_count) {
  auto const communicators = made.count_of(rank);
  auto const most = communicators == 0 ? most_ctas : (sm_count - 1) / communicators;
  if (most_ctas <= most) return;
  auto const cure = most > 0
                        ? "set ranks_settings::most_ctas to " + std::to_string(most) + " or less"
                        : "give them more than " + std::to_string(communicators);
  throw error(
      errc::bad_argument,
      "messages may hold " + std::to_string(most_ctas) + " multiprocessors for each of " +
          std::to_string(communicators) +
          " communicators while they wait, and the passes of rank " + std::to_string(rank) +
          " have " + std::to_string(sm_count) + " in all; " + cure,
      {.rank = rank});
}

}  // namespace zbpp::nccl::detail
