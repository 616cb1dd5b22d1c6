// SPDX-License-Identifier: Apache-2.0
//
// What is said of a plan's needs on GPUs is what a pipeline makes there, counted by the model of
// CUDA.
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/device_needs.hpp>
#include <zbpp/nccl/device_needs.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/plan_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/toy_run.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace test_cuda_device_needs {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::bytes;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;
using zbpp::purpose;

namespace {

// Sends what it does not count as an edge, so that only slots are.
struct sender {
  problem const* stated;

  zbpp::flow operator()(zbpp::microbatch mb) const {
    zbpp::buffer out;
    zbpp::message in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      if (!mb.is_last_stage()) out = make(mb.stage(), ctx);
      in.clear();
    });
    co_await mb.send_activation(std::move(out));
    co_await zbpp::R([] {});
    zbpp::message back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      if (!mb.is_first_stage()) out = make(mb.stage() - 1, ctx);
      back.clear();
    });
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([] {});
  }
  [[nodiscard]] zbpp::buffer make(int edge, zbpp::pass_context ctx) const {
    return ctx.allocate(static_cast<std::size_t>(stated->costs(edge).edge));
  }
};

int alive(std::string const& text) {
  auto const all = model::leaks();
  return static_cast<int>(std::ranges::count_if(
      all, [&](std::string const& one) { return one.starts_with(text + " "); }));
}

problem uneven(zbpp::placement const& placement, int microbatches) {
  std::vector<zbpp::stage_costs> costs(
      zbpp::detail::index(placement.stages()), zbpp::test::uneven_costs());
  for (std::size_t s = 0; s < costs.size(); ++s)
    costs[s].edge = 100 + 7 * static_cast<bytes>(s * s % 5);
  return {placement, microbatches, costs, 87};
}

plan with_pairs(plan const& plain, seeded_random& random, int ahead) {
  auto const& problem = plain.problem();
  auto const order = pair_at_random(plain.schedule(), problem, random, 0.5);
  return make_plan("pairs", order, problem, {.receive_ahead = ahead});
}

int paired_ranks(plan const& planned) {
  int count = 0;
  for (int rank = 0; rank < planned.problem().ranks(); ++rank)
    count += zbpp::detail::has_pairs(planned.schedule().passes(rank)) ? 1 : 0;
  return count;
}

struct totals {
  int streams = 0;
  int events = 0;
};

totals total_of(std::vector<cuda::device_needs> const& all) {
  totals sum;
  for (auto const& one : all) {
    sum.streams += one.streams;
    sum.events += one.events;
  }
  return sum;
}

}  // namespace

TEST_CASE("a pipeline on GPUs of a process makes what is said of its plan", "[cuda]") {
  for (int p : thinned<std::vector<int>>({1, 2, 4}, {1, 3}))
    for (int ahead : {0, 2})
      for (auto const& placement : placements_to_run(p))
        for_each_plan_of(
            uneven(placement, 2 * p + 1),
            {.fused = false, .receive_ahead = ahead},
            [&](std::string const& name, plan const& plain) {
              ZBPP_SEEDED(random, p + ahead);
              bool const pairs = random.chance(0.5);
              auto const planned = pairs ? with_pairs(plain, random, ahead) : plain;
              for (int together : {p, 1, 2}) {
                INFO(name << (pairs ? " in pairs, " : ", ") << together << " ranks on a device");
                std::vector<int> devices;
                cuda::device backend;
                for (int rank = 0; rank < p; ++rank) {
                  devices.push_back(rank / together);
                  backend.devices.push_back({.device = devices.back()});
                }
                auto const needs =
                    cuda::device_needs_of(planned.program(), planned.problem(), devices);
                auto const count = devices.back() + 1;
                REQUIRE(needs.size() == static_cast<std::size_t>(count));
                model::reset({.devices = count, .hosts = count, .check_uninitialised = false});
                std::vector<sender> stages(
                    static_cast<std::size_t>(planned.problem().stages()),
                    sender{&planned.problem()});
                pipeline pipe{planned, backend, stages};
                CHECK(alive("stream") == total_of(needs).streams);
                CHECK(alive("event") == total_of(needs).events);
                pipe.step();
                int rank = 0;
                for (auto const& each : needs) {
                  bytes slots = 0;
                  for (int const r : each.ranks) {
                    CHECK(r == rank++);
                    slots += pipe.memory(r).most(purpose::edge);
                  }
                  CHECK(each.slots == slots);
                  CHECK(each.hardware_queues == each.streams);
                  CHECK(each.waiting_ctas == 0);
                  if (together == p) CHECK(each.streams == p + paired_ranks(planned));
                  if (together == p) CHECK(each.slots == 0);
                }
              }
            });
}

