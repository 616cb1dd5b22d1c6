// SPDX-License-Identifier: Apache-2.0
//
// Products under the model of CUDA: three loops, and the epilogues of cuBLASLt; small sizes only.
#include "gelu.hpp"
#include "products.hpp"
#include "touching.hpp"
#include <zbpp/cuda/error.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace gpt::cuda {
namespace {

/// The values of one matrix of a factor, row by row, as it is meant.
std::vector<float> widened(factor const& f, index batch, index rows, index columns) {
  std::vector<float> all(static_cast<std::size_t>(rows * columns));
  bf16 const* const first = f.data + batch * f.next;
  index const down = f.transposed ? 1 : f.stride;
  index const right = f.transposed ? f.stride : 1;
  float* to = all.data();
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < columns; ++c) *to++ = wide(first[r * down + c * right]);
  return all;
}

/// Says what is stored of a sum, and does what the epilogue does beside it.
float finished(epilogue const& then, float sum, index place, index column) {
  switch (then.what) {
    case epilogue::kind::bias: return sum + wide(then.bias[column]);
    case epilogue::kind::bias_gelu: {
      float const in = sum + wide(then.bias[column]);
      then.gelu_input[place] = narrow(in);
      return gelu::of(in);
    }
    case epilogue::kind::gelu_backward: return sum * gelu::derivative(wide(then.gelu_input[place]));
    case epilogue::kind::none:
    case epilogue::kind::row_sums: break;
  }
  return sum;
}

void multiply(product const& what) {
  for (index n = 0; n < what.batch; ++n) {
    auto const a = widened(what.a, n, what.rows, what.inner);
    auto const b = widened(what.b, n, what.inner, what.columns);
    for (index r = 0; r < what.rows; ++r)
      for (index c = 0; c < what.columns; ++c) {
        float sum = 0.0F;
        for (index i = 0; i < what.inner; ++i)
          sum += a.data()[r * what.inner + i] * b.data()[i * what.columns + c];
        auto const place = n * what.to.next + r * what.to.stride + c;
        sum *= what.scale;
        if (what.residual != nullptr) sum += wide(what.residual[place]);
        if (what.to.wide != nullptr)
          what.to.wide[place] = what.adds ? what.to.wide[place] + sum : sum;
        else
          what.to.narrow[place] = narrow(
              finished(what.then, what.adds ? sum + wide(what.to.narrow[place]) : sum, place, c));
      }
  }
  if (what.then.what != epilogue::kind::row_sums) return;
  auto const a = widened(what.a, 0, what.rows, what.inner);
  for (index r = 0; r < what.rows; ++r) {
    float sum = 0.0F;
    for (index i = 0; i < what.inner; ++i) sum += a.data()[r * what.inner + i];
    what.then.row_sums[r] = sum;
  }
}

/// Calls with each run of values of a matrix, or of each of a batch: what lies between its rows is
/// not touched.
template <class Value, class Do>
void each_run(
    Value* data, index batch, index next, index rows, index columns, index stride, Do run) {
  bool const is_dense = stride == columns;
  for (index n = 0; n < batch; ++n)
    for (index r = 0; r < (is_dense ? 1 : rows); ++r)
      run(data + n * next + r * stride, is_dense ? rows * columns : columns);
}

void touch(touching& t, factor const& f, index batch, index rows, index columns) {
  if (f.transposed) std::swap(rows, columns);
  each_run(f.data, batch, f.next, rows, columns, f.stride, [&](auto* first, index count) {
    t.reads(first, count);
  });
}

template <class Value>
void touch_result(touching& t, product const& what, Value* data, bool reads, bool writes) {
  auto const& in = what.to;
  each_run(
      data, what.batch, in.next, what.rows, what.columns, in.stride, [&](auto* first, index count) {
        if (reads) t.reads(first, count);
        if (writes) t.writes(first, count);
      });
}

void touch(touching& t, epilogue const& then, product const& what) {
  switch (then.what) {
    case epilogue::kind::none: return;
    case epilogue::kind::bias: return t.reads(then.bias, what.columns);
    case epilogue::kind::bias_gelu:
      t.reads(then.bias, what.columns);
      return touch_result(t, what, then.gelu_input, false, true);
    case epilogue::kind::gelu_backward: return touch_result(t, what, then.gelu_input, true, false);
    case epilogue::kind::row_sums: return t.writes(then.row_sums, what.rows);
  }
}

}  // namespace

struct products::state {};

products::products(int) {}
products::products(products&&) noexcept = default;
products& products::operator=(products&&) noexcept = default;
products::~products() = default;

// As on a GPU, not every product has row sums: both ways of making them are to run in tests.
bool products::has(product const& what) {
  return what.then.what != epilogue::kind::row_sums || what.rows % 64 == 0;
}

void products::operator()(cudaStream_t on, product const& what) {
  touching t;
  touch(t, what.a, what.batch, what.rows, what.inner);
  touch(t, what.b, what.batch, what.inner, what.columns);
  if (what.to.wide != nullptr)
    touch_result(t, what, what.to.wide, what.adds, true);
  else
    touch_result(t, what, what.to.narrow, what.adds, true);
  if (what.residual != nullptr) touch_result(t, what, what.residual, true, false);
  touch(t, what.then, what);
  // Own choice: a multiplication a nanosecond of the model's time.
  auto const ns = what.batch * what.rows * what.columns * what.inner;
  auto const body = [what] { multiply(what); };
  zbpp::cuda::check(zbpp::cuda_model::launch(on, "product", t.read(), t.written(), body, ns));
}

}  // namespace gpt::cuda
