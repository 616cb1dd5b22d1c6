// SPDX-License-Identifier: Apache-2.0
//
// Captured work on the model of CUDA: replays do what was captured, other pointers are captured
// anew, and what goes wrong on the way leaves no capture behind. In a pipeline: the same bits.
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/graph.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>

#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_model/cuda_model.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace test_cuda_graph {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;

namespace {

// What a pass of a rank gets, and numbers in device memory.
struct rig {
  static constexpr std::size_t count = 4;

  rig() {
    void* taken = nullptr;
    cuda::check(cudaMalloc(&taken, count * sizeof(int)));
    numbers = static_cast<int*>(taken);
    cuda::check(cudaMemsetAsync(numbers, 0, count * sizeof(int), stream()));
  }
  rig(rig const&) = delete;
  rig& operator=(rig const&) = delete;
  ~rig() {
    cudaStreamSynchronize(stream());
    cudaFree(numbers);
  }

  cuda::stream_ref stream() const { return device.compute(); }
  int value(std::size_t i) const {
    stream().synchronize();
    return numbers[i];
  }
  std::vector<int> values() const {
    stream().synchronize();
    return {numbers, numbers + count};
  }

  cuda::device_context device{{}, 1, {}, {}};
  zbpp::arena memory{cuda::device_memory(0)};
  zbpp::pass_context ctx{memory, zbpp::backend_kind::cuda, &device};
  int* numbers = nullptr;
};

void add(cuda::stream_ref on, int* to, int value) {
  cuda::check(
      model::launch(on, "add", {{to, sizeof(int)}}, {{to, sizeof(int)}}, [=] { *to += value; }));
}

}  // namespace

TEST_CASE("captured work runs at once, and again each time", "[cuda]") {
  for (int trial = 0; trial < 20; ++trial) {
    ZBPP_SEEDED(rng, trial);
    checked_gpus const gpus({.seed = rng.bits()});
    rig r;
    cuda::graph_cache graphs;
    int enqueued = 0;
    auto const repeats = static_cast<int>(rng.integer(1, 6));
    for (int i = 0; i < repeats; ++i) {
      graphs.run(r.ctx, 7, {r.numbers}, [&](cuda::stream_ref on) {
        ++enqueued;
        add(on, r.numbers, 1);
        add(on, r.numbers, 10);
      });
    }
    CHECK(r.value(0) == 11 * repeats);
    CHECK(enqueued == 1);
    CHECK(graphs.captures() == 1);
    CHECK(graphs.replays() == repeats - 1);
    CHECK(graphs.size() == 1);
  }
}

TEST_CASE("each key and each set of pointers has work of its own", "[cuda]") {
  for (int trial = 0; trial < 20; ++trial) {
    ZBPP_SEEDED(rng, trial);
    checked_gpus const gpus({.seed = rng.bits()});
    rig r;
    cuda::graph_cache graphs;
    std::vector<int> expected(rig::count, 0);
    std::vector<std::size_t> last(3, rig::count);  // by key: the pointer of its graph
    std::int64_t captures = 0;
    for (int i = 0; i < 40; ++i) {
      auto const key = static_cast<std::size_t>(rng.integer(0, 2));
      auto const index = static_cast<std::size_t>(rng.integer(0, rig::count - 1));
      auto const value = static_cast<int>(key) + 1;
      if (last[key] != index) ++captures;
      last[key] = index;
      expected[index] += value;
      int* const to = r.numbers + index;
      graphs.run(r.ctx, static_cast<std::int64_t>(key), {to, r.numbers}, [&](auto on) {
        add(on, to, value);
      });
      CHECK(graphs.captures() == captures);
    }
    CHECK(r.values() == expected);
    CHECK(graphs.captures() + graphs.replays() == 40);
    graphs.clear();
    CHECK(graphs.size() == 0);
  }
}

