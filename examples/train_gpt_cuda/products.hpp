// SPDX-License-Identifier: Apache-2.0
//
// Matrix products in row-major terms: bf16 in, fp32 sums, bf16 or fp32 out, and what is done with a
// sum before it is stored. Two implementations: products_cublas.cpp for a GPU and
// products_model.cpp for the model of CUDA. What fails on the device is zbpp::error
// (device_failed).
#pragma once

#include "lanes.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

namespace gpt::cuda {

/// Is a factor of a product: a matrix whose rows lie `stride` elements apart, or one a product of a
/// batch, `next` elements apart.
struct factor {
  bf16 const* data;
  index stride;
  index next = 0;
  bool transposed = false;  ///< whether its transpose is meant
};

/// Is where a product goes, laid out as a factor is.
struct product_result {
  product_result(bf16* data, index stride_, index next_ = 0)
      : narrow(data), stride(stride_), next(next_) {}
  product_result(float* data, index stride_) : wide(data), stride(stride_) {}

  bf16* narrow = nullptr;
  float* wide = nullptr;
  index stride;
  index next = 0;
};

/// Says what is done with the sums of a product before they are rounded, or beside it.
struct epilogue {
  enum class kind {
    none,
    bias,           ///< adds `bias` [columns] to every row
    bias_gelu,      ///< adds it, puts that to `gelu_input`, and applies GELU
    gelu_backward,  ///< multiplies by the slope of GELU at `gelu_input`
    row_sums,       ///< sets `row_sums` [rows] to the sums of the rows of factor a
  };
  kind what = kind::none;
  bf16 const* bias = nullptr;
  bf16* gelu_input = nullptr;  ///< laid out as the result, which is bf16
  float* row_sums = nullptr;
};

/// Says which product: to [rows, columns] = scale * a [rows, inner] b [inner, columns], plus what
/// was there where it `adds`, or plus `residual`.
struct product {
  index rows;
  index columns;
  index inner;
  factor a;
  factor b;
  product_result to;
  epilogue then = {};
  float scale = 1.0F;
  bool adds = false;
  bf16 const* residual = nullptr;  ///< null, or laid out as the result, which is bf16
  index batch = 1;
};

/// Multiplies, always in the same order for the same sizes and the same number of multiprocessors.
/// Its products share a workspace: those on several streams need an order.
class products {
 public:
  /// Bytes of device memory that it works in; cuBLAS wants 32 MiB on compute capability 9.0.
  static constexpr std::size_t workspace = std::size_t{32} << 20U;

  /// Makes a handle and its workspace on the current device.
  /// @param sm_count  multiprocessors that the streams have
  explicit products(int sm_count);

  /// @return whether there is an algorithm for it; one without row sums that the device cannot
  ///         multiply is an error when it is enqueued
  [[nodiscard]] bool has(product const& what) const;
  /// Enqueues a product.
  void operator()(cudaStream_t on, product const& what) const;

 private:
  struct state;
  std::shared_ptr<state> state_;  // deletes what is not known here
};

}  // namespace gpt::cuda
