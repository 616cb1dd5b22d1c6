// SPDX-License-Identifier: Apache-2.0
//
// Two parts of the first GPU, made as zbpp makes those of its ranks.
#pragma once

#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

namespace zbpp::bench {

/// Two green contexts with a stream each, which the end of the process takes away.
struct two_parts {
  std::vector<cuda::stream_ref> streams;
  std::vector<unsigned> multiprocessors;

  two_parts() {
    cuda::check(cudaSetDevice(0));
    cuda::detail::green_functions const driver;
    CUdevice device = 0;
    cuda::detail::check_driver(driver.device_get(&device, 0));
    CUdevResource whole{};
    cuda::detail::check_driver(driver.resource_of(device, &whole, CU_DEV_RESOURCE_TYPE_SM));
    auto const each = cuda::detail::best_grouping(driver.split, whole, 2);
    unsigned count = 2 * each.groups;
    std::vector<CUdevResource> groups(count);
    cuda::detail::check_driver(driver.split(groups.data(), &count, &whole, nullptr, 0, each.size));
    for (unsigned part = 0; part < 2; ++part) {
      CUdevResourceDesc description = nullptr;
      cuda::detail::check_driver(
          driver.describe(&description, &groups[part * each.groups], each.groups));
      CUgreenCtx home = nullptr;
      cuda::detail::check_driver(
          driver.create(&home, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
      CUstream stream = nullptr;
      cuda::detail::check_driver(driver.make_stream(&stream, home, CU_STREAM_NON_BLOCKING, 0));
      streams.emplace_back(stream);
      multiprocessors.push_back(each.share());
    }
  }
};

}  // namespace zbpp::bench
