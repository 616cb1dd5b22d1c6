// SPDX-License-Identifier: Apache-2.0
//
// One rank per GPU, all in this process, each on a stream that the program already has: what the
// program enqueues there runs before or after the step. Losses and parameters equal those of a
// plain loop on the host to the last bit.
#include "toy_chain.hpp"
#include <zbpp/cuda/device.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace {

bool run(int devices_here) {
  int const ranks = std::min(devices_here, 4);
  // Copies wait without a multiprocessor, so they may begin a pass early.
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, toy::chain(ranks, 8), {.receive_ahead = 1});
  std::vector<toy::layer> layers;
  for (int s = 0; s < ranks; ++s) layers.emplace_back(s, s);
  std::vector<toy::chain_stage> stages(layers.begin(), layers.end());

  // [many_gpus
  auto devices = zbpp::cuda::one_device_per_rank(ranks);
  std::vector<zbpp::cuda::stream> own;  // of the program; any cudaStream_t that does not block
  for (auto& device : devices) {
    zbpp::cuda::device_guard const here(device.device);
    device.compute = own.emplace_back(zbpp::cuda::stream_priority::usual).view();
  }
  zbpp::cuda::device backend{.devices = devices};
  backend.on_fallback = [](std::string const& line) { std::printf("%s\n", line.c_str()); };
  zbpp::pipeline pipe{plan, backend, stages};
  // many_gpus]

  std::printf("%d ranks on %d GPUs: ", ranks, ranks);
  return toy::trains_as_plain_loop(pipe, layers);
}

}  // namespace

int main() { return toy::run_on_gpus("11_many_gpus", 2, run); }
