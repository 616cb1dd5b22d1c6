// SPDX-License-Identifier: Apache-2.0
//
// Grids over NCCL: pipelines side by side, each rank a process with a GPU of the model, whose
// replicas add up gradients in memory of the device.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_steps.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/nccl_replicas.hpp>
#include <support/needless_calls.hpp>
#include <support/policy_grid.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_nccl_replicas {

using namespace zbpp::test;
using namespace std::chrono_literals;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::channel_layout;
using zbpp::grid_layout;
using zbpp::plan;
using zbpp::problem;
using zbpp::step_kind;
using zbpp::asio::rendezvous;
using zbpp::detail::index;

namespace {

problem problem_of(zbpp::placement const& placement, int microbatches, int replicas, bool ties) {
  return with_replicas(
      problem(placement, microbatches, replicas::costs_of(placement.stages(), ties), 87),
      {.count = replicas});
}

grid_layout layout_of(plan const& planned) {
  auto const ranks = planned.problem().ranks();
  auto const count = planned.problem().replicas().count;
  return grid_layout({.pipeline = ranks, .data = count}, ranks * count);
}

// A rank with its stages, on a GPU of its own.
class replica_rank {
 public:
  replica_rank(
      plan const& planned,
      rendezvous& run,
      replicas::training const& by,
      nccl::ranks_settings settings = {})
      : here_(run.rank()) {
    auto const layout = layout_of(planned);
    auto const at = layout.coordinates(run.rank());
    for (int const s : planned.problem().placement().stages_of(at.pipeline))
      stages_.emplace_back(s, at.data, planned.problem().costs(s).tied > 0, by.bad);
    for (auto& each : stages_) refs_.emplace_back(each);
    settings.device = {.device = run.rank()};
    pipe_ = std::make_unique<zbpp::pipeline<nccl::ranks>>(
        planned, nccl::ranks(run, layout, std::move(settings)), refs_, by.options(planned));
  }

  [[nodiscard]] zbpp::pipeline<nccl::ranks>& pipe() noexcept { return *pipe_; }
  // The bits of the weights here; only between steps.
  [[nodiscard]] replicas::weights weights() const {
    replicas::weights all;
    for (auto const& each : stages_) all.emplace_back(each.weights().begin(), each.weights().end());
    return all;
  }

 private:
  cuda::device_guard here_;
  std::deque<replicas::stage> stages_;
  std::vector<zbpp::stage_ref> refs_;
  std::unique_ptr<zbpp::pipeline<nccl::ranks>> pipe_;
};

bool is_same(std::vector<float> const& a, std::vector<float> const& b) {
  return toy::is_same(a, b);
}

// Trains all ranks of all replicas.
// @return how many of them have other weights than the reference
int train(
    plan const& planned,
    replicas::training const& by,
    replicas::weights const& expected,
    nccl::ranks_settings const& settings = {}) {
  auto const layout = layout_of(planned);
  std::mutex guard;
  int different = 0;
  auto const thrown = run_ranks(layout.ranks(), patient_settings(), [&](rendezvous& run) {
    replica_rank rank(planned, run, by, settings);
    rank.pipe().run(by.steps - 2);
    rank.pipe().evaluate();
    rank.pipe().run(2);
    auto const found = rank.weights();
    auto const at = layout.coordinates(run.rank());
    auto const own = planned.problem().placement().stages_of(at.pipeline);
    std::scoped_lock const lock(guard);
    for (std::size_t i = 0; i < own.size(); ++i)
      different += is_same(found[i], expected[index(own[i])]) ? 0 : 1;
  });
  for (auto const& text : thrown) CHECK(text == "");
  return different;
}

void check(plan const& planned, replicas::training by, std::uint64_t seed) {
  checked_ranks const gpus(machine_of(planned, seed));
  INFO("interleaving " << seed << ", clips at " << by.clip);
  replicas::reference alone(planned, by);
  CHECK(train(planned, by, alone.train()) == 0);
}

double usual_norm(plan const& planned, replicas::training const& by) {
  replicas::reference alone(planned, by);
  static_cast<void>(alone.train());
  return alone.norms().front();
}

void check_told(std::vector<std::string> const& thrown, std::string const& part) {
  for (auto const& text : thrown) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(first_of(model::leaks()) == "");
}

}  // namespace

