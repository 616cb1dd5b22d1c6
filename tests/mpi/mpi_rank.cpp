// SPDX-License-Identifier: Apache-2.0
//
// As asio_rank, with messages by MPI. `policy=` may name one for each rank, with commas between.
//
//   mpirun -n 3 mpi_rank steps=20 fault=throw rank=1 at=3:2:B
//
// fault=weights and fault=left_out run the replicas and members of support/differing_pipelines.hpp
// on four ranks, of which the last one begins with other weights or leaves out a collective call.
//
// level=0 to level=2 has the program initialize MPI with that level of threads first. fault=leave
// calls std::exit behind step number `at`, on all ranks where none is named.
#include <zbpp/mpi/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/checked_model.hpp>
#include <support/differing_pipelines.hpp>
#include <support/faulty_rank.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

using namespace zbpp::test;

namespace {

std::string of_rank(std::string const& list, int rank) {
  std::size_t at = 0;
  for (; rank > 0; --rank) {
    auto const comma = list.find(',', at);
    if (comma == std::string::npos) break;
    at = comma + 1;
  }
  return list.substr(at, list.find(',', at) - at);
}

// Runs a pipeline of a grid whose last rank differs.
void train_apart(zbpp::mpi::rendezvous& meeting, std::string const& fault) {
  bool const is_left_out = fault == "left_out";
  zbpp::grid_layout const layout({.pipeline = 2, .tensor = is_left_out ? 2 : 1}, meeting.ranks());
  auto const at = layout.coordinates(meeting.rank());
  bool const is_last = meeting.rank() == meeting.ranks() - 1;
  checked::model all({.stages = 2, .first_batch = 100 * at.data});
  if (is_last) all.maths(1).optimized().back().weights[5] += 1;
  differing::summing_stage part(
      is_last ? differing::left_out::last_sum_in_b : differing::left_out::nothing,
      differing::first_weights(at.pipeline),
      true);
  auto const stage = static_cast<std::size_t>(at.pipeline);
  std::array own{is_left_out ? zbpp::stage_ref(part) : all.stages()[stage]};
  zbpp::pipeline pipe(
      is_left_out ? differing::summing_plan(zbpp::step_kind::unchecked)
                  : differing::replicated_plan(zbpp::step_kind::unchecked),
      zbpp::mpi::ranks(meeting, layout),
      own);
  for (int step = 0; step < 2; ++step) pipe.step();
}

int run(int argc, char** argv) {
  auto given = read_arguments("mpi_rank", argc, argv);
  auto const milliseconds = [&](char const* name) {
    return std::chrono::milliseconds(std::stoi(given.at(name)));
  };
  if (given.at("level") != "none") {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, std::stoi(given.at("level")), &level);
  }
  zbpp::mpi::rendezvous meeting(
      MPI_COMM_WORLD,
      {.join_deadline = milliseconds("join_deadline"),
       .deadline = milliseconds("deadline"),
       .stall_deadline = milliseconds("stall_deadline")});
  auto const leave = [&, steps = 0]() mutable {
    bool const is_here = given.at("rank") == "-1" || std::stoi(given.at("rank")) == meeting.rank();
    bool const leaves = given.at("fault") == "leave" && is_here;
    if (++steps == std::stoi(given.at("at")) && leaves) std::exit(0);
  };
  given["policy"] = of_rank(given.at("policy"), meeting.rank());
  auto const fault = given.at("fault");
  if (fault == "weights" || fault == "left_out")
    train_apart(meeting, fault);
  else if (given.at("replicas") == "1")
    train_faulty(meeting, zbpp::mpi::ranks(meeting), given, leave);
  else
    train_faulty(meeting, zbpp::mpi::ranks(meeting, layout_of(meeting, given)), given, leave);
  meeting.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int status = 3;
  try {
    status = run(argc, argv);
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "mpi_rank: %s\n", failed.what());
  }
  int is_initialized = 0;
  int is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  if (is_initialized != 0 && is_finalized == 0) MPI_Finalize();
  return status;
}
