// SPDX-License-Identifier: Apache-2.0
#include <bench/cuda/work.hpp>
#include <cublas_v2.h>
#include <string>

namespace zbpp::bench {
namespace {

constexpr int size = 4096;  // of all matrices, both ways
constexpr std::size_t elements = std::size_t{size} * size;
constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw error(errc::device_failed, std::string("cuBLAS reports ") + cublasGetStatusName(status));
}

// What one rank multiplies.
class multiplier {
 public:
  explicit multiplier(cuda::rank_device const& at) {
    cublasHandle_t made = nullptr;
    check(cublasCreate(&made));
    handle_.reset(made);
    check(cublasSetStream(made, at.compute));
    check(cublasSetWorkspace(made, workspace_.get(), workspace_bytes));
    check(cublasSetSmCountTarget(made, at.sm_count));
    std::uint32_t seed = 1;
    for (auto const* values : {&input_, &weights_, &gradient_})
      cuda::check(fill_bf16(at.compute, values->get(), elements, seed++));
    cuda::check(cudaMemsetAsync(sum_.get(), 0, elements * sizeof(float), at.compute));
  }

  void operator()(cuda::stream_ref on, pass_kind what) const {
    check(cublasSetStream(handle_.get(), on));
    // A new stream takes the workspace away.
    check(cublasSetWorkspace(handle_.get(), workspace_.get(), workspace_bytes));
    switch (what) {
      case pass_kind::forward: return multiply(CUBLAS_OP_N, weights_, input_, result_);
      case pass_kind::backward_input: return multiply(CUBLAS_OP_T, weights_, gradient_, result_);
      default: return multiply(CUBLAS_OP_N, gradient_, input_, sum_);
    }
  }

 private:
  struct destroy {
    void operator()(cublasContext* handle) const noexcept { cublasDestroy(handle); }
  };

  void multiply(
      cublasOperation_t first_is,
      device_memory const& first,
      device_memory const& second,
      device_memory const& to) const {
    bool const adds = &to == &sum_;
    float const one = 1;
    float const old = adds ? 1 : 0;
    check(cublasGemmEx(
        handle_.get(),
        first_is,
        adds ? CUBLAS_OP_T : CUBLAS_OP_N,
        size,
        size,
        size,
        &one,
        first.get(),
        CUDA_R_16BF,
        size,
        second.get(),
        CUDA_R_16BF,
        size,
        &old,
        to.get(),
        adds ? CUDA_R_32F : CUDA_R_16BF,
        size,
        CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT));
  }

  device_memory workspace_{workspace_bytes};
  device_memory input_{2 * elements};
  device_memory weights_{2 * elements};
  device_memory gradient_{2 * elements};
  device_memory result_{2 * elements};
  device_memory sum_{elements * sizeof(float)};
  std::unique_ptr<cublasContext, destroy> handle_;
};

}  // namespace

work products(std::vector<cuda::rank_device> const& devices, int products) {
  auto const all = std::make_shared<std::vector<std::unique_ptr<multiplier>>>();
  for (auto const& at : devices) all->push_back(std::make_unique<multiplier>(at));
  return [=](cuda::stream_ref on, int rank, pass_kind what) {
    for (int i = 0; i < products; ++i) (*(*all)[zbpp::detail::index(rank)])(on, what);
  };
}

}  // namespace zbpp::bench
