// SPDX-License-Identifier: Apache-2.0
//
// Pipelines over MPI, one rank in each process: `mpirun` starts this program several times, and
// each process runs all cases.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/measure.hpp>
#include <zbpp/error.hpp>
#include <zbpp/mpi/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/count_allocations.hpp>
#include <support/mpi_meeting.hpp>
#include <support/plan_grid.hpp>
#include <support/rank_outcome.hpp>
#include <support/refusal.hpp>
#include <support/same_bits.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_objects.hpp>
#include <support/toy_run.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace test_mpi_ranks {

using namespace zbpp::test;
using zbpp::plan;
using zbpp::step_kind;
using zbpp::mpi::ranks_settings;

namespace {

// What the rank of this process gives, and for the others what threads do.
template <class Stage = toy::hand_written>
outcome over_mpi(zbpp::mpi::rendezvous& run, plan const& planned, ranks_settings settings = {}) {
  auto result = on_threads(planned);
  std::mutex mutex;
  auto all = toy::make_model(planned.problem().stages());
  std::vector<Stage> stages;
  for (int s : planned.problem().placement().stages_of(run.rank()))
    stages.emplace_back(all[static_cast<std::size_t>(s)]);
  zbpp::pipeline pipe(planned, zbpp::mpi::ranks(run, std::move(settings)), stages);
  add_run(pipe, all, std::array{run.rank()}, result, mutex);
  return result;
}

zbpp::problem parcel_problem(zbpp::placement const& placement, int microbatches) {
  zbpp::stage_costs const costs{
      .forward = 10,
      .backward_input = 10,
      .backward_weight = 10,
      .activation = 2,
      .weight_gradient_input = 1,
      .edge = toy::parcel_edge};
  return {placement, microbatches, costs};
}

// Bits of all stages, each as its rank has it.
std::vector<std::uint32_t> join_bits(
    zbpp::mpi::rendezvous& run,
    std::vector<std::uint32_t> const& start,
    std::vector<std::uint32_t> const& own) {
  auto joined = start;
  for (auto const& part : run.all_gather(std::as_bytes(std::span(own)))) {
    std::vector<std::uint32_t> bits(own.size());
    REQUIRE(part.size() == own.size() * sizeof(std::uint32_t));
    std::memcpy(bits.data(), part.data(), part.size());
    for (std::size_t i = 0; i < bits.size(); ++i)
      if (bits[i] != start[i]) joined[i] = bits[i];  // a rank changes its own stages alone
  }
  return joined;
}

}  // namespace

TEST_CASE("ranks over MPI give the bits and the memory of threads", "[mpi]") {
  auto run = meet();
  same_bits(
      on_threads,
      {{"MPI", [&](plan const& planned, std::uint64_t) { return over_mpi(run, planned); }},
       {"MPI, without a thread beside",
        [&](plan const& planned, std::uint64_t) {
          return over_mpi(run, planned, {.progress_thread = false});
        }},
       {"MPI, objects",
        [&](plan const& planned, std::uint64_t) {
          auto found = over_mpi<packing_stage>(run, planned);
          found.peaks = on_threads(planned).peaks;  // packing takes memory of its own
          return found;
        }}},
      {{"every policy, recomputation and early receives",
        {run.ranks()},
        times(1, 2),
        parcel_problem,
        {.recomputed = true, .receive_ahead = run.ranks() - 1}}});
  CHECK(toy::parcel::alive == 0);
}

TEST_CASE("edges over MPI need no declared size", "[mpi]") {
  auto run = meet();
  zbpp::problem const open(
      zbpp::placement::v_shape(run.ranks()),
      4,
      zbpp::stage_costs{.forward = 1, .backward_input = 1});
  auto const planned = zbpp::make_plan(zbpp::zb_v{}, open);
  CHECK(difference(over_mpi(run, planned), on_threads(planned)) == "");
}

