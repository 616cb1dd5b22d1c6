// SPDX-License-Identifier: Apache-2.0
//
// Programs whose messages travel by NCCL on few hardware queues: those that are said to be safe
// run, however streams are mapped to the queues, and all others deadlock in one queue.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/nccl/device_needs.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/environment_variable.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/padded_toy.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace test_nccl_queues {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::channel_layout;
using zbpp::errc;
using zbpp::lower;
using zbpp::placement;
using zbpp::plan;
using zbpp::problem;
using zbpp::traffic;

namespace {

// Takes a step and evaluates, on a GPU for each rank.
void run(plan const& planned, channel_layout layout) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<toy::padded_stage> stages(all.begin(), all.end());
  nccl_in_one_process backend;
  backend.layout = layout;
  backend.edges = toy::edge_shapes(planned.problem());
  zbpp::pipeline pipe{planned, std::move(backend), stages};
  pipe.step();
  pipe.evaluate();
}

struct counts {
  int one_queue = 0;
  int queue_for_each = 0;
  int refused = 0;
};

// Runs a plan with all numbers of queues, and what it is refused with, in one queue.
void check(plan const& planned, channel_layout layout, std::uint64_t& seed, counts& found) {
  using enum model::queue_mapping;
  auto const needed = nccl::hardware_queues(planned.program(), layout);
  bool const is_safe_in_one = needed.reason.empty();
  INFO(to_string(layout) << (is_safe_in_one ? ", any queues" : ", a queue for each stream"));
  bool stands_still = false;
  for (int queues : {1, 3, 8, 32}) {
    bool const is_accepted = queues >= needed.most();
    std::vector<model::queue_mapping> mappings{one};
    if (is_safe_in_one)
      mappings = {in_turn, random, one};
    else if (is_accepted)
      mappings = {in_turn};  // so that each stream has its own
    else if (stands_still)
      continue;  // in one queue it does not matter how many others there are
    // One mapping for each number, and another one the next time.
    auto const mapping = mappings[static_cast<std::size_t>(++seed % mappings.size())];
    INFO(queues << " queues, mapping " << static_cast<int>(mapping) << ", interleaving " << seed);
    model::reset(
        {.seed = seed,
         .devices = planned.problem().ranks(),
         .connections = queues,
         .mapping = mapping});
    if (is_accepted) {
      CHECK_NOTHROW(run(planned, layout));
      CHECK(first_of(model::faults()) == "");
      ++(is_safe_in_one ? found.one_queue : found.queue_for_each);
    } else {
      CHECK_THROWS_AS(run(planned, layout), zbpp::cuda::cuda_error);
      CHECK(first_of(model::take_faults()).starts_with("deadlock"));
      ++found.refused;
      stands_still = true;
    }
    CHECK(first_of(model::leaks()) == "");
  }
}

}  // namespace

TEST_CASE(
    "a plan runs on the queues that are said to be enough, and stalls on fewer", "[nccl][long]") {
  std::uint64_t seed = run_seed();
  counts found;
  auto const check_layouts = [&](plan const& planned) {
    for (auto const layout :
         {channel_layout::one_per_directed_pair,
          channel_layout::one_per_pair,
          channel_layout::one_per_rank})
      if (verify(planned.program(), layout).empty()) check(planned, layout, seed, found);
  };
  for (int p : thinned<std::vector<int>>({2, 3, 4}, {3}))
    for (auto const& placement : placements_to_run(p))
      for (int m : thinned<std::vector<int>>({1, 2 * p}, {2 * p})) {
        problem const problem(placement, m, launched_costs(), 87);
        for (int ahead : thinned<std::vector<int>>({0, 1, 2}, {0, 2}))
          for_each_plan_of(
              problem, {.receive_ahead = ahead}, [&](std::string const& name, plan const& planned) {
                INFO(name << ", receives " << ahead << " ahead");
                check_layouts(planned);
                if (ahead > 0) return;
                auto const in_one_order = make_plan(
                    name, planned.schedule(), problem, {.layout = channel_layout::one_per_rank});
                CHECK(nccl::hardware_queues(in_one_order.program()).most() == 1);
                check_layouts(in_one_order);
              });
      }
  CHECK(found.one_queue > thinned(300, 50));
  CHECK(found.queue_for_each > thinned(100, 10));
  CHECK(found.refused > thinned(100, 10));
}

TEST_CASE("all streams of a rank are counted, with those of NCCL", "[nccl]") {
  using numbers = std::vector<int>;
  auto const streams = [](placement const& placement, channel_layout layout) {
    zbpp::rows<zbpp::pass> rows;
    for (int rank = 0; rank < placement.ranks(); ++rank) {
      for (int s : placement.stages_of(rank)) rows.push({zbpp::pass_kind::forward, s, 0});
      rows.end_row();
    }
    return nccl::streams_of_ranks(lower(zbpp::schedule(placement, 1, std::move(rows))), layout);
  };
  using enum channel_layout;
  CHECK(streams(placement::linear(1), one_per_directed_pair) == numbers{1});
  CHECK(streams(placement::linear(3), one_per_directed_pair) == numbers{8, 14, 8});
  CHECK(streams(placement::v_shape(3), one_per_directed_pair) == numbers{8, 14, 8});
  CHECK(streams(placement::looped(3, 2), one_per_directed_pair) == numbers{14, 14, 14});
  CHECK(streams(placement::linear(3), one_per_pair) == numbers{5, 8, 5});
  CHECK(streams(placement::linear(3), one_per_rank) == numbers{5, 5, 5});
}

TEST_CASE("a rank says what would be enough", "[nccl]") {
  environment_variable const queues("CUDA_DEVICE_MAX_CONNECTIONS", nullptr);
  auto const refuse = [](zbpp::program const& code, int rank) {
    return refusal(errc::refused_program, [&] {
      nccl::detail::check_hardware_queues(
          code, rank, nccl::streams_of_ranks(code).at(static_cast<std::size_t>(rank)), rank);
    });
  };
  problem const model(placement::linear(3), 4, launched_costs());
  auto const code = lower(zbpp::zb_h1{}(model));
  auto const cycle = nccl::hardware_queues(code).reason.front();
  auto const at = to_string(cycle.location) + ": ";
  CHECK(refuse(code, 0) == "<nothing was refused>");
  CHECK(
      refuse(code, 1) ==
      at +
          "the program can deadlock where streams share a hardware queue, and rank 1 has 14 "
          "streams and 8 queues; set CUDA_DEVICE_MAX_CONNECTIONS to 14 in the environment before "
          "the program starts, or lower the plan with .layout = channel_layout::one_per_rank, "
          "after which one queue is enough: " +
          cycle.text);
  queues.set("14");
  CHECK(refuse(code, 1) == "<nothing was refused>");
  queues.set("1");
  CHECK(
      refuse(lower(zbpp::zb_h1{}(model), {.layout = channel_layout::one_per_rank}), 1) ==
      "<nothing was refused>");

  // Rank 0 has six neighbours, and more streams than there can be queues.
  problem const star(placement::custom({0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6}), 2, launched_costs());
  auto const many = lower(zbpp::greedy_auto{.search = {.seconds = 0}}(star));
  queues.set("32");
  CHECK(
      refuse(many, 0).find(
          "rank 0 has 38 streams and 32 queues; CUDA has no more than 32, so lower "
          "the plan with .layout = channel_layout::one_per_rank, after which one "
          "queue is enough: ") != std::string::npos);
}

}  // namespace test_nccl_queues
