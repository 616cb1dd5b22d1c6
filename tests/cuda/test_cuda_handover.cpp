// SPDX-License-Identifier: Apache-2.0
//
// Ranks that share a GPU hand messages over: nothing is copied, the receiver gets the sender's
// memory, and the sender gets it back when its stream waits for what the receiver did with it.
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/cuda/device.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_steps.hpp>
#include <support/cuda_toy.hpp>
#include <support/cuda_training.hpp>
#include <support/declared_stages.hpp>
#include <support/plan_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace test_cuda_handover {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using zbpp::bytes;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;
using zbpp::purpose;
using zbpp::step_kind;

namespace {

// Ranks on some devices, as many neighbours on each.
cuda::device backend_of(int ranks, int devices) {
  cuda::device backend;
  for (int rank = 0; rank < ranks; ++rank)
    backend.devices.push_back({.device = rank * devices / ranks});
  return backend;
}

}  // namespace

TEST_CASE("ranks on one GPU take as much memory as is said, byte for byte", "[cuda][long]") {
  using namespace memory_use;
  auto const p = GENERATE(1, 2, 3, 4);
  for_each_uneven_plan(p, {.most_added = 900, .least_edge = 1}, [&](plan const& planned) {
    for (int devices : thinned<std::vector<int>>({1, 2}, {1})) {
      checked_gpus const gpus(
          {.seed = 7,
           .devices = devices,
           .hosts = std::min(devices, p),
           .check_uninitialised = false});  // nobody computes here
      auto backend = backend_of(p, devices);
      for (int s = 0; s + 1 < planned.problem().stages(); ++s) {
        auto const size = planned.problem().costs(s).edge;
        backend.edges.push_back({size / 3, size - size / 3});
      }
      check_peaks(planned, backend, declared<>{&planned.problem()});
    }
  });
}

TEST_CASE("what a rank keeps of a message counts as its activation", "[cuda]") {
  using namespace memory_use;
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(
            placement,
            6,
            zbpp::stage_costs{
                .forward = 1,
                .activation = keeps_its_input::activation,
                .weight_gradient_input = keeps_its_input::weight_gradient_input,
                .edge = keeps_its_input::edge}),
        {.fused = false},
        [](std::string const& name, plan const& planned) {
          if (std::ranges::count(
                  planned.schedule().passes().all(), zbpp::pass_kind::backward, &zbpp::pass::kind) >
              0)
            return;
          INFO(name);
          model::reset();
          check_peaks(planned, cuda::device{}, keeps_its_input{});
          CHECK(first_of(model::faults()) == "");
        });
}

namespace {

// Takes the memory that its costs declare, in which its messages lie, and lets each pass use it.
struct large_passes {
  static constexpr bytes edge = 256 * 1024;

  static zbpp::stage_costs costs(bool is_last) {
    return {
        .forward = 10,
        .backward_input = 11,
        .backward_weight = 9,
        .activation = 2 * edge,
        .weight_gradient_input = (is_last ? 1 : 2) * edge,
        .edge = edge};
  }
  static void use(zbpp::pass_context ctx, zbpp::buffer const& read, zbpp::buffer const& written) {
    std::vector<model::range> reads;
    if (read) reads.push_back({read.data(), read.size()});
    std::vector<model::range> writes;
    if (written) writes.push_back({written.data(), written.size()});
    cuda::check(model::launch(cuda::stream_of(ctx), "large", reads, writes));
  }

