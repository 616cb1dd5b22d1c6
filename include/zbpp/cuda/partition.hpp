// SPDX-License-Identifier: Apache-2.0
//
// Cuts one GPU into equal, disjoint groups of multiprocessors by green contexts, so that several
// ranks run side by side on it. Memory, second-level cache, copy engines and power stay shared.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/rank_device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace zbpp::cuda {

namespace detail {

/// Holds the driver's functions that make green contexts.
struct green_functions {
  PFN_cuDeviceGet_v2000 device_get = driver_function<PFN_cuDeviceGet_v2000>("cuDeviceGet", 2000);
  PFN_cuDeviceGetDevResource_v12040 resource_of =
      driver_function<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", 12040);
  PFN_cuDevSmResourceSplitByCount_v12040 split =
      driver_function<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount", 12040);
  PFN_cuDevResourceGenerateDesc_v12040 describe =
      driver_function<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", 12040);
  PFN_cuGreenCtxCreate_v12040 create =
      driver_function<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", 12040);
  PFN_cuGreenCtxDestroy_v12040 destroy =
      driver_function<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy", 12040);
  PFN_cuGreenCtxStreamCreate_v12050 make_stream =
      driver_function<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate", 12050);
};

/// Says how multiprocessors are grouped: each part gets `groups` groups of `size`.
struct grouping {
  unsigned size = 0;
  unsigned groups = 0;

  [[nodiscard]] unsigned share() const noexcept { return size * groups; }
};

/// Finds the equal parts that leave the fewest multiprocessors unused: of all sizes of a group,
/// since the driver may give fewer large groups than the numbers suggest. Of equals, the largest
/// groups.
/// @throws error (bad_argument) when there are no so many parts; cuda_error
[[nodiscard]] inline grouping best_grouping(
    PFN_cuDevSmResourceSplitByCount_v12040 split, CUdevResource const& whole, unsigned parts) {
#if CUDA_VERSION >= 13000
  auto const least = std::max(whole.sm.minSmPartitionSize, 1U);
  auto const stride = std::max(whole.sm.smCoscheduledAlignment, 1U);
#else  // which does not tell; this suits every device
  constexpr unsigned least = 8;
  constexpr unsigned stride = 8;
#endif
  grouping best;
  unsigned max_buffers = 0;
  for (unsigned size = least; size <= whole.sm.smCount; size += stride) {
    unsigned possible = 0;
    auto const status = split(nullptr, &possible, &whole, nullptr, 0, size);
    if (status == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION) continue;  // another size may do
    check_driver(status);
    max_buffers = std::max(max_buffers, possible);
    grouping const now{size, possible / parts};
    if (now.groups > 0 && now.share() >= best.share()) best = now;
  }
  if (best.groups == 0)
    throw error(
        errc::bad_argument,
        "the device cannot be cut into " + std::to_string(parts) + " parts; with " +
            std::to_string(whole.sm.smCount) + " multiprocessors in groups of at least " +
            std::to_string(least) + " there are at most " + std::to_string(max_buffers));
  return best;
}

}  // namespace detail

/// Holds equal parts of one GPU, each with a stream whose kernels stay on the part's own
/// multiprocessors. Destroy the pipelines that use it first.
///
/// The contexts are never made current: work is launched as ever, and the stream carries the part.
/// Libraries that choose kernels by the number of multiprocessors ask `sm_count(at)`.
///
/// That parts share no multiprocessors does not yet let their streams run at once: streams take the
/// hardware queues of a device in turn, and one that waits holds up those behind it. Have queues
/// enough (`queue_shortage`), and make the parts right before the pipeline that uses them.
class partition {
 public:
  /// Makes as large parts as the device allows.
  /// @throws error (bad_argument) when the device has no so many parts; (device_failed) when the
  ///         driver is older than CUDA 12.5; cuda_error
  partition(int device, int parts) : device_(device) {
    zbpp::detail::require(parts >= 1, "a device is cut into at least 1 part");
    device_guard const here(device);
    check(cudaSetDevice(device));  // what the driver's own functions need is set up by this
    detail::green_functions const driver;
    CUdevice native = 0;
    detail::check_driver(driver.device_get(&native, device));
    CUdevResource whole{};
    detail::check_driver(driver.resource_of(native, &whole, CU_DEV_RESOURCE_TYPE_SM));
    auto const each = detail::best_grouping(driver.split, whole, static_cast<unsigned>(parts));

    // All of one split: groups of two calls may overlap.
    auto count = static_cast<unsigned>(parts) * each.groups;
    std::vector<CUdevResource> groups(count);
    detail::check_driver(driver.split(groups.data(), &count, &whole, nullptr, 0, each.size));
    if (count != groups.size())
      throw error(
          errc::device_failed,
          "the driver made " + std::to_string(count) + " groups of multiprocessors where it had " +
              "promised " + std::to_string(groups.size()));
    unused_ = static_cast<int>(whole.sm.smCount);
    for (std::size_t first = 0; first < groups.size(); first += each.groups) {
      parts_.push_back(make_part(driver, native, std::span(groups).subspan(first, each.groups)));
      unused_ -= parts_.back().sm_count;
    }
  }

