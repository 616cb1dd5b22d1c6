// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes to each other and replay their steps over NCCL: they agree when to
// capture, all end with the same failure whatever goes wrong in a capture or a replay, and what
// they cannot replay is refused on all of them.
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_counted_rank.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/seeded.hpp>
#include <support/toy_run.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_nccl_replayed_ranks {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::plan;

namespace {

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

void replays(nccl::ranks_settings& settings) { settings.replay = cuda::replay::step; }

constexpr int microbatches = 5;

plan plan_of(int ranks, std::string const& policy = "zb_h1") {
  return toy_plan(policy, ranks, microbatches, for_one_queue);
}

// Runs ranks until one fails; what is done before has the bits of one process.
// @return what each was told
std::vector<std::string> fail(
    plan const& planned,
    zbpp::asio::rendezvous_settings const& meeting_settings,
    std::function<void(int rank, int issued)> const& on_forward,
    std::function<void(int rank, int step)> const& before_step) {
  auto const ranks = planned.problem().ranks();
  step_counters const numbers(planned.problem().placement());
  auto const expected = adding_reference(planned, 6);
  std::vector<std::string> reports(zbpp::detail::index(ranks));
  auto const thrown = run_ranks(ranks, meeting_settings, [&](zbpp::asio::rendezvous& meeting) {
    auto const rank = meeting.rank();
    auto const harm = [&](int issued) {
      if (on_forward) on_forward(rank, issued);
    };
    counted_rank counted(planned, meeting, harm, replays);
    try {
      for (int i = 0; i < 6; ++i) {
        if (before_step) before_step(rank, i);
        auto const& losses = counted.pipe().step().losses;
        if (!counted.has_gradients_of(expected, i) || !counted.are_losses_of(losses, expected, i))
          throw std::logic_error("step " + std::to_string(i) + " is done and has other bits");
      }
    } catch (std::exception const& failed) {
      reports[zbpp::detail::index(rank)] = failed.what();
    }
  });
  for (auto const& text : thrown) CHECK(text == "");
  return reports;
}

}  // namespace

TEST_CASE("replaying ranks in processes of their own give the bits of one process", "[nccl]") {
  auto seed = run_seed();
  for (auto const& [policy, ranks] : {std::pair("zb_h1", 3), {"one_f_one_b", 2}, {"zb_h1", 1}}) {
    auto const planned = plan_of(ranks, policy);
    auto const expected = adding_reference(planned, 8);
    checked_ranks const gpus(machine_of(planned, ++seed));
    INFO(policy << ", " << ranks << " ranks");
    {
      step_counters const numbers(planned.problem().placement());
      auto const thrown =
          run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
            int issued = 0;
            counted_rank counted(
                planned, meeting, [&](int) { ++issued; }, replays);
            std::vector<zbpp::buffer> kept;
            for (int i = 0; i < 8; ++i) {
              auto const before = issued;
              auto const& losses = counted.pipe().step().losses;
              // The first is issued and the second captured. The last rank keeps what its
              // evaluation gave, so all issue the fifth and capture the sixth.
              bool const is_replay = i != 0 && i != 1 && i != 4 && i != 5;
              if ((issued == before) != is_replay)
                throw std::logic_error("step " + std::to_string(i) + " is run another way");
              if (!counted.has_gradients_of(expected, i) ||
                  !counted.are_losses_of(losses, expected, i))
                throw std::logic_error("step " + std::to_string(i) + " has other bits");
              if (i == 3)
                counted.pipe().evaluate(
                    [&](zbpp::evaluation_output const& out) { kept.push_back(out.message[0]); });
            }
          });
      for (auto const& text : thrown) CHECK(text == "");
    }
  }
}

TEST_CASE("a pass that throws while its step is captured reaches every rank", "[nccl]") {
  auto const planned = plan_of(3);
  for (int culprit : {0, 1, 2}) {
    INFO("culprit " << culprit);
    reset_gpus(machine_of(planned, run_seed() + static_cast<std::uint64_t>(culprit)));
    check_told(
        fail(
            planned,
            patient_settings(),
            [=](int rank, int issued) {
              if (rank == culprit && issued == microbatches + 2)
                throw std::out_of_range("the toy broke");
            },
            {}),
        "the toy broke");
  }
}

