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

bool run(int) {
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, toy::chain(ranks, 8));
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

  std::printf(
      "%d ranks on one GPU, %d multiprocessors each: ", ranks, parts ? parts->sm_count(0) : 0);
  return toy::trains_as_plain_loop(pipe, layers);
}

}  // namespace

int main() { return toy::run_on_gpus("10_one_gpu", 1, run); }
