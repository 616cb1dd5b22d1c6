// SPDX-License-Identifier: Apache-2.0
//
// Products by cuBLAS. It repeats its bits where the algorithm and the workspace are the same: so
// each stage has a handle and a workspace of its own, and says how many multiprocessors it has.
#include "device_array.hpp"
#include "products.hpp"

#include <cublas_v2.h>
#include <string>

namespace gpt::cuda {
namespace {

void check(cublasStatus_t status, char const* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw zbpp::error(
        zbpp::errc::device_failed,
        std::string(call) + " reports " + cublasGetStatusName(status) + ": " +
            cublasGetStatusString(status));
}

class handle {
 public:
  handle() { check(cublasCreate(&native_), "cublasCreate"); }
  handle(handle const&) = delete;
  handle& operator=(handle const&) = delete;
  ~handle() { cublasDestroy(native_); }
  [[nodiscard]] cublasHandle_t get() const { return native_; }

 private:
  cublasHandle_t native_ = nullptr;
};

}  // namespace

struct products::state {
  explicit state(int sm_count) : room(workspace) {
    check(cublasSetSmCountTarget(native.get(), sm_count), "cublasSetSmCountTarget");
    // Sums that are cut in pieces are added in fp32 as well.
    auto const precise = static_cast<cublasMath_t>(
        static_cast<unsigned>(CUBLAS_DEFAULT_MATH) |
        static_cast<unsigned>(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    check(cublasSetMathMode(native.get(), precise), "cublasSetMathMode");
  }

  void bind(cudaStream_t stream) {
    if (stream == bound) return;
    check(cublasSetStream(native.get(), stream), "cublasSetStream");
    // A new stream resets the workspace.
    check(cublasSetWorkspace(native.get(), room.data(), room.size()), "cublasSetWorkspace");
    bound = stream;
  }

  device_array<std::byte> room;  // outlives the handle
  handle native;
  cudaStream_t bound = nullptr;
};

products::products(int sm_count) : state_(std::make_unique<state>(sm_count)) {}
products::products(products&&) noexcept = default;
products& products::operator=(products&&) noexcept = default;
products::~products() = default;

void products::operator()(cudaStream_t on, product const& what) {
  state_->bind(on);
  auto const operation = [](factor const& f) { return f.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  float const beta = what.adds ? 1.0F : 0.0F;
  void* const to = what.to.wide != nullptr ? static_cast<void*>(what.to.wide)
                                           : static_cast<void*>(what.to.narrow);
  // cuBLAS is column major, where every matrix of ours is its transpose: so it is given the
  // product of the transposes, the second factor first.
  auto const status = cublasGemmStridedBatchedEx(
      state_->native.get(),
      operation(what.b),
      operation(what.a),
      static_cast<int>(what.columns),
      static_cast<int>(what.rows),
      static_cast<int>(what.inner),
      &what.scale,
      what.b.data,
      CUDA_R_16BF,
      static_cast<int>(what.b.stride),
      what.b.next,
      what.a.data,
      CUDA_R_16BF,
      static_cast<int>(what.a.stride),
      what.a.next,
      &beta,
      to,
      what.to.wide != nullptr ? CUDA_R_32F : CUDA_R_16BF,
      static_cast<int>(what.to.stride),
      what.to.next,
      static_cast<int>(what.batch),
      CUBLAS_COMPUTE_32F,
      CUBLAS_GEMM_DEFAULT);
  check(status, "cublasGemmStridedBatchedEx");
}

}  // namespace gpt::cuda
