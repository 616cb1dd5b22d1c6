// SPDX-License-Identifier: Apache-2.0
//
// Pairs of F and B on two streams of a rank, on the model of CUDA: they run side by side with the
// bits of one process, whatever a GPU runs first, on one GPU and several, over NCCL and in steps
// that are replayed; and no event between the two streams can be left out.
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/partition.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/nccl/device_needs.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_replay.hpp>
#include <support/cuda_timed.hpp>
#include <support/cuda_training.hpp>
#include <support/declared_stages.hpp>
#include <support/environment_variable.hpp>
#include <support/instructions.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/needless_calls.hpp>
#include <support/padded_toy.hpp>
#include <support/plan_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_cuda_pairs {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::bytes;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;

namespace {

// Visits the plans of a problem with most of what may pair in pairs, at least one.
template <class Visit>
void for_each_paired_plan(problem const& problem, plan_variants variants, int seed, Visit visit) {
  ZBPP_SEEDED(random, seed);
  for_each_plan_of(problem, variants, [&](std::string const& name, plan const& plain) {
    auto const order = pair_at_random(plain.schedule(), problem, random, 0.8);
    if (pairs_in(order) == 0) return;
    INFO(name << ", " << pairs_in(order) << " pairs");
    visit(make_plan("pairs", order, problem, {.receive_ahead = variants.receive_ahead}));
  });
}

// Two ranks with six pairs among their 30 passes.
plan small_plan() {
  auto rows = passes({"0F0 0F1 0F2 0F3 0B0 0W0 0F4 0B1 0W1 0B2 0W2 0B3 0W3 0B4 0W4",
                      "1F0 1F1 1B0 1W0 1F2 1B1 1W1 1F3 1B2 1W2 1F4 1B3 1W3 1B4 1W4"})
                  .nested();
  for (auto& row : rows)
    for (std::size_t i = 1; i < row.size(); ++i)
      row[i].is_paired = zbpp::detail::may_pair(row[i - 1], row[i]);
  problem const problem(zbpp::placement::linear(2), 5, launched_costs(), 87);
  return make_plan("pairs", zbpp::schedule(problem.placement(), 5, rows), problem);
}

cuda::device on_devices(int count) { return {.devices = cuda::one_device_per_rank(count)}; }

}  // namespace

TEST_CASE("pairs give the bits of one process on GPUs, whatever runs first", "[cuda][long]") {
  std::vector<variation> rows;
  for (int p : {2, 3})
    rows.push_back(
        {.name = "pairs",
         .ranks = {p},
         .microbatches = times(2, 1),
         .plans = {.recomputed = true, .receive_ahead = p - 2, .pairing = 0.8}});
  same_bits(
      device_reference,
      {on_gpu("a GPU", {}, {}, thinned(3, 1)),
       on_gpu("one queue and traces", {.connections = 1}, {.traces = true}),
       on_gpu("short queues", {.launch_depth = 2}),
       on_gpu("one pass ahead", {}, {.run_ahead = 1}),
       on_gpu("a wait after each pass", {}, {.synchronizes = true}),
       on_gpu_per_rank("a GPU for each rank", {}),
       on_gpu_per_rank("with two queues each", {.connections = 2})},
      rows);
}

