// SPDX-License-Identifier: Apache-2.0
//
// No setting of GPUs is ignored: each field, set to something else, changes what is called in the
// model of CUDA and NCCL, or is refused.
#include <zbpp/cuda/device.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_ranks_toy.hpp>
#include <support/padded_toy.hpp>
#include <support/settings_fields.hpp>
#include <support/toy_run.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace test_cuda_settings {

using namespace zbpp::test;
using namespace std::chrono_literals;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;

namespace {

std::atomic<int> calls{0};  // of what settings call

zbpp::memory_source counted_memory(int device) {
  ++calls;
  return cuda::device_memory(device);
}
void count_line(std::string const&) { ++calls; }

// How often each function was called, but for those that ask until something is there.
std::string counts() {
  static std::set<std::string_view> const asking{
      "cudaStreamQuery",
      "cudaEventQuery",
      "cudaGetLastError",
      "cudaGetDevice",
      "cudaSetDevice",
      "ncclCommGetAsyncError"};
  std::map<std::string_view, int> all;
  for (auto const& call : model::calls())
    if (!asking.contains(call.function)) ++all[call.function];
  std::string text;
  for (auto const& [function, count] : all)
    text.append(function).append(" ").append(std::to_string(count)).append(", ");
  return text;
}

// Two steps that are begun at once where that is possible.
std::string run_on_devices(cuda::device const& settings) {
  auto const planned = row_plan(2, 4);
  std::set<int> used;
  for (auto const& one : settings.devices) used.insert(one.device);
  model::reset({.devices = 2, .hosts = used.size() < 2 ? 1 : 2});
  model::start_counting();
  calls = 0;
  std::string text;
  {
    auto all = toy::make_model(2);
    std::vector<toy::launched_stage> stages(all.begin(), all.end());
    pipeline pipe(planned, settings, stages);
    for (int i = 0; i < 2; ++i) {
      static_cast<void>(pipe.step_async());
      auto second = pipe.step_async();
      text += std::to_string(model::count("cudaEventSynchronize")) + " waits, ";
      static_cast<void>(second.get());
    }
  }
  text += counts() + std::to_string(calls) + " calls";
  model::take_faults();
  return text;
}

}  // namespace

TEST_CASE("each setting of devices has an effect", "[cuda][settings]") {
  changed_field<cuda::device> const fields[]{
      {"devices", [](auto& d) { d.devices = cuda::one_device_per_rank(2); }},
      {"edges", [](auto& d) { d.edges = {}; }},
      {"run_ahead", [](auto& d) { d.run_ahead = 1; }},
      {"traces", [](auto& d) { d.traces = true; }},
      {"synchronizes", [](auto& d) { d.synchronizes = true; }},
      {"replay", [](auto& d) { d.replay = cuda::replay::step; }},
      {"steps_at_once", [](auto& d) { d.steps_at_once = 2; }},
      {"memory", [](auto& d) { d.memory = counted_memory; }},
      {"on_fallback", [](auto& d) {  // its lines are counted in test_cuda_peer_access.cpp
         d.devices = cuda::one_device_per_rank(2);
         d.on_fallback = count_line;
       }}};
  cuda::device const usual{.edges = toy::edge_shapes(row_plan(2, 4).problem())};
  check_fields(fields, usual, run_on_devices);

  changed_field<cuda::rank_device> const one[]{
      {"device", [](auto& d) { d.device = 1; }},
      {"compute", [](auto& d) { d.compute = cudaStreamPerThread; }},  // cannot be adopted
      {"sm_count", [](auto& d) { d.sm_count = 8; }}};
  auto const on = [&](cuda::rank_device const& device) {
    auto settings = usual;
    settings.devices = {{.device = 1}, device};
    return run_on_devices(settings);
  };
  check_fields(one, {}, on);
  CHECK(
      effect_of([&] { return on({.sm_count = 8}); }) ==
      "refused: rank_device::sm_count is set and rank_device::compute is not, so nothing confines "
      "the rank; give the stream that is confined, or leave sm_count out");
  CHECK(
      effect_of([&] { return on({.sm_count = -8}); }) ==
      "refused: rank_device::sm_count is negative; give a number of multiprocessors, or 0 for all");
  auto both = usual;
  both.run_ahead = 1;
  both.synchronizes = true;
  CHECK(
      effect_of([&] { return run_on_devices(both); }) ==
      "refused: run_ahead is above 0 and synchronizes is set, with which the host is never ahead; "
      "leave one of them out");
}

namespace {

// What two ranks call, each in a process of its own, or why they are refused.
std::string run_on_ranks(plan const& planned, nccl::ranks_settings const& settings) {
  reset_gpus(machine_of(planned, 7, zbpp::channel_layout::one_per_rank));
  model::start_counting();
  calls = 0;
  auto const thrown = run_ranks(2, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
    auto all = toy::make_model(2);
    std::vector stages{toy::padded_stage(all[zbpp::detail::index(meeting.rank())])};
    auto own = settings;
    if (!own.device) own.device = {.device = meeting.rank()};
    pipeline pipe(planned, nccl::ranks(meeting, own), stages);
    static_cast<void>(pipe.step_async());
    static_cast<void>(pipe.step_async());
    auto third = pipe.step_async();
    static_cast<void>(third.get());
    meeting.barrier();
  });
  auto text = counts() + std::to_string(calls) + " calls";
  for (auto const& one : thrown)
    if (!one.empty()) text = "refused: " + one;
  model::take_faults();
  return text;
}

}  // namespace

TEST_CASE("each setting of ranks over NCCL has an effect", "[nccl][settings]") {
  using settings = nccl::ranks_settings;
  changed_field<settings> const fields[]{
      {"device", [](auto& s) { s.device = {.device = 7}; }},
      {"edges", [](auto& s) { s.edges.resize(2); }},  // more than there are
      {"traces", [](auto& s) { s.traces = true; }},
      {"synchronizes", [](auto& s) { s.synchronizes = true; }},
      {"replay", [](auto& s) { s.replay = cuda::replay::step; }},
      {"steps_at_once", [](auto& s) { s.steps_at_once = 2; }},
      {"memory", [](auto& s) { s.memory = counted_memory; }},
      {"layout", [](auto& s) { s.layout = zbpp::channel_layout::one_per_rank; }},
      {"most_ctas", [](auto& s) { s.most_ctas = 1000; }},  // more than the device has
      {"adopted", [](auto& s) { s.adopted = reinterpret_cast<ncclComm_t>(8); }},  // there is none
      {"init_deadline", [](auto& s) { s.init_deadline = 0ms; }},
      {"share_losses", [](auto& s) { s.share_losses = true; }}};
  auto const planned = row_plan(2, 4, for_one_queue);
  settings usual;
  usual.edges = toy::edge_shapes(planned.problem());
  check_fields(
      fields, usual, [&](settings const& changed) { return run_on_ranks(planned, changed); });

  auto late = usual;
  late.init_deadline = -1ms;
  CHECK(
      run_on_ranks(planned, late)
          .find("ranks_settings::init_deadline is 0 ms or less; set it above 0 ms") !=
      std::string::npos);
}

}  // namespace test_cuda_settings
