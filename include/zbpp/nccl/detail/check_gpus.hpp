// SPDX-License-Identifier: Apache-2.0
//
// Whether NCCL makes the communicators of a run at all: it refuses one that has two ranks on one
// GPU, without saying which.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/detail/communicator_map.hpp>
#include <zbpp/nccl/error.hpp>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace zbpp::nccl::detail {

/// Says on which GPU a rank is, as NCCL tells GPUs apart; a plain value, as ranks exchange it.
struct gpu_identity {
  std::array<unsigned char, 16> uuid{};  ///< of the GPU, or of its part (MIG); zeros: not known
  std::array<char, 240> host{};          ///< the name that people know, a line end, and more

  /// @return whether NCCL takes both for one GPU
  [[nodiscard]] bool is_same(gpu_identity const& other) const noexcept {
    return uuid == other.uuid && host == other.host && uuid != decltype(uuid){};
  }
  /// @return the UUID as nvidia-smi writes it
  [[nodiscard]] std::string gpu_text() const {
    static constexpr char digits[] = "0123456789abcdef";
    std::string result;
    for (std::size_t i = 0; i < uuid.size(); ++i) {
      if (i == 4 || i == 6 || i == 8 || i == 10) result += '-';
      result += digits[uuid[i] >> 4U];
      result += digits[uuid[i] & 15U];
    }
    return result;
  }
  /// @return the host as people know it
  [[nodiscard]] std::string host_text() const {
    return {
        host.begin(), std::ranges::find_if(host, [](char c) { return c == '\0' || c == '\n'; })};
  }
};
static_assert(std::is_trivially_copyable_v<gpu_identity>);

/// @return what NCCL calls this host: the variable NCCL_HOSTID, or its name and what it got when it
///         was booted, so that containers of other names are other hosts
/// @source NCCL, getHostHash in src/misc/utils.cc
[[nodiscard]] inline std::string host_of_process() {
  if (char const* const told = std::getenv("NCCL_HOSTID"); told != nullptr) return told;
  std::array<char, 65> name{};  // Linux has 64 characters at most
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name.data()) + "\n" + boot;
}

/// @return the GPU of this process; not known where its driver does not tell, or where NCCL, by its
///         variable NCCL_MULTI_RANK_GPU_ENABLE, takes several ranks on one
/// @param nccl_version  that is loaded: older ones than 2.30 do not have the variable
/// @throws cuda_error
[[nodiscard]] inline gpu_identity identity_of(int device, int nccl_version) {
  gpu_identity result;
  char const* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (nccl_version >= 23000 && shares != nullptr && std::strtol(shares, nullptr, 0) != 0)
    return result;
  // Older drivers do not tell the parts of a GPU apart.
  auto const get = cuda::detail::find_driver_function<PFN_cuDeviceGet_v2000>("cuDeviceGet", 2000);
  auto const uuid_of =
      cuda::detail::find_driver_function<PFN_cuDeviceGetUuid_v11040>("cuDeviceGetUuid", 11040);
  if (get == nullptr || uuid_of == nullptr) return result;
  CUdevice number = 0;
  CUuuid uuid{};
  cuda::detail::check_driver(get(&number, device));
  cuda::detail::check_driver(uuid_of(&uuid, number));
  static_assert(sizeof(uuid.bytes) == sizeof(result.uuid));
  std::memcpy(result.uuid.data(), uuid.bytes, sizeof(uuid.bytes));
  auto const host = host_of_process();
  std::ranges::copy(std::string_view(host).substr(0, result.host.size()), result.host.begin());
  return result;
}

/// Tells all ranks on which GPU each is; a collective call.
/// @return by rank
/// @throws cuda_error; nccl_error; the failure of the run
[[nodiscard]] inline std::vector<gpu_identity> exchange_gpus(asio::control& run, int device) {
  int version = 0;
  check(ncclGetVersion(&version));
  auto const mine = identity_of(device, version);
  std::vector<gpu_identity> all;
  for (auto const& part :
       run.collect(asio::collective::all_gather, std::as_bytes(std::span(&mine, 1)))) {
    auto& one = all.emplace_back();
    if (part.size() == sizeof(one)) std::memcpy(&one, part.data(), sizeof(one));
  }
  return all;
}

/// Refuses communicators of which NCCL would say no more than that they are wrong.
/// @param made  those of the run
/// @param gpus  by rank
/// @throws error (bad_argument), the same on all ranks
inline void check_gpus(communicator_map const& made, std::span<gpu_identity const> gpus) {
  for (auto const& one : made.communicators)
    for (int const a : one.ranks)
      for (int const b : one.ranks) {
        auto const& gpu = gpus[zbpp::detail::index(a)];
        if (a >= b || !gpu.is_same(gpus[zbpp::detail::index(b)])) continue;
        throw error(
            errc::bad_argument,
            "ranks " + std::to_string(a) + " and " + std::to_string(b) + " share the GPU " +
                gpu.gpu_text() + " of host " + gpu.host_text() +
                ", and NCCL makes no communicator of both; give each rank a GPU of its own, or let "
                "copies carry all messages between them by ranks_settings::peer_copies");
      }
}

}  // namespace zbpp::nccl::detail
