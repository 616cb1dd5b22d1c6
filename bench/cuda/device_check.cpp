// SPDX-License-Identifier: Apache-2.0
//
// What the tests show on a model of CUDA, shown on a real device: parts of it, pipelines to the
// bit, captured steps, optimizers, faults. Exit status: 0 good, 1 something failed, 3 no device,
// 77 skipped.
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/partition.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bench/cuda/measuring.hpp>
#include <bench/cuda/optimizer_bits.hpp>
#include <bench/cuda/toy.hpp>
#include <cstddef>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::bench {
namespace {

// Is thrown by a check that cannot be made here.
struct skipped {
  std::string why;
};

void expect(bool good, std::string const& what) {
  if (!good) throw std::runtime_error(what);
}

class checks {
 public:
  void operator()(std::string const& name, std::function<void()> const& check) {
    std::cout << name << ": " << std::flush;
    try {
      check();
      std::cout << "ok\n";
    } catch (skipped const& reason) {
      std::cout << "skipped, " << reason.why << '\n';
    } catch (std::exception const& failed) {
      all_good_ = false;
      std::cout << "FAILED, " << failed.what() << '\n';
    }
  }
  [[nodiscard]] bool all_good() const { return all_good_; }

 private:
  bool all_good_ = true;
};

// Writes down for each part of a GPU which multiprocessors its last kernel ran on.
class multiprocessors_seen {
 public:
  explicit multiprocessors_seen(int parts)
      : seen_(sizeof(unsigned) * blocks * zbpp::detail::index(parts)) {}

