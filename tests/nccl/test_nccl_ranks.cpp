// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes to each other, each with a GPU of the model, and NCCL between them: the
// bits of one process, and one failure for all whatever goes wrong.
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/padded_toy.hpp>
#include <support/plan_grid.hpp>
#include <support/policy_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/seeded.hpp>
#include <support/toy_run.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_nccl_ranks {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::plan;
using zbpp::problem;

namespace {

constexpr int steps = 2;

// What the ranks of a run give together.
struct outcome {
  std::vector<std::vector<double>> losses;    // of each step, then of an evaluation
  std::vector<unsigned long long> gradients;  // by stage

  friend bool operator==(outcome const& a, outcome const& b) {
    bool same = a.gradients == b.gradients && a.losses.size() == b.losses.size();
    for (std::size_t i = 0; same && i < a.losses.size(); ++i)
      same = toy::is_same(a.losses[i], b.losses[i]);
    return same;
  }
};

unsigned long long digest_of(toy::stage_model const& stage) {
  digest gradient;
  for (auto const& l : stage.layers) gradient.add(l.gradient);
  return gradient.value();
}

outcome reference(plan const& planned) {
  toy::fused_passes const is_fused(planned);
  auto all = toy::make_model(planned.problem().stages());
  outcome result;
  auto run = [&](int step) {
    result.losses.push_back(
        toy::device_reference_step(all, step, planned.problem().microbatches(), is_fused));
  };
  for (int i = 0; i < steps; ++i) run(i);
  for (auto const& stage : all) result.gradients.push_back(digest_of(stage));
  run(steps);  // an evaluation has the losses of a step
  return result;
}

void load_kernels(zbpp::pass_context ctx) {
  for (auto const* kernel : {"toy", "toy loss"})
    zbpp::cuda::check(model::launch(zbpp::cuda::stream_of(ctx), kernel, {}, {}));
}

// Has its kernels loaded before the first step.
struct warm_stage : toy::padded_stage {
  using toy::padded_stage::padded_stage;

  static void warm_up(zbpp::pass_context ctx) { load_kernels(ctx); }
};

// Makes a pipeline on each rank. @return what each of them throws
std::vector<std::string> make_on_ranks(
    plan const& planned, std::function<void(nccl::ranks_settings&)> const& change = {}) {
  return run_ranks(
      planned.problem().ranks(), patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
        auto all = toy::make_model(planned.problem().stages());
        std::vector<toy::padded_stage> stages;
        for (int s : planned.problem().placement().stages_of(meeting.rank()))
          stages.emplace_back(all[zbpp::detail::index(s)]);
        auto settings = settings_of(planned, meeting.rank());
        if (change) change(settings);
        zbpp::pipeline const pipe(planned, nccl::ranks(meeting, settings), stages);
        meeting.barrier();  // a rank whose own channels are ready learns of a failure here
      });
}

// Each rank has a model of its own, of which it trains its stages.
outcome on_ranks(
    plan const& planned, std::function<void(nccl::ranks_settings&)> const& change = {}) {
  outcome result;
  result.gradients.resize(zbpp::detail::index(planned.problem().stages()));
  std::mutex mutex;
  auto const thrown = run_ranks(
      planned.problem().ranks(), patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
        auto all = toy::make_model(planned.problem().stages());
        std::vector<warm_stage> stages;
        auto const& placement = planned.problem().placement();
        for (int s : placement.stages_of(meeting.rank()))
          stages.emplace_back(all[zbpp::detail::index(s)]);
        auto settings = settings_of(planned, meeting.rank());
        if (change) change(settings);
        zbpp::pipeline pipe(planned, nccl::ranks(meeting, settings), stages);
        outcome outcome;
        for (int i = 0; i < steps; ++i) outcome.losses.push_back(pipe.step().losses);
        for (int s : placement.stages_of(meeting.rank()))
          result.gradients[zbpp::detail::index(s)] = digest_of(all[zbpp::detail::index(s)]);
        outcome.losses.push_back(pipe.evaluate().losses);
        std::lock_guard const lock(mutex);
        if (placement.rank_of(planned.problem().stages() - 1) == meeting.rank())
          result.losses = outcome.losses;
      });
  for (auto const& text : thrown) CHECK(text == "");
  return result;
}

}  // namespace

