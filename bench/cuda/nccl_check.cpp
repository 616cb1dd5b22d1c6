// SPDX-License-Identifier: Apache-2.0
//
// What the tests show on a model of NCCL, shown with NCCL itself: a message to oneself, or one rank
// of a run of several processes, which `./run gpu` starts. Exit status: 0 good, 1 not, 3 no device.
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <algorithm>
#include <array>
#include <bench/cuda/ranks.hpp>
#include <bench/cuda/replicas.hpp>
#include <bench/cuda/shared_id.hpp>
#include <bench/cuda/toy.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::bench {
namespace {

constexpr int steps = 6;  // of those that are replayed, the first are issued and captured
constexpr std::chrono::seconds stall_limit{20};
constexpr std::chrono::seconds start_limit{30};  // below what `run gpu` gives each part

void expect(bool good, std::string const& what) {
  if (!good) throw std::runtime_error(what);
}

// Sends to itself; send and receive stand in one group, or neither could end.
void message_to_oneself() {
  int version = 0;
  nccl::check(ncclGetVersion(&version));
  std::printf("NCCL %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
  ncclUniqueId id;
  nccl::check(ncclGetUniqueId(&id));
  nccl::communicator own(id, 1, 0, {.name = "self"});
  auto const deadline = std::chrono::steady_clock::now() + stall_limit;
  while (!own.is_ready()) {
    expect(std::chrono::steady_clock::now() < deadline, "the communicator does not get ready");
    std::this_thread::yield();
  }
  cuda::stream const on(cuda::stream_priority::usual);
  device_memory const from(toy::message_size);
  device_memory const to(toy::message_size);
  cuda::check(scale(on.view(), from.get<float>(), nullptr, 3, 1, toy::width));
  cuda::check(cudaMemsetAsync(to.get(), 0, toy::message_size, on.view().get()));
  nccl::check(ncclGroupStart());
  nccl::check(ncclSend(from.get(), toy::message_size, ncclInt8, 0, own.get(), on.view().get()));
  nccl::check(ncclRecv(to.get(), toy::message_size, ncclInt8, 0, own.get(), on.view().get()));
  auto const status = ncclGroupEnd();
  expect(
      status == ncclSuccess || status == ncclInProgress,
      std::string("ncclGroupEnd gives ") + ncclGetErrorString(status));
  while (!own.is_ready())
    expect(std::chrono::steady_clock::now() < deadline, "the group does not get launched");
  on.view().synchronize();
  auto const received = read_back(on.view(), to.get<float>(), toy::width);
  for (int i = 0; i < toy::width; ++i)
    expect(
        received[zbpp::detail::index(i)] == static_cast<float>(3 * i + 1),
        "another message arrived than was sent");
}

// Is a toy's stage on which a rank stops in the middle of the second step, where it does.
class stopping_stage {
 public:
  stopping_stage(toy::stage does, std::function<void()> stops)
      : does_(std::move(does)), stops_(std::move(stops)) {}

  flow operator()(microbatch mb) {
    if (stops_ && mb.step() == 1 && mb.index() == 2) stops_();
    return does_(mb);
  }

 private:
  toy::stage does_;
  std::function<void()> stops_;
};

plan plan_of(std::string_view policy, int ranks, lower_options const& lowering = {}) {
  bool const is_v = policy == "zb_v";
  auto const where = is_v ? placement::v_shape(ranks) : placement::linear(ranks);
  return make_plan(find_policy(policy), toy::problem_of(where, 4 * ranks), lowering);
}

// Takes steps, as many at once as the settings say. @return their losses, where they are here
template <class Pipeline>
std::vector<double> losses_of(Pipeline& pipe, int steps_at_once) {
  std::vector<double> all;
  auto const add = [&all](step_result const& of) {
    all.insert(all.end(), of.losses.begin(), of.losses.end());
  };
  std::optional<started_step> before;
  for (int i = 0; i < steps; ++i) {
    if (steps_at_once == 1) {
      add(pipe.step());
      continue;
    }
    auto now = pipe.step_async();
    if (before) add(before->get());
    before.emplace(std::move(now));
  }
  if (before) add(before->get());
  return all;
}

void train(
    asio::rendezvous& run,
    std::string_view policy,
    nccl::ranks_settings const& settings,
    lower_options const& lowering = {}) {
  auto const planned = plan_of(policy, run.ranks(), lowering);
  auto const& what = planned.problem();
  auto const own = what.placement().stages_of(run.rank());
  std::vector<toy::sum> sums(own.size());
  std::vector<toy::stage> stages;
  for (std::size_t i = 0; i < own.size(); ++i) stages.emplace_back(own[i], sums[i].get());
  toy::outcome found;
  {
    pipeline pipe{planned, nccl::ranks(run, settings), stages};
    found.losses = losses_of(pipe, settings.steps_at_once);
  }
  auto const right = toy::expected(what.stages(), what.microbatches(), steps);
  for (std::size_t i = 0; i < own.size(); ++i)
    expect(
        sums[i].value() == right.sums[zbpp::detail::index(own[i])],
        planned.policy() + ": stage " + std::to_string(own[i]) + " gave other bits");
  if (what.placement().rank_of(what.stages() - 1) == run.rank())
    expect(found.losses == right.losses, planned.policy() + ": other losses");
}

void train_all(
    asio::rendezvous& run,
    nccl::ranks_settings const& settings,
    lower_options const& lowering = {}) {
  for (auto const* policy : {"one_f_one_b", "zb_h1", "zb_v"})
    train(run, policy, settings, lowering);
}

// All messages over one communicator, which the program has made.
void train_adopted(asio::rendezvous& run) {
  int version = 0;
  nccl::check(ncclGetVersion(&version));
  if (version < 22807) {
    std::printf("NCCL is older than 2.28.7, with which no communicator is adopted\n");
    return;
  }
  nccl::communicator const all(shared_id(run), run.ranks(), run.rank(), {.name = "all"});
  all.wait(nccl::limited_pause(stall_limit, "the communicator does not get ready"));
  nccl::ranks_settings settings;
  settings.adopted = all.get();
  settings.init_deadline = start_limit;
  train(run, "gpipe", settings, {.layout = channel_layout::one_per_rank});
}

// Two replicas of a pipeline add up their gradients on the devices.
void train_replicas(
    asio::rendezvous& run,
    problem const& model,
    replicas::outcome const& right,
    nccl::ranks_settings const& settings,
    lower_options const& lowering) {
  auto const planned = make_plan(find_policy("zb_h1"), model, lowering);
  grid_layout const layout({.pipeline = model.ranks(), .data = replicas::count}, run.ranks());
  auto const at = layout.coordinates(run.rank());
  replicas::stage own(at.pipeline, at.data);
  std::vector<stage_ref> stages{stage_ref(own)};
  training_options training{.learning_rate = [](std::int64_t) { return replicas::learning_rate; }};
  if (agrees_on_steps(planned.program()))
    training.clip = 1e30;  // they agree on the norm, and clip nothing
  std::vector<double> losses;
  {
    pipeline pipe{planned, nccl::ranks(run, layout, settings), stages, training};
    pipe.run(steps, [&losses](step_result const& of) {
      losses.insert(losses.end(), of.losses.begin(), of.losses.end());
    });
  }
  auto const place =
      "replica " + std::to_string(at.data) + ", stage " + std::to_string(at.pipeline);
  expect(
      own.weights() == right.weights[zbpp::detail::index(at.pipeline)],
      place + " has other weights than one process");
  if (at.pipeline + 1 == model.stages())
    expect(losses == right.losses[zbpp::detail::index(at.data)], place + " has other losses");
}

void train_all_replicas(
    asio::rendezvous& run, nccl::ranks_settings const& settings, lower_options lowering = {}) {
  auto const where = placement::linear(run.ranks() / replicas::count);
  auto const model = replicas::problem_of(where, 4 * where.ranks());
  auto const right = replicas::expected(model.stages(), model.microbatches(), steps);
  for (auto const kind :
       {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
    lowering.step = kind;
    train_replicas(run, model, right, settings, lowering);
  }
}

// Every rank that lives has to learn of the failure, in time, and who failed.
void stop(asio::rendezvous& run, bool kills) {
  constexpr int culprit = 1;
  auto const planned = plan_of("zb_h1", run.ranks());
  toy::sum sum;
  std::function<void()> stops;
  if (run.rank() == culprit)
    stops = [&] {
      if (kills) end_process(run);
      throw std::runtime_error("stopped on purpose");
    };
  std::vector<stopping_stage> stages{stopping_stage(toy::stage(run.rank(), sum.get()), stops)};
  nccl::ranks_settings settings;
  settings.init_deadline = start_limit;
  pipeline pipe{planned, nccl::ranks(run, settings), stages};
  auto const start = std::chrono::steady_clock::now();
  try {
    pipe.step();  // a rank may be in it when the other begins the second, and fails
    pipe.step();
  } catch (std::exception const& failed) {
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    if (kills && run.rank() == culprit) return;  // of the model, where it lives on as a thread
    std::string const text = failed.what();
    std::printf("rank %d after %.1f s: %s\n", run.rank(), took.count(), text.c_str());
    expect(took < 2 * stall_limit, "the failure was noticed too late");
    expect(text.find("rank 1") != std::string::npos, "the failure names another rank");
    return;
  }
  expect(false, "the failure was not noticed");
}

void take_part(std::string_view act) {
  asio::rendezvous_settings settings;
  settings.stall_deadline = stall_limit;
  settings.join_deadline = settings.collective_deadline = start_limit;
  bool const fails = act == "throw" || act == "kill";
  run_as_rank(settings, fails, [&](asio::rendezvous& run) {
    nccl::ranks_settings carries;
    carries.init_deadline = start_limit;
    lower_options const in_one_order{.layout = channel_layout::one_per_rank};
    if (fails) {
      stop(run, act == "kill");
    } else if (act == "train") {
      train_all(run, carries);
    } else if (act == "one_queue") {
      train_all(run, carries, in_one_order);
    } else if (act == "sums") {
      train_all_replicas(run, carries);
    } else if (act == "one_queue_sums") {
      train_all_replicas(run, carries, in_one_order);
    } else if (act == "at_once") {
      carries.steps_at_once = 2;
      train_all(run, carries);
    } else if (act == "replay") {
      carries.replay = cuda::replay::step;
      for (int const at_once : {1, 2}) {
        carries.steps_at_once = at_once;
        train_all(run, carries, in_one_order);
      }
    } else {
      train_adopted(run);
    }
  });
}

}  // namespace
}  // namespace zbpp::bench

int main(int count, char** arguments) {
  std::string_view const act = count == 2 ? arguments[1] : "";
  constexpr std::array acts{
      "self",
      "train",
      "one_queue",
      "replay",
      "at_once",
      "adopted",
      "sums",
      "one_queue_sums",
      "throw",
      "kill"};
  if (std::ranges::find(acts, act) == acts.end()) {
    std::fputs(
        "usage: nccl_check self | train | one_queue | replay | at_once | adopted | sums |\n"
        "                  one_queue_sums | throw | kill\n",
        stderr);
    return 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("nccl_check: there is no CUDA device\n", stderr);
    return 3;
  }
  try {
    if (act == "self")
      zbpp::bench::message_to_oneself();
    else
      zbpp::bench::take_part(act);
    std::printf("nccl_check %s: ok\n", arguments[1]);
    return 0;
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "nccl_check %s: %s\n", arguments[1], failed.what());
    return 1;
  }
}