  zbpp::flow operator()(zbpp::microbatch mb) const {
    zbpp::buffer x;
    zbpp::buffer kept;
    zbpp::buffer out;
    zbpp::message in = co_await mb.recv_activation();
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      x = mb.is_first_stage() ? ctx.allocate(edge) : zbpp::buffer(in);
      if (mb.is_first_stage()) use(ctx, {}, x);
      in.clear();
      kept = ctx.allocate(edge);
      use(ctx, x, kept);
      if (!mb.is_last_stage()) out = ctx.allocate_edge(edge);
      use(ctx, x, out);
    });
    co_await mb.send_activation(std::move(out));
    zbpp::message back = co_await mb.recv_gradient();
    zbpp::buffer dy;
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      if (!mb.is_last_stage()) dy = zbpp::buffer(back);
      back.clear();
      use(ctx, kept, {});
      kept.reset();
      if (!mb.is_first_stage()) out = ctx.allocate_edge(edge);
      use(ctx, dy, out);
    });
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([&](zbpp::pass_context ctx) {
      use(ctx, x, {});
      use(ctx, dy, {});
    });
  }
};

// With an optimizer, so that ranks agree on steps.
class large_stage : public large_passes {
 public:
  large_stage(toy::stage_model& of, int infinite_in) : own_(of, infinite_in, false) {}
  gpu_steps::launched_descent& optimizer() { return own_; }

 private:
  gpu_steps::launched_descent own_;
};

problem large_problem(zbpp::placement const& placement, int microbatches) {
  std::vector<zbpp::stage_costs> costs;
  for (int s = 0; s < placement.stages(); ++s)
    costs.push_back(large_passes::costs(s + 1 == placement.stages()));
  return {placement, microbatches, costs};
}

}  // namespace

TEST_CASE("no arena of ranks that share a GPU grows, whatever steps follow", "[cuda]") {
  for (int p : thinned<std::vector<int>>({2, 3, 4}, {3}))
    for (auto const& placement : placements_to_run(p))
      for (auto const kind :
           {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated})
        for (auto const& policy : grid_policies()) {
          auto const problem = large_problem(placement, 2 * p);
          if (!is_supported(policy, problem)) continue;
          ZBPP_SEEDED(random, p);
          auto order = policy(problem);
          if (random.chance(0.4)) order = pair_at_random(order, problem, random);
          INFO(
              name_of(policy, problem)
              << ", " << pairs_in(order) << " pairs, kind " << static_cast<int>(kind));
          auto const planned =
              make_plan(std::string(policy.title()), order, problem, {.step = kind});
          checked_gpus const gpus({.seed = 3});
          auto all = toy::make_model(problem.stages());
          std::vector<large_stage> stages;
          for (auto& each : all) stages.emplace_back(each, &each == &all.back() ? 1 : -1);
          bool const agrees = kind != step_kind::unchecked;
          pipeline pipe{planned, cuda::device{}, stages, gpu_steps::options(0, agrees)};
          int amended = 0;
          pipe.run(
              4, [&](zbpp::step_result const& step) { amended += step.update.is_amended ? 1 : 0; });
          pipe.step();
          CHECK(amended == (validates_step_before(planned.program()) ? 1 : 0));
          for (int rank = 0; rank < p; ++rank) CHECK(pipe.memory(rank).growths == 0);
        }
}

TEST_CASE("between ranks of one GPU nothing is copied, and no channel has a stream", "[cuda]") {
  for (int devices : {1, 2}) {
    model::reset({.seed = 2, .devices = devices, .hosts = devices});
    launched_training training(row_plan(4, 8), backend_of(4, devices));
    auto const alive = model::leaks();
    auto const streams = std::ranges::count_if(
        alive, [](std::string const& one) { return one.find("stream") != std::string::npos; });
    CHECK(streams == (devices == 1 ? 4 : 4 + 2));
    model::start_counting();
    training.pipe().step();
    CHECK(model::count("cudaMemcpyAsync") == 0);
    // Two buffers each way for each microbatch.
    CHECK(model::count("cudaMemcpyPeerAsync") == (devices == 1 ? 0U : 4U * 8U));
    CHECK(first_of(model::faults()) == "");
  }
}

