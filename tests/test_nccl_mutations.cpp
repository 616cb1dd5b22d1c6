// SPDX-License-Identifier: Apache-2.0
//
// What a step over NCCL issues is there for a reason: leave out any wait, record, send or receive,
// and the model finds a race, a wrong message, a deadlock, or a step that returns too early.
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/cuda_model/cuda_model.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/needless_calls.hpp>
#include <support/padded_toy.hpp>
#include <support/plan_grid.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_nccl_mutations {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
using zbpp::plan;
using zbpp::problem;

namespace {

using passes = toy::padded_passes<toy::launched_passes_with_scratch>;

// Runs two steps; leaves out one call of the second. @return whether nothing was found
bool is_clean(plan const& planned, std::string_view function, std::uint64_t index) {
  model::reset({.seed = 9, .devices = planned.problem().ranks()});
  auto all = toy::make_model(planned.problem().stages());
  std::vector<passes> objects(all.begin(), all.end());
  std::vector<zbpp::as_flow<passes>> stages(objects.begin(), objects.end());
  nccl_in_one_process backend;
  backend.edges = toy::edge_shapes(planned.problem());
  try {
    zbpp::pipeline pipe{planned, std::move(backend), stages};
    pipe.step();
    toy::clear_gradients(all);
    model::start_counting();
    if (!function.empty()) model::skip(function, index);
    pipe.step();
  } catch (zbpp::error const&) {
    return false;
  }
  return model::faults().empty();
}

void check_all(std::string const& name, plan const& planned) {
  INFO(name);
  auto const needless = needless_calls(
      {"cudaStreamWaitEvent", "cudaEventRecord", "ncclSend", "ncclRecv"},
      [&](std::string_view function, std::uint64_t i) { return is_clean(planned, function, i); });
  CHECK(needless == "");
}

}  // namespace

TEST_CASE("no call of a step over NCCL can be left out", "[nccl]") {
  for (auto const& where : placements_to_run(3))
    for_each_plan_of(problem(where, 4, launched_costs(), 87), {.fused = false}, check_all);
}

TEST_CASE("nor can one where receives are opened early, over NCCL", "[nccl]") {
  for (auto const& where : placements_to_run(3))
    for_each_plan_of(
        problem(where, 4, launched_costs(), 87), {.fused = false, .receive_ahead = 2}, check_all);
}

}  // namespace test_nccl_mutations