TEST_CASE("pairs give the bits of one process over NCCL, on the queues there are", "[cuda][long]") {
  std::uint64_t n = run_seed();
  for (int p : {2, 3})
    for (auto const& placement : placements_to_run(p))
      for (auto const layout :
           {zbpp::channel_layout::one_per_directed_pair, zbpp::channel_layout::one_per_rank})
        for_each_paired_plan(
            problem(placement, 2 * p, launched_costs(), 87), {}, 10 + p, [&](plan const& drawn) {
              auto const planned =
                  make_plan("pairs", drawn.schedule(), drawn.problem(), {.layout = layout});
              auto const needed = nccl::hardware_queues(planned.program());
              auto const expected = toy::in_single_precision(toy::train_reference(planned));
              for (int queues : {1, 3, 32}) {
                if (queues < needed.most()) continue;
                INFO(queues << " queues, interleaving " << n);
                checked_gpus const gpus(
                    {.seed = ++n,
                     .devices = p,
                     .connections = queues,
                     .mapping = needed.reason.empty() ? model::queue_mapping::random
                                                      : model::queue_mapping::in_turn});
                auto all = toy::make_model(planned.problem().stages());
                std::vector<toy::padded_stage> stages(all.begin(), all.end());
                pipeline pipe{
                    planned,
                    nccl_in_one_process{.edges = toy::edge_shapes(planned.problem())},
                    stages};
                CHECK(toy::train(all, [&](int) { return pipe.step().losses; }) == expected);
              }
            });
}

TEST_CASE("replayed pairs give the bits of one process", "[cuda]") {
  std::uint64_t n = run_seed();
  for (int p : {2, 3})
    for (auto const& placement : placements_to_run(p))
      for_each_paired_plan(
          problem(placement, p + 2, launched_costs(), 87), {}, 20 + p, [&](plan const& planned) {
            auto const expected = toy::counted_reference(planned, 4);
            for (int devices : {1, p}) {
              INFO(devices << " devices, interleaving " << n);
              checked_gpus const gpus({.seed = ++n, .devices = devices});
              cuda::device backend{.replay = cuda::replay::step};
              if (devices > 1) backend.devices = cuda::one_device_per_rank(p);
              toy::counted_training<> training(planned, backend);
              for (int i = 0; i < 4; ++i) training.step();
              CHECK(training.seen() == expected);
            }
          });
}

namespace {

// What the passes of one rank read and write: each has a cell, and reads those of all passes that
// must come before it, which are all but the other one of its pair.
class rank_cells {
 public:
  rank_cells(int device, std::size_t passes)
      : cells_(cuda::on_device(device, [&] { return cuda::device_array<float>(passes); })) {}

  void run(zbpp::pass_context ctx) {
    auto const on = cuda::stream_of(ctx);
    if (first_ == nullptr) first_ = on.get();  // the first pass of a rank is in no pair
    auto const known = on.get() == first_ ? done_ : done_ - 1;
    auto* const own = cells_.data() + done_;
    cuda::check(model::launch(
        on, "cell", {{cells_.data(), known * sizeof(float)}}, {{own, sizeof(float)}}));
    if (++done_ == cells_.size()) done_ = 0;
  }

 private:
  cuda::device_array<float> cells_;
  cudaStream_t first_ = nullptr;
  std::size_t done_ = 0;  // passes of this step
};

// Those of the ranks that run now, and where their stages are.
struct cells_of_ranks {
  explicit cells_of_ranks(plan const& planned, bool is_apart)
      : placement(planned.problem().placement()) {
    for (int rank = 0; rank < placement.ranks(); ++rank)
      of.emplace_back(is_apart ? rank : 0, planned.schedule().passes(rank).size());
    current = this;
  }
  cells_of_ranks(cells_of_ranks const&) = delete;
  cells_of_ranks& operator=(cells_of_ranks const&) = delete;
  ~cells_of_ranks() { current = nullptr; }

  static inline cells_of_ranks* current = nullptr;
  zbpp::placement placement;
  std::vector<rank_cells> of;
};

// Uses all memory which is free when a pass ends, and the cells of its rank.
template <class Passes>
class ordered_passes : public Passes {
 public:
  using typename Passes::saved;
  using message = zbpp::message;
  using Passes::Passes;