namespace {

// What the ranks of a run have made with their pipelines, counted by the model.
struct made_by_ranks {
  totals of_all;
  int communicators = 0;
};

made_by_ranks make_on_ranks(plan const& planned) {
  auto const ranks = planned.problem().ranks();
  reset_gpus({.devices = ranks, .connections = 32, .hosts = ranks});
  made_by_ranks made;
  auto const thrown = run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(planned.problem().stages());
    std::vector<toy::launched_stage> stages;
    for (int s : planned.problem().placement().stages_of(meeting.rank()))
      stages.emplace_back(all[zbpp::detail::index(s)]);
    nccl::ranks_settings settings;
    settings.device = {.device = meeting.rank()};
    pipeline const pipe(planned, nccl::ranks(meeting, settings), stages);
    meeting.barrier();
    if (meeting.rank() == 0) {
      made.of_all = {alive("stream"), alive("event")};
      made.communicators = alive("communicator");
    }
    meeting.barrier();
  });
  CHECK(thrown == std::vector<std::string>(thrown.size()));
  return made;
}

void check_needs_over_nccl(plan const& planned) {
  auto const needs = nccl::device_needs_of(planned.program(), planned.problem());
  REQUIRE(needs.size() == static_cast<std::size_t>(planned.problem().ranks()));
  auto const made = make_on_ranks(planned);
  auto const of_all = total_of(needs);
  CHECK(made.of_all.events == of_all.events);
  // NCCL makes three more for each communicator but the first one of a rank, where it is four.
  int by_nccl = 2 * made.communicators;
  int ctas = 0;
  for (auto const& each : needs) {
    by_nccl += each.waiting_ctas > 0 ? 1 : 0;
    ctas += each.waiting_ctas;
    CHECK((each.slots > 0) == (each.waiting_ctas > 0));
  }
  CHECK(made.of_all.streams + by_nccl == of_all.streams);
  CHECK(ctas == made.communicators);
  auto const queues = nccl::hardware_queues(planned.program());
  auto const streams = nccl::streams_of_ranks(planned.program());
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    CHECK(needs[rank].streams == streams[rank]);
    CHECK(needs[rank].hardware_queues == queues.of_rank[rank]);
  }
}

}  // namespace

TEST_CASE("a pipeline over NCCL makes what is said of its plan", "[cuda]") {
  using enum zbpp::channel_layout;
  for (auto const layout : {one_per_directed_pair, one_per_pair, one_per_rank})
    for (int p : {2, 4}) {
      problem const problem(zbpp::placement::linear(p), 2 * p, launched_costs());
      ZBPP_SEEDED(random, p);
      auto const order = pair_at_random(zbpp::zb_h1{}(problem), problem, random, p == 2 ? 1 : 0);
      auto const planned = zbpp::make_plan("zb_h1", order, problem, {.layout = layout});
      CHECK(paired_ranks(planned) == (p == 2 ? 1 : 0));
      INFO(p << " ranks, " << to_string(layout));
      check_needs_over_nccl(planned);
    }
  check_needs_over_nccl(toy_plan("zb_v", 3, 7));
}

TEST_CASE("needs are those of a device for each rank, or of one", "[cuda]") {
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, uneven(zbpp::placement::linear(3), 6));
  CHECK(cuda::device_needs_of(planned.program(), planned.problem()).size() == 1);
  CHECK(refusal([&] {
          static_cast<void>(
              cuda::device_needs_of(planned.program(), planned.problem(), std::vector{0, 1}));
        }) == "there are 2 devices for 3 ranks; give one for each rank, or none");
}

}  // namespace test_cuda_device_needs
