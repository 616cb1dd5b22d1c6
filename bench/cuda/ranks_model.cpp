// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"
#include <zbpp/cuda/error.hpp>
#include <zbpp/error.hpp>

#include <support/asio_ranks.hpp>
#include <support/cuda_model/cuda_model.hpp>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::bench {

void run_as_rank(
    asio::rendezvous_settings const& settings,
    bool fails,
    std::function<void(asio::rendezvous&)> const& body) {
  char const* const told = std::getenv("WORLD_SIZE");
  int const ranks = told == nullptr ? 2 : std::atoi(told);
  // The ranks come and go by themselves; benchmarks send what nobody wrote.
  cuda_model::reset({.devices = ranks, .hosts = 0, .check_uninitialised = false});
  // They start at different times; whoever waits on the device waits for all that have not ended.
  std::vector<std::unique_ptr<cuda_model::host_thread>> hosts;
  for (int r = 0; r < ranks; ++r) hosts.push_back(std::make_unique<cuda_model::host_thread>());
  auto const thrown = test::run_ranks(ranks, settings, [&](asio::rendezvous& run) {
    auto const host = std::move(hosts[static_cast<std::size_t>(run.rank())]);
    cuda::check(cudaSetDevice(run.rank()));
    body(run);
  });
  for (auto const& text : thrown)
    if (!text.empty()) throw error(errc::device_failed, text);
  if (!fails) return;  // at the end of the program faults are told
  for (auto const& fault : cuda_model::take_faults())
    if (!fault.starts_with("race") && !fault.starts_with("uninitialised"))
      throw error(errc::device_failed, fault);
}

}  // namespace zbpp::bench