  message forward(saved& kept, message const& input, zbpp::microbatch mb, zbpp::pass_context ctx) {
    cells_of(mb).run(ctx);
    return Passes::forward(kept, input, mb, ctx);
  }
  message backward_input(
      saved& kept, message const& gradient, zbpp::microbatch mb, zbpp::pass_context ctx) {
    cells_of(mb).run(ctx);
    return Passes::backward_input(kept, gradient, mb, ctx);
  }
  message backward(
      saved& kept, message const& gradient, zbpp::microbatch mb, zbpp::pass_context ctx) {
    cells_of(mb).run(ctx);
    return Passes::backward(kept, gradient, mb, ctx);
  }
  void backward_weight(saved& kept, zbpp::microbatch mb, zbpp::pass_context ctx) {
    cells_of(mb).run(ctx);
    Passes::backward_weight(kept, mb, ctx);
  }
  void recompute(saved& kept, zbpp::microbatch mb, zbpp::pass_context ctx) {
    cells_of(mb).run(ctx);
    Passes::recompute(kept, mb, ctx);
  }

 private:
  static rank_cells& cells_of(zbpp::microbatch mb) {
    auto& all = *cells_of_ranks::current;
    return all.of[zbpp::detail::index(all.placement.rank_of(mb.stage()))];
  }
};

using scratch = ordered_passes<toy::launched_passes_with_scratch>;

// Runs two steps; leaves out one call of the second. @return whether nothing was found
template <class Passes, class Backend>
bool is_clean(
    plan const& planned,
    bool is_apart,
    Backend backend,
    std::string_view function,
    std::uint64_t index) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<Passes> objects(all.begin(), all.end());
  std::vector<zbpp::as_flow<Passes>> stages(objects.begin(), objects.end());
  cells_of_ranks const cells(planned, is_apart);  // ends before what its kernels compute on
  backend.edges = toy::edge_shapes(planned.problem());
  try {
    pipeline pipe{planned, std::move(backend), stages};
    pipe.step();
    toy::clear_gradients(all);
    model::start_counting();
    if (!function.empty()) model::skip(function, index);
    pipe.step();
  } catch (zbpp::error const&) {
    return false;
  }
  return model::faults().empty();
}

}  // namespace

TEST_CASE("no wait and no record of a step with pairs can be left out", "[cuda][long]") {
  for (auto const& placement : placements_to_run(2))
    for_each_paired_plan(
        problem(placement, 4, launched_costs(), 87), {}, 30, [&](plan const& planned) {
          for (bool is_apart : {false, true}) {
            auto const devices = is_apart ? 2 : 1;
            CHECK(
                needless_calls(
                    {"cudaStreamWaitEvent", "cudaEventRecord"},
                    [&](std::string_view function, std::uint64_t i) {
                      model::reset({.seed = 9, .devices = devices, .hosts = devices});
                      auto const backend = is_apart ? on_devices(2) : cuda::device{};
                      return is_clean<scratch>(planned, is_apart, backend, function, i);
                    }) == "");
          }
        });
}

TEST_CASE("nor can one of a step with pairs over NCCL", "[cuda]") {
  for (auto const& placement : placements_to_run(2))
    for_each_paired_plan(
        problem(placement, 3, launched_costs(), 87), {}, 40, [&](plan const& planned) {
          CHECK(
              needless_calls(
                  {"cudaStreamWaitEvent", "cudaEventRecord", "ncclSend", "ncclRecv"},
                  [&](std::string_view function, std::uint64_t i) {
                    model::reset({.seed = 9, .devices = 2});
                    return is_clean<toy::padded_passes<scratch>>(
                        planned, true, nccl_in_one_process{}, function, i);
                  }) == "");
        });
}

