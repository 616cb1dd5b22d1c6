// SPDX-License-Identifier: Apache-2.0
//
// The kernels of examples 10 to 12.
#include "toy_chain.hpp"

namespace toy {
namespace {

template <class Work>
__global__ void kernel(Work work, int count) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) work(i);
}

}  // namespace

template <class Work>
void run(cudaStream_t on, Work const& work, int count) {
  kernel<<<(count + 31) / 32, 32, 0, on>>>(work, count);
  zbpp::cuda::check(cudaGetLastError());
}

template void run(cudaStream_t, initial const&, int);
template void run(cudaStream_t, batch const&, int);
template void run(cudaStream_t, forward const&, int);
template void run(cudaStream_t, loss const&, int);
template void run(cudaStream_t, loss_gradient const&, int);
template void run(cudaStream_t, backward_input const&, int);
template void run(cudaStream_t, backward_weight const&, int);
template void run(cudaStream_t, update const&, int);

}  // namespace toy
