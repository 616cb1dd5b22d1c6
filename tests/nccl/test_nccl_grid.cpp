// SPDX-License-Identifier: Apache-2.0
//
// Runs over NCCL that are grids: each rank is a process with a GPU of the model, and takes part in
// one of several pipelines.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/cuda_toy.hpp>
#include <support/cuda_training.hpp>
#include <support/group_suite.hpp>
#include <support/nccl_counted_rank.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/padded_toy.hpp>
#include <support/seeded.hpp>
#include <support/toy_history.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_nccl_grid {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace nccl = zbpp::nccl;
using zbpp::grid_layout;
using zbpp::plan;
using zbpp::problem;
using zbpp::asio::rendezvous;
using zbpp::detail::index;

namespace {

using stage = toy::basic_hand_written<toy::padded_passes<toy::launched_passes_with_scratch>>;

zbpp::cuda_model::options machine_for(
    plan const& planned, grid_layout const& layout, std::uint64_t seed) {
  auto machine = machine_of(planned, seed);
  machine.devices = machine.hosts = layout.ranks();
  return machine;
}

// On the GPU of the rank in the run.
nccl::ranks_settings settings_for(plan const& planned, rendezvous const& run) {
  return settings_of(planned, run.rank());
}

}  // namespace

TEST_CASE("each pipeline of a grid over NCCL has the bits of one process", "[nccl][grid]") {
  auto seed = run_seed();
  for (auto const& sizes :
       {zbpp::grid{.pipeline = 2, .data = 2},
        zbpp::grid{.pipeline = 2, .tensor = 2},
        zbpp::grid{.pipeline = 3, .data = 2, .order = "pp-dp"}})
    for (auto const& options : {zbpp::lower_options{}, for_one_queue}) {
      grid_layout const layout(sizes, sizes.pipeline * 2);
      auto const planned = make_plan(
          zbpp::zb_v{},
          problem(zbpp::placement::v_shape(sizes.pipeline), 5, launched_costs(), 87),
          options);
      auto const expected = adding_reference(planned, 3);
      checked_ranks const gpus(machine_for(planned, layout, ++seed));
      INFO(to_string(layout) << ", interleaving " << seed);
      auto const thrown = run_ranks(layout.ranks(), patient_settings(), [&](rendezvous& run) {
        cuda::device_guard const here(run.rank());
        auto const mine =
            planned.problem().placement().stages_of(layout.coordinates(run.rank()).pipeline);
        auto all = toy::make_model(planned.problem().stages());
        std::vector<stage> stages;
        for (int const s : mine) stages.emplace_back(all[index(s)]);
        zbpp::pipeline pipe(planned, nccl::ranks(run, layout, settings_for(planned, run)), stages);
        for (std::size_t step = 0; step < 3; ++step) {
          auto const& losses = pipe.step().losses;
          bool const is_last = index(mine.back()) + 1 == all.size();
          expect(!is_last || toy::is_same(losses, expected.losses[step]), "the losses");
          for (int const s : mine)
            expect(
                toy::is_same(
                    toy::model{all[index(s)]}, toy::model{expected.models[step][index(s)]}),
                "the gradients");
        }
        pipe.evaluate();
        run.barrier();
      });
      for (auto const& text : thrown) CHECK(text == "");
    }
}

namespace {

// Adds a number with the members of its tensor group, by the host; may fail instead.
struct talking_stage {
  bool fails = false;

  zbpp::flow operator()(zbpp::microbatch mb) {
    auto& members = mb.grid().tensor();
    zbpp::buffer y;
    zbpp::buffer dx;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      if (fails && mb.step() == 1 && mb.index() == 2) throw std::runtime_error("no more weights");
      std::array<float, 1> sum{static_cast<float>(members.place() + mb.index())};
      members.all_reduce(sum);
      expect(sum[0] == static_cast<float>(1 + 2 * mb.index()), "the sum of two members");
      if (mb.is_last_stage()) mb.report_loss(static_cast<double>(sum[0]));
      y = toy::launched_edge(ctx);
    });
    co_await mb.send_activation(std::move(y));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) { dx = toy::launched_edge(ctx); });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W([&] { members.barrier(); });
  }
};