  // Burns on a stream of a part.
  void burn(cuda::stream_ref on, int part) const {
    cuda::check(burn_and_note(on, blocks, 20'000, of(part)));
  }
  // What was seen, once the device is done.
  [[nodiscard]] std::set<unsigned> by(int part) const {
    auto const ids = read_back(on_.view(), of(part), blocks);
    return {ids.begin(), ids.end()};
  }

 private:
  static constexpr int blocks = 1024;

  [[nodiscard]] unsigned* of(int part) const { return seen_.get<unsigned>() + part * blocks; }

  device_memory seen_;
  cuda::stream on_{cuda::stream_priority::usual};
};

// How many multiprocessors parts may use beyond their own, and share: CUDA says so of compute
// capability 9 once a module with dynamic parallelism is loaded, as a library may have done.
std::size_t shareable() {
  int major = 0;
  cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  return major == 9 ? 2 : 0;
}

// No other multiprocessor may show up in two parts.
void expect_disjoint(cuda::partition const& parts, multiprocessors_seen const& seen) {
  std::map<unsigned, int> parts_on;
  for (int part = 0; part < parts.parts(); ++part) {
    auto const own = seen.by(part);
    expect(
        own.size() <= zbpp::detail::index(parts.sm_count(part)) + shareable(),
        "part " + std::to_string(part) + " ran on " + std::to_string(own.size()) +
            " multiprocessors; it has " + std::to_string(parts.sm_count(part)));
    for (auto const each : own) ++parts_on[each];
  }
  auto const shared = static_cast<std::size_t>(
      std::ranges::count_if(parts_on, [](auto const& each) { return each.second > 1; }));
  expect(
      shared <= shareable(),
      "several parts ran on each of " + std::to_string(shared) + " multiprocessors");
  std::cout << parts.sm_count(0) << " multiprocessors each, " << parts_on.size() << " seen, "
            << shared << " shared, " << parts.unused_sms() << " unused, ";
}

// All parts burn at once.
void parts_are_disjoint(int count) {
  cuda::partition const parts(0, count);
  multiprocessors_seen const seen(count);
  auto const devices = parts.devices();
  for (int part = 0; part < count; ++part)
    seen.burn(devices[zbpp::detail::index(part)].compute, part);
  for (auto const& each : devices) cuda::stream_ref(each.compute).synchronize();
  expect_disjoint(parts, seen);
}

// The passes of a pipeline burn in a graph, captured in the second step and replayed in the others.
void captured_work_stays(int count) {
  cuda::partition const parts(0, count);
  multiprocessors_seen const seen(count);
  auto const planned = make_plan(zb_h1{}, toy::problem_of(placement::linear(count), 2 * count));
  std::atomic<int> calls = 0;  // of work that is not replayed
  work const burns = [&](cuda::stream_ref on, int rank, pass_kind) {
    ++calls;
    seen.burn(on, rank);
  };
  auto stages = stages_of(planned.problem(), &burns);
  constexpr int steps = 4;
  {
    cuda::device const backend{.devices = parts.devices(), .replay = cuda::replay::step};
    pipeline pipe{planned, backend, stages};
    for (int step = 0; step < steps; ++step) pipe.step();
  }
  auto const passes = 3 * planned.problem().stages() * planned.problem().microbatches();
  expect(calls < steps * passes, "nothing was replayed");
  expect_disjoint(parts, seen);
}

void parts_run_at_once(int count) {
  cuda::partition const parts(0, count);
  auto const devices = parts.devices();
  auto const does = arithmetic(devices, 200'000);
  std::vector<int> everybody;
  for (int r = 0; r < count; ++r) everybody.push_back(r);
  auto const alone = measure(devices, does, {0}).front()[0];
  auto const busy = measure(devices, does, everybody).front()[0];
  std::cout << busy / alone << " of the time alone, ";
  if (busy >= 1.5 * alone) throw skipped{"they hold each other up, which CUDA does not rule out"};
}

void gives_right_bits(plan const& planned, cuda::device const& backend) {
  constexpr int steps = 4;
  auto const& what = planned.problem();
  std::vector<toy::sum> sums;
  std::vector<toy::stage> stages;
  for (int s = 0; s < what.stages(); ++s) {
    auto const rank = zbpp::detail::index(what.placement().rank_of(s));
    auto const on = backend.devices.empty() ? 0 : backend.devices[rank].device;
    sums.push_back(cuda::on_device(on, [] { return toy::sum(); }));
    stages.emplace_back(s, sums.back().get());
  }
  pipeline pipe{planned, backend, stages};
  toy::outcome found;
  for (int i = 0; i < steps; ++i)
    for (double const loss : pipe.step().losses) found.losses.push_back(loss);
  for (auto const& sum : sums) found.sums.push_back(sum.value());
  expect(
      found == toy::expected(what.stages(), what.microbatches(), steps),
      planned.policy() + " on " + std::to_string(what.ranks()) + " ranks gave other bits");
}

void all_policies(int ranks, cuda::device const& backend, bool is_short) {
  std::vector<any_policy> linear{one_f_one_b{}, zb_h1{}};
  if (!is_short) linear.insert(linear.end(), {gpipe{}, zb_h2{}, greedy_auto{}});
  auto const m = is_short ? ranks : 4 * ranks;
  for (auto const& decide : linear)
    gives_right_bits(make_plan(decide, toy::problem_of(placement::linear(ranks), m)), backend);
  gives_right_bits(make_plan(zb_v{}, toy::problem_of(placement::v_shape(ranks), m)), backend);
  auto const in_pairs = toy::problem_of(placement::v_shape(ranks), std::max(m, 2 * ranks), 15);
  gives_right_bits(make_plan(dualpipe_v{}, in_pairs), backend);
}

int check_parts(bool is_short) {
  checks check;
  for (int const count : {2, 4, 8}) {
    auto const parts = std::to_string(count) + " parts";
    check(parts + " are disjoint", [&] { parts_are_disjoint(count); });
    check("captured steps stay on their part of " + std::to_string(count), [&] {
      captured_work_stays(count);
    });
    if (!is_short) check(parts + " run at once", [&] { parts_run_at_once(count); });
  }
  return check.all_good() ? 0 : 1;
}

int check_bits(bool is_short, bool whole_gpu, int devices) {
  checks check;
  for (int const count : {2, 4, 8}) {
    auto const ranks =
        std::to_string(count) + (whole_gpu ? " streams of the whole device" : " parts");
    check("the same bits on " + ranks, [&] {
      shared_gpu const gpu(count, whole_gpu);
      all_policies(count, {.devices = gpu.devices()}, is_short);
    });
    check("the same bits of replayed steps on " + ranks, [&] {
      shared_gpu const gpu(count, whole_gpu);
      all_policies(count, {.devices = gpu.devices(), .replay = cuda::replay::step}, is_short);
    });
  }
  check("the same bits on a whole device", [&] { all_policies(4, {}, is_short); });
  check("the same bits with few passes issued ahead", [&] {
    all_policies(4, {.run_ahead = 2}, is_short);
  });
  check(
      "the same bits while passes are timed", [&] { all_policies(4, {.traces = true}, is_short); });
  check("the same bits with a wait after each pass", [&] {
    all_policies(4, {.synchronizes = true}, is_short);
  });
  check("the same bits on several devices", [&] {
    if (devices < 2) throw skipped{"there is one device only"};
    auto const ranks = std::min(devices, 8);
    all_policies(ranks, {.devices = cuda::one_device_per_rank(ranks)}, is_short);
  });
  return check.all_good() ? 0 : 1;
}

int check_optimizers(bool is_short) {
  checks check;
  for (auto const undo : {optim::undo_method::weights, optim::undo_method::copies})
    check(
        "optimizers that keep " +
            std::string(undo == optim::undo_method::weights ? "weights" : "copies") +
            " have the bits of the host",
        [&] { expect_optimizers_of_host(undo, is_short); });
  return check.all_good() ? 0 : 1;
}

// A kernel that writes where nothing is ends the step; CUDA cannot go on, and says so every time.
int check_fault() {
  checks check;
  check("a kernel's fault ends the step", [] {
    auto const planned = make_plan(zb_h1{}, toy::problem_of(placement::linear(2), 4));
    work const breaks = [](cuda::stream_ref on, int rank, pass_kind what) {
      static int calls = 0;
      if (rank == 1 && what == pass_kind::backward_input && ++calls > 3) cuda::check(fault(on));
    };
    auto stages = stages_of(planned.problem(), &breaks);
    pipeline pipe{planned, cuda::device{}, stages};
    for (int i = 0; i < 2; ++i) {
      try {
        pipe.step();
        expect(i == 0, "the fault was not noticed");
      } catch (cuda::cuda_error const& failed) {
        std::cout << failed.what() << ", ";
        return;
      }
    }
    expect(false, "the fault was not noticed");
  });
  return check.all_good() ? 0 : 1;
}

int run(std::string_view act, bool is_short, bool whole_gpu, int devices) {
  if (act == "parts" && whole_gpu) {
    std::cout << "the device is to stay whole (--whole-gpu)\n";
    return 77;
  }
  if (act == "parts") return check_parts(is_short);
  if (act == "bits") return check_bits(is_short, whole_gpu, devices);
  if (act == "optimizers") return check_optimizers(is_short);
  return check_fault();
}

}  // namespace
}  // namespace zbpp::bench

int main(int count, char** arguments) {
  std::vector<std::string_view> given(arguments + 1, arguments + count);
  // @return whether an option is given, which it takes out
  auto const take = [&given](std::string_view option) { return std::erase(given, option) > 0; };
  bool const is_short = take("--short");
  bool const whole_gpu = take("--whole-gpu");
  std::string_view const act = given.size() == 1 ? given.front() : "";
  constexpr std::array acts{"parts", "bits", "optimizers", "fault"};
  if (std::ranges::find(acts, act) == acts.end()) {
    std::cerr << "usage: device_check parts | bits | optimizers | fault [--short] [--whole-gpu]\n";
    return 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::cerr << "device_check: there is no CUDA device\n";
    return 3;
  }
  try {
    return zbpp::bench::run(act, is_short, whole_gpu, devices);
  } catch (std::exception const& failed) {
    std::cerr << "device_check: " << failed.what() << '\n';
    return 1;
  }
}
