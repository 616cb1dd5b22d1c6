// SPDX-License-Identifier: Apache-2.0
//
// One rank of several processes that NCCL connects; docs/launch.md says how they are started.
#include "processes.hpp"

#include "ranks_apart.hpp"
#include "train.hpp"

#include <chrono>
#include <optional>

namespace gpt::cuda {

int train_in_processes(options o) {
  auto const start = find_launch("nccl", o.names_ranks ? std::optional(o.ranks) : std::nullopt);
  o.ranks = start.ranks;
  check_ranks(o);
  zbpp::asio::rendezvous_settings settings;
  settings.bind = o.bind;
  settings.advertise = o.advertise;
  // References may take longer on one rank than on others; who dies meanwhile is noticed all the
  // same.
  settings.collective_deadline = std::chrono::hours(1000);
  return status_of("train_gpt_cuda", start.rank, [&] {
    auto meeting = meet(start, settings);
    return take_part(meeting, [&] {
      auto const on = read(o);
      ranks_apart ranks(meeting, o, on);
      return train(o, on, ranks);
    });
  });
}

}  // namespace gpt::cuda
