// SPDX-License-Identifier: Apache-2.0
//
// Ranks on the model of CUDA: several devices, what a step calls and when, times, what happens when
// something fails, and what is refused.
#include <zbpp/cuda/device.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_timed.hpp>
#include <support/cuda_toy.hpp>
#include <support/cuda_training.hpp>
#include <support/nested.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace test_cuda_device {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;

namespace {

plan plan_of(zbpp::placement placement, int microbatches, std::string const& title, int ahead = 0) {
  std::vector<plan> found;
  for_each_plan_of(
      problem(std::move(placement), microbatches, launched_costs(), 87),
      {.fused = false, .receive_ahead = ahead},
      [&](std::string const&, plan const& planned) {
        if (planned.policy() == title) found.push_back(planned);
      });
  if (found.empty()) throw std::invalid_argument("there is no policy " + title + " for that");
  return found.front();
}

}  // namespace

TEST_CASE("one thread per device issues the passes of its ranks", "[cuda][long]") {
  auto const seed = run_seed();
  std::uint64_t n = seed;
  for (bool peer_access : {true, false})
    for (int p : thinned<std::vector<int>>({2, 4}, {2, 3}))
      for (auto const& placement : placements_to_run(p))
        for_each_plan_of(
            problem(placement, 2 * p, launched_costs(), 87),
            {},
            [&](std::string const& name, plan const& planned) {
              INFO(name);
              auto const expected = toy::in_single_precision(toy::train_reference(planned));
              check_training(
                  planned,
                  expected,
                  {.seed = ++n, .devices = p, .hosts = p, .peer_access = peer_access},
                  {.devices = cuda::one_device_per_rank(p)});
              std::vector<cuda::rank_device> in_turn;
              std::vector<cuda::rank_device> in_halves;
              for (int rank = 0; rank < p; ++rank) {
                in_turn.push_back({.device = rank % 2});
                in_halves.push_back({.device = 2 * rank / p});
              }
              for (auto const& two : {in_turn, in_halves})
                check_training(
                    planned,
                    expected,
                    {.seed = ++n, .devices = 2, .hosts = 2, .peer_access = peer_access},
                    {.devices = two});
            });
}

TEST_CASE("an issuing thread is told of its ranks, and warms their stages up", "[cuda]") {
  struct watched {
    toy::launched_stage* of;
    std::set<std::thread::id>* seen;

    zbpp::flow operator()(zbpp::microbatch mb) const {
      seen->insert(std::this_thread::get_id());
      return (*of)(mb);
    }
    void warm_up(zbpp::pass_context) const { seen->insert(std::this_thread::get_id()); }
  };
  auto const planned = plan_of(zbpp::placement::linear(3), 6, "ZB-H1");
  for (int devices : {1, 2}) {
    model::reset({.seed = run_seed(), .devices = devices, .hosts = devices});
    auto all = toy::make_model(3);
    std::vector<toy::launched_stage> stages(all.begin(), all.end());
    std::array<std::set<std::thread::id>, 3> seen;
    std::vector<watched> stages_watched;
    for (std::size_t s = 0; s < 3; ++s) stages_watched.push_back({&stages[s], &seen[s]});
    std::array<std::thread::id, 3> threads;
    cuda::device backend{.edges = toy::edge_shapes(planned.problem())};
    backend.devices = {{}, {.device = devices - 1}, {}};
    pipeline pipe{planned, backend, stages_watched};
    pipe.step();
    for (std::size_t rank = 0; rank < 3; ++rank) {
      REQUIRE(seen[rank].size() == 1);
      threads[rank] = *seen[rank].begin();
    }
    CHECK(threads[0] == threads[2]);
    CHECK((threads[0] == threads[1]) == (devices == 1));
    CHECK((threads[0] == std::this_thread::get_id()) == (devices == 1));
  }
  CHECK(first_of(model::faults()) == "");
}

TEST_CASE("no thread sleeps through a message for one of its ranks", "[cuda][long]") {
  auto const planned = plan_of(zbpp::placement::v_shape(4), 8, "ZB-V");
  auto const expected = toy::in_single_precision(toy::train_reference(planned));
  std::uint64_t n = run_seed();
  for (int i = 0; i < thinned(150, 40); ++i)
    check_training(
        planned,
        expected,
        {.seed = ++n, .devices = 2, .hosts = 2},
        {.devices = {{.device = 0}, {.device = 1}, {.device = 0}, {.device = 1}}});
}