TEST_CASE(
    "replicas over NCCL have the bits of one process, for every policy", "[nccl][grid][long]") {
  auto seed = run_seed();
  std::size_t turn = 0;
  for (auto const& placement :
       {zbpp::placement::linear(2), zbpp::placement::v_shape(2), zbpp::placement::looped(2, 2)})
    for (auto const& policy : grid_policies()) {
      bool const ties = turn++ % 2 == 0;
      auto const model = problem_of(placement, 5, 2, ties);
      if (!is_supported(policy, model)) continue;
      INFO(name_of(policy, model));
      for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
        auto const planned = make_plan(policy, model, {.step = kind});
        auto const norm = usual_norm(planned, {});
        check(planned, {.clip = 0.9 * norm, .bad = {.replica = 1, .step = 2}}, ++seed);
      }
      auto const planned = make_plan(policy, problem_of(placement, 5, 2, false));
      check(planned, {}, ++seed);
    }
}

TEST_CASE("more replicas over NCCL have the sums of NCCL, the same on all", "[nccl][grid][long]") {
  auto seed = run_seed() + 1000;
  for (int const count : {3, 4})
    for (auto const kind :
         {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
      bool const ties = kind != step_kind::unchecked;
      auto const planned = make_plan(
          zbpp::zb_v{}, problem_of(zbpp::placement::v_shape(2), 4, count, ties), {.step = kind});
      replicas::training by{.count = count};
      check(planned, by, ++seed);
      if (!ties) continue;
      by.clip = 1.1 * usual_norm(planned, by);
      by.bad = {.replica = count - 1, .step = 1};
      check(planned, by, ++seed);
    }
}

TEST_CASE("gradients over NCCL are added up over steps before replicas", "[nccl][grid]") {
  auto seed = run_seed() + 2000;
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
    auto const planned = make_plan(
        zbpp::zb_h1{}, problem_of(zbpp::placement::linear(2), 4, 2, true), {.step = kind});
    check(planned, {.steps = 8, .accumulate = 2}, ++seed);
  }
}

TEST_CASE("losses of replicas over NCCL are scaled alike", "[nccl][grid]") {
  auto seed = run_seed() + 2500;
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
    auto const planned = make_plan(
        zbpp::zb_v{}, problem_of(zbpp::placement::v_shape(2), 5, 2, true), {.step = kind});
    replicas::training by{
        .steps = 8,
        .bad = {.replica = 0, .step = 3},
        .scaling = {.initial = 8, .growth_interval = 2}};
    by.clip = 0.9 * usual_norm(planned, by);
    check(planned, by, ++seed);
  }
}

TEST_CASE("replicas of one rank need no channel over NCCL", "[nccl][grid]") {
  auto const planned = make_plan(
      zbpp::zb_h1{},
      problem_of(zbpp::placement::linear(1), 3, 3, false),
      {.step = step_kind::synchronous});
  check(planned, {.count = 3}, run_seed());
}

TEST_CASE("with one queue of hardware, too, replicas over NCCL go on", "[nccl][grid]") {
  auto seed = run_seed() + 3000;
  auto const planned = make_plan(
      zbpp::zb_v{},
      problem_of(zbpp::placement::v_shape(2), 5, 2, true),
      {.step = step_kind::post_validated, .layout = channel_layout::one_per_rank});
  CHECK(nccl::hardware_queues(planned.program()).most() == 1);
  for (int round = 0; round < thinned(6, 2); ++round) check(planned, {}, ++seed);
}

