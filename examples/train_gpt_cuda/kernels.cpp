// SPDX-License-Identifier: Apache-2.0
//
// All kernels, instantiated: by nvcc through kernels.cu for a GPU, by the compiler of the host for
// the model of CUDA.
#include "kernels.hpp"

#include "launch.hpp"

namespace gpt::cuda {

template <class Rows>
void run(cudaStream_t on, Rows const& what) {
  launch_rows(on, what);
}

template void run(cudaStream_t, place_sequences const&);
template void run(cudaStream_t, embed const&);
template void run(cudaStream_t, norm const&);
template void run(cudaStream_t, causal_softmax const&);
template void run(cudaStream_t, cross_entropy const&);
template void run(cudaStream_t, mean_loss const&);
template void run(cudaStream_t, norm_backward const&);
template void run(cudaStream_t, causal_softmax_backward const&);
template void run(cudaStream_t, column_sums const&);
template void run(cudaStream_t, norm_weights const&);
template void run(cudaStream_t, add_sums const&);
template void run(cudaStream_t, embed_token_backward const&);
template void run(cudaStream_t, embed_position_backward const&);
template void run(cudaStream_t, round_weights const&);

}  // namespace gpt::cuda