TEST_CASE("ranks in processes of their own give the bits of one process", "[nccl]") {
  std::uint64_t seed = run_seed();
  for (auto const& [policy, ranks] : {std::pair("zb_h1", 1), {"one_f_one_b", 2}, {"zb_v", 3}}) {
    for (auto const& options : {zbpp::lower_options{}, for_one_queue}) {
      auto const planned = toy_plan(policy, ranks, 5, options);
      auto const machine = machine_of(planned, ++seed);
      checked_ranks const gpus(machine);
      INFO(policy << ", " << machine.connections << " queues");
      CHECK(on_ranks(planned) == reference(planned));
    }
  }
}

TEST_CASE("pairs in processes of their own give the bits of one process", "[nccl]") {
  std::uint64_t seed = run_seed() + 20;
  using settings = nccl::ranks_settings;
  std::vector<std::function<void(settings&)>> const changes{
      {}, [](settings& s) { s.traces = true; }, [](settings& s) { s.synchronizes = true; }};
  for (auto const& change : changes)
    for (auto const& options : {zbpp::lower_options{}, for_one_queue}) {
      ZBPP_SEEDED(random, 7);
      auto const plain = toy_plan("zb_v", 2, 5);
      auto const order = pair_at_random(plain.schedule(), plain.problem(), random, 1);
      CHECK(pairs_in(order) > 2);
      auto const planned = make_plan("pairs", order, plain.problem(), options);
      auto machine = machine_of(planned, ++seed);
      machine.drains = true;
      checked_ranks const gpus(machine);
      INFO(machine.connections << " queues");
      CHECK(on_ranks(planned, change) == reference(planned));
    }
}

TEST_CASE("a rank is interrupted once in a step, whatever the number of passes", "[nccl]") {
  auto seed = run_seed() + 40;
  for (int const microbatches : {2, 7}) {
    auto const planned = toy_plan("zb_h1", 2, microbatches);
    checked_ranks const gpus(machine_of(planned, ++seed));
    auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
      auto all = toy::make_model(2);
      std::vector stages{warm_stage(all[zbpp::detail::index(meeting.rank())])};
      auto const settings = settings_of(planned, meeting.rank());
      zbpp::pipeline pipe(planned, nccl::ranks(meeting, settings), stages);
      pipe.step();
      meeting.barrier();
      if (meeting.rank() == 0) model::start_counting();
      meeting.barrier();
      for (int i = 0; i < steps; ++i) pipe.step();
      meeting.barrier();
      if (meeting.rank() == 0) CHECK(model::interrupts() == 2 * steps);
      meeting.barrier();
    });
    for (auto const& text : thrown) CHECK(text == "");
  }
}

TEST_CASE("neighbours that share a GPU are refused, and others run", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 5);
  auto machine = machine_of(planned, run_seed() + 75);
  machine.devices = 2;
  machine.connections = 32;
  machine.mapping = model::queue_mapping::in_turn;
  auto const place = [](std::array<int, 3> const& device_of) {
    return [=](nccl::ranks_settings& s) {
      s.device->device = device_of[zbpp::detail::index(s.device->device)];
    };
  };
  reset_gpus(machine);
  model::start_counting();
  for (auto const& text : make_on_ranks(planned, place({0, 0, 1}))) {
    INFO(text);
    CHECK(text.starts_with("bad argument: "));
    CHECK(
        text.find(": ranks 0 and 1 share the GPU at PCI bus 0000:01:00.0 of ") !=
        std::string::npos);
    CHECK(text.find(", and NCCL makes no communicator of both; give") != std::string::npos);
  }
  CHECK(model::count("ncclGetUniqueId") == 0);
  CHECK(model::count("ncclCommInitRankConfig") == 0);
  CHECK(first_of(model::leaks()) == "");
  // Ranks 0 and 2 have no messages for each other, so nothing has to carry any.
  checked_ranks const gpus(machine);
  CHECK(on_ranks(planned, place({0, 1, 0})) == reference(planned));
}

