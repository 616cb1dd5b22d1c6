// SPDX-License-Identifier: Apache-2.0
//
// Transfers that ranks measure together: what the model's messages take, to the tick and the same
// everywhere; and how messages are sent best.
#include <zbpp/nccl/measure_transfers.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/planner_problems.hpp>
#include <support/seeded.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace test_nccl_measure_transfers {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::bytes;
using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::ticks;
using zbpp::transfer_costs;

namespace {

// Edges of all sizes that differ, the last stage without one.
problem problem_on(placement const& placement) {
  std::vector<stage_costs> costs;
  for (int s = 0; s < placement.stages(); ++s)
    costs.push_back(
        {.forward = 10'000, .backward_input = 12'000, .backward_weight = 8'000, .edge = 64 << s});
  return {placement, 2 * placement.ranks(), costs};
}

struct measured {
  std::vector<transfer_costs> costs;  // by rank; the rank's call must have returned
  std::vector<std::string> thrown;    // by rank
};

template <class Change>
measured measure(problem const& problem, Change const& change) {
  measured result;
  result.costs.resize(zbpp::detail::index(problem.ranks()));
  std::mutex mutex;
  result.thrown =
      run_ranks(problem.ranks(), patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
        nccl::ranks_settings settings;
        settings.device = {.device = meeting.rank()};
        auto costs = nccl::measure_transfers(meeting, change(meeting.rank(), settings), settings);
        std::lock_guard const lock(mutex);
        result.costs[zbpp::detail::index(meeting.rank())] = std::move(costs);
      });
  return result;
}

}  // namespace

TEST_CASE("ranks measure what messages take, and agree on it", "[nccl]") {
  std::uint64_t seed = run_seed();
  for (auto const& placement :
       {placement::linear(1), placement::linear(3), placement::v_shape(3), placement::looped(3, 2)})
    for (auto const layout :
         {zbpp::channel_layout::one_per_directed_pair, zbpp::channel_layout::one_per_rank})
      for (int const queues : {1, 32}) {
        INFO(placement.name() << ", " << to_string(layout) << ", " << queues << " queues");
        reset_gpus(
            {.seed = ++seed,
             .devices = placement.ranks(),
             .connections = queues,
             .hosts = placement.ranks(),
             .message_ns = 7'000,
             .message_ns_per_byte = 8});
        auto const problem = problem_on(placement);
        auto const all = measure(problem, [&](int, nccl::ranks_settings& settings) {
          settings.layout = layout;
          return problem;
        });
        for (auto const& text : all.thrown) CHECK(text == "");
        for (auto const& costs : all.costs) {
          CHECK(costs == all.costs.front());
          for (int s = 0; s + 1 < problem.stages(); ++s) {
            auto const size = problem.costs(s).edge;
            auto const from = placement.rank_of(s);
            auto const to = placement.rank_of(s + 1);
            if (from == to) continue;
            CHECK(costs(from, to, size) == 7'000 + 8 * size);
            CHECK(costs(to, from, size) == 7'000 + 8 * size);
          }
        }
        CHECK(model::faults() == std::vector<std::string>{});
        CHECK(model::leaks() == std::vector<std::string>{});
      }
}

TEST_CASE("a rank that cannot measure ends it for all, and nothing leaks", "[nccl]") {
  auto const workload = problem_on(placement::linear(3));
  reset_gpus({.seed = run_seed(), .devices = 3, .hosts = 3});
  SECTION("one measures other edges") {
    auto const all = measure(workload, [&](int rank, nccl::ranks_settings&) {
      return rank == 1 ? problem_on(placement::v_shape(3)) : workload;
    });
    for (auto const& text : all.thrown) {
      INFO(text);
      CHECK(text.find("transfers to measure") != std::string::npos);
    }
  }
  SECTION("an edge has no size") {
    auto const all = measure(workload, [&](int, nccl::ranks_settings&) {
      return problem(placement::linear(3), 4, {{.forward = 1}, {.forward = 1}, {.forward = 1}});
    });
    for (auto const& text : all.thrown)
      CHECK(text.find("state it in stage_costs::edge") != std::string::npos);
  }
  SECTION("the run has another number of ranks") {
    auto const all = measure(
        workload, [&](int, nccl::ranks_settings&) { return problem_on(placement::linear(2)); });
    for (auto const& text : all.thrown) CHECK(text.find("start one for each") != std::string::npos);
  }
  SECTION("NCCL is to carry messages between ranks on one GPU") {
    auto const all = measure(workload, [&](int rank, nccl::ranks_settings& settings) {
      settings.device = {.device = rank == 2 ? 1 : rank};
      return workload;
    });
    for (auto const& text : all.thrown) {
      INFO(text);
      CHECK(text.find("ranks 1 and 2 share the GPU at PCI bus 0000:02:00.0") != std::string::npos);
    }
  }
  SECTION("NCCL fails") {
    auto const all = measure(workload, [&](int rank, nccl::ranks_settings&) {
      if (rank == 1) model::fail_next("ncclRecv", ncclSystemError);
      return workload;
    });
    for (auto const& text : all.thrown) {
      INFO(text);
      CHECK(text.find("NCCL") != std::string::npos);
    }
  }
  CHECK(model::leaks() == std::vector<std::string>{});
}

}  // namespace test_nccl_measure_transfers
