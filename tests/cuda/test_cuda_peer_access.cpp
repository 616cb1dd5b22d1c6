// SPDX-License-Identifier: Apache-2.0
//
// Copies between the GPUs of a process go directly where they arrive, and by way of the host where
// CUDA drops or garbles them and reports success.
#include <zbpp/cuda/detail/peer_access.hpp>
#include <zbpp/cuda/device.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_training.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace test_cuda_peer_access {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using model::copy_fate;

namespace {

using told = std::vector<std::string>;

// Between GPUs 0 and 1, in one direction.
std::function<copy_fate(int, int)> harmed(int sender, copy_fate fate) {
  return [=](int from, int to) {
    return from == sender && from + to == 1 ? fate : copy_fate::arrives;
  };
}

// What is told when devices 0 and 1 are made ready for copies.
told open_both() {
  told lines;
  cuda::detail::peer_access access([&](std::string const& line) { lines.push_back(line); });
  for (int i = 0; i < 3; ++i) {
    access.open(0, 1);
    access.open(1, 0);
    access.open(1, 1);
  }
  return lines;
}

// As CUDA says, and leaves it.
bool is_enabled(int device, int other) {
  cuda::device_guard const here(device);
  bool const was = cudaDeviceDisablePeerAccess(other) == cudaSuccess;
  if (was) cuda::check(cudaDeviceEnablePeerAccess(other, 0));
  cudaGetLastError();
  return was;
}

constexpr char const* by_host =
    "copies between devices 0 and 1 go by way of the host, since directly they do not arrive as "
    "they were sent, though CUDA reports success; an IOMMU does that on bare metal, so turn it off";

}  // namespace

TEST_CASE("steps have the right bits where direct copies get lost or garbled", "[cuda]") {
  auto const planned = row_plan(3, 6);
  auto const expected = device_reference(planned);
  auto seed = run_seed();
  for (auto const fate : {copy_fate::lost, copy_fate::garbled})
    for (int const sender : {0, 1}) {
      told lines;
      cuda::device backend{.devices = cuda::one_device_per_rank(3)};
      backend.on_fallback = [&](std::string const& line) { lines.push_back(line); };
      model::options const machine{
          .seed = ++seed, .devices = 3, .hosts = 3, .direct_copies = harmed(sender, fate)};
      check_training(planned, expected, machine, backend);
      CHECK(lines == told{by_host});
      backend.on_fallback = {};
      check_training(planned, expected, machine, backend);
    }
}

TEST_CASE("devices reach each other directly where copies arrive, and only there", "[cuda]") {
  auto const seed = run_seed();
  for (bool const arrives : {true, false}) {
    checked_gpus const gpus(
        {.seed = seed,
         .devices = 2,
         .direct_copies = harmed(0, arrives ? copy_fate::arrives : copy_fate::lost)});
    CHECK(open_both() == (arrives ? told{} : told{by_host}));
    CHECK(is_enabled(0, 1) == arrives);
    CHECK(is_enabled(1, 0) == arrives);
    CHECK(open_both() == (arrives ? told{} : told{by_host}));  // another pipeline
  }
  checked_gpus const gpus({.seed = seed, .devices = 2, .peer_access = false});
  CHECK(open_both().empty());
}

TEST_CASE("a direct way that CUDA does not open is no failure", "[cuda]") {
  auto const planned = row_plan(2, 4);
  for (auto const error : {cudaErrorTooManyPeers, cudaErrorNotSupported}) {
    checked_gpus const gpus({.seed = run_seed(), .devices = 2, .hosts = 2});
    told lines;
    cuda::device backend{.devices = cuda::one_device_per_rank(2)};
    backend.on_fallback = [&](std::string const& line) { lines.push_back(line); };
    model::fail_next("cudaDeviceEnablePeerAccess", error);
    CHECK(launched_training(planned, backend).train() == device_reference(planned));
    CHECK(
        lines == told{
                     "device 0 gets no direct access to device 1, for CUDA reports " +
                     std::string(cudaGetErrorName(error)) +
                     ", so copies between the two may go by way of the host"});
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK_FALSE(is_enabled(0, 1));
  }
}

TEST_CASE("an error after which CUDA cannot go on is one still", "[cuda]") {
  model::reset({.seed = run_seed(), .devices = 2});
  model::fail_next("cudaDeviceEnablePeerAccess", cudaErrorIllegalAddress);
  CHECK(refusal(zbpp::errc::device_failed, open_both).starts_with("CUDA reports cudaErrorIllegal"));
}

TEST_CASE("copies that cannot arrive are refused", "[cuda]") {
  checked_gpus const gpus(
      {.seed = run_seed(), .devices = 2, .direct_copies = harmed(1, copy_fate::garbled)});
  cuda::check(cudaDeviceEnablePeerAccess(1, 0));  // by the program
  CHECK(
      refusal(zbpp::errc::device_failed, open_both) ==
      "copies between devices 0 and 1 do not arrive as they were sent, though CUDA reports "
      "success; an IOMMU does that on bare metal, so turn it off, or leave out what else enables "
      "peer access between the two");
  CHECK(is_enabled(0, 1));
}

TEST_CASE("each copy of a trial is missed", "[cuda]") {
  auto const seed = run_seed();
  for (auto const* function : {"cudaMemcpyAsync", "cudaMemcpyPeerAsync"}) {
    model::reset({.seed = seed, .devices = 2});
    model::start_counting();
    CHECK(open_both().empty());
    auto const calls = model::count(function);
    REQUIRE(calls > 0);
    for (std::uint64_t i = 0; i < calls; ++i) {
      INFO(function << " " << i);
      model::reset({.seed = seed, .devices = 2});
      model::start_counting();
      model::skip(function, i);
      CHECK(open_both() == told{by_host});
    }
  }
}

TEST_CASE("whatever fails while copies are tried, nothing is left behind", "[cuda]") {
  auto const seed = run_seed();
  for (auto const* function :
       {"cudaDeviceCanAccessPeer",
        "cudaStreamCreateWithPriority",
        "cudaMalloc",
        "cudaHostAlloc",
        "cudaMemcpyAsync",
        "cudaMemcpyPeerAsync",
        "cudaMemsetAsync",
        "cudaStreamSynchronize"}) {
    INFO(function);
    checked_gpus const gpus({.seed = seed, .devices = 2});
    model::fail_next(function, cudaErrorNotSupported);
    CHECK(refusal(zbpp::errc::device_failed, open_both).starts_with("CUDA reports "));
  }
}

}  // namespace test_cuda_peer_access