TEST_CASE("a step allocates nothing on the device, and waits at its end only", "[cuda]") {
  for (auto const* title : {"1F1B", "ZB-H2", "ZB-V"}) {
    auto const placement =
        std::string(title) == "ZB-V" ? zbpp::placement::v_shape(4) : zbpp::placement::linear(4);
    auto const planned = plan_of(placement, 12, title);
    INFO(title);
    model::reset({.seed = 5});
    launched_training training(planned);
    auto& pipe = training.pipe();
    pipe.step();
    model::start_counting();
    pipe.step();
    auto const heavy = model::heavy_calls();
    std::vector<std::string> const expected{
        "cudaEventSynchronize 0",
        "cudaEventSynchronize 1",
        "cudaEventSynchronize 2",
        "cudaEventSynchronize 3"};
    CHECK(heavy == expected);
    // Behind the last launch.
    auto const calls = model::calls();
    REQUIRE(calls.size() > 4);
    bool at_the_end = true;
    for (std::size_t i = calls.size() - 4; i < calls.size(); ++i)
      at_the_end = at_the_end && calls[i].function == "cudaEventSynchronize";
    CHECK(at_the_end);
    for (int rank = 0; rank < 4; ++rank) CHECK(pipe.memory(rank).growths == 0);
  }
}

TEST_CASE("the host runs ahead as far as it is told", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::linear(3), 9, "ZB-H1");
  for (int ahead : {1, 2, 5}) {
    model::reset({.seed = 5});
    launched_training training(planned, {.run_ahead = ahead});
    training.pipe().step();
    model::start_counting();
    training.pipe().step();
    // Each rank has 27 passes; it waits before each of them but the first `ahead`, and at the end.
    CHECK(model::count("cudaEventSynchronize") == static_cast<std::uint64_t>(3 * (27 - ahead) + 3));
    CHECK(model::faults().empty());
  }
}

TEST_CASE("measured times are those of the plan where the device keeps to its costs", "[cuda]") {
  auto costs = launched_costs();
  costs.edge = 8;
  for (int devices : {1, 4})
    for (auto const& placement : placements_to_run(4))
      for_each_plan_of(
          problem(placement, 8, costs, 0),
          {.fused = false},
          [&](std::string const& name, plan const& planned) {
            INFO(name);
            check_measured(planned, devices);
          });
}

namespace {

struct expected_failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs steps of a V of chunks, some of which `spoil(step)` makes fail, and checks that nobody is
// left waiting and that the steps between are right.
class failing_run {
 public:
  explicit failing_run(model::options const& machine, cuda::device const& backend = {}) {
    model::reset(machine);
    training_.emplace(plan_of(zbpp::placement::v_shape(4), 8, "ZB-V"), backend);
    expected_ = training_->model();
  }

  [[nodiscard]] pipeline<cuda::device>& pipe() noexcept { return training_->pipe(); }
  // Whether a step gives what the reference does; gradients start at zero.
  [[nodiscard]] bool is_right() {
    toy::clear_gradients(training_->model());
    toy::clear_gradients(expected_);
    auto const reference = toy::device_reference_step(expected_, pipe().steps(), 8);
    return toy::is_same(pipe().step().losses, reference) &&
           toy::is_same(training_->model(), expected_);
  }

 private:
  std::optional<launched_training> training_;
  toy::model expected_;
};

}  // namespace

TEST_CASE("a call of CUDA that fails ends the step, and the next one works", "[cuda]") {
  std::uint64_t n = run_seed();
  for (auto const* function :
       {"cudaEventRecord",
        "cudaStreamWaitEvent",
        "cudaMemcpyPeerAsync",
        "cudaEventSynchronize",
        "launch"}) {
    INFO(function);
    // Within a device nothing is copied.
    bool const copies = std::string(function) == "cudaMemcpyPeerAsync";
    auto const devices = copies ? cuda::one_device_per_rank(4) : std::vector<cuda::rank_device>();
    failing_run run(
        {.seed = ++n, .devices = copies ? 4 : 1, .hosts = copies ? 4 : 1}, {.devices = devices});
    CHECK(run.is_right());
    for (int k = 0; k < 3; ++k) {
      model::fail_next(function, cudaErrorInvalidValue);
      CHECK_THROWS_AS(run.pipe().step(), cuda::cuda_error);
      REQUIRE_FALSE(run.pipe().failures().empty());
      CHECK(model::pending() == 0);
      CHECK(run.is_right());
    }
    CHECK(first_of(model::faults()) == "");
  }
}