TEST_CASE("allocations and first launches that wait for the device hold up no step", "[nccl]") {
  std::uint64_t seed = run_seed() + 50;
  for (auto const& [policy, ranks] : {std::pair("zb_h1", 3), {"one_f_one_b", 2}, {"zb_v", 3}})
    for (int ahead : {0, 2}) {
      auto const usual = toy_plan(policy, ranks, 5);
      auto const planned =
          make_plan(policy, usual.schedule(), usual.problem(), {.receive_ahead = ahead});
      auto machine = machine_of(planned, ++seed);
      machine.drains = true;
      checked_ranks const gpus(machine);
      INFO(policy << ", receives opened " << ahead << " passes ahead");
      CHECK(on_ranks(planned) == reference(planned));
    }
}

namespace {

// Takes more memory in one of its passes than its costs say.
class hungry_passes : public toy::padded_passes<toy::basic_passes<toy::launched>> {
 public:
  using padded_passes::padded_passes;
  static constexpr std::size_t more = 5'000'000;

  zbpp::message forward(
      saved& kept, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx) {
    if (mb.index() == 1) static_cast<void>(ctx.allocate(more));
    return padded_passes::forward(kept, in, mb, ctx);
  }
};

// Takes that much before the first step, so that steps find it, or does not.
struct hungry_stage : toy::basic_hand_written<hungry_passes> {
  hungry_stage(toy::stage_model& stage, bool is_warm)
      : basic_hand_written(stage), is_warm_(is_warm) {}

  void warm_up(zbpp::pass_context ctx) const {
    load_kernels(ctx);
    if (is_warm_) static_cast<void>(ctx.allocate(hungry_passes::more));
  }

 private:
  bool is_warm_;
};

}  // namespace

TEST_CASE("steps wait for no allocation of what warm_up has taken", "[nccl]") {
  auto const usual = toy_plan("zb_h1", 3, 5);
  auto const planned = make_plan("ZB-H1", usual.schedule(), usual.problem(), {.receive_ahead = 2});
  // @return by rank, how often its arena grew in a step
  auto const run = [&](bool is_warm, bool drains) {
    auto machine = machine_of(planned, run_seed() + 60);
    machine.drains = drains;
    if (drains && !is_warm) machine.patience = std::chrono::milliseconds(200);
    reset_gpus(machine);
    std::array<int, 3> growths{};
    auto const thrown = run_ranks(3, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
      auto const rank = meeting.rank();
      auto all = toy::make_model(3);
      std::array stages{hungry_stage(all[zbpp::detail::index(rank)], is_warm)};
      zbpp::pipeline pipe(planned, nccl::ranks(meeting, settings_of(planned, rank)), stages);
      auto const before = pipe.memory(rank).growths;
      pipe.step();
      growths[zbpp::detail::index(rank)] = pipe.memory(rank).growths - before;
    });
    for (auto const& text : thrown) CHECK((text == "") == (is_warm || !drains));
    return growths;
  };
  CHECK(run(false, false) == std::array{1, 1, 1});
  CHECK(first_of(model::faults()) == "");
  CHECK(run(true, true) == std::array{0, 0, 0});
  CHECK(first_of(model::faults()) == "");
  CHECK(first_of(model::leaks()) == "");
  // A receive that is open already may need what the rank is to issue behind the allocation.
  run(false, true);
  CHECK(first_of(model::faults()).starts_with("deadlock"));
}

// Kernels of messages that wait hold multiprocessors, and passes need one that is free.
TEST_CASE("messages leave a multiprocessor to passes, or are refused", "[nccl]") {
  auto const usual = toy_plan("zb_h1", 3, 5);
  auto const planned = make_plan("ZB-H1", usual.schedule(), usual.problem(), {.receive_ahead = 2});
  auto const expected = reference(planned);
  std::uint64_t seed = run_seed() + 150;
  // With 4 and 2, messages could hold the multiprocessors of the outer ranks, too.
  for (auto const& [sm_count, ctas] :
       {std::pair(4, 1), {5, 1}, {5, 2}, {8, 1}, {8, 2}, {9, 1}, {9, 2}}) {
    auto machine = machine_of(planned, ++seed);
    machine.sm_count = sm_count;
    reset_gpus(machine);
    INFO(sm_count << " multiprocessors, " << ctas << " a message");
    auto const change = [=](nccl::ranks_settings& s) { s.most_ctas = ctas; };
    if (4 * ctas < sm_count) {  // an inner rank has four communicators
      CHECK(on_ranks(planned, change) == expected);
    } else {
      for (auto const& text : make_on_ranks(planned, change)) {
        INFO(text);
        auto const cure =
            sm_count > 4 ? "set ranks_settings::most_ctas to 1 or less" : "give them more than 4";
        CHECK(
            text.find(
                "messages may hold " + std::to_string(ctas) +
                " multiprocessors for each of 4 communicators while they wait, and the passes "
                "of rank 1 have " +
                std::to_string(sm_count) + " in all; " + cure) != std::string::npos);
      }
    }
    CHECK(first_of(model::faults()) == "");
    CHECK(first_of(model::leaks()) == "");
  }
}