  /// @return a rank_device for each part, in order; they name its streams, so it outlives their
  /// users
  [[nodiscard]] std::vector<rank_device> devices() const {
    std::vector<rank_device> all;
    for (auto const& p : parts_)
      all.push_back({.device = device_, .compute = p.compute.get(), .sm_count = p.sm_count});
    return all;
  }
  /// @return how many parts there are
  [[nodiscard]] int parts() const noexcept { return static_cast<int>(parts_.size()); }
  /// @return how many multiprocessors a part has
  [[nodiscard]] int sm_count(int part) const noexcept {
    return parts_[zbpp::detail::index(part)].sm_count;
  }
  /// @return how many multiprocessors of the device no part has
  [[nodiscard]] int unused_sms() const noexcept { return unused_; }

 private:
  using context = std::unique_ptr<CUgreenCtx_st, PFN_cuGreenCtxDestroy_v12040>;
  struct owned_part {
    context home;
    detail::unique_handle<cudaStream_t, cudaStreamDestroy> compute;  // destroyed before its context
    int sm_count = 0;
  };

  [[nodiscard]] static owned_part make_part(
      detail::green_functions const& driver, CUdevice device, std::span<CUdevResource> groups) {
    CUdevResourceDesc description = nullptr;
    detail::check_driver(
        driver.describe(&description, groups.data(), static_cast<unsigned>(groups.size())));
    CUgreenCtx home = nullptr;
    detail::check_driver(driver.create(&home, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    owned_part made{context(home, driver.destroy), {}, 0};
    CUstream compute = nullptr;
    detail::check_driver(driver.make_stream(&compute, home, CU_STREAM_NON_BLOCKING, 0));
    made.compute = detail::unique_handle<cudaStream_t, cudaStreamDestroy>(compute);
    for (auto const& group : groups) made.sm_count += static_cast<int>(group.sm.smCount);
    return made;
  }

  int device_;
  int unused_ = 0;
  std::vector<owned_part> parts_;
};

/// @return how many hardware queues the streams of a device share: CUDA_DEVICE_MAX_CONNECTIONS, as
///         it stands in the environment, which CUDA reads once; 8 where it says nothing
[[nodiscard]] inline int device_connections() noexcept {
  char const* const stated = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  int const count = stated == nullptr ? 0 : std::atoi(stated);
  return count < 1 ? 8 : std::min(count, 32);
}

/// Counts the streams of a plan: one per rank, and one per channel on the receiver's device.
/// @param devices  one per rank; none: all on one device
/// @return what is wrong and what would be right, when the streams of a device have to share
///         hardware queues, where one that waits holds up the others; empty when all is well
/// @throws error (bad_argument) when there are devices, but not one for each rank
[[nodiscard]] inline std::string queue_shortage(
    plan const& planned, std::span<rank_device const> devices = {}) {
  auto const ranks = zbpp::detail::index(planned.problem().ranks());
  if (!devices.empty() && devices.size() != ranks)
    throw error(
        errc::bad_argument,
        "there are " + std::to_string(devices.size()) + " devices for " + std::to_string(ranks) +
            " ranks; state one for each, or none");
  auto const device_of_rank = [&](std::size_t rank) {
    return devices.empty() ? 0 : devices[rank].device;
  };
  std::vector<int> homes;  // of all streams
  for (std::size_t rank = 0; rank < ranks; ++rank) homes.push_back(device_of_rank(rank));
  traffic const messages(planned.program());
  for (auto const& c : messages.channels())
    homes.push_back(device_of_rank(zbpp::detail::index(c.to)));
  std::ptrdiff_t most = 0;
  for (int const device : homes) most = std::max(most, std::ranges::count(homes, device));
  auto const there = device_connections();
  if (most <= there) return {};
  return std::to_string(most) + " streams share " + std::to_string(there) +
         " hardware queues of a device, and one that waits may hold up another; set "
         "CUDA_DEVICE_MAX_CONNECTIONS to " +
         std::to_string(std::min<std::ptrdiff_t>(most, 32)) +
         " in the environment before the program starts" +
         (most > 32 ? " (CUDA has no more than 32)" : "");
}

}  // namespace zbpp::cuda