TEST_CASE("a kernel that fails ends the step on all ranks, and CUDA cannot go on", "[cuda]") {
  std::uint64_t n = run_seed();
  for (std::uint64_t kernel : {0U, 7U, 60U, 150U}) {
    INFO("kernel " << kernel);
    failing_run run({.seed = ++n});
    CHECK(run.is_right());
    model::start_counting();
    model::kernel_fault(kernel);
    for (int k = 0; k < 2; ++k) {
      try {
        run.pipe().step();
        FAIL("the step succeeded");
      } catch (cuda::cuda_error const& e) {
        CHECK(e.native() == cudaErrorIllegalAddress);
        CHECK(std::string(e.what()).find("cudaErrorIllegalAddress (700)") != std::string::npos);
      }
    }
  }
}

TEST_CASE("the host finds the pass of a failed kernel where it waits after each", "[cuda]") {
  failing_run run({.seed = 3}, {.synchronizes = true});
  CHECK(run.is_right());
  model::start_counting();
  model::kernel_fault(0);
  CHECK_THROWS_AS(run.pipe().step(), cuda::cuda_error);
  REQUIRE(run.pipe().failures().size() == 1);
  CHECK(
      to_string(run.pipe().failures().front().location) ==
      "rank 0, position 0, stage 0, microbatch 0");
}

namespace {

// Fails in one of its passes, as long as it is told to.
class throwing_stage {
 public:
  throwing_stage(toy::stage_model& stage, bool const& throws) : work_(stage), throws_(&throws) {}

  zbpp::flow operator()(zbpp::microbatch mb) {
    toy::basic_passes<toy::launched>::saved kept;
    zbpp::message out;
    zbpp::message const in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) { out = work_.forward(kept, in, mb, ctx); });
    co_await mb.send_activation(std::move(out));
    zbpp::message const back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      if (*throws_ && mb.stage() == 3 && mb.index() == 2) throw expected_failure("B of stage 3");
      out = work_.backward_input(kept, back, mb, ctx);
    });
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([&](zbpp::pass_context ctx) { work_.backward_weight(kept, mb, ctx); });
  }

 private:
  toy::basic_passes<toy::launched> work_;
  bool const* throws_;
};

}  // namespace

TEST_CASE("a pass that throws ends the step on all ranks, and the next one works", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::v_shape(4), 8, "ZB-V");
  for (int devices : {1, 4}) {
    INFO(devices << " devices");
    model::reset({.seed = run_seed(), .devices = devices, .hosts = devices});
    bool throws = false;
    auto all = toy::make_model(planned.problem().stages());
    auto expected = all;
    std::vector<throwing_stage> stages;
    for (auto& each : all) stages.emplace_back(each, throws);
    cuda::device backend{.edges = toy::edge_shapes(planned.problem())};
    if (devices > 1) backend.devices = cuda::one_device_per_rank(devices);
    pipeline pipe{planned, backend, stages};
    for (int round = 0; round < 3; ++round) {
      throws = true;
      CHECK(zbpp::test::throws_nested<expected_failure>([&] { pipe.step(); }));
      CHECK(
          to_string(pipe.failures().front().location).find("stage 3, microbatch 2") !=
          std::string::npos);
      CHECK(model::pending() == 0);
      throws = false;
      toy::clear_gradients(all);
      toy::clear_gradients(expected);
      static_cast<void>(toy::reference_step(expected, pipe.steps(), 8));
      pipe.step();
      CHECK(toy::is_same(all, expected));
    }
    CHECK(first_of(model::faults()) == "");
  }
}