TEST_CASE("layouts, an adopted communicator and other settings change no bit", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 4, for_one_queue);
  auto const expected = reference(planned);
  std::uint64_t seed = run_seed() + 100;
  auto const check = [&](std::string const& name, auto const& change) {
    checked_ranks const gpus(machine_of(planned, ++seed));
    INFO(name);
    CHECK(on_ranks(planned, change) == expected);
  };
  using settings = nccl::ranks_settings;
  for (auto const layout : {zbpp::channel_layout::one_per_pair, zbpp::channel_layout::one_per_rank})
    check("a layout", [&](settings& s) { s.layout = layout; });
  check("traces", [](settings& s) { s.traces = true; });
  check("a wait after each pass", [](settings& s) { s.synchronizes = true; });
  check("more thread blocks", [](settings& s) { s.most_ctas = 4; });
}

namespace {

// What happens to a rank in a step.
struct accident {
  int rank = 0;
  std::function<void(zbpp::pass_context)> happens = {};
};

accident breaks(int rank) {
  return {rank, [](zbpp::pass_context) { throw std::out_of_range("the toy broke"); }};
}

// Comes to harm in one pass of its second step.
class fragile : public toy::padded_passes<toy::basic_passes<toy::launched>> {
 public:
  fragile(toy::stage_model& stage, std::function<void(zbpp::pass_context)> harm)
      : padded_passes(stage), harm_(std::move(harm)) {}

  zbpp::message forward(
      saved& kept, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx) {
    if (harm_ && mb.step() == 1 && mb.index() == 2) harm_(ctx);
    return padded_passes::forward(kept, in, mb, ctx);
  }

 private:
  std::function<void(zbpp::pass_context)> harm_;
};

// Runs two steps, of which the second fails, and a third one; returns what each rank was told: of
// both, and in a collective call after them.
std::vector<std::array<std::string, 3>> fail(
    plan const& planned,
    accident const& accident,
    zbpp::asio::rendezvous_settings const& meeting_settings = patient_settings(),
    std::function<void(nccl::ranks_settings&)> const& change = {}) {
  auto const ranks = planned.problem().ranks();
  std::vector<std::array<std::string, 3>> reported(zbpp::detail::index(ranks));
  auto const thrown = run_ranks(ranks, meeting_settings, [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(ranks);
    auto const rank = zbpp::detail::index(meeting.rank());
    fragile stage(
        all[rank],
        meeting.rank() == accident.rank ? accident.happens
                                        : std::function<void(zbpp::pass_context)>{});
    std::array stages{zbpp::as_flow(stage)};
    auto settings = settings_of(planned, meeting.rank());
    if (change) change(settings);
    zbpp::pipeline pipe(planned, nccl::ranks(meeting, settings), stages);
    pipe.step();
    meeting.barrier();  // or a rank may learn of the second step while it is in its first
    auto const report = [&](std::size_t index, auto const& call) {
      try {
        call();
      } catch (std::exception const& failed) {
        reported[rank][index] = failed.what();
      }
    };
    report(0, [&] { pipe.step(); });
    // A rank that had finished its part before the failure learns of it in its next call.
    bool const is_late = reported[rank][0].empty();
    if (is_late) report(0, [&] { pipe.step(); });
    report(1, [&] { pipe.step(); });
    report(2, [&] { meeting.barrier(); });
    if (pipe.steps() != (is_late ? 2 : 1)) throw std::logic_error("another number of steps");
  });
  for (auto const& text : thrown) CHECK(text == "");
  return reported;
}

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

// What was wrong, but for what passes do with the messages of an aborted communicator: those are
// garbage, and in no order.
std::string first_of_serious() {
  for (auto const& fault : model::faults())
    if (!fault.starts_with("race") && !fault.starts_with("uninitialised")) return fault;
  return "";
}

// All ranks were told the same each time, with this text in it.
void check_reported(
    std::vector<std::array<std::string, 3>> const& reported, std::string const& part) {
  for (auto const& of_rank : reported)
    for (auto const& text : of_rank) {
      INFO(text);
      CHECK(has(text, part));
    }
  CHECK(first_of_serious() == "");
  CHECK(first_of(model::leaks()) == "");
}

}  // namespace

