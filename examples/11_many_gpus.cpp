// SPDX-License-Identifier: Apache-2.0
//
// One rank per GPU, all in this process, each on a stream that the program already has: what the
// program enqueues there runs before or after the step. Losses and parameters equal those of a
// plain loop on the host to the last bit.
#include "toy_chain.hpp"
#include <zbpp/cuda/device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace {

constexpr int microbatches = 8;

int run(int ranks) {
  // Copies wait without a multiprocessor, so they may begin a pass early.
  auto const plan =
      zbpp::make_plan(zbpp::zb_h1{}, toy::chain(ranks, microbatches), {.receive_ahead = 1});
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
  zbpp::pipeline pipe{plan, zbpp::cuda::device{.devices = devices}, stages};
  // many_gpus]

  toy::plain_loop plain(ranks);
  bool same = true;
  for (int step = 0; step < 5; ++step) {
    auto const evaluated = pipe.evaluate().losses;  // F alone, so nothing is trained
    auto const right = plain.step(microbatches);
    same = pipe.step().losses == right && evaluated == right && same;
    for (int s = 0; s < ranks; ++s)
      same = layers[static_cast<std::size_t>(s)].read() == plain.of(s) && same;
  }
  std::printf(
      "%d ranks on %d GPUs: %s\n", ranks, ranks, same ? "identical to the last bit" : "different");
  return same ? 0 : 1;
}

}  // namespace

int main() {
  int const devices = toy::devices();
  if (devices < 2) {
    std::puts(
        devices == 0 ? "no CUDA device here: nothing was run"
                     : "one CUDA device here, and this takes two: nothing was run");
    return 77;
  }
  try {
    return run(std::min(devices, 4));
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "11_many_gpus: %s\n", failed.what());
    return 1;
  }
}
