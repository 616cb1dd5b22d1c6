// SPDX-License-Identifier: Apache-2.0
//
// Whatever a GPU runs first of what it may, losses, gradients and weights are those of one process:
// every policy, on interleavings of the model of CUDA, which finds races and deadlocks besides.
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/plan_grid.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <cstdint>
#include <map>
#include <string>

namespace test_cuda_interleavings {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
using zbpp::plan;
using zbpp::problem;

TEST_CASE("every policy gives the bits of one process on a GPU, whatever runs first", "[cuda]") {
  // At least 200 interleavings of every policy, spread over its shapes; under sanitizers 10.
  std::map<std::string, int> tried;
  std::uint64_t seed = 0;
  for (int p : thinned<std::vector<int>>({1, 2, 3, 4, 6, 8}, {1, 2, 3, 6}))
    for (auto const& where : placements_to_run(p))
      for (int m : thinned<std::vector<int>>({1, p, 2 * p + 1, 16}, {1, 2 * p + 1}))
        for_each_plan_of(
            problem(where, m, launched_costs(), 87),
            {},
            [&](std::string const& name, plan const& planned) {
              INFO(name);
              auto const expected = toy::in_single_precision(toy::train_reference(planned));
              int const interleavings = p <= 3 ? thinned(20, 3) : thinned(3, 1);
              for (int i = 0; i < interleavings; ++i) {
                check_training(planned, expected, {.seed = ++seed});
                ++tried[planned.policy()];
              }
            });
  for (auto const& [policy, count] : tried) {
    INFO(policy << " was tried " << count << " times");
    CHECK(count >= thinned(200, 10));
  }
}

TEST_CASE("early receives, several devices and small queues change no bit", "[cuda]") {
  auto const seed = run_seed();
  std::uint64_t n = seed;
  for (int p : thinned<std::vector<int>>({2, 4}, {3}))
    for (int receive_ahead : thinned<std::vector<int>>({0, 1, 2}, {0, 2}))
      for (auto const& where : placements_to_run(p))
        for_each_plan_of(
            problem(where, 2 * p, launched_costs(), 87),
            {.receive_ahead = receive_ahead},
            [&](std::string const& name, plan const& planned) {
              INFO(name << ", receives " << receive_ahead << " ahead");
              auto const expected = toy::in_single_precision(toy::train_reference(planned));
              check_training(planned, expected, {.seed = ++n, .order = model::mode::eager});
              check_training(planned, expected, {.seed = ++n, .order = model::mode::lazy});
              check_training(planned, expected, {.seed = ++n, .connections = 1});
              check_training(planned, expected, {.seed = ++n, .connections = 3});
              int const queues = n % 2 == 0 ? 1 : 32;
              check_training(
                  planned, expected, {.seed = ++n, .connections = queues, .launch_depth = 2});
              check_training(planned, expected, {.seed = ++n}, {.run_ahead = 1});
              check_training(planned, expected, {.seed = ++n}, {.run_ahead = 3});
              check_training(planned, expected, {.seed = ++n}, {.synchronizes = true});
              check_training(planned, expected, {.seed = ++n}, {.traces = true});
            });
}

}  // namespace test_cuda_interleavings
