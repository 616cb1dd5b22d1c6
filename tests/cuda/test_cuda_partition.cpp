// SPDX-License-Identifier: Apache-2.0
//
// Parts of one GPU on the model of CUDA: how large they are, that ranks run on them, what is
// refused, and that nothing is left behind whatever fails.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/detail/second_stream.hpp>
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/partition.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_toy.hpp>
#include <support/cuda_training.hpp>
#include <support/environment_variable.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/toy_run.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace test_cuda_partition {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;

namespace {

// A driver whose processing clusters hold 18 multiprocessors each, so that groups of 16 waste two
// of every 18 and larger ones more.
constexpr unsigned cluster = 18;
constexpr unsigned clusters = 7;

CUresult CUDAAPI split_by_cluster(
    CUdevResource* result,
    unsigned* groups,
    CUdevResource const* input,
    CUdevResource*,
    unsigned,
    unsigned size) {
  if (result != nullptr || input->sm.smCount != cluster * clusters) return CUDA_ERROR_INVALID_VALUE;
  *groups = size <= cluster ? clusters * (cluster / size) : input->sm.smCount / size / 2;
  return CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("parts are equal, disjoint and as large as they can be", "[cuda]") {
  for (int trial = 0; trial < 60; ++trial) {
    ZBPP_SEEDED(rng, trial);
    auto const sms = static_cast<int>(rng.integer(8, 160));
    auto const parts = static_cast<int>(rng.integer(1, sms / 8));
    model::reset({.seed = rng.bits(), .devices = 2, .sm_count = sms});
    auto const device = static_cast<int>(rng.integer(0, 1));
    {
      cuda::partition const cut(device, parts);
      int const share = sms / 8 / parts * 8;
      REQUIRE(cut.parts() == parts);
      REQUIRE(cut.unused_sms() == sms - parts * share);
      auto const devices = cut.devices();
      REQUIRE(devices.size() == static_cast<std::size_t>(parts));
      for (int part = 0; part < parts; ++part) {
        auto const& at = devices[static_cast<std::size_t>(part)];
        REQUIRE(cut.sm_count(part) == share);
        REQUIRE(at.sm_count == share);
        REQUIRE(at.device == device);
        cuda::check_adoptable(at.compute, device);
      }
      int current = -1;
      cuda::check(cudaGetDevice(&current));
      CHECK(current == 0);
    }
    CHECK(model::faults() == std::vector<std::string>{});
    CHECK(model::leaks() == std::vector<std::string>{});
  }
}

TEST_CASE("several small groups make a part where that gives more", "[cuda]") {
  CUdevResource whole{};
  whole.type = CU_DEV_RESOURCE_TYPE_SM;
  whole.sm.smCount = cluster * clusters;
  whole.sm.minSmPartitionSize = 8;
  whole.sm.smCoscheduledAlignment = 8;
  auto const best = [&](unsigned parts) {
    return cuda::detail::best_grouping(split_by_cluster, whole, parts);
  };
  // Groups of 8: 14 of them. Groups of 16: 7. Larger ones: half of what would fit.
  CHECK(best(14).share() == 8);
  CHECK(best(7).share() == 16);
  CHECK(best(7).groups == 1);  // of 16, not two of 8
  CHECK(best(4).share() == 24);
  CHECK(best(4).groups == 3);
  CHECK(best(2).share() == 56);
  CHECK(best(2).groups == 7);
  CHECK(
      refusal([&] { static_cast<void>(best(15)); }) ==
      "the device cannot be cut into 15 parts; with 126 multiprocessors in groups of at least 8 "
      "it makes at most 14");
}

TEST_CASE("ranks on the parts of one GPU give the bits of one process", "[cuda]") {
  for (auto const* policy : {"one_f_one_b", "zb_h1", "zb_v"}) {
    for (int const ranks : {2, 4}) {
      auto const planned = toy_plan(policy, ranks, 2 * ranks);
      auto const expected = toy::in_single_precision(toy::train_reference(planned));
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        INFO(policy << " on " << ranks << " ranks, interleaving " << seed);
        model::reset({.seed = seed});
        {
          cuda::partition const cut(0, ranks);
          REQUIRE(launched_training(planned, {.devices = cut.devices()}).train() == expected);
        }
        REQUIRE(model::faults() == std::vector<std::string>{});
        REQUIRE(model::leaks() == std::vector<std::string>{});
      }
    }
  }
}

TEST_CASE("what cannot be cut is refused", "[cuda]") {
  model::reset({.sm_count = 132});
  CHECK(refusal([] {
          cuda::partition(0, 0);
        }) == "a device cannot be cut into fewer than 1 part; give 1 or more");
  CHECK(
      refusal([] { cuda::partition(0, 17); }) ==
      "the device cannot be cut into 17 parts; with 132 multiprocessors in groups of at least 8 "
      "it makes at most 16");
  CHECK_THROWS_AS(cuda::partition(1, 2), cuda::cuda_error);
  CHECK(model::leaks() == std::vector<std::string>{});

  model::reset({.green_contexts = false});
  auto const text = refusal(zbpp::errc::device_failed, [] { cuda::partition(0, 2); });
  CHECK(text.find("the driver has no cuDeviceGetDevResource; it needs CUDA 12.4") == 0);
  CHECK(text.find("the installed driver is for CUDA ") != std::string::npos);
  CHECK(model::leaks() == std::vector<std::string>{});
}

TEST_CASE("a size of groups that the driver refuses does not refuse the others", "[cuda]") {
  model::reset();
  model::fail_next("cuDevSmResourceSplitByCount", CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  cuda::partition const parts(0, 2);
  for (auto const& device : parts.devices()) CHECK(device.sm_count == 64);
  CHECK(model::faults() == std::vector<std::string>{});
}

TEST_CASE("whatever call of a partition fails, it is named and nothing is left", "[cuda]") {
  model::reset();
  model::start_counting();
  { cuda::partition const cut(0, 3); }
  std::map<std::string_view, std::uint64_t> functions;
  for (auto const& call : model::calls())
    functions[call.function] = std::max(functions[call.function], call.index + 1);
  // The destructor's calls have nobody to tell.
  functions.erase("cudaStreamDestroy");
  functions.erase("cuGreenCtxDestroy");
  for (auto const* freed :
       {"cudaFree", "cudaEventDestroy", "cudaGraphDestroy", "cudaGraphExecDestroy"})
    functions.erase(freed);
  functions.erase("cudaStreamEndCapture");  // one that fails leaves the model in the capture
  REQUIRE(functions.count("cuGreenCtxStreamCreate") == 1);
  for (auto const& [function, count] : functions) {
    INFO(function << ", " << count << " calls");
    model::reset();
    // An out-of-memory error is none that CUDA cannot go on after.
    model::fail_next(function, cudaErrorMemoryAllocation);
    try {
      cuda::partition const cut(0, 3);
      FAIL_CHECK("the failure was not noticed");
    } catch (cuda::cuda_error const& failed) {
      CHECK(failed.native() == cudaErrorMemoryAllocation);
    }
    CHECK(model::faults() == std::vector<std::string>{});
    CHECK(model::leaks() == std::vector<std::string>{});
    CHECK(cudaGetLastError() == cudaSuccess);
  }
}

TEST_CASE("streams of parts that do not do what others do are told of at once", "[cuda]") {
  for (auto const* function :
       {"cudaEventRecord",
        "cudaStreamWaitEvent",
        "cudaEventElapsedTime",
        "cudaStreamBeginCapture",
        "cudaGraphInstantiate",
        "cudaGraphLaunch"}) {
    INFO(function);
    model::reset();
    model::fail_next(function, cudaErrorNotSupported);
    auto const text = refusal(zbpp::errc::device_failed, [] { cuda::partition(0, 2); });
    CHECK(text.starts_with(
        "the stream of part 0 of device 0 does not do what other streams do; run ranks on plain "
        "streams of the whole device instead: CUDA reports cudaErrorNotSupported (801) at "));
    CHECK(model::leaks() == std::vector<std::string>{});
  }
}

TEST_CASE("parts whose streams take no events of the runtime are told of at once", "[cuda]") {
  for (int const parts : {1, 2}) {
    model::reset({.green_events = false});
    auto const text = refusal(zbpp::errc::device_failed, [&] { cuda::partition(0, parts); });
    CHECK(text.starts_with(
        "the stream of part 0 of device 0 does not do what other streams do; run ranks on plain "
        "streams of the whole device instead: CUDA reports cudaErrorInvalidResourceHandle (400) "
        "at "));
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(model::faults() == std::vector<std::string>{});
    CHECK(model::leaks() == std::vector<std::string>{});
  }
}

TEST_CASE("each stream of a part is tried", "[cuda]") {
  for (int const parts : {1, 3}) {
    model::reset();
    model::start_counting();
    { cuda::partition const cut(0, parts); }
    for (auto const* function : {"cudaStreamWaitEvent", "cudaGraphLaunch", "cudaEventElapsedTime"})
      CHECK(model::count(function) == static_cast<std::uint64_t>(parts));
    CHECK(model::faults() == std::vector<std::string>{});
    CHECK(model::leaks() == std::vector<std::string>{});
  }
}

TEST_CASE("a GPU is cut as often as one likes", "[cuda]") {
  model::reset({.devices = 1, .sm_count = 64});
  for (int round = 0; round < 12; ++round) {
    cuda::partition const cut(0, 4);
    for (auto const& at : cut.devices()) {
      INFO("round " << round);
      CHECK_NOTHROW(cuda::detail::make_beside(at.compute));
    }
  }
  CHECK(model::faults() == std::vector<std::string>{});
  CHECK(model::leaks() == std::vector<std::string>{});
}

TEST_CASE("too few hardware queues for a plan's streams are told", "[cuda]") {
  environment_variable const queues("CUDA_DEVICE_MAX_CONNECTIONS", nullptr);
  // Ranks in a line have a stream each, and between ranks of a device channels have none.
  auto const planned = toy_plan("zb_h1", 4, 8);
  CHECK(cuda::device_connections() == 8);
  CHECK(cuda::queue_shortage(planned) == "");
  CHECK(
      cuda::queue_shortage(toy_plan("zb_h1", 9, 9)) ==
      "9 streams share 8 hardware queues of a device, and one that waits may hold up another; set "
      "CUDA_DEVICE_MAX_CONNECTIONS to 9 in the environment before the program starts");
  queues.set("3");
  CHECK_FALSE(cuda::queue_shortage(planned).empty());
  queues.set("4");
  CHECK(cuda::queue_shortage(planned) == "");
  queues.set("99");
  CHECK(cuda::device_connections() == 32);
  queues.set("none");
  CHECK(cuda::device_connections() == 8);

  // On a GPU each: a rank in the middle receives on two channels.
  queues.set("3");
  CHECK(cuda::queue_shortage(planned, cuda::one_device_per_rank(4)) == "");
  queues.set("2");
  CHECK(
      cuda::queue_shortage(planned, cuda::one_device_per_rank(4)).find("3 streams share 2 ") == 0);
  CHECK(refusal([&] {
          static_cast<void>(cuda::queue_shortage(planned, cuda::one_device_per_rank(3)));
        }) == "there are 3 devices for 4 ranks; give one for each rank, or none");

  queues.set("32");
  CHECK(
      cuda::queue_shortage(toy_plan("zb_h1", 34, 34)) ==
      "34 streams share 32 hardware queues of a device, and one that waits may hold up another; "
      "set CUDA_DEVICE_MAX_CONNECTIONS to 32 in the environment before the program starts (CUDA "
      "has no more than 32)");
}

}  // namespace test_cuda_partition