TEST_CASE("nor can one of a step with pairs that is captured", "[cuda]") {
  for (auto const& placement : placements_to_run(2))
    for_each_paired_plan(
        problem(placement, 4, launched_costs(), 87), {}, 50, [&](plan const& planned) {
          auto const expected = toy::counted_reference(planned, 3);
          constexpr std::uint64_t forks =
              2;  // of the capture, to ranks that wait for others at once
          CHECK(
              needless_calls(
                  {"cudaStreamWaitEvent", "cudaEventRecord"},
                  [&](std::string_view function, std::uint64_t i) {
                    if (function == "cudaStreamWaitEvent" && i < forks) return false;
                    model::reset({.seed = 9});
                    try {
                      using passes = ordered_passes<toy::passes_with_scratch<toy::counted>>;
                      toy::counted_training<passes> training(planned);
                      cells_of_ranks const cells(planned, false);
                      training.step();
                      model::start_counting();
                      if (!function.empty()) model::skip(function, i);
                      training.step();
                      training.step();
                      return training.seen() == expected && model::faults().empty();
                    } catch (zbpp::error const&) {
                      return false;
                    }
                  }) == "");
        });
}

TEST_CASE("a pair takes the time of its longer pass, as measured on the device", "[cuda][long]") {
  for (bool is_forward_longer : {false, true})
    for (int p : {2, 4})
      for (auto const& placement : placements_to_run(p)) {
        auto costs = launched_costs();
        costs.edge = 8;
        // A BW hides as much as a B.
        costs.forward = is_forward_longer ? 1200 : 800;
        if (is_forward_longer) costs.backward_fused = costs.backward_input;
        costs.overlapped = std::max(costs.forward, costs.backward_input);
        for_each_paired_plan(
            problem(placement, 2 * p, costs, 0),
            {.fused = false},
            60 + p,
            [&](plan const& planned) {
              for (int devices : {1, p}) check_measured(planned, devices);
            });
      }
}

namespace {

// Notes on which streams its passes run.
class streams_seen {
 public:
  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer out;
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      in.clear();
      seen.insert(cuda::stream_of(ctx).get());
      if (!mb.is_last_stage()) out = ctx.allocate_edge(toy::edge);
      use(ctx);
    });
    co_await mb.send_activation(std::move(out));
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      back.clear();
      auto const on = cuda::stream_of(ctx);
      seen.insert(on.get());
      if (!mb.is_first_stage()) out = ctx.allocate_edge(toy::edge);
      use(ctx);
      if (mb.is_last_stage()) {
        auto const at = zbpp::detail::index(mb.index());
        auto* const value = losses.data() + at;
        cuda::check(model::launch(on, "loss", {}, {{value, sizeof *value}}, [value, at] {
          *value = static_cast<float>(at);
        }));
        cuda::report_loss(mb, ctx, value);
      }
    });
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([&](zbpp::pass_context ctx) {
      first = cuda::stream_of(ctx).get();
      use(ctx);
    });
  }

  std::set<cudaStream_t> seen;
  cudaStream_t first = nullptr;
  bool is_shared = false;         // whether passes write to one piece of memory
  std::function<void()> in_pass;  // is called in each of them
  cuda::device_array<float> losses{16};

 private:
  void use(zbpp::pass_context ctx) const {
    if (is_shared)
      cuda::check(model::launch(cuda::stream_of(ctx), "shared", {}, {{losses.data(), 4}}));
    if (in_pass) in_pass();
  }
};

CUgreenCtx home_of(cudaStream_t on) { return cuda::detail::green_context_of(on); }

}  // namespace

TEST_CASE(
    "the second pass of a pair runs on a second stream, and reports its loss there", "[cuda]") {
  auto const planned = small_plan();
  checked_gpus const gpus({.check_uninitialised = false});
  std::vector<streams_seen> stages(2);
  cuda::device backend{.edges = {{toy::edge}}};
  pipeline pipe{planned, backend, stages};
  for (int i = 0; i < 2; ++i) {
    auto const& losses = pipe.step().losses;
    for (std::size_t m = 0; m < losses.size(); ++m) CHECK(losses[m] == static_cast<double>(m));
  }
  for (auto const& each : stages) {
    CHECK(each.seen.size() == 2);
    CHECK(each.seen.count(each.first) == 1);
  }
}