TEST_CASE("no step of replicas over NCCL connects what was not connected before", "[nccl][grid]") {
  auto const planned = make_plan(
      zbpp::zb_v{},
      problem_of(zbpp::placement::v_shape(2), 4, 2, true),
      {.step = step_kind::post_validated});
  checked_ranks const gpus(machine_of(planned, run_seed() + 3300));
  auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
    replica_rank rank(planned, run, {});
    run.barrier();
    if (run.rank() == 0) model::start_counting();
    run.barrier();
    rank.pipe().run(3);
    run.barrier();
  });
  for (auto const& text : thrown) CHECK(text == "");
  CHECK(model::connections() == 0);
}

namespace {

// Throws, or does worse, in one of its forward passes, or when it gets ready, before sums are
// connected.
struct harmed_stage {
  replicas::stage* of;
  std::function<void(zbpp::microbatch)> harm = {};
  std::function<void()> harm_first = {};

  zbpp::flow operator()(zbpp::microbatch mb) {
    if (harm && mb.step() == 1 && mb.index() == 2) harm(mb);
    return (*of)(mb);
  }
  void warm_up(zbpp::pass_context) {
    if (harm_first) harm_first();
  }
  auto& optimizer() { return of->optimizer(); }
};

// Makes pipelines where rank 1 does something first. @return what all were told
std::vector<std::string> make_with(model::options machine, std::function<void()> const& act) {
  auto const planned = make_plan(
      zbpp::zb_h1{},
      problem_of(zbpp::placement::linear(2), 4, 2, false),
      {.step = step_kind::synchronous});
  auto const layout = layout_of(planned);
  machine.devices = machine.hosts = layout.ranks();
  checked_ranks const gpus(machine);
  return run_ranks(layout.ranks(), patient_settings(), [&](rendezvous& run) {
    cuda::device_guard const here(run.rank());
    auto const at = layout.coordinates(run.rank());
    replicas::stage own(at.pipeline, at.data, false);
    std::array stages{harmed_stage{&own}};
    if (run.rank() == 1) stages[0].harm_first = act;
    nccl::ranks_settings settings{.device = cuda::rank_device{.device = run.rank()}};
    settings.init_deadline = 2s;
    zbpp::pipeline const pipe(
        planned, nccl::ranks(run, layout, settings), stages, replicas::training{}.options(planned));
    run.barrier();  // those whose sums are done hear of it
  });
}

}  // namespace

TEST_CASE("making replicas over NCCL ends where their sums do not", "[nccl][grid]") {
  for (bool const lazy_connect : {true, false}) {
    INFO("connects late: " << lazy_connect);
    // Memory that a sum uses is given back only once that is aborted, or CUDA waits for it.
    model::options const machine{
        .seed = run_seed() + 3400, .drains = true, .lazy_connect = lazy_connect};
    check_told(
        make_with(machine, [] { model::fail_next("ncclAllReduce", ncclSystemError); }),
        "unhandled system error");
    check_told(
        make_with(machine, [] { model::hold_groups(); }),
        "the first sums over replicas do not end within ranks_settings::init_deadline");
  }
}

TEST_CASE("replicas over NCCL make what is said of their plan", "[nccl][grid]") {
  auto const planned = make_plan(
      zbpp::zb_v{},
      problem_of(zbpp::placement::v_shape(2), 4, 2, false),
      {.step = step_kind::synchronous});
  checked_ranks const gpus(machine_of(planned, run_seed()));
  auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
    replica_rank const rank(planned, run, {});
    run.barrier();
    if (run.rank() == 0) {
      auto const all = model::leaks();
      auto const alive = [&](std::string_view kind) {
        return static_cast<int>(
            std::ranges::count_if(all, [&](auto const& text) { return text.starts_with(kind); }));
      };
      int events = 0;
      int streams = 0;
      int communicators = 0;
      for (auto const& each : nccl::device_needs_of(planned.program(), planned.problem())) {
        events += 2 * each.events;
        communicators += 2 * each.waiting_ctas;
        // NCCL makes two for each communicator, and one more.
        streams += 2 * (each.streams - 2 * each.waiting_ctas - 1);
      }
      CHECK(alive("event") == events);
      CHECK(alive("stream") == streams);
      CHECK(alive("communicator") == communicators);
    }
    run.barrier();
  });
  for (auto const& text : thrown) CHECK(text == "");
}