TEST_CASE("what a GPU backend cannot use is refused with a cure", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::linear(2), 4, "1F1B");
  auto all = toy::make_model(2);
  std::vector<toy::launched_stage> stages(all.begin(), all.end());
  auto refused = [&](cuda::device backend) {
    return refusal([&] { pipeline pipe{planned, backend, stages}; });
  };
  model::reset({.devices = 2});
  cudaStream_t blocking = nullptr;
  cudaStream_t elsewhere = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault) == cudaSuccess);
  {
    cuda::device_guard const other(1);
    REQUIRE(cudaStreamCreateWithFlags(&elsewhere, cudaStreamNonBlocking) == cudaSuccess);
  }
  CHECK(
      refused({.devices = {{}}}) ==
      "there are 1 devices for 2 ranks; give one for each rank, or none");
  CHECK(
      refused({.devices = {{}, {.device = 2}}}) ==
      "rank 1 is to run on device 2; choose one from 0 to 1");
  CHECK(
      refused({.devices = {{}, {.compute = cudaStreamPerThread}}}) ==
      "a default stream is given, and those make everything wait; give a stream made with "
      "cudaStreamCreateWithFlags and cudaStreamNonBlocking");
  CHECK(
      refused({.devices = {{}, {.compute = blocking}}}) ==
      "the adopted stream waits for the default stream; make it with cudaStreamNonBlocking");
  CHECK(
      refused({.devices = {{}, {.compute = elsewhere}}}) ==
      "the adopted stream belongs to device 1; its rank_device says device 0");
  {
    // A driver before CUDA 12.8 cannot tell where a stream is.
    cuda::stream const own(cuda::stream_priority::usual);
    model::fail_next("cudaStreamGetDevice", cudaErrorCallRequiresNewerDriver);
    CHECK(refused({.devices = {{}, {.compute = own.view()}}}) == "<nothing was refused>");
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  CHECK(
      refused({.run_ahead = -1}) ==
      "run_ahead is negative; give a number of passes, or 0 for a whole step");
  CHECK(
      refused({.edges = {{96}, {96}}}) ==
      "there are shapes for 2 edges; the problem has 1, so give one shape for each, or none");
  CHECK(
      refused({.edges = {{48, 40}}}) ==
      "edge 0->1 has a shape of 2 buffers and 88 bytes; give it at most 8 buffers and the 96 "
      "bytes that the costs state");
  auto costs = launched_costs();
  costs.edge = 0;
  auto const sizeless = zbpp::make_plan(
      "as it is", planned.schedule(), problem(zbpp::placement::linear(2), 4, costs));
  CHECK(
      refusal([&] {
        pipeline pipe{sizeless, cuda::device{}, stages};
      }) == "edge 0->1 has no size; state it in stage_costs::edge, since memory for messages on "
            "GPUs is set "
            "aside before the first step");
  REQUIRE(cudaStreamDestroy(blocking) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(elsewhere) == cudaSuccess);
  CHECK(first_of(model::leaks()) == "");

  // The toy sends two buffers; by itself an edge has one.
  model::reset();
  pipeline pipe{planned, cuda::device{}, stages};
  CHECK(
      refusal(zbpp::errc::wrong_size, [&] { pipe.step(); }) ==
      "rank 0, position 1, stage 0, microbatch 0: edge 0->1 carries 16 + 16 bytes; its shape has "
      "96");
}

TEST_CASE("a pass on the host has no stream", "[cuda]") {
  zbpp::arena memory;
  CHECK(
      refusal([&] { static_cast<void>(cuda::stream_of(zbpp::pass_context(memory))); }) ==
      "the pass does not run on a GPU; make the pipeline with zbpp::cuda::device or "
      "zbpp::nccl::ranks");
}

TEST_CASE("ranks run on the caller's streams", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::linear(3), 6, "ZB-H1");
  auto const expected = toy::in_single_precision(toy::train_reference(planned));
  checked_gpus const gpus({.seed = run_seed()});
  std::vector<cuda::stream> streams;
  std::vector<cuda::rank_device> devices;
  for (int rank = 0; rank < 3; ++rank) {
    streams.emplace_back(cuda::stream_priority::usual);
    devices.push_back({.compute = streams.back().view(), .sm_count = 40 + rank});
  }
  CHECK(launched_training(planned, {.devices = devices}).train() == expected);
  for (auto const& each : streams) each.view().synchronize();  // still there
}

TEST_CASE("a loss may be reported more than once; the last one counts", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::linear(2), 4, "ZB-H1");
  struct reporter {
    zbpp::flow operator()(zbpp::microbatch mb) {
      zbpp::message const in = co_await mb.recv_activation();
      zbpp::buffer out;
      co_await zbpp::F([&](zbpp::pass_context ctx) {
        out = ctx.allocate_edge(toy::edge);
        auto const values = out.as<float>();
        cuda::check(model::launch(
            cuda::stream_of(ctx), "values", {}, {{values.data(), values.size_bytes()}}, [=] {
              for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
            }));
        for (int i = 0; mb.is_last_stage() && i < 5; ++i)
          cuda::report_loss(mb, ctx, values.data() + i + mb.index());
      });
      co_await mb.send_activation(out);
      zbpp::message const back = co_await mb.recv_gradient();
      co_await zbpp::B([] {});
      co_await mb.send_gradient(out);
      co_await zbpp::W([] {});
    }
  };
  model::reset({.seed = run_seed()});
  std::vector<reporter> stages(2);
  pipeline pipe{planned, cuda::device{}, stages};
  for (int step = 0; step < 2; ++step) CHECK(pipe.step().losses == std::vector<double>{4, 5, 6, 7});
  CHECK(first_of(model::faults()) == "");
}

