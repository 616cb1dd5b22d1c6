// SPDX-License-Identifier: Apache-2.0
//
// Training as one rank of several processes that zbpp connects by TCP.
#include "meeting.hpp"
#include "ranks_apart.hpp"
#include "training.hpp"
#include "ways.hpp"
#include <zbpp/asio/tcp.hpp>

#include <optional>

namespace gpt {

int train_in_processes(options o) {
  auto const start = find_launch("tcp", std::nullopt);
  o.ranks = ranks_of_pipeline(o, start);
  settle_ranks(o);
  return status_of("train_gpt", start.rank, [&] {
    auto meeting = meet(start, meeting_settings(o));
    ranks_apart<zbpp::asio::tcp, zbpp::asio::rendezvous> ranks(meeting, o);
    return take_part(meeting, [&] { return train(o, ranks); });
  });
}

}  // namespace gpt