TEST_CASE("what a pass throws reaches every rank, and the run is over", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 5, for_one_queue);
  for (int culprit : {0, 1, 2}) {
    reset_gpus(machine_of(planned, run_seed() + static_cast<std::uint64_t>(culprit)));
    INFO("culprit " << culprit);
    check_reported(fail(planned, breaks(culprit)), "the toy broke");
  }
}

// Where any number of hardware queues is enough, the calls for one message need room and no others;
// else messages that cross need it, too.
TEST_CASE("hosts and NCCL that wait for room in launch queues change no bit", "[nccl]") {
  std::uint64_t seed = run_seed() + 80;
  for (auto const* policy : {"one_f_one_b", "zb_v"})
    for (auto const& options : {zbpp::lower_options{}, {.receive_ahead = 2}, for_one_queue}) {
      auto const planned = toy_plan(policy, 3, 5, options);
      auto machine = machine_of(planned, ++seed);
      machine.launch_depth = nccl::hardware_queues(planned.program()).reason.empty() ? 3 : 8;
      checked_ranks const gpus(machine);
      INFO(
          policy << ", " << machine.connections << " queues of " << machine.launch_depth
                 << ", interleaving " << seed);
      CHECK(on_ranks(planned) == reference(planned));
    }
}

TEST_CASE("hosts that wait in CUDA when another rank fails come out of it", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 5);
  for (int trial = 0; trial < 10; ++trial) {
    int const culprit = trial % 3;
    auto machine = machine_of(planned, run_seed() + static_cast<std::uint64_t>(trial));
    machine.launch_depth = 4;  // a launch more waits, as on a GPU whose queue is full
    machine.hosts = 4;         // none of the ranks can be all that issue
    reset_gpus(machine);
    INFO("culprit " << culprit);
    check_reported(fail(planned, breaks(culprit)), "the toy broke");
  }
}

namespace {

// As a kernel does that has failed before.
void poison(zbpp::pass_context ctx) {
  model::fail_next("cudaStreamQuery", cudaErrorIllegalAddress);
  static_cast<void>(cudaStreamQuery(zbpp::cuda::stream_of(ctx)));
}

}  // namespace

TEST_CASE("a fault of a device reaches every rank", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 5);
  reset_gpus(machine_of(planned, run_seed()));
  check_reported(fail(planned, {1, poison}), "cudaErrorIllegalAddress");
}

namespace {

// A communicator that the test makes and owns.
ncclComm_t make_own(zbpp::asio::rendezvous& meeting) {
  ncclUniqueId id{};
  if (meeting.rank() == 0) nccl::check(ncclGetUniqueId(&id));
  auto const bytes = meeting.broadcast(std::as_bytes(std::span(&id, 1)), 0);
  std::memcpy(&id, bytes.data(), sizeof(id));
  zbpp::cuda::device_guard const here(meeting.rank());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  nccl::detail::check_started(
      ncclCommInitRankConfig(&made, meeting.ranks(), id, meeting.rank(), &config));
  auto const pause = nccl::limited_pause(std::chrono::seconds(20), "nobody came");
  auto state = ncclInProgress;
  nccl::detail::poll(
      [&] {
        nccl::check(ncclCommGetAsyncError(made, &state));
        return state == ncclSuccess;
      },
      pause);
  return made;
}

}  // namespace

