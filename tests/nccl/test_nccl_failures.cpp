// SPDX-License-Identifier: Apache-2.0
//
// What follows a failure of a run over NCCL never hides it: passes that take messages are enqueued
// before those come, and where they never come the kernels here fault, as kernels do that index by
// what they read.
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/seeded.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_nccl_failures {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::buffer;
using zbpp::microbatch;
using zbpp::pass_context;

namespace {

constexpr int ranks = 3;
constexpr std::size_t edge = 256;

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

// Which message of a run a buffer holds.
int stamp(microbatch mb, int stage, bool is_forward) {
  auto const of_step = static_cast<int>(mb.step()) * 100 + mb.index();
  return (of_step * ranks + stage) * 2 + (is_forward ? 1 : 0);
}

// Its kernels fault unless a message is the one that they are for.
struct indexing_stage {
  std::function<void()> harm;

  zbpp::flow operator()(microbatch mb) {
    buffer x;
    buffer dx;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](pass_context ctx) {
      if (harm && mb.step() == 1 && mb.index() == 2) harm();
      x = make(ctx, mb.is_first_stage() ? buffer{} : buffer(in), mb, true);
    });
    co_await mb.send_activation(std::move(x));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](pass_context ctx) {
      dx = make(ctx, mb.is_last_stage() ? buffer{} : buffer(back), mb, false);
    });
    co_await mb.send_gradient(std::move(dx));
    co_await zbpp::W([] {});
  }
  void update(pass_context) {}

 private:
  static buffer make(pass_context ctx, buffer const& in, microbatch mb, bool is_forward) {
    auto out = ctx.allocate_edge(edge);
    auto const from = in.size() > 0 ? in.as<int>() : std::span<int>();
    auto const to = out.as<int>();
    int const before = stamp(mb, mb.stage() + (is_forward ? -1 : 1), is_forward);
    int const after = stamp(mb, mb.stage(), is_forward);
    cuda::check(model::launch(
        cuda::stream_of(ctx),
        {is_forward ? "F" : "B", mb.stage(), mb.index()},
        {{from.data(), from.size_bytes()}},
        {{to.data(), to.size_bytes()}},
        [=] {
          if (!from.empty() && from[0] != before) throw model::fault_in_kernel();
          std::ranges::fill(to, after);
        }));
    return out;
  }
};

// What a rank learned.
struct account {
  std::string thrown;
  bool is_first = false;  // of its failures, too
  bool is_dead = false;   // whether its device is lost
  bool knows_it = false;
};

// How two steps run, of which the second fails at one rank.
struct setup {
  int culprit = 0;
  bool synchronizes = false;
  std::function<void(zbpp::asio::rendezvous&)> before_second = [](auto&) {};
  std::function<void()> before_failure = [] {};  // on the culprit
};

zbpp::plan plan_of_ranks() {
  zbpp::stage_costs const costs{
      .forward = 2, .backward_input = 2, .backward_weight = 1, .edge = edge};
  return zbpp::make_plan(
      zbpp::zb_h1{}, zbpp::problem(zbpp::placement::linear(ranks), 5, costs), {.receive_ahead = 1});
}

// Starts the model anew, with an interleaving and hardware queues of its own for each trial.
void reset_for(int trial) {
  reset_gpus(machine_of(plan_of_ranks(), run_seed() + static_cast<std::uint64_t>(trial)));
}

std::vector<account> fail(setup const& setup) {
  auto const planned = plan_of_ranks();
  std::vector<account> all(ranks);
  auto const thrown = run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto const rank = meeting.rank();
    auto& account = all[zbpp::detail::index(rank)];
    cuda::device_guard const here(rank);
    std::array stages{indexing_stage{}};
    if (rank == setup.culprit)
      stages[0].harm = [&] {
        setup.before_failure();
        throw std::out_of_range("the toy broke");
      };
    nccl::ranks_settings settings;
    settings.device = {.device = rank};
    settings.synchronizes = setup.synchronizes;
    zbpp::pipeline pipe(planned, nccl::ranks(meeting, settings), stages);
    pipe.step();
    meeting.barrier();
    setup.before_second(meeting);
    try {
      for (int i = 0; i < 2; ++i) pipe.step();  // a rank may have finished before the failure
    } catch (zbpp::error const& failed) {
      account.thrown = failed.what();
    }
    auto const tell = [](zbpp::failure const& failure) {
      try {
        std::rethrow_exception(failure.exception);
      } catch (std::exception const& e) {
        return std::string(e.what());
      }
    };
    auto const& failures = pipe.failures();
    account.is_first = !failures.empty() && has(tell(failures.front()), "the toy broke");
    account.is_dead = cudaDeviceSynchronize() != cudaSuccess;
    account.knows_it = std::ranges::any_of(failures, [&](zbpp::failure const& one) {
      return one.location.rank == rank && has(tell(one), "cudaErrorIllegalAddress");
    });
  });
  for (auto const& text : thrown) CHECK(text == "");
  return all;
}

}  // namespace

TEST_CASE(
    "passes without their messages may fault, and the first failure stays first", "[nccl][long]") {
  int dead = 0;
  for (int trial = 0; trial < 20; ++trial) {
    reset_for(trial);
    INFO("trial " << trial);
    for (auto const& one : fail({.culprit = trial % ranks})) {
      CHECK(has(one.thrown, "the toy broke"));
      CHECK(one.is_first);
      CHECK(one.knows_it == one.is_dead);
      dead += one.is_dead ? 1 : 0;
    }
    CHECK(first_of(model::leaks()) == "");
  }
  CHECK(dead > 0);
}

TEST_CASE("nothing is given up before all ranks know of the failure", "[nccl]") {
  for (int const held_rank : {0, 1}) {
    INFO("rank " << held_rank << " does not know");
    reset_for(held_rank);
    std::promise<void> is_held;
    auto const held = is_held.get_future();
    bool was_early = false;
    // Keeps the rank from reading for as long as an abort that does not wait for it would take.
    auto const hold = [&] {
      is_held.set_value();
      auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
      while (!was_early && std::chrono::steady_clock::now() < end)
        was_early = model::count("ncclCommAbort") > 0;
    };
    auto const all = fail(
        {.culprit = 2,
         .before_second =
             [&](zbpp::asio::rendezvous& meeting) {
               if (meeting.rank() == held_rank)
                 boost::asio::post(meeting.control_channel().loop().io(), hold);
             },
         .before_failure = [&] { held.wait(); }});
    CHECK_FALSE(was_early);
    for (auto const& one : all) CHECK(one.is_first);
  }
}

TEST_CASE("a host that waits for messages issues no pass without its own", "[nccl]") {
  for (int trial = 0; trial < 9; ++trial) {
    reset_for(trial);
    INFO("trial " << trial);
    for (auto const& one : fail({.culprit = trial % ranks, .synchronizes = true})) {
      CHECK(has(one.thrown, "the toy broke"));
      CHECK_FALSE(one.is_dead);
    }
    CHECK(first_of(model::faults()) == "");
    CHECK(first_of(model::leaks()) == "");
  }
}

}  // namespace test_nccl_failures