TEST_CASE("one replica over NCCL stops the run of all after the same step", "[nccl][grid]") {
  auto seed = run_seed() + 4000;
  for (auto const kind :
       {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
    auto const planned = make_plan(
        zbpp::zb_h1{}, problem_of(zbpp::placement::linear(2), 4, 2, false), {.step = kind});
    for (int asking = 0; asking < 4; ++asking) {
      checked_ranks const gpus(machine_of(planned, ++seed));
      INFO("rank " << asking << " asks, interleaving " << seed);
      std::array<std::int64_t, 4> ends{};
      auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
        replica_rank rank(planned, run, {});
        rank.pipe().run(100, [&](zbpp::step_result const&) {
          bool const asks = run.rank() == asking && rank.pipe().steps() == 2;
          return asks ? zbpp::after_step::stop : zbpp::after_step::go_on;
        });
        ends[index(run.rank())] = rank.pipe().steps();
        run.barrier();
      });
      for (auto const& text : thrown) CHECK(text == "");
      for (auto const end : ends) CHECK(end == ends[0]);
      CHECK(ends[0] >= 2);
      CHECK(ends[0] <= 5);
    }
  }
}

namespace {

// Runs steps in which one rank comes to harm. @return what all were told
std::vector<std::string> run_harmed(
    plan const& planned,
    zbpp::asio::rendezvous_settings const& settings,
    int culprit,
    std::function<void(rendezvous&, zbpp::microbatch)> const& harm) {
  auto const layout = layout_of(planned);
  std::vector<std::string> told(index(layout.ranks()));
  auto const thrown = run_ranks(layout.ranks(), settings, [&](rendezvous& run) {
    cuda::device_guard const here(run.rank());
    auto const at = layout.coordinates(run.rank());
    replicas::stage own(at.pipeline, at.data, false);
    std::array stages{harmed_stage{&own}};
    if (run.rank() == culprit) stages[0].harm = [&](zbpp::microbatch mb) { harm(run, mb); };
    zbpp::pipeline pipe(
        planned,
        nccl::ranks(run, layout, {.device = cuda::rank_device{.device = run.rank()}}),
        stages,
        replicas::training{}.options(planned));
    run.barrier();
    try {
      pipe.run(100);
    } catch (std::exception const& failed) {
      told[index(run.rank())] = failed.what();
    }
  });
  for (auto const& text : thrown) CHECK(text == "");
  return told;
}

}  // namespace

TEST_CASE("a failure in one replica over NCCL ends all, with its place", "[nccl][grid]") {
  auto seed = run_seed() + 5000;
  for (auto const kind : {step_kind::unchecked, step_kind::post_validated}) {
    auto const planned = make_plan(
        zbpp::zb_h1{}, problem_of(zbpp::placement::linear(2), 4, 2, false), {.step = kind});
    for (int culprit = 0; culprit < 4; ++culprit) {
      reset_gpus(machine_of(planned, ++seed));
      INFO("rank " << culprit << ", interleaving " << seed);
      auto const told =
          run_harmed(planned, patient_settings(), culprit, [](rendezvous&, zbpp::microbatch) {
            throw std::runtime_error("no more weights");
          });
      check_told(told, "rank " + std::to_string(culprit) + ", position ");
      check_told(told, "no more weights");
    }
  }
}

TEST_CASE("an error of NCCL in a sum ends all replicas", "[nccl][grid]") {
  auto const planned = make_plan(
      zbpp::zb_h1{},
      problem_of(zbpp::placement::linear(2), 4, 2, false),
      {.step = step_kind::synchronous});
  reset_gpus(machine_of(planned, run_seed()));
  auto const told = run_harmed(planned, patient_settings(), 3, [](rendezvous&, zbpp::microbatch) {
    model::fail_next("ncclAllReduce", ncclInternalError);
  });
  check_told(told, "internal error");
}