namespace {

// Keeps all memory that is free at the end of a step for its owner, who lets it go.
struct keeper {
  toy::launched_stage work;
  std::vector<zbpp::buffer>* kept;

  zbpp::flow operator()(zbpp::microbatch mb) { return work(mb); }
  void update(zbpp::pass_context ctx) const {
    for (int i = 0; i < 64; ++i) {
      auto const& one = kept->emplace_back(ctx.allocate(toy::edge / 2));
      toy::launched::run(ctx, {}, {one.as<float>()}, [] {});
    }
  }
};

}  // namespace

TEST_CASE("a step waits for what the caller has enqueued on an adopted stream", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::linear(2), 4, "ZB-H1");
  auto const expected = toy::in_single_precision(toy::train_reference(planned));
  model::reset({.seed = run_seed()});
  {
    cuda::stream const first(cuda::stream_priority::usual);
    cuda::stream const second(cuda::stream_priority::usual);
    auto all = toy::make_model(2);
    std::vector<std::vector<zbpp::buffer>> kept(2);
    std::vector<keeper> stages;
    for (std::size_t s = 0; s < 2; ++s) stages.push_back({toy::launched_stage(all[s]), &kept[s]});
    pipeline pipe{
        planned,
        cuda::device{
            .devices = {{.compute = first.view()}, {.compute = second.view()}},
            .edges = toy::edge_shapes(planned.problem())},
        stages};
    auto const history = toy::train(all, [&](int) {
      for (std::size_t s = 0; s < 2; ++s) {
        for (auto const& one : kept[s])
          cuda::check(model::launch(
              s == 0 ? first.view() : second.view(), "caller", {{one.data(), one.size()}}, {}));
        kept[s].clear();  // as within a pass, while the kernel may still read
      }
      return pipe.step().losses;
    });
    CHECK(history == expected);
  }
  CHECK(first_of(model::faults()) == "");
}

namespace {

// A last stage whose kernels write losses to where the host reads them.
struct writer {
  std::set<float*>* slots;
  bool writes = true;

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::message const in = co_await mb.recv_activation();
    zbpp::buffer out;
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      out = ctx.allocate_edge(toy::edge);
      cuda::check(model::launch(cuda::stream_of(ctx), "out", {}, {{out.data(), out.size()}}));
      if (!mb.is_last_stage()) return;
      auto* const slot = cuda::loss_slot(mb, ctx);
      slots->insert(slot);
      float const loss = static_cast<float>(100 * mb.step() + mb.index());
      if (writes || mb.index() != 1)
        cuda::check(model::launch(
            cuda::stream_of(ctx), "loss", {}, {{slot, sizeof(float)}}, [=] { *slot = loss; }));
    });
    co_await mb.send_activation(out);
    zbpp::message const back = co_await mb.recv_gradient();
    co_await zbpp::B([] {});
    co_await mb.send_gradient(out);
    co_await zbpp::W([] {});
  }
};

}  // namespace

TEST_CASE("a kernel writes the loss to where the host reads it, and nothing is copied", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::linear(2), 4, "ZB-H1");
  for (std::uint64_t trial = 0; trial < 20; ++trial) {
    model::reset({.seed = run_seed() + trial});
    std::set<float*> slots;
    std::vector<writer> stages(2, {&slots});
    {
      pipeline pipe{planned, cuda::device{}, stages};
      for (int step = 0; step < 3; ++step) {
        model::start_counting();
        auto const& losses = pipe.step().losses;
        CHECK(model::count("cudaMemcpyAsync") + model::count("cudaMemcpyPeerAsync") == 0);
        REQUIRE(losses.size() == 4);
        for (int i = 0; i < 4; ++i) CHECK(losses[zbpp::detail::index(i)] == 100 * step + i);
        CHECK(slots.size() == 4);
        for (auto const* slot : slots) model::host_reads(slot, sizeof(float));
      }
    }
    CHECK(first_of(model::faults()) == "");
  }
}

