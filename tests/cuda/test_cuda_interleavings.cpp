// SPDX-License-Identifier: Apache-2.0
//
// Whatever a GPU runs first of what it may, losses, gradients and weights are those of one process:
// every policy, on interleavings of the model of CUDA, which finds races and deadlocks besides.
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/same_bits.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace test_cuda_interleavings {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;

TEST_CASE("every policy gives the bits of one process on a GPU, whatever runs first", "[cuda]") {
  // At least 200 interleavings of every policy, spread over its shapes; under sanitizers 10.
  runs_of_policies tried;
  auto const run = [&](std::vector<int> ranks, int times) {
    auto const microbatches = [](int p) {
      // STP needs 3p - 1, which is more than any other does.
      return thinned<std::vector<int>>({1, p, 3 * p - 1, std::max(16, 3 * p)}, {1, 3 * p - 1});
    };
    for (auto const& [policy, count] : same_bits(
             device_reference,
             {on_gpu("a GPU", {}, {}, times)},
             {{.name = "every policy", .ranks = std::move(ranks), .microbatches = microbatches}}))
      tried[policy] += count;
  };
  run({1, 2, 3}, thinned(24, 4));
  run(thinned<std::vector<int>>({4, 6, 8}, {6}), thinned(3, 1));
  for (auto const& [policy, count] : tried) {
    INFO(policy << " was tried " << count << " times");
    CHECK(count >= thinned(200, 10));
  }
}

TEST_CASE("early receives, several devices and small queues change no bit", "[cuda][long]") {
  std::vector<variation> rows;
  for (int ahead : thinned<std::vector<int>>({0, 1, 2}, {0, 2}))
    rows.push_back(
        {.name = "receives " + std::to_string(ahead) + " ahead",
         .ranks = thinned<std::vector<int>>({2, 4}, {3}),
         .microbatches = times(2),
         .plans = {.receive_ahead = ahead}});
  same_bits(
      device_reference,
      {on_gpu("eager", {.order = model::mode::eager}),
       on_gpu("lazy", {.order = model::mode::lazy}),
       on_gpu("one queue", {.connections = 1}),
       on_gpu("three queues", {.connections = 3}),
       on_gpu("a short queue", {.connections = 1, .launch_depth = 2}),
       on_gpu("short queues", {.connections = 32, .launch_depth = 2}),
       on_gpu("one pass ahead", {}, {.run_ahead = 1}),
       on_gpu("three passes ahead", {}, {.run_ahead = 3}),
       on_gpu("a wait after each pass", {}, {.synchronizes = true}),
       on_gpu("traces", {}, {.traces = true})},
      rows);
}

}  // namespace test_cuda_interleavings
