// SPDX-License-Identifier: Apache-2.0
//
// One rank of a run of several processes, each with a GPU of its own, messages by NCCL; the
// launcher's variables say which rank (docs/launch.md). Losses and parameters equal those of a
// plain loop on the host to the last bit.
//
//   export ZBPP_TOKEN=$(openssl rand -hex 32)
//   for r in 0 1; do RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r ./12_gpu_processes & done; wait
#include "toy_chain.hpp"
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/nccl/ranks.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int microbatches = 8;

int run(zbpp::asio::launch const& start, int device) {
  // [one_process
  zbpp::asio::rendezvous meeting(start);
  auto const plan = zbpp::make_plan(
      zbpp::zb_h1{},
      toy::chain(meeting.ranks(), microbatches),
      {.layout = zbpp::channel_layout::one_per_rank});  // safe with any number of hardware queues

  toy::layer const own(meeting.rank(), device);  // of this rank; the others have theirs
  std::vector<toy::chain_stage> stages{toy::chain_stage(own)};
  zbpp::nccl::ranks_settings settings;
  settings.device = zbpp::cuda::rank_device{.device = device};
  zbpp::pipeline pipe{plan, zbpp::nccl::ranks(meeting, settings), stages};
  // one_process]

  toy::plain_loop plain(meeting.ranks());
  bool same = true;
  for (int step = 0; step < 5; ++step) {
    auto const losses = pipe.step().losses;  // numbers where the last stage is
    auto const right = plain.step(microbatches);
    if (meeting.rank() + 1 == meeting.ranks()) same = same && losses == right;
    same = same && own.read() == plain.of(meeting.rank());
  }
  std::printf("rank %d: %s\n", meeting.rank(), same ? "identical to the last bit" : "different");
  return same ? 0 : 1;
}

}  // namespace

int main() {
  try {
    int const devices = toy::devices();
    if (devices == 0) {
      std::puts("no CUDA device here: nothing was run");
      return 77;
    }
    auto const start = zbpp::asio::find_launch();
    int const local = start.local_rank < 0 ? start.rank : start.local_rank;
    // Two ranks on one GPU have to pose as two machines, or NCCL refuses them (docs/cuda.md).
    if (start.ranks > devices && std::getenv("NCCL_HOSTID") == nullptr) {
      std::printf("%d ranks and %d CUDA devices: nothing was run\n", start.ranks, devices);
      return 77;
    }
    return run(start, local % devices);
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "12_gpu_processes: %s\n", failed.what());
    return 1;
  }
}
