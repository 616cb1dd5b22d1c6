// SPDX-License-Identifier: Apache-2.0
//
// A rank that is killed in a step, or cut off from the others, whatever carries its messages: every
// other rank is told which one it was, and what processes share is not freed under a device.
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/killed_rank.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/padded_toy.hpp>
#include <support/seeded.hpp>
#include <support/toy_run.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_nccl_killed_ranks {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;

namespace {

// Comes to harm in the middle of its second step.
struct stopping_stage {
  toy::padded_stage does;
  std::function<void()> stops;

  zbpp::flow operator()(zbpp::microbatch mb) {
    if (stops && mb.step() == 1 && mb.index() == 2) stops();
    return does(mb);
  }
  void update(zbpp::pass_context) {}
};

// How a rank comes to harm.
struct harm {
  int rank = 0;
  bool is_killed = true;
  bool stops_device = true;
};

// Runs steps until one fails. @return what each rank is told; "" for one that was killed
std::vector<std::string> run_until_harm(zbpp::plan const& planned, harm const& harm) {
  auto const ranks = planned.problem().ranks();
  std::vector<std::string> reports(zbpp::detail::index(ranks));
  std::vector<std::unique_ptr<model::host_thread>> hosts;
  for (int r = 0; r < ranks; ++r) hosts.push_back(std::make_unique<model::host_thread>());
  rank_killer killer(ranks);
  auto const body = [&](zbpp::asio::rendezvous& meeting) {
    auto const rank = meeting.rank();
    auto host = std::move(hosts[zbpp::detail::index(rank)]);
    zbpp::cuda::device_guard const here(rank);  // or calls would find what becomes of device 0
    bool is_killed = false;
    {
      auto all = toy::make_model(ranks);
      std::array stages{stopping_stage{toy::padded_stage(all[zbpp::detail::index(rank)]), {}}};
      if (rank == harm.rank)
        stages[0].stops = [&] {
          if (!harm.is_killed) return rank_killer::cut_off(meeting);
          is_killed = true;
          auto const device = harm.stops_device ? std::optional(rank) : std::nullopt;
          killer.kill(meeting, device, host);
        };
      zbpp::pipeline pipe(planned, nccl::ranks(meeting, settings_of(planned, rank)), stages);
      try {
        for (int i = 0; i < 100'000; ++i) pipe.step();
      } catch (std::exception const& failed) {
        if (!is_killed) reports[zbpp::detail::index(rank)] = failed.what();
      }
    }
    if (!is_killed) killer.note_end();
  };
  auto const thrown =
      run_ranks(ranks, rank_killer::settings_of(patient_settings()), body, rank_killer::host_of);
  for (auto const& text : thrown) CHECK(text == "");
  return reports;
}

// What was wrong, but for what passes do with messages that never came.
std::string first_of_serious() {
  for (auto const& fault : model::faults())
    if (!fault.starts_with("race") && !fault.starts_with("uninitialised")) return fault;
  return "";
}

void check_told(std::vector<std::string> reports, harm const& harm) {
  for (int r = 0; r < static_cast<int>(reports.size()); ++r) {
    INFO("rank " << r << ": " << reports[zbpp::detail::index(r)]);
    // Where a connection breaks, each of its ends blames the other.
    auto const lost = r == harm.rank ? 0 : harm.rank;
    if (r == harm.rank && harm.is_killed) continue;
    auto const text = "rank " + std::to_string(lost) + ": its process has ended or its connection";
    CHECK(reports[zbpp::detail::index(r)].find(text) != std::string::npos);
  }
  CHECK(first_of_serious() == "");
}

void reset_for(zbpp::plan const& planned, std::uint64_t seed) {
  auto machine = machine_of(planned, run_seed() + seed);
  machine.hosts = 0;  // they come and go by themselves
  reset_gpus(machine);
}

}  // namespace

TEST_CASE("ranks over NCCL learn who was killed, and nothing leaks", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 5);
  std::uint64_t seed = 0;
  for (int rank = 0; rank < 3; ++rank)
    for (bool const stops_device : {false, true}) {
      harm const harm{.rank = rank, .stops_device = stops_device};
      INFO("rank " << rank << ", its device stops: " << stops_device);
      reset_for(planned, ++seed);
      check_told(run_until_harm(planned, harm), harm);
      CHECK(first_of(model::leaks()) == "");
    }
}

TEST_CASE("a connection that breaks ends the run at both ends, and nothing leaks", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 5);
  std::uint64_t seed = 40;
  for (int rank = 1; rank < 3; ++rank) {
    harm const harm{.rank = rank, .is_killed = false};
    INFO("rank " << rank);
    reset_for(planned, ++seed);
    check_told(run_until_harm(planned, harm), harm);
    CHECK(first_of(model::leaks()) == "");
  }
}

}  // namespace test_nccl_killed_ranks