TEST_CASE("over MPI optimizer steps have the bits of one process", "[mpi][optimizer-steps]") {
  constexpr int steps = 12;
  auto run = meet();
  zbpp::training_options const options{.clip = 1.35};
  auto const tied_stages = [](int stages) {
    std::vector<int> tied;
    for (int s = 0; s < stages; s += s == 0 ? 1 : 2) tied.push_back(s);
    return tied;
  };
  auto const settings_of = [&](plan const& planned) -> checked::model_settings {
    auto const& problem = planned.problem();
    return {
        .stages = problem.stages(),
        .faults = {{5, problem.ranks() - 1, 0}},
        .tied = tied_stages(problem.stages())};
  };
  int amended = 0;
  same_bits(
      [&](plan const& planned) {
        auto const microbatches = planned.problem().microbatches();
        return checked::train_alone(settings_of(planned), microbatches, steps, options).bits;
      },
      {{"MPI",
        [&](plan const& planned, std::uint64_t) {
          checked::model all(settings_of(planned));
          auto const start = all.bits();
          std::vector<zbpp::stage_ref> own;
          for (int s : planned.problem().placement().stages_of(run.rank()))
            own.push_back(all.stages()[zbpp::detail::index(s)]);
          zbpp::pipeline pipe(planned, zbpp::mpi::ranks(run), own, options);
          pipe.run(steps - 4, [&](zbpp::step_result const& step) {
            amended += step.update.is_amended ? 1 : 0;
          });
          pipe.evaluate();
          pipe.run(4);
          return join_bits(run, start, all.bits());
        }}},
      {{"every policy and tied weights",
        {run.ranks()},
        times(1, 2),
        [&](zbpp::placement const& placement, int microbatches) {
          return checked::make_problem(
              placement, microbatches, 87, tied_stages(placement.stages()));
        },
        {.fused = false, .steps = {step_kind::synchronous, step_kind::post_validated}}}});
  CHECK(amended > 0);
}

TEST_CASE("a step over MPI is gathered with its messages", "[mpi]") {
  auto run = meet();
  auto const planned = toy_plan("zb_h1", run.ranks(), 6);
  auto all = toy::make_model(planned.problem().stages());
  std::array stages{toy::hand_written(all[zbpp::detail::index(run.rank())])};
  for (bool const has_thread : {false, true}) {
    ranks_settings settings{.progress_thread = has_thread, .records_messages = true};
    zbpp::pipeline pipe(planned, zbpp::mpi::ranks(run, settings), stages);
    pipe.step();
    auto const& own = pipe.step();
    for (auto const& m : own.messages.all()) {
      INFO(to_string(m));
      CHECK((m.to != run.rank() || m.arrived != zbpp::timed_message::unknown));
    }
    auto const [measured, messages, clocks, updates] = zbpp::asio::gather_step(run, planned, own);
    for (int rank = 0; rank < run.ranks(); ++rank)
      CHECK(updates[zbpp::detail::index(rank)].ended >= measured[rank].back().end);
    CHECK(messages.size() == zbpp::detail::index(2 * 6 * (run.ranks() - 1)));
    zbpp::ticks drift = 0;  // what the clocks may have drifted in the step
    for (auto const& clock : clocks) drift = std::max(drift, clock.error);
    for (auto const& m : messages.all()) {
      INFO(to_string(m));
      CHECK(m.arrived + drift >= m.sent);
      CHECK(m.taken >= m.arrived);
      auto const needed = std::ranges::find(measured[m.to], m.pass, &zbpp::timed_pass::pass);
      REQUIRE(needed != measured[m.to].end());
      CHECK(needed->start >= m.taken);
    }
  }
}

