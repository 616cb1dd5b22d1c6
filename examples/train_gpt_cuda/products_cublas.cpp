// SPDX-License-Identifier: Apache-2.0
//
// Products by cuBLASLt. It repeats its bits where algorithm and workspace are the same: so each
// stage has a workspace of its own, and algorithms are chosen by sizes, strides and the number of
// multiprocessors alone, never by an address.
#include "products.hpp"
#include "weights.hpp"

#include <array>
#include <cstdint>
#include <cublasLt.h>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

namespace gpt::cuda {
namespace {

void check(cublasStatus_t status, char const* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw zbpp::error(zbpp::errc::device_failed) + call + " reports " +
        cublasLtGetStatusName(status) + ": " + cublasLtGetStatusString(status);
}

/// Destroys an object of cuBLASLt by a function of it.
template <auto function>
struct destroyer {
  template <class Object>
  void operator()(Object* object) const {
    function(object);
  }
};
template <class Native, auto destroy>
using owned = std::unique_ptr<std::remove_pointer_t<Native>, destroyer<destroy>>;

using handle = owned<cublasLtHandle_t, cublasLtDestroy>;
using description = owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using layout = owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using preference = owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// Makes an object by a function and what that takes.
template <class Owner, class Create, class... Arguments>
Owner make(char const* call, Create create, Arguments... from) {
  typename Owner::pointer made = nullptr;
  check(create(&made, from...), call);
  return Owner(made);
}

template <class Value>
void set(description const& of, cublasLtMatmulDescAttributes_t what, Value value) {
  check(
      cublasLtMatmulDescSetAttribute(of.get(), what, &value, sizeof(value)),
      "cublasLtMatmulDescSetAttribute");
}
template <class Value>
void set(layout const& of, cublasLtMatrixLayoutAttribute_t what, Value value) {
  check(
      cublasLtMatrixLayoutSetAttribute(of.get(), what, &value, sizeof(value)),
      "cublasLtMatrixLayoutSetAttribute");
}
template <class Value>
void set(preference const& of, cublasLtMatmulPreferenceAttributes_t what, Value value) {
  check(
      cublasLtMatmulPreferenceSetAttribute(of.get(), what, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute");
}

/// Makes the layout of a matrix as it lies there: what are rows here are columns of cuBLAS.
layout make_layout(
    cudaDataType_t type, index rows, index columns, index stride, index next, index batch) {
  auto made = make<layout>(
      "cublasLtMatrixLayoutCreate", cublasLtMatrixLayoutCreate, type, columns, rows, stride);
  set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch));
  set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{next});
  return made;
}

layout make_layout(factor const& f, index rows, index columns, index batch) {
  if (f.transposed) std::swap(rows, columns);
  return make_layout(CUDA_R_16BF, rows, columns, f.stride, f.next, batch);
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

void set_pointers(description const& how, product const& p, void* vector, void* matrix) {
  using enum epilogue::kind;
  auto const what = p.then.what;
  if (what != none && what != gelu_backward) set(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  if (what != bias_gelu && what != gelu_backward) return;
  set(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matrix);
  set(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{p.to.stride});
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
  recipe const& of(product const& p) {
    auto const sizes = sizes_of(p);
    auto found = recipes.find(sizes);
    if (found == recipes.end()) found = recipes.emplace(sizes, make_recipe(p)).first;
    return found->second;
  }

  // cuBLAS is column major, where every matrix of ours is its transpose: so it is given the
  // product of the transposes, the second factor first.
  recipe make_recipe(product const& p) const {
    auto const operation = [](factor const& f) { return f.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    auto const type = p.to.wide != nullptr ? CUDA_R_32F : CUDA_R_16BF;
    recipe made{
        .how = make<description>(
            "cublasLtMatmulDescCreate", cublasLtMatmulDescCreate, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        .a = make_layout(p.a, p.rows, p.inner, p.batch),
        .b = make_layout(p.b, p.inner, p.columns, p.batch),
        .to = make_layout(type, p.rows, p.columns, p.to.stride, p.to.next, p.batch)};
    set(made.how, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.b));
    set(made.how, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.a));
    set(made.how, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{sm_count});
    set(made.how, CUBLASLT_MATMUL_DESC_EPILOGUE, cuda::native(p.then.what));
    // Own addresses are aligned at least as these are.
    constexpr std::size_t alignment_of_parameters = 32;
    set_pointers(made.how, p, room.data() + alignment_of_parameters, room.data());
    choose(made);
    return made;
  }

  void choose(recipe& to) const {
    auto const wanted =
        make<preference>("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate);
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
    auto* const result = to.to.get();
    auto const status = cublasLtMatmulAlgoGetHeuristic(
        native.get(),
        to.how.get(),
        to.b.get(),
        to.a.get(),
        result,
        result,
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

  int sm_count;
  device_array<std::byte> room{workspace};
  handle native = make<handle>("cublasLtCreate", cublasLtCreate);
  std::map<sizes, recipe> recipes = {};
};

products::products(int sm_count) : state_(new state{sm_count}) {}

bool products::has(product const& what) const { return state_->of(what).is_there; }

void products::operator()(cudaStream_t on, product const& what) const {
  auto const& how = state_->of(what);
  if (!how.is_there)
    throw zbpp::error(zbpp::errc::device_failed) + "cuBLASLt has no algorithm for a product of " +
        what.rows + " x " + what.inner + " x " + what.columns +
        " on this device; choose other sizes";
  void* vector = what.then.row_sums;
  if (vector == nullptr) vector = const_cast<bf16*>(what.then.bias);
  set_pointers(how.how, what, vector, what.then.gelu_input);
  float const beta = what.adds || what.residual != nullptr ? 1.0F : 0.0F;
  void* to = what.to.wide;
  if (to == nullptr) to = what.to.narrow;
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
