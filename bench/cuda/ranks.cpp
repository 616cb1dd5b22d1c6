// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include <zbpp/cuda/error.hpp>

#include <cstdlib>

namespace zbpp::bench {

void run_as_rank(
    asio::rendezvous_settings const& settings,
    bool /*fails*/,
    std::function<void(asio::rendezvous&)> const& body) {
  auto const start = asio::find_launch();
  auto const local = start.local_rank < 0 ? start.rank : start.local_rank;
  int devices = 0;
  cuda::check(cudaGetDeviceCount(&devices));
  cuda::check(cudaSetDevice(local % devices));
  asio::rendezvous run(start, settings);
  body(run);
}

void end_process(asio::rendezvous&) { std::_Exit(9); }

}  // namespace zbpp::bench