TEST_CASE("an evaluation hands messages over with the bits of a step", "[cuda]") {
  std::uint64_t seed = run_seed();
  for (int devices : {1, 2})
    for (auto const& placement : placements_to_run(4)) {
      problem const problem(placement, 6, launched_costs(), 87);
      auto const planned = make_plan(zbpp::greedy_auto{.search = {.seconds = 0.01}}, problem);
      checked_gpus const gpus({.seed = ++seed, .devices = devices, .hosts = devices});
      launched_training training(planned, backend_of(4, devices));
      auto& pipe = training.pipe();
      for (int round = 0; round < 3; ++round) {
        auto const losses = pipe.evaluate().losses;
        CHECK(toy::is_same(losses, pipe.step().losses));
      }
      for (int rank = 0; rank < 4; ++rank)
        for (auto const each : pipe.memory(rank).in_use) CHECK(each == 0);
    }
}

namespace {

// Sends on what it receives, as it is; the ends of the row make it and look at it.
struct relay {
  std::vector<std::byte const*>* seen;

  zbpp::flow operator()(zbpp::microbatch mb) const {
    zbpp::message forth;
    zbpp::message const in = co_await mb.recv_activation();
    co_await zbpp::F(
        [&](zbpp::pass_context ctx) { forth = pass_on(in, mb.is_first_stage(), ctx); });
    co_await mb.send_activation(forth);
    zbpp::message back;
    zbpp::message const gradient = co_await mb.recv_gradient();
    co_await zbpp::B([&](zbpp::pass_context ctx) {
      back = pass_on(mb.is_last_stage() ? in : gradient, false, ctx);
    });
    co_await mb.send_gradient(std::move(back));
    co_await zbpp::W([&](zbpp::pass_context ctx) {
      if (mb.is_first_stage()) seen->push_back(gradient[0].data());
      auto const values = forth[0].as<std::byte>();
      cuda::check(
          model::launch(cuda::stream_of(ctx), "look", {{values.data(), values.size()}}, {}));
    });
  }
  [[nodiscard]] zbpp::message pass_on(
      zbpp::message const& in, bool makes, zbpp::pass_context ctx) const {
    auto const values = makes ? ctx.allocate_edge(64) : in[0];
    if (makes) seen->push_back(values.data());
    model::range const all{values.data(), values.size()};
    if (makes)
      cuda::check(model::launch(cuda::stream_of(ctx), "make", {}, {all}));
    else
      cuda::check(model::launch(cuda::stream_of(ctx), "read", {all}, {}));
    return values;
  }
};

}  // namespace

TEST_CASE("a message that is sent on stays where it is, there and back", "[cuda]") {
  std::uint64_t seed = run_seed();
  for (int i = 0; i < thinned(40, 5); ++i) {
    checked_gpus const gpus({.seed = ++seed});
    std::vector<std::byte const*> seen;
    std::vector<relay> stages(4, relay{&seen});
    auto const planned = make_plan(
        zbpp::gpipe{},
        problem(zbpp::placement::linear(4), 5, zbpp::stage_costs{.forward = 2, .edge = 64}));
    pipeline pipe{planned, cuda::device{}, stages};
    for (int step = 0; step < 3; ++step) {
      seen.clear();
      pipe.step();
      REQUIRE(seen.size() == 10);
      std::ranges::sort(seen);
      std::vector<std::byte const*> twice;  // made by the first rank, and back there
      for (std::size_t k = 0; k < 10; k += 2) {
        CHECK(seen[k] == seen[k + 1]);
        twice.push_back(seen[k]);
      }
      CHECK(std::ranges::adjacent_find(twice) == twice.end());
      for (int rank = 0; rank < 4; ++rank)
        for (auto const each : pipe.memory(rank).in_use) CHECK(each == 0);
    }
  }
}

