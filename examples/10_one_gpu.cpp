// SPDX-License-Identifier: Apache-2.0
//
// Three ranks on one GPU: each on its own third of the multiprocessors, where the driver can cut
// the GPU, else side by side. Losses and parameters equal those of a plain loop on the host to the
// last bit.
#include "toy_chain.hpp"
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/partition.hpp>

#include <cstdio>
#include <optional>
#include <vector>

namespace {

constexpr int ranks = 3;
constexpr int microbatches = 8;

int run() {
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, toy::chain(ranks, microbatches));
  std::vector<toy::layer> layers;
  for (int s = 0; s < ranks; ++s) layers.emplace_back(s);
  std::vector<toy::chain_stage> stages(layers.begin(), layers.end());

  // [one_gpu
  std::optional<zbpp::cuda::partition> parts;  // outlives the pipeline, which uses its streams
  zbpp::cuda::device backend;                  // without devices: all ranks on the current device
  try {
    parts.emplace(0, ranks);
    backend.devices = parts->devices();
  } catch (zbpp::error const& cannot) {
    std::printf("the GPU stays whole: %s\n", cannot.what());
  }
  if (auto const shortage = zbpp::cuda::queue_shortage(plan, backend.devices); !shortage.empty())
    std::printf("%s\n", shortage.c_str());
  zbpp::pipeline pipe{plan, backend, stages};
  // one_gpu]

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
      "%d ranks on one GPU, %d multiprocessors each: %s\n",
      ranks,
      parts ? parts->sm_count(0) : 0,
      same ? "identical to the last bit" : "different");
  return same ? 0 : 1;
}

}  // namespace

int main() {
  if (toy::devices() == 0) {
    std::puts("no CUDA device here: nothing was run");
    return 77;
  }
  try {
    return run();
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "10_one_gpu: %s\n", failed.what());
    return 1;
  }
}
