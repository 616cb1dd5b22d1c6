// SPDX-License-Identifier: Apache-2.0
//
// Copies between processes of one host carry messages: the bits of one process for every policy,
// alone and beside NCCL, and nothing left behind whatever fails.
#include <zbpp/nccl/detail/peer_channels.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/cuda_model/cuda_model.hpp>
#include <support/cuda_steps.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/padded_toy.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/sharing_calls.hpp>
#include <support/thinned.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace test_nccl_peers {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using nccl::detail::peer_receiver;
using nccl::detail::peer_sender;
using nccl::detail::shared_page;
using zbpp::plan;
using zbpp::problem;

namespace {

void reset(std::uint64_t seed, int devices) {
  model::reset({.seed = seed, .devices = devices, .shares_memory = true});
}

// Evaluates after each step, too, whose messages use the same slots.
toy::history train(plan const& planned, nccl_in_one_process backend) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<toy::padded_stage> stages(all.begin(), all.end());
  backend.edges = toy::edge_shapes(planned.problem());
  zbpp::pipeline pipe{planned, std::move(backend), stages};
  return toy::train(all, [&](int) {
    auto losses = pipe.step().losses;
    pipe.evaluate();
    return losses;
  });
}

}  // namespace

TEST_CASE(
    "copies between processes give the bits of one process, beside NCCL, too", "[nccl][long]") {
  std::uint64_t seed = run_seed();
  int tried = 0;
  for (int p : thinned<std::vector<int>>({2, 3, 4}, {3}))
    for_each_plan_to_launch(p, [&](std::string const& name, plan const& planned) {
      // All channels, or those of one parity.
      auto const kind = static_cast<int>(++seed % 3);
      INFO(name << ", interleaving " << seed << ", channels " << kind);
      reset(seed, p);
      auto const is_right =
          train(planned, {.by_copies = [=](int c) { return kind == 2 || c % 2 == kind; }}) ==
          toy::in_single_precision(toy::train_reference(planned));
      CHECK(is_right);
      CHECK(first_of(model::faults()) == "");
      CHECK(first_of(model::leaks()) == "");
      ++tried;
    });
  CHECK(tried > thinned(200, 50));
}

TEST_CASE(
    "ranks agree on steps with the bits of one process when copies carry messages", "[nccl]") {
  using stage = gpu_steps::optimized_stage<toy::padded_passes<toy::launched_passes_with_scratch>>;
  auto seed = run_seed();
  gpu_steps::for_each_case([&](zbpp::any_policy const& policy, problem const& problem) {
    for (auto const kind : {zbpp::step_kind::post_validated, zbpp::step_kind::synchronous}) {
      auto const planned = make_plan(policy, problem, {.step = kind});
      for (auto const& with : gpu_steps::troubles_in_turn(planned, seed)) {
        reset(++seed, problem.ranks());
        INFO("interleaving " << seed << ", clips at " << with.clip);
        auto const all = seed / 2 % 2 == 0;
        gpu_steps::check(
            gpu_steps::train_on<stage>(
                planned,
                with,
                nccl_in_one_process{.by_copies = [=](int c) { return all || c % 2 == 0; }}),
            gpu_steps::train_alone(planned, with),
            planned,
            with);
      }
    }
  });
}

namespace {

constexpr std::size_t edge = 256;

// Keeps what it receives beyond its flow.
struct greedy_stage {
  std::vector<zbpp::buffer>* kept;

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer y;
    auto const in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      if (!mb.is_first_stage()) kept->push_back(in);
      y = make(ctx);
    });
    co_await mb.send_activation(std::move(y));
    auto const back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) { y = make(ctx); });
    co_await mb.send_gradient(std::move(y));
    co_await zbpp::W([] {});
  }
  static void update(zbpp::pass_context) {}

  static zbpp::buffer make(zbpp::pass_context ctx) {
    auto made = ctx.allocate_edge(edge);
    cuda::check(model::launch(cuda::stream_of(ctx), "make", {}, {{made.data(), made.size()}}));
    return made;
  }
};

}  // namespace

TEST_CASE("a stage that keeps a message beyond its microbatch is told", "[nccl]") {
  auto const planned = make_plan(
      zbpp::one_f_one_b{},
      problem(
          zbpp::placement::linear(2),
          6,
          {.forward = 1, .backward_input = 1, .backward_weight = 1, .edge = edge}));
  for (bool const by_copies : {false, true}) {
    reset(run_seed(), 2);
    std::vector<zbpp::buffer> kept;
    std::vector<greedy_stage> stages(2, greedy_stage{&kept});
    auto const reports = refusal(zbpp::errc::wrong_flow, [&] {
      zbpp::pipeline pipe{
          planned, nccl_in_one_process{.by_copies = [=](int) { return by_copies; }}, stages};
      pipe.step();
    });
    INFO(reports);
    kept.clear();
    CHECK(
        (reports.find("a message from rank 0 is still held where its slot opens for another one") !=
         std::string::npos) == by_copies);
    CHECK(first_of(model::leaks()) == "");
  }
}