namespace {

// Two ranks on one device, whose transport a test uses by hand.
struct two_ranks {
  two_ranks()
      : code(zbpp::lower(zbpp::schedule(zbpp::placement::linear(2), 2, one_by_one()))),
        messages(code),
        shapes(1, {256}),
        transport(
            {&first, &second},
            cuda::needs_of(code, messages, shapes, std::vector(2, cuda::slot_filling::handed_over)),
            zbpp::state_map(code)) {
    transport.bind(0, lender, nullptr);
    transport.bind(1, borrower, nullptr);
  }
  static zbpp::rows<zbpp::pass> one_by_one() {
    zbpp::rows<zbpp::pass> all;
    for (int s : {0, 1}) {
      for (int m : {0, 1}) {
        all.push({zbpp::pass_kind::forward, s, m});
        all.push({zbpp::pass_kind::backward, s, m});
      }
      all.end_row();
    }
    return all;
  }
  static void use(cuda::device_context const& by, zbpp::buffer const& content, bool writes) {
    std::vector<model::range> const range{{content.data(), content.size()}};
    std::vector<model::range> const none;
    cuda::check(model::launch(by.compute(), "use", writes ? none : range, writes ? range : none));
  }
  // Lets the second rank have a message, read it and let go of it. @return where it lies
  std::byte const* lend() {
    auto made = lender.allocate(256, purpose::edge);
    auto const* const address = made.data();
    use(first, made, true);
    transport.send(0, std::move(made), 0);
    auto const got = transport.take(0, 0, 256);
    CHECK(got[0].data() == address);
    CHECK(borrower.usage().now(purpose::borrowed) == 256);
    use(second, got[0], false);
    return address;
  }

  zbpp::program code;
  zbpp::traffic messages;
  std::vector<cuda::message_shape> shapes;
  cuda::device_context first{{}, 2, {}, {}};
  cuda::device_context second{{}, 2, {}, {}};
  zbpp::arena lender{cuda::device_memory(0)};
  zbpp::arena borrower{cuda::device_memory(0)};
  cuda::detail::p2p_transport transport;
};

}  // namespace

TEST_CASE("memory that was handed over is used again behind the receiver's kernels", "[cuda]") {
  std::uint64_t seed = run_seed();
  bool has_raced = false;
  for (int i = 0; i < 40; ++i)
    for (bool const waits : {true, false}) {
      model::reset({.seed = ++seed});
      {
        two_ranks ranks;
        auto const* const address = ranks.lend();
        CHECK(ranks.borrower.usage().now(purpose::borrowed) == 0);
        auto const other = ranks.lender.allocate(256);
        CHECK(other.data() != address);
        if (waits) {
          // The gradient tells that the message was used, and returns its memory.
          auto gradient = ranks.borrower.allocate(256, purpose::edge);
          two_ranks::use(ranks.second, gradient, true);
          ranks.transport.send(1, std::move(gradient), 0);
          auto const back = ranks.transport.take(1, 0, 256);
          CHECK(ranks.lender.usage().now(purpose::edge) == 256);
          ranks.transport.retire(0, 1);
          CHECK(ranks.lender.usage().now(purpose::edge) == 0);
        } else {
          ranks.borrower.end_loans();  // too early
          ranks.transport.retire(0, 1);
        }
        auto const again = ranks.lender.allocate(256);
        CHECK(again.data() == address);
        two_ranks::use(ranks.first, again, true);
        cuda::check(cudaStreamSynchronize(ranks.first.compute()));
        cuda::check(cudaStreamSynchronize(ranks.second.compute()));
        ranks.transport.drain();
      }
      auto const faults = model::take_faults();
      if (waits) CHECK(first_of(faults) == "");
      has_raced = has_raced || !faults.empty();
      CHECK(first_of(model::leaks()) == "");
    }
  CHECK(has_raced);
}