TEST_CASE("a step over MPI that one rank alone records is not gathered", "[mpi]") {
  auto run = meet();
  if (run.ranks() == 1) return;
  auto const planned = toy_plan("zb_h1", run.ranks(), 6);
  auto all = toy::make_model(planned.problem().stages());
  std::array stages{toy::hand_written(all[zbpp::detail::index(run.rank())])};
  ranks_settings settings{.records_messages = run.rank() == 1};
  zbpp::pipeline pipe(planned, zbpp::mpi::ranks(run, settings), stages);
  auto own = pipe.step();
  CHECK(
      refusal(
          zbpp::errc::bad_argument,
          [&] { static_cast<void>(zbpp::asio::gather_step(run, planned, own)); }) ==
      "rank 0: gather_step: the rank recorded other messages than those of the plan, or none; set "
      "records_messages on all ranks, and give the plan that ran");
  own.messages = {};
  auto const gathered = zbpp::asio::gather_step(run, planned, own);
  CHECK(gathered.messages.size() == 0);
  CHECK(gathered.measured == zbpp::asio::gather_timeline(run, planned.schedule(), own.measured));
}

TEST_CASE("pipelines over MPI take turns on one communicator of the user's", "[mpi]") {
  MPI_Comm of_user = MPI_COMM_NULL;
  auto first = meet();
  REQUIRE(MPI_Comm_dup(MPI_COMM_WORLD, &of_user) == MPI_SUCCESS);
  {
    zbpp::mpi::rendezvous second(of_user);
    CHECK(second.rank() == first.rank());
    CHECK(second.communicator() != of_user);
    // A message of the user's with a tag that zbpp uses, too, under way all the time.
    int const sent = 1234 + second.rank();
    int received = 0;
    std::array<MPI_Request, 2> own{};
    auto const next = (second.rank() + 1) % second.ranks();
    auto const before = (second.rank() + second.ranks() - 1) % second.ranks();
    MPI_Irecv(&received, 1, MPI_INT, before, 0, of_user, own.data());
    auto const planned = toy_plan("zb_v", first.ranks(), 5);
    auto const expected = on_threads(planned);
    for (int i = 0; i < 3; ++i) {
      CHECK(difference(over_mpi(first, planned), expected) == "");
      CHECK(difference(over_mpi(second, planned), expected) == "");
    }
    MPI_Isend(&sent, 1, MPI_INT, next, 0, of_user, &own[1]);
    MPI_Waitall(2, own.data(), MPI_STATUSES_IGNORE);
    CHECK(received == 1234 + before);
  }
  MPI_Comm_free(&of_user);
}

TEST_CASE("ranks over MPI train on the communicators of MPI_Comm_split", "[mpi]") {
  auto const all = meet();
  // Each rank alone, all in reverse, and the even ones beside the odd ones.
  for (int const colours : {all.ranks(), 1, 2}) {
    MPI_Comm part = MPI_COMM_NULL;
    REQUIRE(
        MPI_Comm_split(MPI_COMM_WORLD, all.rank() % colours, -all.rank(), &part) == MPI_SUCCESS);
    {
      auto run = meet(part);
      auto const planned = toy_plan("zb_v", run.ranks(), 5);
      CHECK(difference(over_mpi(run, planned), on_threads(planned)) == "");
      run.barrier();
    }
    MPI_Comm_free(&part);
  }
}

TEST_CASE("a step over MPI allocates nothing once it has run", "[mpi]") {
  zbpp::asio::rendezvous_settings settings;
  settings.deadline = std::chrono::hours(1);  // so that no heartbeat, which allocates, comes
  settings.stall_deadline = std::chrono::hours(1);
  zbpp::mpi::rendezvous run(MPI_COMM_WORLD, settings);
  auto const planned = toy_plan("zb_v", run.ranks(), 6);
  auto all = toy::make_model(planned.problem().stages());
  std::vector<toy::hand_written> stages;
  for (int s : planned.problem().placement().stages_of(run.rank()))
    stages.emplace_back(all[static_cast<std::size_t>(s)]);
  zbpp::pipeline pipe(
      planned, zbpp::mpi::ranks(run, {.progress_thread = false, .records_messages = true}), stages);
  for (int i = 0; i < 20; ++i) pipe.step();
  CHECK(count_allocations([&] {
          for (int i = 0; i < 100; ++i) pipe.step();
        }) == 0);
  // Not before: that a rank leaves the pipeline is told in memory of its own.
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace test_mpi_ranks
