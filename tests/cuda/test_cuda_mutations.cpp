// SPDX-License-Identifier: Apache-2.0
//
// Every wait and every record that a step on GPUs issues is there for a reason: leave out any one
// of them, and the model of CUDA finds a race, a wrong bit, or a step that returns too early.
#include <zbpp/cuda/device.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_toy.hpp>
#include <support/cuda_training.hpp>
#include <support/needless_calls.hpp>
#include <support/plan_grid.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace test_cuda_mutations {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;

namespace {

// Runs two steps; leaves out one call of the second. @return whether nothing was found
bool is_clean(plan const& planned, int devices, std::string_view function, std::uint64_t index) {
  model::reset({.seed = 9, .devices = devices, .hosts = devices});
  auto all = toy::make_model(planned.problem().stages());
  using passes = toy::launched_passes_with_scratch;
  std::vector<passes> objects(all.begin(), all.end());
  std::vector<zbpp::as_flow<passes>> stages(objects.begin(), objects.end());
  {
    cuda::device backend{.edges = toy::edge_shapes(planned.problem())};
    if (devices > 1) backend.devices = cuda::one_device_per_rank(devices);
    pipeline pipe{planned, backend, stages};
    // Memory is used for the second time from the second step on at the latest.
    pipe.step();
    toy::clear_gradients(all);
    model::start_counting();
    if (!function.empty()) model::skip(function, index);
    pipe.step();
  }
  // Whoever destroys what the host has not waited for is told, too.
  return model::faults().empty();
}

void check_all(std::string const& name, plan const& planned, int devices = 1) {
  INFO(name << " on " << devices << " devices");
  auto const needless = needless_calls(
      {"cudaStreamWaitEvent", "cudaEventRecord"}, [&](std::string_view function, std::uint64_t i) {
        return is_clean(planned, devices, function, i);
      });
  CHECK(needless == "");
}

}  // namespace

TEST_CASE("no wait and no record of a step on GPUs can be left out", "[cuda]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(placement, 5, launched_costs(), 87),
        {.fused = false},
        [](std::string const& name, plan const& planned) { check_all(name, planned); });
}

TEST_CASE("nor can one where receives are opened early", "[cuda]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(placement, 4, launched_costs(), 87),
        {.fused = false, .receive_ahead = 2},
        [](std::string const& name, plan const& planned) { check_all(name, planned); });
}

TEST_CASE("nor can one between GPUs, where messages are copied", "[cuda][long]") {
  for (int ahead : {0, 2})
    for (auto const& placement : placements_to_run(2))
      for_each_plan_of(
          problem(placement, 3, launched_costs(), 87),
          {.fused = false, .receive_ahead = ahead},
          [](std::string const& name, plan const& planned) { check_all(name, planned, 2); });
}

}  // namespace test_cuda_mutations