TEST_CASE("a message that is discarded returns nothing, and the next one does", "[cuda]") {
  checked_gpus const gpus;
  two_ranks ranks;
  auto const* const address = ranks.lend();
  ranks.transport.retire(0, 1);
  auto const gradient = [&] {
    auto made = ranks.borrower.allocate(256, purpose::edge);
    two_ranks::use(ranks.second, made, true);
    ranks.transport.send(1, std::move(made), 0);
  };
  gradient();
  ranks.transport.discard(1, 1);
  CHECK(ranks.transport.begin_step(1));
  CHECK(ranks.transport.begin_step(0));
  CHECK(ranks.lender.allocate(256).data() != address);
  gradient();
  static_cast<void>(ranks.transport.take(1, 0, 256));
  CHECK(ranks.lender.allocate(256).data() == address);
  cuda::check(cudaStreamSynchronize(ranks.first.compute()));
  cuda::check(cudaStreamSynchronize(ranks.second.compute()));
  ranks.transport.drain();
}

namespace {

// Keeps what it receives for longer than the pipeline lives.
struct hoarder {
  std::vector<zbpp::buffer>* kept;

  zbpp::flow operator()(zbpp::microbatch mb) const {
    zbpp::message const in = co_await mb.recv_activation();
    zbpp::buffer out;
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      if (!in.empty()) kept->push_back(in[0]);
      out = ctx.allocate_edge(toy::edge);
    });
    co_await mb.send_activation(out);
    zbpp::message const back = co_await mb.recv_gradient();
    co_await zbpp::B([&] {
      if (!back.empty()) kept->push_back(back[0]);
    });
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([] {});
  }
};

}  // namespace

TEST_CASE("received buffers may outlive the pipeline, and then leave nothing behind", "[cuda]") {
  checked_gpus const gpus;
  std::vector<zbpp::buffer> kept;
  {
    std::vector<hoarder> stages(3, {&kept});
    pipeline pipe{row_plan(3, 4), cuda::device{}, stages};
    for (int step = 0; step < 2; ++step) pipe.step();
    CHECK(pipe.memory(1).now(purpose::activation) == 2 * 2 * 4 * toy::edge);
    kept.erase(kept.begin(), kept.begin() + 5);
    pipe.step();
  }
  REQUIRE(kept.size() == 3 * 2 * 2 * 4 - 5);
  while (kept.size() > 3) kept.erase(kept.begin() + 1);
  CHECK(kept[0].size() == static_cast<std::size_t>(toy::edge));
}

TEST_CASE("a plan that fits only where messages are handed over runs on one GPU", "[cuda]") {
  problem const free(zbpp::placement::linear(3), 6, large_passes::costs(false));
  auto const order = zbpp::zb_h1{}(free);
  auto const code = zbpp::lower(order);
  auto const peaks = zbpp::peak_memory(code, free, std::vector{0, 0, 0});
  std::vector<bytes> limits;
  for (auto const& peak : peaks) limits.push_back(peak.total);
  auto const layout = zbpp::channel_layout::one_per_directed_pair;
  auto const costs = free.all_costs();
  problem const problem(free.placement(), 6, {costs.begin(), costs.end()}, 0, limits);
  auto const planned = zbpp::make_plan("as it is", order, problem);
  std::vector<large_passes> stages(3);
  model::reset({.devices = 3, .hosts = 1});
  CHECK(zbpp::verify(code, problem, layout, std::vector{0, 0, 0}).empty());
  CHECK_FALSE(zbpp::verify(code, problem, layout, std::vector{0, 1, 2}).empty());
  {
    pipeline pipe{planned, cuda::device{}, stages};
    pipe.step();
    for (int rank = 0; rank < 3; ++rank)
      CHECK(pipe.memory(rank).most(purpose::edge) == peaks[zbpp::detail::index(rank)].edges);
  }
  CHECK(refusal([&] {
          pipeline pipe{planned, backend_of(3, 3), stages};
        }).find("memory") != std::string::npos);
  CHECK(refusal([&] {
          static_cast<void>(zbpp::peak_memory(code, problem, std::vector{0, 0}));
        }) == "there are 2 devices for 3 ranks; give one for each rank, or none");
  CHECK(first_of(model::faults()) == "");
}

}  // namespace test_cuda_handover
