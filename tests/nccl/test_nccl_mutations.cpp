// SPDX-License-Identifier: Apache-2.0
//
// What a step over NCCL issues is there for a reason: leave out any wait, record, send or receive,
// and the model finds a race, a wrong message, a deadlock, or a step that returns too early.
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/needless_calls.hpp>
#include <support/padded_toy.hpp>
#include <support/plan_grid.hpp>
#include <support/thinned.hpp>
#include <support/toy_history.hpp>
#include <support/toy_reference.hpp>

#include <cstddef>
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

// What the second of two steps gives in one process.
toy::model gradients_of(plan const& planned) {
  toy::fused_passes const is_fused(planned);
  auto all = toy::make_model(planned.problem().stages());
  for (int step : {0, 1}) {
    toy::clear_gradients(all);
    static_cast<void>(toy::reference_step(all, step, planned.problem().microbatches(), is_fused));
  }
  return all;
}

bool has_gradients(toy::model const& all, toy::model const& expected) {
  for (std::size_t s = 0; s < all.size(); ++s)
    for (std::size_t k = 0; k < all[s].layers.size(); ++k)
      if (!toy::is_same(all[s].layers[k].gradient, expected[s].layers[k].gradient)) return false;
  return true;
}

// Runs two steps; leaves out one call of the second. With `asked`, threads of NCCL launch late, and
// it is how often the second step asks whether they have. @return whether nothing was found
bool is_clean(
    plan const& planned,
    std::string_view function,
    std::uint64_t index,
    toy::model const& expected,
    std::uint64_t* asked = nullptr) {
  model::reset(
      {.seed = 9, .devices = planned.problem().ranks(), .late_launches = asked != nullptr});
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
    if (asked != nullptr) *asked = model::count("ncclCommGetAsyncError");
    // Where a message never came there is an earlier one, in the same memory.
    if (!has_gradients(all, expected)) return false;
  } catch (zbpp::error const&) {
    return false;
  }
  return model::faults().empty();
}

void check_all(std::string const& name, plan const& planned) {
  INFO(name);
  auto const expected = gradients_of(planned);
  auto const needless = needless_calls(
      {"cudaStreamWaitEvent", "cudaEventRecord", "ncclSend", "ncclRecv"},
      [&](std::string_view function, std::uint64_t i) {
        return is_clean(planned, function, i, expected);
      });
  CHECK(needless == "");
}

}  // namespace

TEST_CASE("no call of a step over NCCL can be left out", "[nccl][long]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(problem(placement, 4, launched_costs(), 87), {.fused = false}, check_all);
}

TEST_CASE("nor can one where receives are opened early, over NCCL", "[nccl][long]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(placement, 4, launched_costs(), 87),
        {.fused = false, .receive_ahead = 2},
        check_all);
}

// Of calls that ask whether a communicator is ready, which says so when it is left out.
TEST_CASE("nor can a wait for a launch that a thread of NCCL makes", "[nccl]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(placement, 2, launched_costs(), 87),
        {.fused = false},
        [](std::string const& name, plan const& planned) {
          INFO(name);
          auto const expected = gradients_of(planned);
          std::uint64_t asked = 0;
          REQUIRE(is_clean(planned, "", 0, expected, &asked));
          CHECK(asked > 1);
          for (std::uint64_t i = 0, last = asked; i < last; i += thinned(1U, 7U)) {
            INFO(i);
            CHECK_FALSE(is_clean(planned, "ncclCommGetAsyncError", i, expected, &asked));
          }
        });
}

}  // namespace test_nccl_mutations
