// SPDX-License-Identifier: Apache-2.0
#include "alone.hpp"

#include <gpu_model/cuda/cuda_model.hpp>

#include <array>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace zbpp::bench {
namespace {

// The end of the process takes away streams of parts.
bool is_left_on_purpose(std::string const& leak) {
  return leak.starts_with("stream of a green context") || leak.starts_with("green context");
}

}  // namespace

std::string run_here(std::function<std::string()> const& body) {
  cuda_model::reset({.devices = 2, .hosts = 0});
  auto found = body();
  for (auto const& fault : cuda_model::faults()) throw std::runtime_error(fault);
  for (auto const& leak : cuda_model::leaks())
    if (!is_left_on_purpose(leak)) throw std::runtime_error("it leaves " + leak);
  return found;
}

std::string run_as_two(
    std::function<std::string(link const&)> const& body, std::chrono::seconds /*limit*/) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("there is no pair of sockets");
  // They start at different times; whoever waits on a device waits for both that have not ended.
  std::array<std::unique_ptr<cuda_model::host_thread>, 2> hosts;
  for (auto& each : hosts) each = std::make_unique<cuda_model::host_thread>();
  std::array<ending, 2> found;
  auto const be_rank = [&](std::size_t rank) {
    auto const own = std::move(hosts[rank]);
    found[rank] = detail::end_of([&] { return body(link(static_cast<int>(rank), ends[rank])); });
    ::close(ends[rank]);
  };
  std::array<std::thread, 2> threads;
  for (std::size_t rank = 0; rank < 2; ++rank) threads[rank] = std::thread(be_rank, rank);
  for (auto& each : threads) each.join();
  return detail::found_by_both(found[0], found[1]);
}

}  // namespace zbpp::bench