TEST_CASE("work of another stream is captured anew", "[cuda]") {
  checked_gpus const gpus;
  rig r;
  r.stream().synchronize();
  cuda::device_context other({}, 1, {}, {});
  zbpp::pass_context const there(r.memory, zbpp::backend_kind::cuda, &other);
  cuda::graph_cache graphs;
  auto const work = [&](cuda::stream_ref on) { add(on, r.numbers, 1); };
  graphs.run(r.ctx, 0, {r.numbers}, work);
  r.stream().synchronize();
  graphs.run(there, 0, {r.numbers}, work);
  other.compute().synchronize();
  CHECK(graphs.captures() == 2);
  CHECK(r.value(0) == 2);
}

TEST_CASE("work that throws leaves no capture", "[cuda]") {
  for (bool const is_kept : {false, true}) {
    checked_gpus const gpus;
    rig r;
    cuda::graph_cache graphs;
    auto const work = [&](cuda::stream_ref on) { add(on, r.numbers, 1); };
    if (is_kept) graphs.run(r.ctx, 0, {r.numbers + 1}, work);
    CHECK_THROWS_WITH(
        graphs.run(
            r.ctx,
            0,
            {r.numbers},
            [&](cuda::stream_ref on) {
              add(on, r.numbers, 100);
              throw std::runtime_error("no more");
            }),
        "no more");
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    cuda::check(cudaStreamIsCapturing(r.stream(), &status));
    CHECK(status == cudaStreamCaptureStatusNone);
    CHECK(r.value(0) == (is_kept ? 1 : 0));
    graphs.run(r.ctx, 0, {r.numbers}, work);
    CHECK(r.value(0) == (is_kept ? 2 : 1));
  }
}

TEST_CASE("captures do not nest", "[cuda]") {
  checked_gpus const gpus;
  rig r;
  cuda::graph_cache graphs;
  cuda::graph_cache others;
  auto const work = [&](cuda::stream_ref on) { add(on, r.numbers, 1); };
  graphs.run(r.ctx, 1, {r.numbers}, work);  // even what would only be replayed
  CHECK(refusal([&] {
          graphs.run(r.ctx, 0, {r.numbers}, [&](auto) { graphs.run(r.ctx, 1, {r.numbers}, work); });
        }) == "graph_cache::run() is called from within itself; captures do not nest");
  CHECK(
      refusal([&] {
        graphs.run(r.ctx, 0, {r.numbers}, [&](auto) { others.run(r.ctx, 1, {r.numbers}, work); });
      }) ==
      "graph_cache::run() is called on a stream that is being captured; captures do not nest");
  CHECK(graphs.size() == 1);
  CHECK(others.size() == 0);

  // A capture of the caller's own goes on as if nothing had happened.
  cuda::check(cudaStreamBeginCapture(r.stream(), cudaStreamCaptureModeThreadLocal));
  CHECK_THROWS_AS(others.run(r.ctx, 0, {r.numbers}, work), zbpp::error);
  work(r.stream());
  cudaGraph_t graph = nullptr;
  cuda::check(cudaStreamEndCapture(r.stream(), &graph));
  cuda::check(cudaGraphDestroy(graph));
  CHECK(r.value(0) == 1);
}