TEST_CASE("an adopted communicator is used, and left to its owner", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 2, 3, for_one_queue);
  bool const fails = GENERATE(false, true);
  reset_gpus(machine_of(planned, run_seed(), zbpp::channel_layout::one_per_rank));
  auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto* const made = make_own(meeting);
    {
      auto all = toy::make_model(2);
      fragile stage(all[zbpp::detail::index(meeting.rank())], [&](zbpp::pass_context) {
        if (fails && meeting.rank() == 1) model::comm_fault(made, ncclRemoteError);
      });
      std::array stages{zbpp::as_flow(stage)};
      auto settings = settings_of(planned, meeting.rank());
      settings.adopted = made;
      zbpp::pipeline pipe(planned, nccl::ranks(meeting, settings), stages);
      pipe.step();
      meeting.barrier();
      std::string reported;
      try {
        pipe.step();
      } catch (zbpp::error const& failed) {
        reported = failed.what();
      }
      if (has(reported, "remote process exited") != fails)
        throw std::logic_error("reported: " + reported);
    }
    nccl::check(fails ? ncclCommAbort(made) : ncclCommDestroy(made));
  });
  for (auto const& text : thrown) CHECK(text == "");
  CHECK(first_of_serious() == "");
  CHECK(first_of(model::leaks()) == "");
}

TEST_CASE("a step that stalls ends on every rank", "[nccl][long]") {
  auto const planned = toy_plan("zb_h1", 3, 5);
  auto meeting_settings = patient_settings();
  meeting_settings.stall_deadline = std::chrono::seconds(3);
  reset_gpus(machine_of(planned, run_seed()));
  auto const reported = fail(
      planned,
      {1,
       [](zbpp::pass_context) {
         model::start_counting();
         // Of whatever rank; others may send meanwhile.
         for (std::uint64_t i = 1; i < 200; ++i) model::skip("ncclSend", i);
       }},
      meeting_settings);
  check_reported(reported, "the step has stalled");
}

TEST_CASE("ranks that differ in what they set are told", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 2, 4);
  reset_gpus(machine_of(planned, run_seed()));
  auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(2);
    toy::padded_stage stage(all[zbpp::detail::index(meeting.rank())]);
    std::array stages{zbpp::stage_ref(stage)};
    auto settings = settings_of(planned, meeting.rank());
    if (meeting.rank() == 1) settings.layout = zbpp::channel_layout::one_per_pair;
    zbpp::pipeline const pipe(planned, nccl::ranks(meeting, settings), stages);
  });
  for (auto const& text : thrown) {
    INFO(text);
    CHECK(
        has(text,
            "communicators (one channel per rank pair at rank 1, "
            "one channel per directed pair at rank 0)"));
  }
}

TEST_CASE("what goes wrong while communicators are made reaches every rank", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 4);
  for (auto const* function : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclRecv"}) {
    INFO(function);
    reset_gpus(machine_of(planned, run_seed()));
    model::fail_next(function, ncclSystemError);
    auto const thrown = make_on_ranks(planned);
    for (auto const& text : thrown) {
      INFO(text);
      CHECK(has(text, "unhandled system error"));
      CHECK_FALSE(has(text, "0F0"));  // no pass has run
    }
    CHECK(first_of(model::leaks()) == "");
  }
}

TEST_CASE("a program that a layout does not carry is refused before anything is made", "[nccl]") {
  auto const planned = toy_plan("zb_v", 3, 5);
  REQUIRE_FALSE(
      verify(planned.program(), planned.problem(), zbpp::channel_layout::one_per_rank).empty());
  reset_gpus(machine_of(planned, run_seed()));
  auto const thrown = make_on_ranks(planned, [](nccl::ranks_settings& settings) {
    settings.layout = zbpp::channel_layout::one_per_rank;
  });
  for (auto const& text : thrown)
    CHECK(has(text, "with one channel per rank the ranks wait in a cycle"));
  CHECK(model::leaks().empty());
}

TEST_CASE("a program that can deadlock on the queues of one rank is refused on all", "[nccl]") {
  auto const planned = toy_plan("zb_h1", 3, 5);
  for (auto const* queues : {"8", "13"}) {
    model::reset(machine_of(planned, run_seed()));
    // Enough for ranks 0 and 2, which have one neighbour.
    environment_variable const stated("CUDA_DEVICE_MAX_CONNECTIONS", queues);
    auto const thrown = make_on_ranks(planned);
    for (auto const& text : thrown) {
      INFO(text);
      CHECK(text.starts_with("refused program"));
      CHECK(has(text, "rank 1 has 14 streams and " + std::string(queues) + " queues; set"));
      CHECK(has(text, "CUDA_DEVICE_MAX_CONNECTIONS to 14 in the environment"));
    }
    CHECK(model::leaks().empty());
  }
}

}  // namespace test_nccl_ranks
