// SPDX-License-Identifier: Apache-2.0
//
// Which ranks NCCL takes for ranks on one GPU, by what the driver, the host and the environment
// say.
#include <zbpp/nccl/detail/channel_plan.hpp>
#include <zbpp/nccl/detail/connect.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/cuda_training.hpp>
#include <support/environment_variable.hpp>

#include <array>
#include <string>
#include <unistd.h>
#include <vector>

namespace test_nccl_check_gpus {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using nccl::detail::gpu_identity;
using nccl::detail::identity_of;
using zbpp::channel_layout;

namespace {

constexpr int older = 22809;  // versions of NCCL
constexpr int newer = 23000;

// The identity of a device in a process that has these variables; null where it does not.
gpu_identity identity(
    int device, char const* host, char const* shares = nullptr, int version = older) {
  environment_variable const first("NCCL_HOSTID", host);
  environment_variable const second("NCCL_MULTI_RANK_GPU_ENABLE", shares);
  return identity_of(device, version);
}

std::string refusal(std::vector<gpu_identity> const& gpus, channel_layout layout) {
  auto const placement = zbpp::placement::linear(static_cast<int>(gpus.size()));
  try {
    nccl::detail::check_gpus(nccl::detail::map_communicators(placement, layout), gpus);
  } catch (zbpp::error const& refused) {
    CHECK(refused.code() == zbpp::errc::bad_argument);
    return refused.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a GPU is the same where host and bus are, unless NCCL takes several ranks", "[nccl]") {
  model::reset({.devices = 2});
  auto const here = identity(0, nullptr);
  CHECK(here.is_same(identity(0, nullptr)));
  CHECK_FALSE(here.is_same(identity(1, nullptr)));
  std::array<char, 65> name{};
  REQUIRE(::gethostname(name.data(), name.size() - 1) == 0);
  CHECK(here.host_text() == name.data());
  CHECK(here.bus_id.data() == std::string("0000:01:00.0"));

  // Ranks that pose as two machines; and two that say they are one.
  CHECK_FALSE(identity(0, "rank-0").is_same(identity(0, "rank-1")));
  CHECK_FALSE(identity(0, "rank-0").is_same(here));
  CHECK(identity(0, "rank-0").is_same(identity(0, "rank-0")));
  CHECK(identity(0, "rank-0").host_text() == "rank-0");
  std::string const longest(1000, 'x');
  CHECK(identity(0, longest.c_str()).host_text() == longest.substr(0, 240));

  for (auto const* off : {"0", "", "no"}) CHECK(here.is_same(identity(0, nullptr, off, newer)));
  CHECK_FALSE(here.is_same(identity(0, nullptr, "1", newer)));
  CHECK_FALSE(identity(0, nullptr, "1", newer).is_same(identity(0, nullptr, "1", newer)));
  CHECK(here.is_same(identity(0, nullptr, "1", older)));  // which does not know the variable
  CHECK(first_of(model::faults()) == "");
}

TEST_CASE("two ranks of a communicator are refused on one GPU, by name", "[nccl]") {
  model::reset({.devices = 3});
  auto const gpu = [](int device) { return identity(device, "node7"); };
  auto const each = channel_layout::one_per_directed_pair;
  auto const all = channel_layout::one_per_rank;
  CHECK(refusal({gpu(0), gpu(1), gpu(2)}, all) == "");
  CHECK(refusal({gpu(0), gpu(1), gpu(0)}, each) == "");
  CHECK(refusal({gpu(0), gpu_identity{}, gpu_identity{}}, all) == "");
  CHECK(
      refusal({gpu(0), gpu(1), gpu(1)}, each) ==
      "ranks 1 and 2 share the GPU at PCI bus 0000:02:00.0 of host node7, as a whole or in parts "
      "(MIG), and NCCL makes no communicator of both; give each rank a GPU of its own");
  CHECK(refusal({gpu(0), gpu(1), gpu(0)}, all)
            .starts_with("ranks 0 and 2 share the GPU at PCI bus 0000:01:00.0"));
}

TEST_CASE("parts of one GPU are one GPU for NCCL", "[nccl]") {
  model::reset({.devices = 4, .instances_of_gpu = 2});
  auto const gpu = [](int device) { return identity(device, "node7"); };
  CHECK(gpu(0).is_same(gpu(1)));
  CHECK_FALSE(gpu(1).is_same(gpu(2)));
  auto const layout = channel_layout::one_per_directed_pair;
  CHECK(refusal({gpu(1), gpu(2), gpu(1)}, layout) == "");
  CHECK(refusal({gpu(2), gpu(3)}, layout).starts_with("ranks 0 and 1 share the GPU at PCI bus "));
}

}  // namespace test_nccl_check_gpus
