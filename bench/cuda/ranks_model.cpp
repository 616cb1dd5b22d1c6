// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"
#include <zbpp/cuda/error.hpp>
#include <zbpp/error.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <gpu_model/cuda/environment.hpp>
#include <support/asio_ranks.hpp>
#include <support/killed_rank.hpp>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::bench {
namespace {

// What stands for the process of a rank.
struct process {
  test::rank_killer& killer;
  std::unique_ptr<cuda_model::host_thread> host;

  ~process() {
    if (!is_killed) killer.note_end();
  }
  bool is_killed = false;
};
thread_local process* of_this_thread = nullptr;

}  // namespace

void run_as_rank(
    asio::rendezvous_settings const& settings,
    bool fails,
    std::function<void(asio::rendezvous&)> const& body) {
  char const* const told = std::getenv("WORLD_SIZE");
  int const ranks = told == nullptr ? 2 : std::atoi(told);
  // The ranks come and go by themselves; benchmarks send what nobody wrote.
  cuda_model::reset(
      cuda_model::as_in_environment({.devices = ranks, .hosts = 0, .check_uninitialised = false}));
  test::rank_killer killer(ranks);
  // They start at different times; whoever waits on the device waits for all that have not ended.
  std::vector<std::unique_ptr<process>> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back(std::make_unique<process>(killer, std::make_unique<cuda_model::host_thread>()));
  auto const thrown = test::run_ranks(
      ranks,
      test::rank_killer::settings_of(settings),
      [&](asio::rendezvous& run) {
        auto const mine = std::move(all[static_cast<std::size_t>(run.rank())]);
        of_this_thread = mine.get();
        cuda::check(cudaSetDevice(run.rank()));
        body(run);
      },
      test::rank_killer::host_of);
  for (auto const& text : thrown)
    if (!text.empty()) throw error(errc::device_failed, text);
  if (!fails) return;  // at the end of the program faults are told
  for (auto const& fault : cuda_model::take_faults())
    if (!fault.starts_with("race") && !fault.starts_with("uninitialised"))
      throw error(errc::device_failed, fault);
}

void end_process(asio::rendezvous& run) {
  of_this_thread->is_killed = true;
  of_this_thread->killer.kill(run, run.rank(), of_this_thread->host);
}

}  // namespace zbpp::bench