TEST_CASE("a loss that no kernel writes is not a number, nor that of the step before", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::linear(2), 4, "ZB-H1");
  model::reset({.seed = run_seed()});
  std::set<float*> slots;
  std::vector<writer> stages(2, {&slots});
  pipeline pipe{planned, cuda::device{}, stages};
  CHECK(pipe.step().losses == std::vector<double>{0, 1, 2, 3});
  stages[1].writes = false;
  auto const losses = pipe.step().losses;
  CHECK(losses[0] == 100);
  CHECK(std::isnan(losses[1]));
}

TEST_CASE("a loss that comes late is no missing one in an evaluation, but one of B is", "[cuda]") {
  struct late {
    bool in_f = true;
    bool copies = false;

    zbpp::flow operator()(zbpp::microbatch mb) {
      zbpp::message const in = co_await mb.recv_activation();
      zbpp::buffer out;
      auto const report = [&](zbpp::pass_context ctx) {
        auto* const slot = copies ? out.as<float>().data() : cuda::loss_slot(mb, ctx);
        cuda::check(model::launch(
            cuda::stream_of(ctx), "loss", {}, {{slot, sizeof(float)}}, [=] { *slot = 7; }));
        if (copies) cuda::report_loss(mb, ctx, slot);
      };
      co_await zbpp::F([&](zbpp::pass_context ctx) {
        out = ctx.allocate_edge(toy::edge);
        cuda::check(model::launch(cuda::stream_of(ctx), "out", {}, {{out.data(), out.size()}}));
        if (in_f && mb.is_last_stage()) report(ctx);
      });
      co_await mb.send_activation(out);
      zbpp::message const back = co_await mb.recv_gradient();
      co_await zbpp::B([&](zbpp::pass_context ctx) {
        if (!in_f && mb.is_last_stage()) report(ctx);
      });
      co_await mb.send_gradient(out);
      co_await zbpp::W([] {});
    }
  };
  auto const planned = plan_of(zbpp::placement::linear(2), 4, "ZB-H1");
  std::vector<double> const expected(4, 7);
  for (bool const copies : {true, false}) {
    model::reset({.seed = run_seed()});
    std::vector<late> stages(2, {.copies = copies});
    pipeline pipe{planned, cuda::device{}, stages};
    CHECK(pipe.evaluate().losses == expected);
    CHECK(pipe.step().losses == expected);
    stages[1].in_f = false;
    CHECK(pipe.step().losses == expected);
    CHECK_THAT(
        refusal([&] { pipe.evaluate(); }),
        Catch::Contains("the flow of stage 1 microbatch 0 reports no loss; call mb.report_loss()"));
    CHECK_NOTHROW(pipe.evaluate([](zbpp::evaluation_output const&) {}));
    CHECK(pipe.step().losses == expected);
    CHECK(first_of(model::faults()) == "");
  }
}

TEST_CASE("a loss is not reported from work that a pass captures by itself", "[cuda]") {
  auto const planned = plan_of(zbpp::placement::linear(2), 4, "ZB-H1");
  bool const copies = GENERATE(true, false);
  struct reporter {
    bool copies;

    zbpp::flow operator()(zbpp::microbatch mb) {
      zbpp::message const in = co_await mb.recv_activation();
      zbpp::buffer out;
      co_await zbpp::F([&](zbpp::pass_context ctx) {
        out = ctx.allocate_edge(toy::edge);
        auto const values = out.as<float>();
        auto const on = cuda::stream_of(ctx);
        cuda::detail::capture own(on);
        cuda::check(model::launch(on, "value", {}, {{values.data(), values.size_bytes()}}));
        if (mb.is_last_stage()) {
          if (copies) cuda::report_loss(mb, ctx, values.data());
          static_cast<void>(cuda::loss_slot(mb, ctx));
        }
        auto const graph = own.finish();
        cuda::check(cudaGraphLaunch(graph.get(), on));
        on.synchronize();  // before the graph goes
      });
      co_await mb.send_activation(out);
      zbpp::message const back = co_await mb.recv_gradient();
      co_await zbpp::B([] {});
      co_await mb.send_gradient(out);
      co_await zbpp::W([] {});
    }
  };
  model::reset({.seed = run_seed()});
  std::vector<reporter> stages(2, {copies});
  pipeline pipe{planned, cuda::device{}, stages};
  CHECK(
      refusal([&] { pipe.step(); }) ==
      "rank 1, position 1, stage 1, microbatch 0: " +
          std::string(
              copies ? "report_loss() is called while the pass captures its work; call it after "
                     : "loss_slot() is called while the pass captures its work; call it before ") +
          "the capture");
  CHECK(first_of(model::faults()) == "");
}

}  // namespace test_cuda_device