TEST_CASE("two passes of a pair that share memory are a race", "[cuda]") {
  auto const planned = small_plan();
  std::string found;
  for (std::uint64_t seed = 1; seed < 4 && found.empty(); ++seed) {
    model::reset({.seed = seed, .check_uninitialised = false});
    std::vector<streams_seen> stages(2);
    for (auto& each : stages) each.is_shared = true;
    pipeline pipe{planned, cuda::device{.edges = {{toy::edge}}}, stages};
    pipe.step();
    found = first_of(model::take_faults());
  }
  CHECK(found.starts_with("race"));
}

TEST_CASE("a second stream is confined to the part of the GPU that the first one has", "[cuda]") {
  auto const planned = small_plan();
  checked_gpus const gpus({.check_uninitialised = false});
  cuda::partition const parts(0, 2);
  std::vector<streams_seen> stages(2);
  pipeline pipe{planned, cuda::device{.devices = parts.devices(), .edges = {{toy::edge}}}, stages};
  pipe.step();
  std::set<CUgreenCtx> homes;
  for (auto const& each : stages) {
    CHECK(each.seen.size() == 2);
    for (auto* const on : each.seen) CHECK(home_of(on) == home_of(each.first));
    homes.insert(home_of(each.first));
  }
  CHECK(homes.size() == 2);
  CHECK(homes.count(nullptr) == 0);
}

TEST_CASE("beside the caller's stream a second one of its priority is made", "[cuda]") {
  auto const planned = small_plan();
  for (bool has_green_contexts : {true, false}) {
    checked_gpus const gpus({.green_contexts = has_green_contexts, .check_uninitialised = false});
    std::vector<cuda::stream> own;
    cuda::device backend{.edges = {{toy::edge}}};
    for (int rank = 0; rank < 2; ++rank) {
      own.emplace_back(rank == 0 ? cuda::stream_priority::highest : cuda::stream_priority::usual);
      backend.devices.push_back({.compute = own.back().view()});
    }
    std::vector<streams_seen> stages(2);
    pipeline pipe{planned, backend, stages};
    pipe.step();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CHECK(stages[rank].seen.size() == 2);
      CHECK(stages[rank].first == own[rank].view().get());
      int expected = 0;
      cuda::check(cudaStreamGetPriority(own[rank].view(), &expected));
      for (auto* const on : stages[rank].seen) {
        int priority = 1;
        cuda::check(cudaStreamGetPriority(on, &priority));
        CHECK(priority == expected);
      }
    }
  }
}

TEST_CASE(
    "a step with pairs allocates nothing on the device, and waits at its end only", "[cuda]") {
  auto const planned = small_plan();
  model::reset({.seed = 6});
  launched_training training(planned);
  training.pipe().step();
  model::start_counting();
  training.pipe().step();
  auto const calls = model::heavy_calls();
  CHECK(calls == std::vector<std::string>{"cudaEventSynchronize 0", "cudaEventSynchronize 1"});
  CHECK(first_of(model::faults()) == "");
}

TEST_CASE("the host does not wait between the passes of a pair", "[cuda]") {
  auto const planned = small_plan();
  auto const passes = static_cast<std::ptrdiff_t>(planned.schedule().passes().size());
  for (int ahead : {1, 2}) {
    model::reset({.seed = 5});
    launched_training training(planned, {.run_ahead = ahead});
    model::start_counting();
    training.pipe().step();
    auto const waits = passes - 2 * ahead - pairs_in(planned.schedule()) + 2;
    CHECK(model::count("cudaEventSynchronize") == static_cast<std::uint64_t>(waits));
    CHECK(first_of(model::faults()) == "");
  }
}