TEST_CASE("a collective call of replicas in a step over NCCL is refused", "[nccl][grid]") {
  auto const planned = make_plan(
      zbpp::zb_h1{},
      problem_of(zbpp::placement::linear(2), 4, 2, false),
      {.step = step_kind::post_validated});
  for (int const culprit : {2, 3}) {
    reset_gpus(machine_of(planned, run_seed()));
    auto const told =
        run_harmed(planned, patient_settings(), culprit, [](rendezvous&, zbpp::microbatch mb) {
          mb.grid().data().barrier();
        });
    // Whichever replica is the first to see what the other one sends.
    for (auto const& text : told) {
      INFO(text);
      CHECK(
          (text.find("makes a collective call while gradients are added up") != std::string::npos ||
           text.find("all members have to make the same calls") != std::string::npos));
    }
    CHECK(first_of(model::leaks()) == "");
  }
}

TEST_CASE("a replica over NCCL that hangs is named", "[nccl][grid]") {
  auto const planned = make_plan(
      zbpp::zb_h1{},
      problem_of(zbpp::placement::linear(2), 4, 2, false),
      {.step = step_kind::synchronous});
  reset_gpus(machine_of(planned, run_seed()));
  auto settings = patient_settings();
  settings.deadline = 2s;
  settings.stall_deadline = 500ms;
  auto const told = run_harmed(planned, settings, 3, [](rendezvous& run, zbpp::microbatch) {
    auto& channel = run.control_channel();
    channel.loop().run_until([&] { return channel.has_stopped(); });
  });
  check_told(told, "the step has stalled");
  check_told(told, "rank 3 (pipeline 1, replica 1), which waits for no rank: it ");
  for (auto const& text : told) CHECK(text.find("the same holds") == std::string::npos);
}

namespace {

// Makes pipelines of two replicas. @return what all of them were told
template <class MakeStage>
std::vector<std::string> refused(
    plan const& planned, nccl::ranks_settings const& settings, MakeStage const& make) {
  auto const layout = layout_of(planned);
  reset_gpus(machine_of(planned, run_seed()));
  return run_ranks(layout.ranks(), patient_settings(), [&](rendezvous& run) {
    cuda::device_guard const here(run.rank());
    auto const at = layout.coordinates(run.rank());
    auto own = settings;
    own.device = cuda::rank_device{.device = run.rank()};
    auto const stage = make(at);
    std::array stages{zbpp::stage_ref(*stage)};
    zbpp::pipeline const pipe(planned, nccl::ranks(run, layout, own), stages);
  });
}

std::vector<std::string> refused(plan const& planned, nccl::ranks_settings const& settings = {}) {
  return refused(planned, settings, [](zbpp::grid_coordinates const& at) {
    return std::make_unique<replicas::stage>(at.pipeline, at.data, false);
  });
}

// Has an optimizer of its own, whose gradients lie nobody knows where.
struct own_optimizer {
  toy::stage_model weights = toy::make_model(1).front();
  gpu_steps::launched_descent steps{weights, -1, false};

  zbpp::flow operator()(zbpp::microbatch);
  gpu_steps::launched_descent& optimizer() { return steps; }
};
zbpp::flow own_optimizer::operator()(zbpp::microbatch) {
  co_await zbpp::F([] {});
}

// Has as many weights as it is told.
struct sized_stage {
  explicit sized_stage(std::size_t count)
      : memory(2 * count),
        steps({{.weights = {memory.data(), count}, .gradients = {memory.data() + count, count}}}) {}

  zbpp::flow operator()(zbpp::microbatch);
  auto& optimizer() { return steps; }

  cuda::device_array<float> memory;
  gpu_optim::on_gpu<cuda::detail::sgd_rule> steps;
};
zbpp::flow sized_stage::operator()(zbpp::microbatch) {
  co_await zbpp::F([] {});
}

}  // namespace

