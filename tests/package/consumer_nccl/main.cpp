// SPDX-License-Identifier: Apache-2.0
//
// Links what a trainer on GPUs needs; runs where there is none.
#include <zbpp/cuda/device.hpp>
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/zbpp.hpp>

int main() {
  static_assert(zbpp::backend<zbpp::cuda::device>);
  static_assert(zbpp::backend<zbpp::nccl::ranks>);
  int version = 0;
  zbpp::cuda::check(cudaRuntimeGetVersion(&version));
  int nccl_version = 0;
  zbpp::nccl::check(ncclGetVersion(&nccl_version));
  return version >= 12080 && nccl_version >= 22200 ? 0 : 1;
}