TEST_CASE("ranks with pairs on GPUs take as much memory as is said, byte for byte", "[cuda]") {
  using namespace memory_use;
  int seed = 0;
  std::ptrdiff_t pairs = 0;
  for_each_uneven_plan(3, {.most_added = 400, .least_edge = 1}, [&](plan const& plain) {
    ZBPP_SEEDED(random, ++seed);
    auto const planned = paired_plan(plain, random, pairs);
    auto const& problem = planned.problem();
    for (int devices : {1, 3}) {
      checked_gpus const gpus(
          {.seed = 7, .devices = devices, .hosts = devices, .check_uninitialised = false});
      auto backend = devices > 1 ? on_devices(3) : cuda::device{};
      for (int s = 0; s + 1 < problem.stages(); ++s) {
        auto const size = problem.costs(s).edge;
        backend.edges.push_back({size / 3, size - size / 3});
      }
      check_peaks(planned, backend, declared<>{&problem});
    }
  });
  CHECK(pairs > 0);
}

TEST_CASE("a pass of a pair that throws ends the step, and the next one is right", "[cuda]") {
  auto const planned = small_plan();
  for (bool is_replayed : {false, true})
    for (int failing = 0; failing < 30; ++failing) {
      INFO((is_replayed ? "captured" : "issued") << ", pass " << failing);
      checked_gpus const gpus({.check_uninitialised = false});
      int issued = is_replayed ? -30 : 0;  // the second step is captured
      std::vector<streams_seen> stages(2);
      for (auto& each : stages)
        each.in_pass = [&] {
          if (issued++ == failing) throw std::runtime_error("this pass fails");
        };
      cuda::device backend{
          .edges = {{toy::edge}}, .replay = is_replayed ? cuda::replay::step : cuda::replay::none};
      pipeline pipe{planned, backend, stages};
      if (is_replayed) pipe.step();
      CHECK_THROWS_AS(pipe.step(), std::runtime_error);
      for (int i = 0; i < 3; ++i) CHECK(pipe.step().losses.back() == 4);
      for (int rank = 0; rank < 2; ++rank)
        CHECK(pipe.memory(rank).in_use == std::array<bytes, zbpp::purposes>{});
    }
}

TEST_CASE("whatever call of a step with pairs fails, a later step is right", "[cuda]") {
  auto const planned = small_plan();
  auto const passes = static_cast<int>(planned.schedule().passes().size());
  for (auto const* function : {"cudaEventRecord", "cudaStreamWaitEvent"})
    for (int at = 0; at < passes; ++at) {
      INFO(function << " behind pass " << at);
      checked_gpus const gpus(
          {.seed = static_cast<std::uint64_t>(at), .check_uninitialised = false});
      int issued = 0;
      std::vector<streams_seen> stages(2);
      for (auto& each : stages)
        each.in_pass = [&] {
          if (issued++ == at) model::fail_next(function, cudaErrorMemoryAllocation);
        };
      pipeline pipe{planned, cuda::device{.edges = {{toy::edge}}}, stages};
      int failed = 0;
      double last = 0;
      for (int step = 0; step < 3; ++step) {
        try {
          last = pipe.step().losses.back();
        } catch (zbpp::error const&) {
          ++failed;
        }
      }
      CHECK(failed == 1);
      CHECK(last == 4);
      CHECK(pipe.step().losses.back() == 4);
    }
}

TEST_CASE("streams of pairs are counted where hardware queues are few", "[cuda]") {
  environment_variable const queues("CUDA_DEVICE_MAX_CONNECTIONS", "4");
  auto const planned = small_plan();
  CHECK(cuda::queue_shortage(planned) == "");
  queues.set("3");
  CHECK(cuda::queue_shortage(planned).find("4 streams share 3 ") == 0);
  CHECK(cuda::queue_shortage(planned, cuda::one_device_per_rank(2)) == "");
  queues.set("2");
  CHECK(
      cuda::queue_shortage(planned, cuda::one_device_per_rank(2)).find("3 streams share 2 ") == 0);
  CHECK(nccl::streams_of_ranks(planned.program()) == std::vector<int>{9, 9});
}

}  // namespace test_cuda_pairs