TEST_CASE("what replicas over NCCL cannot do is refused in a line", "[nccl][grid]") {
  auto const usual = problem_of(zbpp::placement::linear(2), 4, 2, false);
  auto const planned = make_plan(zbpp::zb_h1{}, usual, {.step = step_kind::synchronous});
  check_told(
      refused(make_plan(zbpp::zb_h1{}, usual), {.replay = cuda::replay::step}),
      "replay is replay::step and the plan adds gradients up over replicas");
  auto const shared = with_replicas(usual, {.count = 2, .shards_optimizer = true});
  check_told(
      refused(make_plan(zbpp::zb_h1{}, shared, {.step = step_kind::synchronous})),
      "replicas cannot share its optimizer on GPUs; plan without shards_optimizer");
  check_told(
      refused(planned, {}, [](auto const&) { return std::make_unique<own_optimizer>(); }),
      "give it optimizer() with gradients(), which says where in memory of the device they lie");
  check_told(
      refused(
          planned,
          {},
          [](zbpp::grid_coordinates const& at) {
            return std::make_unique<sized_stage>(at.data == 1 ? 5 : 4);
          }),
      "the layers of the stages of replica 1 have other sizes than those of replica 0; give all "
      "replicas the same weights");
  // Sums wait as messages do: with two communicators each could have 65.
  check_told(
      refused(planned, {.most_ctas = 127}),
      "messages may hold 64 multiprocessors for each of 3 communicators");
  // The same in step_async(), of whichever backend.
  auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
    replica_rank rank(planned, run, {});
    run.barrier();
    static_cast<void>(rank.pipe().step_async());
  });
  check_told(thrown, "step_async() is called where a stage has an optimizer()");
}

TEST_CASE("a program without sums over replicas is refused over NCCL", "[nccl][grid]") {
  auto const alone = problem(zbpp::placement::linear(2), 4, replicas::costs_of(2, false), 87);
  auto const planned = make_plan(zbpp::zb_h1{}, alone, {.step = step_kind::synchronous});
  grid_layout const layout({.pipeline = 2, .data = 2}, 4);
  auto machine = machine_of(planned, run_seed());
  machine.devices = machine.hosts = 4;
  reset_gpus(machine);
  auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
    cuda::device_guard const here(run.rank());
    auto const at = layout.coordinates(run.rank());
    replicas::stage own(at.pipeline, at.data, false);
    std::array stages{zbpp::stage_ref(own)};
    zbpp::pipeline const pipe(
        planned,
        nccl::ranks(run, layout, {.device = cuda::rank_device{.device = run.rank()}}),
        stages);
  });
  check_told(
      thrown, "the plan adds gradients up over 1 replica, and the grid of the backend has 2");
}

namespace {

enum class mistake : std::uint8_t { none, begins_early, waits_for_nothing };

// Two replicas of one rank on two GPUs, issued from one thread: what a rank enqueues for its sums.
class two_replicas {
 public:
  two_replicas() {
    nccl::detail::communicator_map map;
    std::vector<std::vector<int>> const groups{{0, 1}};
    nccl::detail::add_sums(map, groups);
    ncclUniqueId id;
    nccl::check(ncclGetUniqueId(&id));
    communicators_ = std::make_unique<nccl::detail::communicator_set>(
        std::vector<zbpp::channel>{},
        std::vector<nccl::detail::local_rank>{{0, 0}, {1, 1}},
        map,
        std::span(&id, 1),
        1,
        brief_pause());
    for (int rank : {0, 1}) ranks_.push_back(std::make_unique<rank_state>(*communicators_, rank));
  }

  // @return whether the weights are the sums
  [[nodiscard]] bool step(float first, mistake made = mistake::none) {
    for (auto& each : ranks_) each->make_gradients(first, made == mistake::begins_early);
    for (auto& each : ranks_) each->use_sums(made != mistake::waits_for_nothing);
    for (auto& each : ranks_) {
      each->context->compute().synchronize();
      each->sums->stream().synchronize();
    }
    return std::ranges::all_of(ranks_, [&](auto const& each) {
      return std::ranges::all_of(each->weights, [&](float w) { return w == 2 * first + 1; });
    });
  }