TEST_CASE("what a capture forbids is an error, and the cache works on", "[cuda]") {
  {
    checked_gpus const gpus;
    rig r;
    cuda::graph_cache graphs;
    auto const work = [&](cuda::stream_ref on) { add(on, r.numbers, 1); };
    CHECK_THROWS_AS(
        graphs.run(
            r.ctx,
            0,
            {r.numbers},
            [&](cuda::stream_ref on) {
              work(on);
              on.synchronize();
            }),
        cuda::cuda_error);
    // The same, but the work does not look at what CUDA tells.
    CHECK_THROWS_AS(
        graphs.run(
            r.ctx,
            0,
            {r.numbers},
            [&](cuda::stream_ref on) {
              work(on);
              cudaStreamSynchronize(on);
            }),
        cuda::cuda_error);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(graphs.size() == 0);
    graphs.run(r.ctx, 0, {r.numbers}, work);
    CHECK(r.value(0) == 1);
  }

  for (auto const* function :
       {"cudaStreamIsCapturing",
        "cudaStreamBeginCapture",
        "cudaGraphInstantiate",
        "cudaGraphLaunch"}) {
    INFO(function);
    checked_gpus const gpus;
    rig r;
    cuda::graph_cache graphs;
    auto const work = [&](cuda::stream_ref on) { add(on, r.numbers, 1); };
    model::fail_next(function, cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(graphs.run(r.ctx, 0, {r.numbers}, work), cuda::cuda_error);
    CHECK(graphs.size() == 0);
    graphs.run(r.ctx, 0, {r.numbers}, work);
    CHECK(r.value(0) == 1);
  }
}

TEST_CASE("a pass on the host has no stream to capture", "[cuda]") {
  zbpp::arena memory;
  zbpp::pass_context const at(memory);
  cuda::graph_cache graphs;
  CHECK_THROWS_AS(graphs.run(at, 0, {&memory}, [](cuda::stream_ref) {}), zbpp::error);
}

namespace {

constexpr std::size_t width = 8;
constexpr std::size_t message_size = width * sizeof(float);

// A stage whose passes are two kernels each, captured or not. All numbers are small and whole.
class doubling_stage {
 public:
  doubling_stage(cuda::graph_cache* graphs, float* sum) : graphs_(graphs), sum_(sum) {}

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::buffer kept;
    zbpp::buffer out;
    auto in = co_await mb.recv_activation();
    auto forward = [&](zbpp::pass_context ctx) {
      kept = ctx.allocate(message_size);
      out = ctx.allocate_edge(message_size);
      bool const is_first = mb.is_first_stage();
      float const* const from = is_first ? nullptr : in[0].as<float const>().data();
      auto* const keeps = floats(kept);
      auto* const gives = floats(out);
      auto const index = static_cast<float>(mb.index());
      enqueue(ctx, 3 * mb.index(), {from, keeps, gives}, [=](cuda::stream_ref on) {
        std::vector<model::range> reads;
        if (from != nullptr) reads.push_back({from, message_size});
        model::range const kept_range[] = {{keeps, message_size}};
        cuda::check(model::launch(on, "keep", reads, kept_range, [=] {
          for (std::size_t i = 0; i < width; ++i)
            keeps[i] = from == nullptr ? index + static_cast<float>(i) : from[i];
        }));
        cuda::check(
            model::launch(on, "double", {{keeps, message_size}}, {{gives, message_size}}, [=] {
              for (std::size_t i = 0; i < width; ++i) gives[i] = 2 * keeps[i];
            }));
      });
      if (mb.is_last_stage()) cuda::report_loss(mb, ctx, gives + 1);
    };
    co_await zbpp::F(forward);
    co_await mb.send_activation(std::move(out));
    auto back = co_await mb.recv_gradient();
    zbpp::buffer gradient;
    auto backward = [&](zbpp::pass_context ctx) {
      gradient = ctx.allocate_edge(message_size);
      float const* const from = mb.is_last_stage() ? nullptr : back[0].as<float const>().data();
      auto* const gives = floats(gradient);
      enqueue(ctx, 3 * mb.index() + 1, {from, gives}, [=](cuda::stream_ref on) {
        std::vector<model::range> reads;
        if (from != nullptr) reads.push_back({from, message_size});
        model::range const given[] = {{gives, message_size}};
        cuda::check(model::launch(on, "half", reads, given, [=] {
          for (std::size_t i = 0; i < width; ++i) gives[i] = from == nullptr ? 1 : from[i] + 1;
        }));
      });
    };
    co_await zbpp::B(backward);
    zbpp::buffer const own = gradient;
    co_await mb.send_gradient(std::move(gradient));
    auto weights = [&](zbpp::pass_context ctx) {
      auto const* const x = floats(kept);
      auto const* const g = floats(own);
      auto* const to = sum_;
      enqueue(ctx, 3 * mb.index() + 2, {x, g}, [=](cuda::stream_ref on) {
        cuda::check(model::launch(
            on,
            "add up",
            {{x, message_size}, {g, message_size}, {to, sizeof(float)}},
            {{to, sizeof(float)}},
            [=] {
              for (std::size_t i = 0; i < width; ++i) *to = *to / 2 + x[i] * g[i];
            }));
      });
    };
    co_await zbpp::W(weights);
  }

 private:
  static float* floats(zbpp::buffer const& b) { return b.as<float>().data(); }

  template <class Work>
  void enqueue(
      zbpp::pass_context ctx,
      std::int64_t key,
      std::initializer_list<void const*> uses,
      Work work) {
    if (graphs_ != nullptr)
      graphs_->run(ctx, key, uses, work);
    else
      work(cuda::stream_of(ctx));
  }

  cuda::graph_cache* graphs_;
  float* sum_;
};

struct outcome {
  std::vector<double> losses;
  std::vector<float> sums;
  std::vector<std::uint64_t> launches;  // of kernels by the host, a step
  std::vector<std::int64_t> captures;   // so far, after each step

  bool has_bits_of(outcome const& other) const {
    return losses == other.losses && sums == other.sums;
  }
};

outcome run(bool captures, std::uint64_t seed) {
  constexpr int ranks = 3;
  constexpr int microbatches = 7;
  zbpp::problem const problem(
      zbpp::placement::linear(ranks),
      microbatches,
      zbpp::stage_costs{
          .forward = 10,
          .backward_input = 10,
          .backward_weight = 10,
          .activation = 2 * message_size,
          .weight_gradient_input = 2 * message_size,
          .edge = message_size});
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem);
  model::reset({.seed = seed});
  outcome result;
  {
    void* sums = nullptr;
    cuda::check(cudaMalloc(&sums, ranks * sizeof(float)));
    auto* const first = static_cast<float*>(sums);
    std::vector<cuda::graph_cache> caches(ranks);
    std::vector<doubling_stage> stages;
    cuda::stream const setter(cuda::stream_priority::usual);
    cuda::check(cudaMemsetAsync(sums, 0, ranks * sizeof(float), setter.view()));
    setter.view().synchronize();
    for (std::size_t s = 0; s < ranks; ++s)
      stages.emplace_back(captures ? &caches[s] : nullptr, first + s);
    zbpp::pipeline pipe{planned, cuda::device{}, stages};
    for (int step = 0; step < 4; ++step) {
      model::start_counting();
      for (double const loss : pipe.step().losses) result.losses.push_back(loss);
      result.launches.push_back(model::count("launch"));
      std::int64_t all = 0;
      for (auto const& cache : caches) all += cache.captures();
      result.captures.push_back(all);
    }
    result.sums.assign(first, first + ranks);
    cuda::check(cudaFree(sums));
  }
  CHECK(first_of(model::faults()) == "");
  CHECK(first_of(model::leaks()) == "");
  return result;
}

}  // namespace

TEST_CASE("a pipeline of captured passes gives the same bits by fewer launches", "[cuda]") {
  auto const plain = run(false, 1);
  REQUIRE(plain.losses.size() == 28);
  CHECK(plain.losses[2] == 8 * 3);  // the second element of the third microbatch, doubled thrice
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("interleaving " << seed);
    auto const captured = run(true, seed);
    CHECK(captured.has_bits_of(plain));
    CHECK(captured.captures.front() == 3 * 3 * 7);
    // Memory of the arena comes round to the same places, so captures come to an end.
    CHECK(captured.captures.back() == captured.captures[2]);
    CHECK(captured.launches.back() == 0);
    CHECK(plain.launches.back() == 4 * 3 * 7);
  }
}

}  // namespace test_cuda_graph