plan talking_plan() {
  return make_plan(zbpp::zb_h1{}, problem(zbpp::placement::linear(2), 5, launched_costs(), 87));
}

}  // namespace

TEST_CASE("flows over NCCL reach the ranks beside theirs", "[nccl][grid]") {
  auto const planned = talking_plan();
  auto seed = run_seed() + 1000;
  for (auto const* order : {"tp-cp-ep-dp-pp", "pp-tp"}) {
    grid_layout const layout({.pipeline = 2, .tensor = 2, .order = order}, 4);
    checked_ranks const gpus(machine_for(planned, layout, ++seed));
    auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
      cuda::device_guard const here(run.rank());
      std::array<talking_stage, 1> stages{};
      auto settings = settings_for(planned, run);
      settings.edges = {};
      zbpp::pipeline pipe(planned, nccl::ranks(run, layout, settings), stages);
      for (int step = 0; step < 3; ++step) pipe.step();
      pipe.evaluate();
      run.barrier();
    });
    for (auto const& text : thrown) CHECK(text == "");
  }
}

TEST_CASE("a failure in one pipeline over NCCL ends all, with its place", "[nccl][grid]") {
  auto const planned = talking_plan();
  grid_layout const layout({.pipeline = 2, .tensor = 2}, 4);
  auto seed = run_seed() + 2000;
  for (int culprit = 0; culprit < 4; ++culprit) {
    reset_gpus(machine_for(planned, layout, ++seed));
    INFO("rank " << culprit << ", interleaving " << seed);
    auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
      cuda::device_guard const here(run.rank());
      std::array stages{talking_stage{run.rank() == culprit}};
      auto settings = settings_for(planned, run);
      settings.edges = {};
      zbpp::pipeline pipe(planned, nccl::ranks(run, layout, settings), stages);
      run.barrier();
      std::string first;
      while (first.empty()) {
        try {
          pipe.step();
        } catch (std::exception const& failed) {
          first = failed.what();
        }
      }
      expect(pipe.failures().front().location.rank == culprit, "the rank in the run: " + first);
      throw std::runtime_error(first);
    });
    check_told(thrown, "no more weights");
    check_told(thrown, "rank " + std::to_string(culprit) + ", position ");
    for (int rank = 0; rank < 4; ++rank)
      if (rank != culprit)
        CHECK(
            thrown[index(rank)].find(
                "(rank " + std::to_string(culprit) + " is pipeline " + std::to_string(culprit / 2) +
                ", tensor " + std::to_string(culprit % 2) + ")") != std::string::npos);
  }
}

TEST_CASE("a grid over NCCL that cannot be is refused in a line", "[nccl][grid]") {
  auto const planned = talking_plan();
  auto const refused = [&](grid_layout const& layout, ncclComm_t adopted) {
    reset_gpus(machine_for(planned, grid_layout({.pipeline = 2}, 4), run_seed()));
    return run_ranks(4, patient_settings(), [&](rendezvous& run) {
      std::array<talking_stage, 1> stages{};
      auto settings = settings_for(planned, run);
      settings.adopted = adopted;
      zbpp::pipeline const pipe(planned, nccl::ranks(run, layout, settings), stages);
    });
  };
  check_told(
      refused(grid_layout({.pipeline = 2, .data = 4}, 8), nullptr),
      "the run has 4 processes and the grid_layout 8 ranks; make it for rendezvous::ranks()");
  check_told(
      refused(grid_layout({.pipeline = 4}, 4), nullptr),
      "a pipeline of the grid_layout has 4 ranks and the plan 2");
  check_told(
      refused(grid_layout({.pipeline = 2, .data = 2}, 4), reinterpret_cast<ncclComm_t>(16)),
      "a communicator is adopted in a grid, whose pipelines need one each");
}

}  // namespace test_nccl_grid