namespace {

struct ends {
  std::unique_ptr<peer_receiver> receiver;
  std::unique_ptr<peer_sender> sender;
};

ends make_ends(std::size_t slots = 2) {
  ends made;
  cuda::device_guard const there(1);
  made.receiver =
      std::make_unique<peer_receiver>(1, 0, slots, cuda::message_shape{zbpp::bytes{edge}});
  cuda::device_guard const here(0);
  made.sender = std::make_unique<peer_sender>(0, made.receiver->offer());
  bool const has_arrived = made.receiver->has_arrived(made.sender->answer());
  CHECK(has_arrived);
  made.receiver->accept();
  return made;
}

// What a sender does not call.
bool is_of_receiver(std::string_view function) {
  return function == "cudaIpcGetMemHandle" || function == "cudaHostAlloc";
}

}  // namespace

TEST_CASE("whatever fails while slots are shared, nothing is left behind", "[nccl]") {
  for (auto const* function : calls_that_share_slots) {
    INFO(function);
    reset(run_seed(), 2);
    model::start_counting();
    { auto const both = make_ends(); }
    auto const calls = model::count(function);
    REQUIRE(calls > 0);
    for (bool const at_sender : {false, true}) {
      reset(run_seed(), 2);
      if (!at_sender) {
        model::fail_next(function, cudaErrorNotSupported);
        try {
          auto const both = make_ends();
          FAIL_CHECK("nothing was thrown");
        } catch (zbpp::error const&) {
        }
      } else {
        cuda::device_guard const there(1);
        peer_receiver const receiver(1, 0, 2, cuda::message_shape{zbpp::bytes{edge}});
        if (is_of_receiver(function)) continue;
        cuda::device_guard const here(0);
        model::fail_next(function, cudaErrorNotSupported);
        CHECK_THROWS_AS(peer_sender(0, receiver.offer()), zbpp::error);
      }
      CHECK(first_of(model::faults()) == "");
      CHECK(first_of(model::leaks()) == "");
    }
  }
}

TEST_CASE("waits end at both ends without a call of CUDA, whatever devices write", "[nccl]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    reset(run_seed() + seed, 2);
    auto const both = make_ends();
    nccl::detail::peer_set all(1);
    zbpp::arena memory(cuda::device_memory(1));
    cuda::device_guard const there(1);
    cuda::stream const compute(cuda::stream_priority::usual);
    // The sender sends nothing, and then more than there are slots for.
    both.receiver->wait(compute, 0);
    static_cast<void>(both.receiver->open(memory, {edge}));
    both.receiver->tell(compute);
    both.receiver->wait(compute, 5);
    zbpp::arena own(cuda::device_memory(0));
    auto const content = own.allocate(edge);
    {
      cuda::device_guard const here(0);
      cuda::check(cudaMemsetAsync(content.data(), 1, edge, both.sender->copies()));
      if (seed % 2 == 0)
        for (int i = 0; i < 4; ++i) both.sender->send(zbpp::message(content), true, true);
    }
    CHECK(cudaStreamQuery(compute.view()) == cudaErrorNotReady);
    auto const before = model::calls().size();
    both.receiver->end_waits();
    both.sender->end_waits();
    CHECK(model::calls().size() == before);
    while (cudaStreamQuery(compute.view()) == cudaErrorNotReady ||
           cudaStreamQuery(both.sender->copies()) == cudaErrorNotReady) {
      both.receiver->end_waits();
      both.sender->end_waits();
    }
    for (auto const& fault : model::faults()) CHECK(fault.starts_with("race"));
  }
}

TEST_CASE("a page is shared with who knows it, and has no name that could be left", "[nccl]") {
  reset(run_seed(), 1);
  shared_page own;
  {
    shared_page const other(own.name());
    CHECK(other.data() != own.data());
    *static_cast<int*>(own.data()) = 7;
    CHECK(*static_cast<int const*>(other.data()) == 7);
  }
  auto wrong = own.name();
  ++wrong.id[2];
  CHECK_THROWS_AS(shared_page(wrong), std::system_error);
  wrong = own.name();
  wrong.file = 0;
  CHECK_THROWS_AS(shared_page(wrong), std::system_error);
  wrong.process = 0;
  CHECK_THROWS_AS(shared_page(wrong), std::system_error);
  own.close_file();
  CHECK_THROWS_AS(shared_page(own.name()), std::system_error);
}

}  // namespace test_nccl_peers