 private:
  struct rank_state {
    rank_state(nccl::detail::communicator_set& communicators, int number) : rank(number) {
      cuda::device_guard const here(rank);
      context = std::make_unique<cuda::device_context>(
          cuda::rank_device{.device = rank},
          1,
          std::span<zbpp::pass const>{},
          cuda::launch_settings{});
      memory = cuda::device_array<float>(2 * count);
      gradients = {memory.data(), count};
      weights = {memory.data() + count, count};
      sums = std::make_unique<nccl::detail::replica_sums>(
          communicators, *communicators.sums_of(rank), *context);
      sums->add_stage(0, {gradients.first(3), {}, gradients.subspan(3)});
    }
    [[nodiscard]] static model::range range_of(std::span<float> of) {
      return {of.data(), of.size_bytes()};
    }
    void make_gradients(float first, bool begins_early) {
      cuda::device_guard const there(rank);
      if (begins_early) sums->start(0);
      auto const value = first + static_cast<float>(rank);
      cuda::check(model::launch(
          context->compute(), "W", {}, {range_of(gradients)}, [to = gradients, value] {
            std::ranges::fill(to, value);
          }));
      if (!begins_early) sums->start(0);
    }
    void use_sums(bool waits) {
      cuda::device_guard const there(rank);
      if (waits) sums->finish(0);
      cuda::check(model::launch(
          context->compute(),
          "step",
          {range_of(gradients)},
          {range_of(weights)},
          [from = gradients, to = weights] { std::ranges::copy(from, to.begin()); }));
    }

    static constexpr std::size_t count = 8;
    int rank;
    std::unique_ptr<cuda::device_context> context;
    cuda::device_array<float> memory;
    std::span<float> gradients;
    std::span<float> weights;
    std::unique_ptr<nccl::detail::replica_sums> sums;
  };

  std::unique_ptr<nccl::detail::communicator_set> communicators_;
  std::vector<std::unique_ptr<rank_state>> ranks_;
};

}  // namespace

TEST_CASE("no call of a sum over replicas can be left out", "[nccl][grid]") {
  auto const is_clean = [](std::string_view function, std::uint64_t call) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      model::reset(
          {.seed = seed, .devices = 2, .lazy_connect = false});  // one thread issues for both
      try {
        two_replicas all;
        if (!all.step(1)) return false;
        model::start_counting();
        if (!function.empty()) model::skip(function, call);
        if (!all.step(5)) return false;
      } catch (zbpp::error const&) {
        return false;
      }
      if (!model::faults().empty()) return false;
    }
    return true;
  };
  CHECK(
      needless_calls({"cudaEventRecord", "cudaStreamWaitEvent", "ncclAllReduce"}, is_clean) == "");
}

TEST_CASE("a sum that begins or is used too early is found", "[nccl][grid]") {
  for (auto const made : {mistake::begins_early, mistake::waits_for_nothing})
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      model::reset(
          {.seed = seed, .devices = 2, .lazy_connect = false});  // one thread issues for both
      {
        two_replicas all;
        CHECK(all.step(1));
        CHECK(first_of(model::faults()) == "");
        static_cast<void>(all.step(5, made));
      }
      INFO("mistake " << static_cast<int>(made) << ", interleaving " << seed);
      CHECK(first_of(model::take_faults()).starts_with("race"));
    }
}

TEST_CASE("communicators of sums stand in front of those of messages", "[nccl][grid]") {
  std::vector<zbpp::channel> const row{{.from = 0, .to = 2}, {.from = 2, .to = 0}};
  auto map = nccl::detail::map_communicators(row, channel_layout::one_per_directed_pair);
  std::vector<std::vector<int>> const groups{{0, 1}, {2, 3}};
  nccl::detail::add_sums(map, groups);
  REQUIRE(map.communicators.size() == 4);
  CHECK(map.of_sums == 2);
  CHECK(map.communicators[1].ranks == groups[1]);
  CHECK(map.communicators[1].name == "zbpp:sums:2");
  CHECK(map.communicators[2].name == "zbpp:0>2");
  CHECK(map.of_channel == std::vector{2, 3});
  CHECK(map.count_of(0) == 3);
  CHECK(map.count_of(3) == 1);
}

}  // namespace test_nccl_replicas
