// SPDX-License-Identifier: Apache-2.0
//
// Products by cuBLASLt. It repeats its bits where algorithm and workspace are the same: so each
// stage has a workspace of its own, and algorithms are chosen by sizes, strides and the number of
// multiprocessors alone, never by an address.
#include "device_array.hpp"
#include "products.hpp"

#include <array>
#include <cstdint>
#include <cublasLt.h>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace gpt::cuda {
namespace {

void check(cublasStatus_t status, char const* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw zbpp::error(
        zbpp::errc::device_failed,
        std::string(call) + " reports " + cublasLtGetStatusName(status) + ": " +
            cublasLtGetStatusString(status));
}

/// Owns an object of cuBLASLt.
template <class Native, cublasStatus_t (*destroy)(Native)>
class owned {
 public:
  owned() = default;
  explicit owned(Native native) : native_(native) {}
  owned(owned const&) = delete;
  owned(owned&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
  owned& operator=(owned const&) = delete;
  owned& operator=(owned&& other) noexcept {
    std::swap(native_, other.native_);
    return *this;
  }
  ~owned() {
    if (native_ != nullptr) destroy(native_);
  }
  [[nodiscard]] Native get() const { return native_; }

 private:
  Native native_ = nullptr;
};

using handle = owned<cublasLtHandle_t, cublasLtDestroy>;
using description = owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using layout = owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using preference = owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class Value>
void set(description const& of, cublasLtMatmulDescAttributes_t what, Value const& value) {
  check(
      cublasLtMatmulDescSetAttribute(of.get(), what, &value, sizeof(value)),
      "cublasLtMatmulDescSetAttribute");
}
template <class Value>
void set(preference const& of, cublasLtMatmulPreferenceAttributes_t what, Value const& value) {
  check(
      cublasLtMatmulPreferenceSetAttribute(of.get(), what, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute");
}

/// Makes the layout of a matrix: what are rows here are columns of cuBLAS.
layout make_layout(
    cudaDataType_t type, index rows, index columns, index stride, index next, index batch) {
  cublasLtMatrixLayout_t made = nullptr;
  check(
      cublasLtMatrixLayoutCreate(
          &made,
          type,
          static_cast<std::uint64_t>(columns),
          static_cast<std::uint64_t>(rows),
          stride),
      "cublasLtMatrixLayoutCreate");
  layout owner(made);
  auto const count = static_cast<std::int32_t>(batch);
  std::int64_t const distance = next;
  for (auto const& [what, value, bytes] :
       {std::tuple(
            CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<void const*>(&count), sizeof(count)),
        std::tuple(
            CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
            static_cast<void const*>(&distance),
            sizeof(distance))})
    check(
        cublasLtMatrixLayoutSetAttribute(made, what, value, bytes),
        "cublasLtMatrixLayoutSetAttribute");
  return owner;
}

layout make_layout(factor const& f, index rows, index columns, index batch) {
  return f.transposed ? make_layout(CUDA_R_16BF, columns, rows, f.stride, f.next, batch)
                      : make_layout(CUDA_R_16BF, rows, columns, f.stride, f.next, batch);
}

cublasLtEpilogue_t native(epilogue::kind what) {
  switch (what) {
    case epilogue::kind::none: break;
    case epilogue::kind::bias: return CUBLASLT_EPILOGUE_BIAS;
    case epilogue::kind::bias_gelu: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case epilogue::kind::gelu_backward: return CUBLASLT_EPILOGUE_DGELU;
    // Factor a of ours is the second one of cuBLAS, with its columns.
    case epilogue::kind::row_sums: return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

/// Is all that an algorithm is chosen by.
using sizes = std::array<index, 16>;

sizes sizes_of(product const& p) {
  return {
      p.rows,
      p.columns,
      p.inner,
      p.batch,
      p.a.stride,
      p.a.next,
      p.a.transposed ? 1 : 0,
      p.b.stride,
      p.b.next,
      p.b.transposed ? 1 : 0,
      p.to.stride,
      p.to.next,
      p.to.wide != nullptr ? 1 : 0,
      static_cast<index>(p.then.what),
      p.adds ? 1 : 0,
      p.residual != nullptr ? 1 : 0};
}

/// Is how products of some sizes are made.
struct recipe {
  description how;
  layout a, b, to;
  cublasLtMatmulAlgo_t algorithm{};
  bool is_there = false;
};

}  // namespace

struct products::state {
  explicit state(int sm_count_) : room(workspace), sm_count(sm_count_) {
    cublasLtHandle_t made = nullptr;
    check(cublasLtCreate(&made), "cublasLtCreate");
    native = handle(made);
  }

  recipe const& of(product const& p) {
    auto const sizes = sizes_of(p);
    auto found = recipes.find(sizes);
    if (found == recipes.end()) {
      recipe made;  // kept only once it is whole
      fill(made, p);
      found = recipes.emplace(sizes, std::move(made)).first;
    }
    return found->second;
  }

  // cuBLAS is column major, where every matrix of ours is its transpose: so it is given the
  // product of the transposes, the second factor first.
  void fill(recipe& to, product const& p) {
    cublasLtMatmulDesc_t made = nullptr;
    check(
        cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
    to.how = description(made);
    auto const operation = [](factor const& f) { return f.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(to.how, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.b));
    set(to.how, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.a));
    set(to.how, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, static_cast<std::int32_t>(sm_count));
    set(to.how, CUBLASLT_MATMUL_DESC_EPILOGUE, cuda::native(p.then.what));
    // Own addresses are aligned at least as these are.
    constexpr std::size_t alignment_of_parameters = 32;
    set_pointers(to.how, p, room.data() + alignment_of_parameters, static_cast<void*>(room.data()));
    auto const type = p.to.wide != nullptr ? CUDA_R_32F : CUDA_R_16BF;
    to.a = make_layout(p.a, p.rows, p.inner, p.batch);
    to.b = make_layout(p.b, p.inner, p.columns, p.batch);
    to.to = make_layout(type, p.rows, p.columns, p.to.stride, p.to.next, p.batch);
    choose(to);
  }

  void choose(recipe& to) const {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    preference const wanted(made);
    set(wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace});
    // Sums that are cut in pieces are added in fp32 as well.
    set(wanted,
        CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (auto const what :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(wanted, what, std::uint32_t{16});  // that of a head's rows
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    auto const status = cublasLtMatmulAlgoGetHeuristic(
        native.get(),
        to.how.get(),
        to.b.get(),
        to.a.get(),
        to.to.get(),
        to.to.get(),
        wanted.get(),
        1,
        &best,
        &count);
    // What it says of an epilogue that it does not have for the types.
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
      check(status, "cublasLtMatmulAlgoGetHeuristic");
    to.is_there = status == CUBLAS_STATUS_SUCCESS && count > 0;
    to.algorithm = best.algo;
  }

  static void set_pointers(description const& how, product const& p, void* vector, void* matrix) {
    auto const what = p.then.what;
    if (what == epilogue::kind::none) return;
    if (what != epilogue::kind::gelu_backward) set(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
    if (what != epilogue::kind::gelu_backward && what != epilogue::kind::bias_gelu) return;
    set(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matrix);
    set(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{p.to.stride});
  }

  device_array<std::byte> room;
  int sm_count;
  handle native;
  std::map<sizes, recipe> recipes;
};

products::products(int sm_count) : state_(std::make_unique<state>(sm_count)) {}
products::products(products&&) noexcept = default;
products& products::operator=(products&&) noexcept = default;
products::~products() = default;

bool products::has(product const& what) { return state_->of(what).is_there; }

void products::operator()(cudaStream_t on, product const& what) {
  auto const& how = state_->of(what);
  if (!how.is_there)
    throw zbpp::error(
        zbpp::errc::device_failed,
        "cuBLASLt has no algorithm for a product of " + std::to_string(what.rows) + " x " +
            std::to_string(what.inner) + " x " + std::to_string(what.columns) +
            " on this device; choose other sizes");
  bool const sums = what.then.what == epilogue::kind::row_sums;
  void const* const vector = sums ? static_cast<void const*>(what.then.row_sums)
                                  : static_cast<void const*>(what.then.bias);
  state::set_pointers(how.how, what, const_cast<void*>(vector), what.then.gelu_input);
  float const beta = what.adds || what.residual != nullptr ? 1.0F : 0.0F;
  void* const to = what.to.wide != nullptr ? static_cast<void*>(what.to.wide)
                                           : static_cast<void*>(what.to.narrow);
  check(
      cublasLtMatmul(
          state_->native.get(),
          how.how.get(),
          &what.scale,
          what.b.data,
          how.b.get(),
          what.a.data,
          how.a.get(),
          &beta,
          what.residual != nullptr ? what.residual : to,
          how.to.get(),
          to,
          how.to.get(),
          &how.algorithm,
          state_->room.data(),
          state_->room.size(),
          on),
      "cublasLtMatmul");
}

}  // namespace gpt::cuda
