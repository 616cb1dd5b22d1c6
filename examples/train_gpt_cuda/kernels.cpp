// SPDX-License-Identifier: Apache-2.0
//
// The one place that launches kernels, all of which it instantiates: by nvcc through kernels.cu, a
// launch is a warp a row; by the compiler of the host for the model of CUDA, it is a host function
// that the model runs, with what it reads and writes.
#include "rows.hpp"
#include <zbpp/cuda/error.hpp>

namespace gpt::cuda {

#ifdef ZBPP_CUDA_MODEL

template <class Rows>
void run(cudaStream_t on, Rows const& what) {
  touching touched;
  what.touches(touched);
  auto const body = [what] {
    for (index row = 0; row < what.rows(); ++row) what(lanes(), row);
  };
  // Own choice: a microsecond a row of the model's time, so that measured times say something.
  zbpp::cuda::check(zbpp::cuda_model::launch(
      on, Rows::name, touched.read, touched.written, body, 1000 * what.rows()));
}

#else

/// Own choice: rows of a thread block, so that 8 blocks fill a multiprocessor.
inline constexpr int rows_of_block = 8;

template <class Rows>
__global__ void __launch_bounds__(rows_of_block* lanes::count)
    run_rows(Rows const what, index rows) {
  index const row = index{blockIdx.x} * rows_of_block + threadIdx.x / lanes::count;
  if (row < rows) what(lanes(), row);
}

template <class Rows>
void run(cudaStream_t on, Rows const& what) {
  auto const rows = what.rows();
  auto const blocks = static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block);
  run_rows<<<blocks, rows_of_block * lanes::count, 0, on>>>(what, rows);
  zbpp::cuda::check(cudaGetLastError());
}

#endif

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
