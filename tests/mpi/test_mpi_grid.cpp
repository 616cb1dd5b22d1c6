// SPDX-License-Identifier: Apache-2.0
//
// Grids whose messages travel by MPI: `mpirun` starts this program four times, and each process
// runs all cases.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/mpi/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/group_suite.hpp>
#include <support/mpi_meeting.hpp>
#include <support/plain_flow.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_run.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace test_mpi_grid {

using namespace zbpp::test;
using zbpp::grid_axis;
using zbpp::grid_layout;
using zbpp::step_kind;
using zbpp::detail::index;

TEST_CASE("collective calls of a grid over MPI give what they promise", "[mpi][grid]") {
  auto run = meet();
  REQUIRE(run.ranks() == 4);
  zbpp::problem const problem(zbpp::placement::linear(1), 2, zbpp::stage_costs{.forward = 1});
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem);
  for (int const size : {2, 4}) {
    grid_layout const layout({.data = 4 / size, .tensor = size}, 4);
    zbpp::mpi::ranks::executor executor(zbpp::mpi::ranks(run, layout), planned);
    auto& grid = *executor.grid_of(0);
    CHECK(grid.at() == layout.coordinates(run.rank()));
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(size));
    group_values const values(run_seed());
    for (auto axis : {grid_axis::tensor, grid_axis::data}) {
      auto choices = random;
      for (std::uint64_t call = 0; call < 60; ++call)
        make_random_call(grid.along(axis), values, choices, call);
    }
    run.barrier();
  }
}

TEST_CASE("replicas over MPI have the bits of one process that adds them up", "[mpi][grid]") {
  constexpr int steps = 9;
  constexpr int microbatches = 4;
  auto run = meet();
  zbpp::training_options const options{.clip = 50};
  for (auto const& sizes : {zbpp::grid{.pipeline = 2}, zbpp::grid{.pipeline = 2, .order = "pp-dp"}})
    for (auto kind : {step_kind::synchronous, step_kind::post_validated}) {
      grid_layout const layout(sizes, run.ranks());
      auto const at = layout.coordinates(run.rank());
      INFO(to_string(layout) << ", kind " << static_cast<int>(kind));
      auto const placement = zbpp::placement::v_shape(2);
      std::vector<int> const tied{0, 3};
      auto const planned = zbpp::make_plan(
          zbpp::zb_v{},
          with_replicas(checked::make_problem(placement, microbatches, 87, tied), {.count = 2}),
          {.step = kind});
      std::vector<checked::model_settings> settings;
      for (int replica = 0; replica < 2; ++replica)
        settings.push_back(
            {.stages = 4,
             .first_batch = 100 * replica,
             .faults = {{3 + replica, replica, replica}},
             .tied = tied});
      checked::model all(settings[index(at.data)]);
      auto const start = all.bits();
      std::vector<zbpp::stage_ref> own;
      for (int s : placement.stages_of(at.pipeline)) own.push_back(all.stages()[index(s)]);
      zbpp::pipeline pipe(planned, zbpp::mpi::ranks(run, layout), own, options);
      pipe.run(steps - 4);
      pipe.evaluate();
      pipe.run(4);
      // Of the ranks of this pipeline, each of which changes its own stages alone.
      auto joined = start;
      auto const own_bits = all.bits();
      auto const parts = run.all_gather(std::as_bytes(std::span(own_bits)));
      for (int const rank : layout.group(grid_axis::pipeline, run.rank())) {
        std::vector<std::uint32_t> bits(start.size());
        REQUIRE(parts[index(rank)].size() == bits.size() * sizeof(std::uint32_t));
        std::memcpy(bits.data(), parts[index(rank)].data(), parts[index(rank)].size());
        for (std::size_t i = 0; i < bits.size(); ++i)
          if (bits[i] != start[i]) joined[i] = bits[i];
      }
      auto const expected = checked::train_replicas(
          settings, std::vector<int>(std::size_t{steps}, microbatches), options);
      CHECK((joined == expected[index(at.data)].bits));
    }
}

namespace {

// Waits in each pass for the ranks beside it.
class waiting : public toy::passes {
 public:
  using toy::passes::passes;

  zbpp::message forward(
      saved& kept, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx) {
    grid->data().barrier();
    return toy::passes::forward(kept, in, mb, ctx);
  }
  void backward_weight(saved& kept, zbpp::microbatch mb, zbpp::pass_context ctx) {
    std::array<float, 1> sum{1};
    grid->data().all_reduce(sum);
    expect(sum[0] == 2, "a sum of two members");
    toy::passes::backward_weight(kept, mb, ctx);
  }

  zbpp::rank_grid* grid = nullptr;
};

}  // namespace

TEST_CASE("passes over MPI wait for the ranks beside theirs", "[mpi][grid]") {
  auto run = meet();
  grid_layout const layout({.pipeline = 2}, run.ranks());
  auto const at = layout.coordinates(run.rank());
  auto const planned = toy_plan("zb_h1", 2, 5);
  auto all = toy::make_model(2);
  zbpp::wakeup wake{0};
  zbpp::asio::socket_grid groups(run, layout, wake);
  groups.connect();
  waiting part(all[index(at.pipeline)]);
  part.grid = &groups.grid();
  std::array stages{zbpp::as_flow(part)};
  zbpp::pipeline pipe(planned, zbpp::mpi::ranks(run, layout), stages);
  for (int i = 0; i < 20; ++i) pipe.step();
  pipe.evaluate();
}

TEST_CASE("grids of another size than the run are refused over MPI, too", "[mpi][grid]") {
  auto run = meet();
  grid_layout const layout({.pipeline = 2, .data = 2, .tensor = 2}, 8);
  auto const planned = toy_plan("zb_h1", 2, 5);
  CHECK(
      refusal([&] { zbpp::mpi::ranks::executor(zbpp::mpi::ranks(run, layout), planned); }) ==
      "the run has 4 processes and the grid_layout 8 ranks; make it for rendezvous::ranks()");
}

}  // namespace test_mpi_grid
