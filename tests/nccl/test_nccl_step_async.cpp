// SPDX-License-Identifier: Apache-2.0
//
// Steps over NCCL that ranks begin while others run, issued and replayed: they have the bits of one
// process, no rank waits for another one to begin them, and whatever goes wrong in one of them ends
// them on all ranks; where it goes wrong, those before it are whole.
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_counted_rank.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/random_pairs.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/toy_run.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_nccl_step_async {

using namespace zbpp::test;
namespace asio = zbpp::asio;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::plan;

namespace {

constexpr int steps = 7;
constexpr int microbatches = 5;

using started = zbpp::started_step;
using change_call = counted_rank::change_call;

void require(bool holds, std::string const& text) {
  if (!holds) throw std::logic_error(text);
}

plan plan_of(int ranks, std::string const& policy = "zb_h1") {
  return toy_plan(policy, ranks, microbatches, for_one_queue);
}

change_call settings_with(cuda::replay replay, int at_once) {
  return [=](nccl::ranks_settings& s) {
    s.replay = replay;
    s.steps_at_once = at_once;
  };
}

// Runs the steps of a rank, each begun while as many others run as may be.
void run_together(counted_rank& counted, toy::history const& expected, int at_once) {
  std::deque<started> begun;
  for (int i = 0, done = 0; i < steps; ++i) {
    begun.push_back(counted.pipe().step_async());
    require(begun.back().number() == i, "a step has another number");
    while (!begun.empty() && (static_cast<int>(begun.size()) == at_once || i + 1 == steps)) {
      auto const& losses = begun.front().get().losses;
      require(counted.are_losses_of(losses, expected, done), "a step has other losses");
      begun.pop_front();
      require(counted.pipe().steps() == ++done, "another number of steps is done");
    }
  }
  require(counted.has_gradients_of(expected, steps - 1), "the gradients are others");
}

// Runs all ranks, with what `body(rank, meeting)` has each do, and checks that nothing is wrong.
template <class Body>
void check_ranks(
    plan const& planned, model::options const& machine, change_call const& change, Body body) {
  checked_ranks const gpus(machine);
  step_counters const numbers(planned.problem().placement());
  auto const thrown =
      run_ranks(planned.problem().ranks(), patient_settings(), [&](asio::rendezvous& meeting) {
        counted_rank counted(planned, meeting, {}, change);
        body(counted, meeting);
      });
  for (auto const& text : thrown) CHECK(text == "");
}

// Has them run their steps so.
void check_together(
    plan const& planned,
    toy::history const& expected,
    model::options const& machine,
    int at_once,
    change_call const& change) {
  check_ranks(planned, machine, change, [&](counted_rank& counted, asio::rendezvous const&) {
    run_together(counted, expected, at_once);
  });
}

}  // namespace

TEST_CASE("ranks that begin steps while others run have the bits of one process", "[nccl]") {
  auto seed = run_seed();
  for (auto const& [policy, ranks] :
       {std::pair("zb_h1", 3), {"one_f_one_b", 2}, {"zb_v", 3}, {"zb_h1", 1}})
    for (auto const& options : {zbpp::lower_options{}, for_one_queue}) {
      auto const planned = toy_plan(policy, ranks, microbatches, options);
      auto const expected = adding_reference(planned, steps);
      for (auto const replay : {cuda::replay::none, cuda::replay::step}) {
        if (replay == cuda::replay::step && options.layout != for_one_queue.layout) continue;
        for (int at_once : thinned<std::vector<int>>({1, 2, 3}, {2})) {
          auto const machine = machine_of(planned, ++seed);
          INFO(
              policy << ", " << ranks << " ranks, " << at_once << " at once, replays: "
                     << (replay == cuda::replay::step) << ", interleaving " << seed);
          check_together(planned, expected, machine, at_once, settings_with(replay, at_once));
        }
      }
    }
}

TEST_CASE("so have they with other settings, and with pairs", "[nccl]") {
  auto seed = run_seed() + 100;
  ZBPP_SEEDED(random, 7);
  auto const plain = toy_plan("zb_v", 2, microbatches);
  auto const order = pair_at_random(plain.schedule(), plain.problem(), random, 1);
  REQUIRE(pairs_in(order) > 2);
  auto const planned = make_plan("pairs", order, plain.problem(), for_one_queue);
  auto const expected = adding_reference(planned, steps);
  auto const check = [&](std::string const& name, auto const& other) {
    auto machine = machine_of(planned, ++seed);
    machine.drains = seed % 2 == 0;
    INFO(name << ", interleaving " << seed);
    check_together(planned, expected, machine, 2, [&](nccl::ranks_settings& s) {
      s.steps_at_once = 2;
      other(s);
    });
  };
  using settings = nccl::ranks_settings;
  check("no other setting", [](settings&) {});
  check("a wait after each pass", [](settings& s) { s.synchronizes = true; });
  check("one communicator", [](settings& s) { s.layout = zbpp::channel_layout::one_per_rank; });
}

TEST_CASE("hosts that wait for room in launch queues begin steps all the same", "[nccl]") {
  auto seed = run_seed() + 200;
  auto const planned = plan_of(3);
  auto const expected = adding_reference(planned, steps);
  auto machine = machine_of(planned, seed);
  machine.launch_depth = 3;
  INFO("interleaving " << seed);
  check_together(planned, expected, machine, 3, settings_with(cuda::replay::none, 3));
}

TEST_CASE("a rank begins steps before others have begun any", "[nccl]") {
  constexpr int at_once = 3;
  auto const planned = plan_of(3);
  auto const expected = adding_reference(planned, at_once);
  auto const machine = machine_of(planned, run_seed() + 300);
  for (int const early : {0, 1, 2}) {
    INFO("rank " << early);
    std::latch begun(1);
    auto const steps_of_rank = [&](counted_rank& counted, asio::rendezvous& meeting) {
      auto& pipe = counted.pipe();
      auto const& board = meeting.control_channel().board();
      if (meeting.rank() != early) begun.wait();
      for (int i = 0; i < at_once; ++i) {
        static_cast<void>(pipe.step_async());
        // Nobody takes a host for stuck that is away.
        require(board.read().phase == asio::progress_phase::outside, "the rank is in a step");
      }
      if (meeting.rank() == early) {
        require(pipe.steps() == 0, "a step has ended without others");
        require(board.read().step == 0, "the rank is in another step");
        begun.count_down();
      }
      static_cast<void>(pipe.evaluate());  // waits for all
      require(board.read().step == at_once, "the evaluation has another number");
      require(pipe.steps() == at_once, "steps are missing");
      require(counted.has_gradients_of(expected, at_once - 1), "the gradients are others");
    };
    check_ranks(planned, machine, settings_with(cuda::replay::none, at_once), steps_of_rank);
  }
}

TEST_CASE("steps and evaluations wait for those that were begun, and so does the end", "[nccl]") {
  auto const planned = plan_of(3);
  auto const expected = adding_reference(planned, 6);
  auto const machine = machine_of(planned, run_seed() + 400);
  auto const steps_of_rank = [&](counted_rank& counted, asio::rendezvous const&) {
    auto& pipe = counted.pipe();
    static_cast<void>(pipe.step_async());
    static_cast<void>(pipe.step_async());
    require(counted.are_losses_of(pipe.step().losses, expected, 2), "step 2 has other losses");
    auto const third = pipe.step_async();
    static_cast<void>(pipe.evaluate());
    require(pipe.steps() == 4, "the evaluation does not wait");
    require(counted.are_losses_of(third.get().losses, expected, 3), "step 3 has other losses");
    static_cast<void>(pipe.step_async());
    static_cast<void>(pipe.step_async());
    counted.leave();
    require(counted.has_gradients_of(expected, 5), "the gradients are others");
  };
  for (auto const replay : {cuda::replay::none, cuda::replay::step}) {
    INFO("replays: " << (replay == cuda::replay::step));
    check_ranks(planned, machine, settings_with(replay, 2), steps_of_rank);
  }
}

namespace {

// What happens to a run, and how it is set up.
struct accident {
  int culprit = 0;
  std::function<void(int issued)> on_forward = {};  // of the culprit
  std::function<void(int step)> before_step = {};   // of the culprit
  cuda::replay replay = cuda::replay::none;
  asio::rendezvous_settings meeting = patient_settings();
};

// What a rank made of a run that failed.
struct end_of_rank {
  std::vector<std::string> reports;  // first, by each step behind, and by later calls
  std::int64_t steps = -1;           // that it counts as done
};

// Begins steps on all ranks, three at once, until they fail. Each checks that what is done is
// right, and that what has failed goes on failing.
std::vector<end_of_rank> fail(
    plan const& planned, toy::history const& expected, accident const& accident) {
  auto const ranks = planned.problem().ranks();
  step_counters const numbers(planned.problem().placement());
  std::vector<end_of_rank> ends(zbpp::detail::index(ranks));
  auto const thrown = run_ranks(ranks, accident.meeting, [&](asio::rendezvous& meeting) {
    bool const is_culprit = meeting.rank() == accident.culprit;
    auto const harm = is_culprit ? accident.on_forward : counted_rank::on_forward_call{};
    counted_rank counted(planned, meeting, harm, settings_with(accident.replay, 3));
    auto& pipe = counted.pipe();
    auto& end = ends[zbpp::detail::index(meeting.rank())];
    meeting.barrier();  // or a rank may learn of the failure while it makes its pipeline
    std::deque<started> begun;
    std::vector<std::pair<std::int64_t, bool>> right;  // of steps: whether their losses are
    auto const note = [&](started const& each) {
      auto const number = static_cast<int>(each.number());
      right.emplace_back(number, counted.are_losses_of(each.get().losses, expected, number));
    };
    try {
      for (int i = 0; i < 12; ++i) {
        if (is_culprit && accident.before_step) accident.before_step(i);
        begun.push_back(pipe.step_async());
        if (begun.size() < 3) continue;
        note(begun.front());
        begun.pop_front();
      }
    } catch (zbpp::error const& failed) {
      end.reports.emplace_back(failed.what());
    }
    end.steps = pipe.steps();
    for (auto const& each : begun) try {
        note(each);
        require(each.number() < end.steps, "a step that is not counted gives losses");
      } catch (zbpp::error const& again) {
        require(each.number() >= end.steps, "a step that is counted fails");
        end.reports.emplace_back(again.what());
      }
    for (int i = 0; i < 2; ++i) try {
        static_cast<void>(i == 0 ? pipe.step_async().get() : pipe.step());
        throw std::logic_error("a run that has failed goes on");
      } catch (zbpp::error const& again) {
        end.reports.emplace_back(again.what());
      }
    require(pipe.steps() == end.steps, "steps are counted after the failure");
    for (auto const& [number, is_right] : right) require(is_right, "a step has other losses");
  });
  for (auto const& text : thrown) CHECK(text == "");
  return ends;
}

void check_ends(std::vector<end_of_rank> const& ends, std::string const& part) {
  std::vector<std::string> reports;
  for (auto const& each : ends)
    reports.insert(reports.end(), each.reports.begin(), each.reports.end());
  check_told(reports, part);
}

}  // namespace

TEST_CASE("what a pass throws while steps run leaves those before it whole", "[nccl]") {
  auto const planned = plan_of(3);
  auto const expected = adding_reference(planned, 12);
  auto seed = run_seed() + 500;
  for (int culprit : {0, 1, 2})
    for (int step : thinned<std::vector<int>>({0, 1, 4}, {4})) {
      INFO("culprit " << culprit << ", step " << step << ", interleaving " << seed + 1);
      reset_gpus(machine_of(planned, ++seed));
      auto const ends = fail(planned, expected, {.culprit = culprit, .on_forward = [=](int issued) {
                                                   if (issued == step * microbatches + 2)
                                                     throw std::out_of_range("the toy broke");
                                                 }});
      check_ends(ends, "the toy broke");
      CHECK(ends[zbpp::detail::index(culprit)].steps == step);
      for (std::size_t rank = 0; rank < ends.size(); ++rank) {
        CHECK(ends[rank].steps <= step);
        // To others, the first failure names its step.
        auto const names = "the toy broke (in step " + std::to_string(step) + ")";
        bool const is_culprit = static_cast<int>(rank) == culprit;
        CHECK((is_culprit || ends[rank].reports.front().find(names) != std::string::npos));
      }
    }
}

TEST_CASE("a launch that fails while steps are replayed reaches every rank", "[nccl]") {
  auto const planned = plan_of(3);
  auto const expected = adding_reference(planned, 12);
  for (int culprit : {0, 2}) {
    INFO("culprit " << culprit);
    reset_gpus(machine_of(planned, run_seed() + 600));
    auto const ends = fail(
        planned,
        expected,
        {.culprit = culprit,
         .before_step =
             [](int step) {
               if (step == 8) model::fail_next("cudaGraphLaunch", cudaErrorInvalidValue);
             },
         .replay = cuda::replay::step});
    check_ends(ends, "cudaErrorInvalidValue");
  }
}

TEST_CASE("a fault of a device while steps run reaches every rank", "[nccl]") {
  auto const planned = plan_of(3);
  auto const expected = adding_reference(planned, 12);
  for (auto const replay : {cuda::replay::none, cuda::replay::step}) {
    INFO("replays: " << (replay == cuda::replay::step));
    reset_gpus(machine_of(planned, run_seed() + 700));
    auto const ends = fail(
        planned,
        expected,
        {.culprit = 1,
         .before_step =
             [](int step) {
               if (step == 7) model::kernel_fault(7);
             },
         .replay = replay});
    // Whoever is asked first tells it: CUDA, or NCCL.
    bool const is_of_nccl = ends[0].reports.front().find("NCCL reports") != std::string::npos;
    check_ends(ends, is_of_nccl ? "unhandled cuda error" : "cudaErrorIllegalAddress");
  }
}

TEST_CASE("messages that are lost while steps run end them on every rank", "[nccl]") {
  auto const planned = plan_of(3);
  auto const expected = adding_reference(planned, 12);
  auto meeting = patient_settings();
  meeting.stall_deadline = std::chrono::seconds(1);
  {
    reset_gpus(machine_of(planned, run_seed() + 800));
    auto const ends = fail(
        planned,
        expected,
        {.culprit = 1,
         .on_forward =
             [](int issued) {
               if (issued != 4 * microbatches + 2) return;
               model::start_counting();
               // Of whatever rank; others may send meanwhile.
               for (std::uint64_t i = 1; i < 200; ++i) model::skip("ncclSend", i);
             },
         .meeting = meeting});
    check_ends(ends, "the step has stalled");
  }
}

TEST_CASE("a rank that leaves while others have begun steps ends those", "[nccl]") {
  auto const planned = plan_of(3);
  auto meeting_settings = patient_settings();
  meeting_settings.stall_deadline = std::chrono::seconds(1);
  reset_gpus(machine_of(planned, run_seed() + 900));
  std::vector<std::string> reports(3);
  {
    step_counters const numbers(planned.problem().placement());
    auto const thrown = run_ranks(3, meeting_settings, [&](asio::rendezvous& meeting) {
      counted_rank counted(planned, meeting, {}, settings_with(cuda::replay::none, 2));
      auto const rank = meeting.rank();
      try {
        for (int i = 0; i < 4; ++i) {
          if (rank == 1 && i == 3) throw std::runtime_error("it leaves");
          static_cast<void>(counted.pipe().step_async());
        }
        static_cast<void>(counted.pipe().step());
      } catch (std::exception const& failed) {
        reports[zbpp::detail::index(rank)] = failed.what();
      }
    });
    for (auto const& text : thrown) CHECK(text == "");
  }
  CHECK(reports[1] == "it leaves");
  for (auto const& text : {reports[0], reports[2]}) {
    INFO(text);
    bool const has_left = text.find("rank 1: left the run") != std::string::npos;
    CHECK((has_left || text.find("the step has stalled") != std::string::npos));
  }
  check_told({}, "");
}

TEST_CASE("steps at once that cannot be are refused on all ranks", "[nccl]") {
  auto const planned = plan_of(2);
  auto const refused = [&](std::function<void(int rank, nccl::ranks_settings&)> const& change) {
    reset_gpus(machine_of(planned, run_seed()));
    std::vector<std::string> thrown;
    {
      step_counters const numbers(planned.problem().placement());
      thrown = run_ranks(2, patient_settings(), [&](asio::rendezvous& meeting) {
        counted_rank const counted(
            planned, meeting, {}, [&](nccl::ranks_settings& s) { change(meeting.rank(), s); });
      });
    }
    CHECK(first_of(model::leaks()) == "");
    return thrown;
  };
  auto const check = [&](auto const& change, std::string const& part) {
    for (auto const& text : refused(change)) {
      INFO(text);
      CHECK(text.find(part) != std::string::npos);
    }
  };
  using settings = nccl::ranks_settings;
  check(
      [](int r, settings& s) { s.steps_at_once = r + 1; },
      "steps_at_once (2 at rank 1, 1 at rank 0)");
  check(
      [](int, settings& s) { s.steps_at_once = 0; },
      "steps_at_once is below 1; give a number of steps from 1");
  check(
      [](int r, settings& s) {
        s.steps_at_once = 2;
        s.traces = r == 1;
      },
      "steps_at_once is above 1 and traces is set, which times one step; leave one of them out");
}

}  // namespace test_nccl_step_async