TEST_CASE("a launch that fails reaches every rank that replays, as a fault does", "[nccl]") {
  auto const planned = plan_of(3);
  for (bool const is_fault : {false, true}) {
    INFO((is_fault ? "a fault" : "a launch"));
    reset_gpus(machine_of(planned, run_seed() + 10));
    auto const reports = fail(planned, patient_settings(), {}, [=](int rank, int step) {
      if (rank != 1 || step != 3) return;
      if (is_fault)
        model::kernel_fault(7);
      else
        model::fail_next("cudaGraphLaunch", cudaErrorInvalidValue);
    });
    if (!is_fault) {
      check_told(reports, "cudaErrorInvalidValue");
    } else {  // whoever is asked first tells it: CUDA, or NCCL
      bool const is_of_nccl = has(reports[0], "NCCL reports");
      check_told(reports, is_of_nccl ? "unhandled cuda error" : "cudaErrorIllegalAddress");
    }
  }
}

TEST_CASE("messages that a graph lacks end its step on every rank", "[nccl]") {
  auto const planned = plan_of(3);
  auto meeting_settings = patient_settings();
  meeting_settings.stall_deadline = std::chrono::seconds(1);
  reset_gpus(machine_of(planned, run_seed() + 20));
  auto const reports = fail(
      planned,
      meeting_settings,
      [](int rank, int issued) {
        if (rank != 1 || issued != microbatches + 2) return;
        model::start_counting();
        // Of whatever rank; others may send meanwhile.
        for (std::uint64_t i = 1; i < 200; ++i) model::skip("ncclSend", i);
      },
      {});
  check_told(reports, "the step has stalled");
  for (auto const& text : reports)
    CHECK(has(text, "replays the step, of which its host sees the end alone"));
}

TEST_CASE("a rank that ends while others agree, or replay, ends their step", "[nccl]") {
  auto const planned = plan_of(3);
  auto meeting_settings = patient_settings();
  meeting_settings.stall_deadline = std::chrono::seconds(1);
  for (int const last : {1, 4}) {
    INFO("step " << last);
    reset_gpus(machine_of(planned, run_seed() + 30));
    auto reports = fail(planned, meeting_settings, {}, [=](int rank, int step) {
      if (rank == 1 && step == last) throw std::runtime_error("it leaves");
    });
    CHECK(reports[1] == "it leaves");
    reports.erase(reports.begin() + 1);
    for (auto const& text : reports) {
      INFO(text);
      CHECK((has(text, "rank 1: left the run") || has(text, "the step has stalled")));
    }
    check_told(reports, "");
  }
}

TEST_CASE("what ranks cannot replay is refused on all of them", "[nccl]") {
  auto const refused = [](plan const& planned,
                          std::function<void(int rank, nccl::ranks_settings&)> const& change) {
    reset_gpus(machine_of(planned, run_seed()));
    std::vector<std::string> thrown;
    {
      step_counters const numbers(planned.problem().placement());
      thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
        counted_rank const counted(planned, meeting, {}, [&](nccl::ranks_settings& s) {
          replays(s);
          change(meeting.rank(), s);
        });
      });
    }
    CHECK(first_of(model::leaks()) == "");
    return thrown;
  };
  auto const check = [&](plan const& planned, auto const& change, std::string const& part) {
    for (auto const& text : refused(planned, change)) {
      INFO(text);
      CHECK(has(text, part));
    }
  };
  using settings = nccl::ranks_settings;
  auto const planned = plan_of(2);
  auto const text = [](std::string const& label) {
    return "replay is replay::step and " + label +
           ", which needs the host between passes; leave one of them out";
  };
  // One rank is enough for all to be told.
  check(
      planned, [](int r, settings& s) { s.traces = r == 1; }, text("traces is set"));
  check(
      planned, [](int r, settings& s) { s.synchronizes = r == 0; }, text("synchronizes is set"));
  check(
      planned,
      [](int r, settings& s) { s.replay = r == 0 ? cuda::replay::step : cuda::replay::none; },
      "replay (none at rank 1, step at rank 0)");
  check(
      toy_plan("zb_h1", 2, microbatches),
      [](int, settings&) {},
      "replay is replay::step, whose graph has the messages of a rank one behind the other, and "
      "the program can deadlock with that; lower the plan with .layout = "
      "channel_layout::one_per_rank: ");
  check(
      planned,
      [](int, settings& s) {
        static int any = 0;
        s.adopted = reinterpret_cast<ncclComm_t>(&any);
      },
      "replay is replay::step and a communicator is adopted, which a failure can only revoke");
}

}  // namespace test_nccl_replayed_ranks
