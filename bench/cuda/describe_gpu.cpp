// SPDX-License-Identifier: Apache-2.0
//
// Says in a line of JSON what the first GPU is. Exit status: 0 good, 1 CUDA failed, 3 no device.
#include <cuda_runtime_api.h>

#include <cstdio>

int main() {
  int devices = 0;
  cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "CUDA finds no device: %s\n", cudaGetErrorString(status));
    return 3;
  }
  cudaDeviceProp about{};
  int driver = 0;
  int runtime = 0;
  status = cudaGetDeviceProperties(&about, 0);
  if (status == cudaSuccess) status = cudaDriverGetVersion(&driver);
  if (status == cudaSuccess) status = cudaRuntimeGetVersion(&runtime);
  if (status != cudaSuccess) {
    std::fprintf(stderr, "CUDA cannot describe its device: %s\n", cudaGetErrorString(status));
    return 1;
  }
  std::printf(
      "{\"name\": \"%s\", \"devices\": %d, \"multiprocessors\": %d, \"memory_bytes\": %zu, "
      "\"compute_capability\": \"%d.%d\", \"driver_cuda\": \"%d.%d\", \"runtime_cuda\": "
      "\"%d.%d\", \"pci\": \"%08x:%02x:%02x.0\"}\n",
      about.name,
      devices,
      about.multiProcessorCount,
      about.totalGlobalMem,
      about.major,
      about.minor,
      driver / 1000,
      driver % 1000 / 10,
      runtime / 1000,
      runtime % 1000 / 10,
      static_cast<unsigned>(about.pciDomainID),
      static_cast<unsigned>(about.pciBusID),
      static_cast<unsigned>(about.pciDeviceID));
}
