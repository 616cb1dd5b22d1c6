// SPDX-License-Identifier: Apache-2.0
//
// Cuts one GPU into equal, disjoint groups of multiprocessors by green contexts, so that several
// ranks run side by side on it. Memory, second-level cache, copy engines and power stay shared.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/detail/copy_trial.hpp>
#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/cuda/detail/timing.hpp>
#include <zbpp/cuda/device_needs.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/rank_device.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace zbpp::cuda {

/// Holds equal parts of one GPU, each with a stream whose kernels stay on the part's own
/// multiprocessors. Destroy the pipelines that use it first.
///
/// The contexts are never made current: launch work as usual, and the stream confines it to its
/// part. Give `sm_count(ctx)` to libraries that choose kernels by the number of multiprocessors.
///
/// Streams of different parts may still hold each other up, for they share the hardware queues of
/// the device, where one that waits blocks those after it. Check `queue_shortage`, and make the
/// parts right before the pipeline that uses them. CUDA does not guarantee that parts run at the
/// same time. Once a module with dynamic parallelism is loaded, parts of a device of compute
/// capability 9 may use two multiprocessors more, which they share.
class partition {
 public:
  /// Makes the parts as large as the device allows, and tries what ranks need of their streams.
  /// @throws error (bad_argument) when the device makes fewer parts; (device_failed) when the
  ///         driver is older than CUDA 12.5; cuda_error, also when the streams do not do as others
  partition(int device, int parts);

  /// @return a rank_device for each part, in order; they refer to its streams, so it outlives them
  [[nodiscard]] std::vector<rank_device> devices() const {
    std::vector<rank_device> all;
    for (auto const& p : parts_)
      all.push_back({.device = device_, .compute = p.compute.get(), .sm_count = p.sm_count});
    return all;
  }
  [[nodiscard]] int parts() const noexcept { return static_cast<int>(parts_.size()); }
  [[nodiscard]] int sm_count(int part) const noexcept {
    return parts_[zbpp::detail::index(part)].sm_count;
  }
  [[nodiscard]] int unused_sms() const noexcept { return unused_; }

 private:
  using context = std::unique_ptr<CUgreenCtx_st, PFN_cuGreenCtxDestroy_v12040>;
  struct owned_part {
    context home;
    detail::unique_handle<cudaStream_t, cudaStreamDestroy> compute;  // destroyed before its context
    int sm_count = 0;
  };

  [[nodiscard]] static owned_part make_part(
      detail::green_functions const& driver, CUdevice device, std::span<CUdevResource> groups);
  void try_streams() const;

  int device_;
  int unused_ = 0;
  std::vector<owned_part> parts_;
};

/// Counts the streams of a plan: one per rank, a second one where the rank has pairs, and on the
/// receiver's device one per channel from another device.
/// @param devices  one per rank; none: all on one device
/// @return a warning that says what to set, when streams of a device have to share hardware queues,
///         where one that waits holds up the others; empty when there are enough queues
/// @throws error (bad_argument) when there are devices, but not one for each rank
[[nodiscard]] inline std::string queue_shortage(
    plan const& planned, std::span<rank_device const> devices = {});

inline partition::partition(int device, int parts) : device_(device) {
  zbpp::detail::require(
      parts >= 1, "a device cannot be cut into fewer than 1 part; give 1 or more");
  device_guard const here(device);
  check(cudaSetDevice(device));  // initializes the device for the driver's functions
  detail::green_functions const driver;
  CUdevice native = 0;
  detail::check_driver(driver.device_get(&native, device));
  CUdevResource whole{};
  detail::check_driver(driver.resource_of(native, &whole, CU_DEV_RESOURCE_TYPE_SM));
  auto const each = detail::best_grouping(driver.split, whole, static_cast<unsigned>(parts));

  // All groups come from one split: those of two calls may overlap.
  auto count = static_cast<unsigned>(parts) * each.groups;
  std::vector<CUdevResource> groups(count);
  detail::check_driver(driver.split(groups.data(), &count, &whole, nullptr, 0, each.size));
  if (count != groups.size())
    throw error(errc::device_failed) + "the driver made " + count +
        " groups of multiprocessors and had promised " + groups.size() +
        "; run ranks on plain streams instead";
  unused_ = static_cast<int>(whole.sm.smCount);
  for (std::size_t first = 0; first < groups.size(); first += each.groups) {
    parts_.push_back(make_part(driver, native, std::span(groups).subspan(first, each.groups)));
    unused_ -= parts_.back().sm_count;
  }
  try_streams();
}

inline partition::owned_part partition::make_part(
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

namespace detail {

/// Tries what ranks need of a stream: to wait for another one, to tell times, and to be captured.
/// @param scratch  a byte of the device
/// @throws cuda_error
inline void try_stream(stream_ref on, stream_ref other, std::byte* scratch) {
  event const begin(event_kind::timing);
  event const end(event_kind::timing);
  run_to_end(other, [&] { other.record(begin); });
  run_to_end(on, [&] {
    on.wait(begin);
    capture node(on);
    check(cudaMemsetAsync(scratch, 0, 1, on));
    auto const graph = node.finish();
    check(cudaGraphLaunch(graph.get(), on));
    on.record(end);
  });
  static_cast<void>(time_between(begin, end));
}

}  // namespace detail

// Streams of green contexts are younger than most functions that take a stream. What a driver does
// not do yet shows here, and not within a step.
inline void partition::try_streams() const {
  device_array<std::byte> const scratch(1);
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    // Of each other, since one more stream would take a hardware queue.
    auto const& other = parts_[(part + 1) % parts_.size()];
    try {
      detail::try_stream(parts_[part].compute.get(), other.compute.get(), scratch.data());
    } catch (cuda_error const& failed) {
      throw cuda_error(
          failed.native(),
          zbpp::detail::joined("the stream of part ") + part + " of device " + device_ +
              " does not do what other streams do; run ranks on plain streams of the whole device "
              "instead: " +
              failed.what());
    }
  }
}

inline std::string queue_shortage(plan const& planned, std::span<rank_device const> devices) {
  std::vector<int> numbers(devices.size());
  std::ranges::transform(devices, numbers.begin(), &rank_device::device);
  int most = 0;
  for (auto const& each : device_needs_of(planned.program(), planned.problem(), numbers))
    most = std::max(most, each.hardware_queues);
  auto const there = device_connections();
  if (most <= there) return {};
  return zbpp::detail::joined(most) + " streams share " + there +
         " hardware queues of a device, and one that waits may hold up another; set "
         "CUDA_DEVICE_MAX_CONNECTIONS to " +
         std::min(most, most_device_connections) + " in the environment before the program starts" +
         (most > most_device_connections ? " (CUDA has no more than 32)" : "");
}

}  // namespace zbpp::cuda
