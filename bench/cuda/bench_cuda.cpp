// SPDX-License-Identifier: Apache-2.0
//
// What messages between the parts of one GPU take, what issuing steps costs the host, and what the
// steps of pipelines of 2 and 4 ranks take beside what was planned. Needs a GPU; `./run gpu` starts
// it. Exit status: 0 good, 1 something failed, 2 wrong arguments, 3 no device.
#include <zbpp/cuda/device.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <algorithm>
#include <bench/cuda/arguments.hpp>
#include <bench/cuda/issuing.hpp>
#include <bench/cuda/measuring.hpp>
#include <bench/cuda/report.hpp>
#include <bench/cuda/transfers.hpp>
#include <bench/cuda/work.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::bench {
namespace {

constexpr int warm_steps = 2;
constexpr int steps = 5;
constexpr double least_pass = 1.5;  // milliseconds, of the shortest pass
constexpr bytes edge = bytes{4} << 20;

// What a kind of work is on some parts: for a stage that is half of a rank's, and for one that is
// all of it.
struct load {
  std::string name;
  work half;
  work whole;
};

// Makes the shortest pass of half a rank's work as long as it should be; `make(n)` is work n times
// as long as `make(1)`.
template <class Make>
load sized(std::string name, std::vector<cuda::rank_device> const& devices, Make const& make) {
  work const once = make(1);
  auto const times = measure(devices, once, {0}).front();
  auto const shortest = std::min({times[0], times[1], times[2]});
  auto const count = std::max(1, static_cast<int>(std::ceil(least_pass / shortest)));
  return {std::move(name), make(count), make(2 * count)};
}

std::vector<load> loads_on(std::vector<cuda::rank_device> const& devices) {
  std::vector<load> all;
  all.push_back(sized(
      "arithmetic in registers", devices, [&](int n) { return arithmetic(devices, 20'000 * n); }));
#ifdef ZBPP_BENCH_CUBLAS
  all.push_back(
      sized("bf16 products by cuBLAS", devices, [&](int n) { return products(devices, n); }));
#endif
  return all;
}

struct run_result {
  double wall = 0;  // milliseconds a step, the median
  double cost = 0;  // as `cost` of the measured timeline, the median
  double bubble = 0;
  double host_share = 0;  // of the time that the issuing thread computes
};

// Streams take the hardware queues in turn, so a pipeline's are made one after another, parts
// first: then no two of them share a queue while there are enough.
run_result run_steps(plan const& planned, work const& does, bool traces, bool whole_gpu) {
  shared_gpu const gpu(planned.problem().ranks(), whole_gpu);
  auto const& devices = gpu.devices();
  auto stages = stages_of(planned.problem(), &does);
  pipeline pipe{planned, cuda::device{.devices = devices, .traces = traces}, stages};
  for (int i = 0; i < warm_steps; ++i) pipe.step();
  std::vector<double> walls;
  std::vector<double> costs;
  std::vector<double> bubbles;
  std::vector<double> shares;
  for (int i = 0; i < steps; ++i) {
    auto const computed = thread_seconds();
    auto const start = wall_seconds();
    auto const& line = pipe.step().measured;
    auto const wall = wall_seconds() - start;
    shares.push_back((thread_seconds() - computed) / wall);
    walls.push_back(1e3 * wall);
    costs.push_back(to_milliseconds(cost(line)));
    bubbles.push_back(bubble_rate(line));
  }
  return {median(walls), median(costs), median(bubbles), median(shares)};
}

class policies_on_parts {
 public:
  policies_on_parts(report& to, bool whole_gpu)
      : whole_gpu_(whole_gpu),
        to_(&to),
        costs_(&to.begin(
            "Costs of passes, medians: alone, and while all parts are busy",
            {"work",
             "ranks",
             "rank",
             "multiprocessors",
             "F alone, ms",
             "B alone, ms",
             "W alone, ms",
             "F busy, ms",
             "B busy, ms",
             "W busy, ms",
             "message, us"})),
        steps_(&to.begin(
            "Steps on " + std::string(whole_gpu ? "one whole GPU" : "the parts of one GPU") +
                ": medians of 5 after 2",
            {"work",
             "ranks",
             "microbatches",
             "policy",
             "planned cost, ms",
             "measured cost, ms",
             "measured over planned",
             "step by the host's clock, untraced, ms",
             "that over planned",
             "bubble planned",
             "bubble measured",
             "throughput over 1F1B",
             "over no bubble at all",
             "busy share of the issuing thread",
             "hardware queues"})) {}

  void add(int ranks, std::vector<int> const& multiples) {
    for (auto const& each : measured_loads(ranks)) {
      for (int const multiple : multiples) {
        auto const m = multiple * ranks;
        problem const line = problem_of(placement::linear(ranks), m, each.busy, transfer_, edge);
        problem const v = problem_of(placement::v_shape(ranks), m, each.busy_half, transfer_, edge);
        std::optional<double> reference;
        auto const compare = [&](auto const& decide, problem const& problem, work const& does) {
          auto const planned = make_plan(decide, problem);
          compare_with_plan(each.what.name, planned, does, reference);
        };
        compare(one_f_one_b{}, line, each.what.whole);
        compare(gpipe{}, line, each.what.whole);
        compare(zb_h1{}, line, each.what.whole);
        compare(zb_h2{}, line, each.what.whole);
        compare(zb_v{}, v, each.what.half);
        compare(greedy_auto{}, line, each.what.whole);
      }
    }
  }

 private:
  struct measured_load {
    load what;
    std::vector<pass_times> busy;       // of all of a rank's work
    std::vector<pass_times> busy_half;  // of half of it
  };

  std::vector<measured_load> measured_loads(int ranks) {
    shared_gpu const gpu(ranks, whole_gpu_);
    auto const& devices = gpu.devices();
    sms_ = devices.front().sm_count;
    transfer_ = measure_transfer(devices);
    std::vector<int> everybody;
    for (int r = 0; r < ranks; ++r) everybody.push_back(r);
    std::vector<measured_load> all;
    for (auto& load : loads_on(devices)) {
      auto busy = measure(devices, load.whole, everybody);
      auto busy_half = measure(devices, load.half, everybody);
      for (int r = 0; r < ranks; ++r) {
        auto const alone = measure(devices, load.whole, {r}).front();
        add_cost_row(load.name, ranks, r, alone, busy[zbpp::detail::index(r)]);
      }
      all.push_back({std::move(load), std::move(busy), std::move(busy_half)});
    }
    return all;
  }

  void add_cost_row(
      std::string const& load,
      int ranks,
      int rank,
      pass_times const& alone,
      pass_times const& busy) {
    costs_->add(
        {load,
         std::int64_t{ranks},
         std::int64_t{rank},
         std::int64_t{sms_},
         alone[0],
         alone[1],
         alone[2],
         busy[0],
         busy[1],
         busy[2],
         1e3 * transfer_});
    to_->save();
  }

  // The first call for a size is 1F1B's, which the others are compared with.
  void compare_with_plan(
      std::string const& load,
      plan const& planned,
      work const& does,
      std::optional<double>& reference) {
    auto const traced = run_steps(planned, does, true, whole_gpu_);
    auto const plain = run_steps(planned, does, false, whole_gpu_);
    if (!reference) reference = plain.wall;
    double most_work = 0;
    for (int r = 0; r < planned.problem().ranks(); ++r)
      most_work = std::max(most_work, to_milliseconds(busy(planned.timeline(), r)));
    auto const cost_planned = to_milliseconds(cost(planned.timeline()));
    steps_->add(
        {load,
         std::int64_t{planned.problem().ranks()},
         std::int64_t{planned.problem().microbatches()},
         planned.policy(),
         cost_planned,
         traced.cost,
         traced.cost / cost_planned,
         plain.wall,
         plain.wall / to_milliseconds(makespan(planned.timeline())),
         bubble_rate(planned.timeline()),
         traced.bubble,
         *reference / plain.wall,
         most_work / plain.wall,
         plain.host_share,
         cuda::queue_shortage(planned).empty() ? std::string("enough") : std::string("too few")});
    to_->save();
    std::fprintf(
        stderr,
        "%s, %d ranks, %d microbatches, %s: %.3f of the plan\n",
        load.c_str(),
        planned.problem().ranks(),
        planned.problem().microbatches(),
        planned.policy().c_str(),
        traced.cost / cost_planned);
  }

  bool whole_gpu_;
  int sms_ = 0;
  double transfer_ = 0;  // milliseconds
  report* to_;
  table* costs_;
  table* steps_;
};

void run(choices const& chosen) {
  report into(chosen.markdown, chosen.json);
  if (chosen.act == "transfers") {
    measure_transfers(into, chosen.is_short, chosen.whole_gpu);
    int devices = 0;
    cuda::check(cudaGetDeviceCount(&devices));
    measure_peer_copies(into, devices, chosen.is_short);
  } else if (chosen.act == "issuing") {
    measure_issuing(into, chosen.is_short ? 3 : 50);
    measure_graphs(into, chosen.is_short ? 3 : 20, chosen.whole_gpu);
  } else {
    policies_on_parts policies(into, chosen.whole_gpu);
    if (chosen.is_short) {
      policies.add(2, {2});
    } else {
      for (int const ranks : {2, 4}) policies.add(ranks, {1, 2, 4, 8});
    }
  }
  into.write_markdown(std::cout);
}

}  // namespace
}  // namespace zbpp::bench

int main(int count, char** arguments) {
  return zbpp::bench::run_benchmark(
      "bench_cuda", count, arguments, {"transfers", "issuing", "plan"}, zbpp::bench::run);
}
